"""The range of each size in which a trace is valid: torch may have decided by comparing sizes with numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["ranges_of"]

_MOST = 2**31 - 1


def ranges_of(guards: Iterable[Any], symbols: Mapping[str, Any], hints: Mapping[str, int]) -> dict[str, tuple[int, int | None]]:
    """The least and greatest value of each size; None means no limit. All guards must hold at the
    `hints`.

    Only comparisons of one size with a number count. The condition that a size is not 0 or 1 does not count: torch
    adds it because strides of single elements are arbitrary.
    """
    import sympy  # type: ignore[import-untyped]

    ranges: dict[str, tuple[int, int | None]] = {name: (1, None) for name in symbols}
    names = {symbol: name for name, symbol in symbols.items()}
    for guard in guards:
        if not isinstance(guard, (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)) or guard.free_symbols - names.keys():
            continue
        if len(guard.free_symbols) != 1 or guard.atoms(sympy.Function):
            continue
        (symbol,) = guard.free_symbols
        name = names[symbol]

        def holds(number: int, guard: Any = guard, symbol: Any = symbol) -> bool:
            return bool(guard.subs(symbol, number))

        hint = hints[name]
        least, greatest = ranges[name]
        if not holds(hint):
            continue
        if not holds(_MOST):
            found = _edge(holds, hint, _MOST)
            greatest = found if greatest is None else min(greatest, found)
        if not holds(2) and hint > 2:
            least = max(least, _edge(holds, hint, 2))
        ranges[name] = (least, greatest)
    return ranges


def _edge(holds: Any, good: int, bad: int) -> int:
    """The last number from `good` towards `bad` at which the condition holds."""
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good
