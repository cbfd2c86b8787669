"""Divides a joint graph into forward and backward, and a backward into its two halves, I and W."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import fx

from .fx_tools import VIEWS, ancestors, drop_unused, extract, is_sym, is_tensor, nbytes, output, placeholders
from .private import partition
from .programs import Program, Slot
from .tensors_only import CARRIER, read_sizes_off_tensors

__all__ = ["Divided", "divide", "split_backward"]

# I computes a gradient of a parameter if W would have to keep at least this many times its bytes
# for it. (Norms and biases.)
_SMALL = 4
# Inputs that exist all the time. Reading them again costs no memory.
_LASTING = {"parameter", "buffer", "prepared"}


@dataclasses.dataclass
class Divided:
    """A forward and its backward. `slots` has the inputs of the backward by name."""

    forward: Program
    backward: Program
    slots: dict[str, Slot]
    carriers: list[fx.Node]


def divide(
    joint: fx.GraphModule,
    outputs: list[Slot | None],
    count: int,
    slots: dict[str, Slot],
    mode: Any,
    carriers: list[fx.Node],
) -> Divided:
    """`outputs` describes the outputs of the joint graph. The first `count` are those of the
    forward.

    `carriers` are inputs from whose shapes sizes may be read.
    """
    weights = [i for i, node in enumerate(placeholders(joint)) if slots[node.name].kind in _LASTING]
    forward, backward = partition(joint, mode, count, weights)
    _make_views_again(forward, backward, count, slots, outputs)
    updated = {slot.index for slot in outputs[:count] if slot is not None and slot.kind == "buffer_update"}
    kept: list[fx.Node] = []
    described: list[Slot] = []
    saved: dict[str, Slot] = {}
    for position, node in enumerate(output(forward).args[0]):  # type: ignore[arg-type]
        if position < count:
            slot = outputs[position]
            assert slot is not None
            kept.append(node)
            described.append(slot)
            continue
        if not is_tensor(node) or node.name in saved:
            continue
        if node.op == "placeholder":
            slot = slots[node.name]
            if slot.kind != "buffer" or slot.index not in updated:
                continue  # the backward gets this input again
            # The caller overwrites the buffer before the backward runs.
            original = node
            with forward.graph.inserting_before(output(forward)):
                node = forward.graph.call_function(torch.ops.aten.clone.default, (original,))
            node.meta = dict(original.meta)
            saved[original.name] = Slot("saved", len(saved))
        else:
            saved[node.name] = Slot("saved", len(saved))
        kept.append(node)
        described.append(Slot("saved", len(saved) - 1))
    module = extract(forward, placeholders(forward), kept)
    read_sizes_off_tensors(module, carriers)
    drop_unused(module)
    known = slots | carrier_slots(carriers, slots)
    made = [
        (node, slot)
        for node, slot in zip(output(backward).args[0], outputs[count:], strict=True)  # type: ignore[arg-type]
        if node is not None and slot is not None
    ]
    whole = extract(backward, placeholders(backward), [node for node, _ in made])
    _separate_convolutions(whole)
    # The halves are made from a graph whose inputs still include sizes.
    return Divided(
        Program(module, _inputs(module, known), described),
        Program(whole, [], [slot for _, slot in made]),
        known | saved,
        carriers,
    )


def carrier_slots(carriers: list[fx.Node], slots: dict[str, Slot]) -> dict[str, Slot]:
    """The slots of inputs that are passed for their sizes alone."""
    return {
        node.name + CARRIER: Slot("sizes") if slots[node.name].kind == "sizes" else Slot("sizes_of", slots[node.name].index)
        for node in carriers
    }


def _inputs(module: fx.GraphModule, slots: dict[str, Slot]) -> list[Slot]:
    return [slots[node.name] for node in placeholders(module)]


def finish(program: Program, divided: Divided, kept: dict[str, Slot] | None = None) -> Program:
    """The program with tensors only among its inputs, and their slots."""
    module = extract(program.module, placeholders(program.module), program.output_nodes())
    read_sizes_off_tensors(module, divided.carriers)
    drop_unused(module)
    return Program(module, _inputs(module, divided.slots | (kept or {})), program.outputs)


def _make_views_again(
    forward: fx.GraphModule, backward: fx.GraphModule, count: int, slots: dict[str, Slot], outputs: list[Slot | None]
) -> None:
    """Saves the base instead of a view of a forward input. The backward makes the view again."""
    updated = {slot.index for slot in outputs if slot is not None and slot.kind == "buffer_update"}
    in_forward = {node.name: node for node in forward.graph.nodes}
    have = {node.name: node for node in placeholders(backward)}
    first = next(node for node in backward.graph.nodes if node.op != "placeholder")
    gone = set()
    for node in list(have.values()):
        chain = []
        source = in_forward.get(node.name)
        while (
            source is not None
            and source.op == "call_function"
            and source.target in VIEWS
            and len(source.all_input_nodes) == 1
            and is_tensor(source)
        ):
            chain.append(source)
            source = source.all_input_nodes[0]
        if not chain or source is None or source.op != "placeholder":
            continue
        slot = slots[source.name]
        if slot.kind == "buffer" and slot.index in updated:
            continue
        with backward.graph.inserting_before(first):
            if source.name not in have:
                have[source.name] = backward.graph.placeholder(source.name)
                have[source.name].meta = dict(source.meta)
            copies = {source: have[source.name]}
            for view in reversed(chain):
                copies[view] = backward.graph.node_copy(view, copies.__getitem__)
        node.replace_all_uses_with(copies[chain[0]])
        backward.graph.erase_node(node)
        gone.add(chain[0])
    if gone:
        results = output(forward)
        nodes = list(results.args[0])  # type: ignore[arg-type]
        results.args = (tuple(n for i, n in enumerate(nodes) if i < count or n not in gone),)
        backward.graph.lint()


def _separate_convolutions(backward: fx.GraphModule) -> None:
    """Divides the backward of a convolution, which is one node, into a node for the gradient of the input
    and one for those of the weights."""
    for node in list(backward.graph.nodes):
        if node.target is not torch.ops.aten.convolution_backward.default:
            continue
        mask = list(node.args[-1])
        weights = [user for user in node.users if user.target is operator.getitem and user.args[1] != 0]
        if not mask[0] or not weights:
            continue
        with backward.graph.inserting_after(node):
            other = backward.graph.node_copy(node)
        other.args = (*node.args[:-1], [False, *mask[1:]])
        other.meta = dict(node.meta)
        node.args = (*node.args[:-1], [True, False, False])
        for user in weights:
            user.args = (other, user.args[1])
    backward.graph.lint()


def split_backward(divided: Divided) -> tuple[Program, Program] | None:
    """Splits the backward: I computes the gradients of inputs, W those of weights. None if the stage
    has only one of the two.

    W reads `kept` values of I, and makes views of them again. I computes the gradients for which W would have to
    keep far more bytes than they have.
    """
    module = divided.backward.module
    nodes = divided.backward.output_nodes()
    described = list(zip(nodes, divided.backward.outputs, strict=True))
    input_grads = [(node, slot) for node, slot in described if slot.kind == "input_grad"]
    weight_grads = [(node, slot) for node, slot in described if slot.kind != "input_grad"]
    if not input_grads or not weight_grads:
        return None
    spine = {node for node in ancestors(node for node, _ in input_grads) if node.op != "placeholder"}
    # A node with several results computes all of them at once.
    spine |= {node for node in module.graph.nodes if node.target is operator.getitem and node.args[0] in spine}

    def roots(grad: fx.Node) -> set[fx.Node]:
        """The values of the spine that a gradient depends on, without views and sizes."""
        found: set[fx.Node] = set()
        seen: set[fx.Node] = set()
        todo = [grad]
        while todo:
            node = todo.pop()
            if node in seen or node.op in ("placeholder", "get_attr") or is_sym(node):
                continue
            seen.add(node)
            if node not in spine or (node.target in VIEWS and len(node.all_input_nodes) >= 1 and is_tensor(node)):
                todo.extend(node.all_input_nodes)
            elif is_tensor(node):
                found.add(node)
            else:
                raise AssertionError(f"{node.name}: {node.target}")
        return found

    def is_on_spine(grad: fx.Node) -> bool:
        while grad not in spine and grad.target in VIEWS and len(grad.all_input_nodes) == 1:
            grad = grad.all_input_nodes[0]
        return grad in spine

    needs = {node: roots(node) for node, _ in weight_grads}
    early = {node for node in needs if is_on_spine(node)}
    readers: dict[fx.Node, list[fx.Node]] = {}
    for grad, found in needs.items():
        if grad not in early:
            for root in found:
                readers.setdefault(root, []).append(grad)
    for root, grads in readers.items():
        if sum(nbytes(grad) for grad in grads) * _SMALL < nbytes(root):
            early.update(grads)
    # Nothing is gained if the values are kept for other gradients anyway.
    kept_anyway = set().union(*(found for grad, found in needs.items() if grad not in early))
    early = {grad for grad in early if is_on_spine(grad) or not needs[grad] <= kept_anyway}
    late = [(node, slot) for node, slot in weight_grads if node not in early]
    if not late:
        return None
    order = {node: position for position, node in enumerate(module.graph.nodes)}
    kept = sorted(set().union(*(needs[node] for node, _ in late)), key=lambda node: order[node])
    first = input_grads + [(node, slot) for node, slot in weight_grads if node in early]
    first += [(node, Slot("kept", number)) for number, node in enumerate(kept)]
    ins = placeholders(module)
    i_half = Program(extract(module, ins, [node for node, _ in first]), [], [slot for _, slot in first])
    w_half = Program(extract(module, ins + kept, [node for node, _ in late]), [], [slot for _, slot in late])
    names = {node.name: Slot("kept", number) for number, node in enumerate(kept)}
    return finish(i_half, divided), finish(w_half, divided, names)
