"""The three backwards of a stage."""

from __future__ import annotations
