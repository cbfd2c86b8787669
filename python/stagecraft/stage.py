"""Stages of a pipeline."""

from __future__ import annotations
