"""Submodules of a traced graph."""

from __future__ import annotations
