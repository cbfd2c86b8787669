"""Small tools for FX graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

__all__ = [
    "VIEWS",
    "ancestors",
    "drop_unused",
    "extract",
    "is_sym",
    "is_tensor",
    "nbytes",
    "output",
    "placeholders",
]

_aten = torch.ops.aten
# Operators whose result shares the memory of their argument and costs nothing.
VIEWS = {
    _aten.view.default,
    _aten.reshape.default,
    _aten.permute.default,
    _aten.unsqueeze.default,
    _aten.squeeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.expand.default,
    _aten.slice.Tensor,
    _aten.select.int,
    _aten.t.default,
    _aten.transpose.int,
    _aten.alias.default,
    _aten.detach.default,
    _aten._unsafe_view.default,
    _aten.as_strided.default,
    _aten.split.Tensor,
    _aten.split_with_sizes.default,
    _aten.unbind.int,
}


def is_tensor(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def is_sym(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(
        node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
    )


def placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def output(module: fx.GraphModule) -> fx.Node:
    found: fx.Node = next(node for node in module.graph.nodes if node.op == "output")
    return found


def hint(size: Any) -> int:
    """The value of a size in the example."""
    if isinstance(size, int):
        return size
    node = size.node
    known = getattr(node, "_hint", None)
    if known is not None:
        return int(known)
    return int(node.shape_env.size_hint(node.expr))


def nbytes(node: fx.Node) -> int:
    """The bytes of a tensor at the example's sizes."""
    value = node.meta["val"]
    count = int(value.element_size())
    for size in value.shape:
        count *= hint(size)
    return count


def ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes and all nodes that they depend on."""
    seen: set[fx.Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(node.all_input_nodes)
    return seen


def extract(module: fx.GraphModule, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> fx.GraphModule:
    """The part of a graph that computes `outputs` from `inputs`. Both may be any nodes of the
    graph.

    Inputs that nothing reads are kept. Other nodes that nothing reads are dropped, even if they may draw random
    numbers.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    needed: set[fx.Node] = set()
    todo = [node for node in outputs if node not in copies]
    while todo:
        node = todo.pop()
        if node in needed or node in copies:
            continue
        if node.op == "placeholder":
            raise AssertionError(f"{node.name} is not among the inputs")
        needed.add(node)
        todo.extend(node.all_input_nodes)
    for node in module.graph.nodes:
        if node in needed:
            copies[node] = graph.node_copy(node, lambda each: copies[each])
    graph.output(tuple(copies[node] for node in outputs))
    graph.lint()
    return fx.GraphModule(module, graph)


def drop_unused(module: fx.GraphModule) -> None:
    """Removes inputs that nothing reads."""
    for node in placeholders(module):
        if not node.users:
            module.graph.erase_node(node)
    module.recompile()
