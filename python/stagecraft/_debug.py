"""Texts for error messages."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.node import map_aggregate


def friendly_debug_info(v: object) -> str:
    """A value in one line: shape, gradient and type of a tensor."""
    if isinstance(v, torch.Tensor):
        return f"Tensor({v.shape}, grad={v.requires_grad}, dtype={v.dtype})"
    return str(v)


def map_debug_info(a: Any) -> Any:
    """The same for every leaf of lists, tuples, dicts and slices."""
    return map_aggregate(a, friendly_debug_info)
