"""Numbers that depend on the sizes of a model's inputs, as the graphs of a pipe file write them.

An expression is a sum of products (`16*B*S + 4*B - 1`), a rule is one operation of two expressions
(`floor_div(S, 2)`). Both work on ints and on torch's symbolic ints.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .errors import CompileError
from .private import is_known

__all__ = ["GraphSize", "Rule", "SizeExpr", "expr_text", "resolve"]

_TERM = re.compile(r"\s*([+-]?)\s*([A-Za-z0-9_]+(?:\s*\*\s*[A-Za-z0-9_]+)*)")


@dataclasses.dataclass(frozen=True)
class SizeExpr:
    """A sum of products: (factor, names) for each product."""

    terms: tuple[tuple[int, tuple[str, ...]], ...]

    @staticmethod
    def parse(text: str) -> SizeExpr | None:
        """None for a text that is not an expression."""
        terms: list[tuple[int, tuple[str, ...]]] = []
        at = 0
        while at < len(text):
            found = _TERM.match(text, at)
            if found is None or (terms and not found[1]):
                return None if text[at:].strip() else SizeExpr(tuple(terms))
            factor = -1 if found[1] == "-" else 1
            names = []
            for word in re.split(r"\s*\*\s*", found[2]):
                if word[0].isdigit():
                    if not word.isdigit():
                        return None
                    factor *= int(word)
                else:
                    names.append(word)
            terms.append((factor, tuple(names)))
            at = found.end()
        return SizeExpr(tuple(terms)) if terms else None

    @property
    def names(self) -> set[str]:
        return {name for _, names in self.terms for name in names}

    def number(self) -> int | None:
        """The value of an expression without sizes."""
        return sum(factor for factor, _ in self.terms) if not self.names else None

    def at(self, sizes: Mapping[str, Any]) -> Any:
        total: Any = 0
        for factor, names in self.terms:
            product: Any = factor
            for name in names:
                product = sizes[name] if isinstance(product, int) and product == 1 else product * sizes[name]
            total = product if isinstance(total, int) and total == 0 else total + product
        return total


def _power(left: Any, right: Any) -> Any:
    return left**right


def _truth(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The result of a comparison, 1 or 0. It must be the same for all sizes, because a program
    cannot have two results."""

    def apply(left: Any, right: Any) -> Any:
        held = compare(left, right)
        if isinstance(held, bool):
            return int(held)
        if is_known(held):
            return 1
        if is_known(torch.sym_not(held)):
            return 0
        raise CompileError(f"the model decides by its sizes: {left} against {right}")

    return apply


_RULES: dict[str, Callable[[Any, Any], Any]] = {
    "product": operator.mul,
    "power": _power,
    "floor_div": operator.floordiv,
    "mod": operator.mod,
    "min": torch.sym_min,
    "max": torch.sym_max,
    "equal": _truth(operator.eq),
    "unequal": _truth(operator.ne),
    "less": _truth(operator.lt),
    "at_most": _truth(operator.le),
    "both": _truth(lambda left, right: left != 0 and right != 0),
    "either": _truth(lambda left, right: left != 0 or right != 0),
    "bit_and": operator.and_,
    "bit_or": operator.or_,
    "bit_xor": operator.xor,
}
_TRUTHS = {"equal", "unequal", "less", "at_most", "both", "either"}


@dataclasses.dataclass(frozen=True)
class Rule:
    """One operation of two expressions."""

    op: str
    left: SizeExpr
    right: SizeExpr

    @staticmethod
    def parse(text: str) -> Rule | None:
        found = re.fullmatch(r"(\w+)\(([^,]*),([^,]*)\)", text.strip())
        if found is None or found[1] not in _RULES:
            return None
        left, right = SizeExpr.parse(found[2].strip()), SizeExpr.parse(found[3].strip())
        return None if left is None or right is None else Rule(found[1], left, right)

    @property
    def is_truth(self) -> bool:
        return self.op in _TRUTHS

    def at(self, sizes: Mapping[str, Any]) -> Any:
        return _RULES[self.op](self.left.at(sizes), self.right.at(sizes))


@dataclasses.dataclass(frozen=True)
class GraphSize:
    """A size of a graph: given by the inputs, computed by a rule, or measured while the graph runs."""

    name: str
    example: int
    least: int = 1
    greatest: int | None = None
    rule: Rule | None = None
    measured: str | None = None  # the value at which it is measured


def resolve(sizes: list[GraphSize], given: Mapping[str, Any]) -> dict[str, Any]:
    """All sizes, from those that the inputs determine. Sizes that are measured are left out, and sizes that depend on
    them."""
    known = dict(given)
    for size in sizes:
        if size.rule is not None and size.rule.left.names | size.rule.right.names <= known.keys():
            known[size.name] = size.rule.at(known)
    return known


def expr_text(size: Any, names: Mapping[Any, str]) -> int | str | None:
    """A size of a traced tensor as a number or an expression; None if no expression can represent
    it.

    `names` has the names of torch's symbols.
    """
    if isinstance(size, int):
        return size
    import sympy  # type: ignore[import-untyped]

    expr = size.node.expr
    if expr.is_Integer:
        return int(expr)
    products = []
    for product in sympy.Add.make_args(sympy.expand(expr)):
        factor, rest = product.as_coeff_Mul()
        words = []
        for part in sympy.Mul.make_args(rest):
            if part == 1:
                continue
            if part not in names:
                return None
            words.append(names[part])
        if not factor.is_Integer or len(set(words)) != len(words):
            return None
        products.append((int(factor), sorted(words)))
    products.sort(key=lambda each: (-len(each[1]), each[1]))
    text = ""
    for number, words in products:
        sign = ("-" if number < 0 else "") if not text else (" - " if number < 0 else " + ")
        digits = [] if abs(number) == 1 and words else [str(abs(number))]
        text += sign + "*".join(digits + words)
    return text
