"""Drawings of schedules."""

from __future__ import annotations
