"""Makes programs take tensors only: sizes that would be passed as ints are read from the shapes of
tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from .fx_tools import is_sym, is_tensor, placeholders
from .private import sympy_nodes

__all__ = ["CARRIER", "read_sizes_off_tensors"]

# The end of the name of an input for sizes.
CARRIER = "_sizes"


def _is_carrier(node: fx.Node, carriers: Sequence[fx.Node]) -> bool:
    return any(node.name == carrier.name + CARRIER for carrier in carriers)


def _has_size(node: fx.Node, symbol: Any) -> bool:
    return any(isinstance(size, torch.SymInt) and size.node.expr == symbol for size in node.meta["val"].shape)


def read_sizes_off_tensors(module: fx.GraphModule, carriers: Sequence[fx.Node]) -> None:
    """Replaces inputs that are ints, and inputs that are read for their sizes alone.

    A size is read from the shape of a tensor that is passed for its elements. If no such tensor has it, one of the
    `carriers` is passed for its sizes alone: the caller passes a tensor without memory. The same is done if a tensor
    has a product of sizes (rows times length) and no tensor has the factors, because Inductor must be able to read
    every size from a shape.
    """
    graph = module.graph
    sizes: list[fx.Node] = []
    solid: list[fx.Node] = []
    hollow: list[fx.Node] = []
    for node in placeholders(module):
        if not is_tensor(node):
            sizes.append(node)
        elif not node.users:
            continue
        elif not _is_carrier(node, carriers) and all(user.target is torch.ops.aten.sym_size.int for user in node.users):
            hollow.append(node)
            sizes.extend(node.users)
        else:
            solid.append(node)
    shapes = [size.node.expr for node in solid for size in node.meta["val"].shape if isinstance(size, torch.SymInt)]
    factors = {symbol for expr in shapes for symbol in expr.free_symbols} - set(shapes)
    if not sizes and not factors:
        return
    first = next(node for node in graph.nodes if node.op != "placeholder")
    places: dict[Any, tuple[fx.Node, int]] = {}

    def note(node: fx.Node) -> None:
        for dim, size in enumerate(node.meta["val"].shape):
            if isinstance(size, torch.SymInt):
                places.setdefault(size.node.expr, (node, dim))

    for node in solid:
        note(node)
    made: dict[Any, Any] = {}

    def size_of(expr: Any) -> Any:
        if expr in made:
            return made[expr]
        if expr not in places and expr.is_Symbol:
            carrier = next(each for each in carriers if _has_size(each, expr))
            with graph.inserting_before(first):
                node = graph.placeholder(carrier.name + CARRIER)
            node.meta = dict(carrier.meta)
            note(node)
        with graph.inserting_before(first):
            if expr in places:
                tensor, dim = places[expr]
                made[expr] = graph.call_function(torch.ops.aten.sym_size.int, (tensor, dim))
                made[expr].meta = {"val": tensor.meta["val"].shape[dim]}
            else:
                symbols = {symbol: size_of(symbol) for symbol in sorted(expr.free_symbols, key=str)}
                with graph.inserting_before(first):
                    proxies = {symbol: fx.Proxy(node) for symbol, node in symbols.items()}
                    result = sympy_nodes(expr, proxies)
                made[expr] = result.node if isinstance(result, fx.Proxy) else result
        return made[expr]

    for symbol in sorted(factors, key=str):
        size_of(symbol)
    for node in sizes:
        if not node.users:
            continue
        value = node.meta["val"]
        is_number = not isinstance(value, torch.SymInt) or value.node.expr.is_number
        node.replace_all_uses_with(int(value) if is_number else size_of(value.node.expr))  # type: ignore[arg-type]
    for node in reversed(sizes):
        graph.erase_node(node)
    for node in hollow:
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    assert not any(is_sym(node) for node in placeholders(module))
