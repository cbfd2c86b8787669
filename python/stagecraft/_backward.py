"""The three backwards of a stage, for programs that call them themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from stagecraft import _C

__all__ = ["stage_backward", "stage_backward_input", "stage_backward_weight"]


def _pairs(outputs: Any, grads: Any) -> tuple[list[Any], list[torch.Tensor | None]]:
    """The tensors, or edges of the graph, that a backward can start from, and their gradients."""
    tensors: list[Any] = []
    starts: list[torch.Tensor | None] = []

    def visit(output: Any, grad: Any) -> None:
        if isinstance(output, GradientEdge):
            if not isinstance(grad, torch.Tensor):
                raise AssertionError(f"expected a tensor as the gradient of an edge of the graph, got {type(grad).__name__}")
            tensors.append(output)
            starts.append(grad)
        elif isinstance(output, torch.Tensor):
            if not output.requires_grad:
                return
            if grad is None and output.numel() == 1:
                grad = torch.ones_like(output)
            if grad is None:
                return
            tensors.append(output)
            starts.append(grad)
        elif isinstance(output, (tuple, list)):
            if grad is None:
                grad = [None] * len(output)
            if not isinstance(grad, (tuple, list)) or len(grad) != len(output):
                raise ValueError(
                    f"expected a gradient for each of {len(output)} outputs, got {type(grad).__name__}"
                )
            for each, start in zip(output, grad):
                visit(each, start)
        elif isinstance(output, dict):
            if grad is None:
                grad = {}
            for key, each in output.items():
                visit(each, grad.get(key))

    visit(outputs, grads)
    return tensors, starts


def stage_backward(
    stage_output: Any,
    output_grads: Any,
    input_values: Sequence[Any],
    outputs_with_grads_idxs: list[int] | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """The whole backward: adds to the parameters' ``.grad`` and returns the gradients of the inputs.

    Args:
        stage_output: the outputs, a loss or any tuple, list or dict of tensors, of edges of the graph
            (`torch.autograd.graph.get_gradient_edge`) for outputs that are gone, and of None.
        output_grads: their gradients, in the same form; None for a loss.
        input_values: the inputs; non-tensors have no gradient.
        outputs_with_grads_idxs: use only these outputs.
    """
    if outputs_with_grads_idxs is not None:
        stage_output = [stage_output[i] for i in outputs_with_grads_idxs]
        output_grads = [output_grads[i] for i in outputs_with_grads_idxs]
    for value in input_values:
        if isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf:
            value.retain_grad()
    tensors, starts = _pairs(stage_output, output_grads)
    if any(isinstance(each, GradientEdge) for each in tensors):
        torch.autograd.backward(tensors, starts)
    else:
        _C.backward_full(tensors, starts)
    grads: list[torch.Tensor | None] = []
    for value in input_values:
        if isinstance(value, torch.Tensor):
            grads.append(value.grad)
            value.grad = None
        else:
            grads.append(None)
    return tuple(grads)


def stage_backward_input(
    stage_outputs_or_loss: list[torch.Tensor],
    output_grads: list[torch.Tensor] | None,
    input_values: list[Any],
    weights: Iterator[torch.nn.Parameter],
) -> tuple[tuple[torch.Tensor | None, ...], list[dict[str, Any]]]:
    """The input half: the gradients of the inputs, and what `stage_backward_weight` needs.

    The parameters get no gradients. Each group belongs to one node of the graph that leads to
    inputs and to parameters; its ``grads`` may be replaced before the weight half.
    """
    tensors, starts = _pairs(stage_outputs_or_loss, output_grads)
    if any(isinstance(each, GradientEdge) for each in tensors):
        raise TypeError("the input half starts from tensors: expected outputs that are alive, got an edge of the graph")
    inputs = [value for value in input_values if isinstance(value, torch.Tensor)]
    grads, borders = _C.backward_input(tensors, starts, inputs)
    wanted = {id(weight) for weight in weights}
    groups = []
    for node, border_grads, parameters, border in borders:
        if wanted and not any(id(parameter) in wanted for parameter in parameters):
            continue
        groups.append(
            {
                "params": set(parameters),
                "intermediates": [node],
                "grads": [border_grads],
                "_border": border,
            }
        )
    found = iter(grads)
    result: list[torch.Tensor | None] = []
    for value in input_values:
        if not isinstance(value, torch.Tensor):
            result.append(None)
            continue
        grad = next(found)
        if grad is not None and value.requires_grad:
            value.grad = grad if value.grad is None else value.grad + grad
        result.append(grad)
    return tuple(result), groups


def stage_backward_weight(
    weights: Iterator[torch.nn.Parameter],
    param_groups: list[dict[str, Any]],
    retain_graph: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """The weight half: adds to the parameters' ``.grad`` and returns those gradients.

    ``retain_graph=True`` keeps the graph for a further call.
    """
    work = []
    for group in param_groups:
        grads = _first_grads(group["grads"])
        if grads is not None:
            work.append((group["_border"], list(grads)))
    _C.backward_weight(work, retain_graph)
    return tuple(weight.grad for weight in weights)


def _first_grads(grads: Any) -> Iterable[torch.Tensor | None] | None:
    """The gradients of a group's node: one tuple, with an entry for each of the node's outputs."""
    for entry in grads or ():
        if entry is None:
            continue
        if isinstance(entry, torch.Tensor):
            return (entry,)
        return tuple(entry)
    return None
