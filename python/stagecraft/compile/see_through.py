"""Replaces operators that exist in Python only by the operators of torch that they are composed of, before C++
splits the model."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import torch
from torch import fx

from . import private
from .errors import CompileError

__all__ = ["see_through"]


def see_through(archive: Path, result: Path) -> list[str]:
    """Writes a copy of the archive without operators that are composed of others. Returns their names. If there are
    none, writes nothing.

    An operator is composed of others if it has a kernel for CompositeImplicitAutograd: then it has no gradient of its
    own. The modules that register the operators must have been imported.
    """
    try:
        program = torch.export.load(archive)
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise CompileError(f"{archive}: torch.export.load cannot read it: {first}") from error
    found: list[str] = []
    for node in list(program.graph.nodes):
        if _is_made_of_others(node):
            if str(node.target) not in found:
                found.append(str(node.target))
            _replace(program, node)
    if found:
        program.graph_module.recompile()
        torch.export.save(program, result)
    return found


def _is_made_of_others(node: fx.Node) -> bool:
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    return target.namespace not in ("aten", "prims") and private.is_composite(target)


def _replace(program: Any, node: fx.Node) -> None:
    graph: fx.Graph = program.graph
    inputs = list(dict.fromkeys(node.all_input_nodes))
    target: Any = node.target

    def call(*values: Any) -> Any:
        known = dict(zip(inputs, values, strict=True))
        return target(*fx.map_arg(node.args, known.__getitem__), **fx.map_arg(node.kwargs, known.__getitem__))

    inner = private.trace(call, [each.meta["val"] for each in inputs])
    copies: dict[fx.Node, fx.Node] = {}
    made: Any = None
    given = iter(inputs)
    with graph.inserting_before(node):
        for each in inner.graph.nodes:
            if each.op == "placeholder":
                copies[each] = next(given)
            elif each.op == "output":
                made = each.args[0]
            else:
                copies[each] = graph.node_copy(each, copies.__getitem__)
                copies[each].meta = {**node.meta, **each.meta}
    if not isinstance(made, (tuple, list)):
        _take_over(program, node, copies[made])
        return
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise CompileError(f"node {user.name}: it reads all results of {node.target} at once")
        _take_over(program, user, copies[made[user.args[1]]])  # type: ignore[index]
    graph.erase_node(node)


def _take_over(program: Any, node: fx.Node, other: fx.Node) -> None:
    """Replaces `node` by `other`, also among the outputs of the model."""
    node.replace_all_uses_with(other)
    for spec in program.graph_signature.output_specs:
        if getattr(spec.arg, "name", None) == node.name:
            spec.arg.name = other.name
    program.graph.erase_node(node)
