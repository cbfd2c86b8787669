"""The error that the compiler raises on purpose."""

from __future__ import annotations

__all__ = ["CompileError"]


class CompileError(RuntimeError):
    """What cannot be compiled, in one sentence: what was expected, what came, where."""
