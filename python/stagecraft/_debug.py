"""Texts for error messages."""

from __future__ import annotations
