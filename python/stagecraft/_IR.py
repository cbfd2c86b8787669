"""Models traced and cut into stages."""

from __future__ import annotations
