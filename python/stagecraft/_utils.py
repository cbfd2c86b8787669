"""Metadata of tensors at the borders of stages, and small helpers."""

from __future__ import annotations
