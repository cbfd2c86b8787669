"""Schedules: their text, the passes over their lists, and the classes that run them."""

from __future__ import annotations
