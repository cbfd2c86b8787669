"""Moves operators that depend on weights alone out of the programs of a microbatch, into a program that runs after
each update."""

from __future__ import annotations

from torch import fx

from .fx_tools import VIEWS, drop_unused, extract, is_tensor, placeholders
from .programs import Program, Slot

__all__ = ["hoist"]


def hoist(joint: fx.GraphModule, slots: dict[str, Slot]) -> Program | None:
    """Removes casts of weights and similar operators from a joint graph, and returns the program that
    computes them.

    Their results become inputs of the joint graph, of kind `prepared`; `slots` gets their names. Views stay where they
    are, because they cost nothing.
    """
    weights = [node for node in placeholders(joint) if slots[node.name].kind == "parameter"]
    of_weights = set(weights)
    for node in joint.graph.nodes:
        sources = node.all_input_nodes
        if node.op == "call_function" and is_tensor(node) and sources and all(each in of_weights for each in sources):
            of_weights.add(node)
    made = {node for node in of_weights if node.op == "call_function" and node.target not in VIEWS}

    def is_read_outside(node: fx.Node) -> bool:
        """Whether a node that is not hoisted reads the node, directly or through views."""
        return any(user not in made and (user not in of_weights or is_read_outside(user)) for user in node.users)

    cut = [node for node in joint.graph.nodes if node in made and is_read_outside(node)]
    if not cut:
        return None
    prepare = extract(joint, weights, cut)
    drop_unused(prepare)
    last = [node for node in placeholders(joint) if slots[node.name].kind != "output_grad"][-1]
    for number, node in enumerate(cut):
        with joint.graph.inserting_after(last):
            last = joint.graph.placeholder(f"primals_prepared_{number}")
        last.meta = {key: value for key, value in node.meta.items() if key in ("val", "tensor_meta")}
        slots[last.name] = Slot("prepared", number)
        node.replace_all_uses_with(last)
    joint.graph.eliminate_dead_code()
    joint.recompile()
    inputs = [slots[node.name] for node in placeholders(prepare)]
    return Program(prepare, inputs, [Slot("prepared", number) for number in range(len(cut))])
