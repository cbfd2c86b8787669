"""The error that the compiler raises on purpose."""

from __future__ import annotations

__all__ = ["CompileError"]


class CompileError(RuntimeError):
    """The reason, in one sentence, why something cannot be compiled: what was expected, what came,
    where."""
