"""Schedules as values; needs no torch."""

from __future__ import annotations
