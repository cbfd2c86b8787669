"""Operators that Inductor does not decompose. Each is one call in a compiled program.

`grouped_mm` is an operator of ours in graphs. `embedding_weights` is the gradient of an embedding's weights as one call
of torch's kernel. Inductor would add rows in the order in which threads arrive, and bits would differ from run to run.

C++ has the same operators under the same names (stagecraft/compiled/compiled_operators.cpp). Here they serve the trace
and the first run of new programs. The namespace is not that of the graph's operators, because `stagecraft._C` may have
registered those in this process.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["decompositions", "embedding_weights", "find_operator", "grouped_mm", "grouped_mm_weights"]

_SPACE = "stagecraft_compiled"


def _groups(offs: torch.Tensor) -> list[tuple[int, int, int]]:
    """(group, first row, end) of all groups with rows."""
    found, begin = [], 0
    for group, end in enumerate(offs.tolist()):
        if end > begin:
            found.append((group, begin, end))
        begin = end
    return found


@torch.library.custom_op(f"{_SPACE}::grouped_mm", mutates_args=())
def grouped_mm(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """The product of each group of rows [rows, in] with its matrix of [groups, in, out]; group i ends before row offs[i]."""
    result = input.new_zeros(input.shape[0], weight.shape[2])
    for group, begin, end in _groups(offs):
        result[begin:end] = input[begin:end] @ weight[group]
    return result


@torch.library.custom_op(f"{_SPACE}::grouped_mm_weights", mutates_args=())
def grouped_mm_weights(input: torch.Tensor, grad: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """The gradient of the matrices."""
    result = input.new_zeros(offs.shape[0], input.shape[1], grad.shape[1])
    for group, begin, end in _groups(offs):
        result[group] = input[begin:end].t() @ grad[begin:end]
    return result


@torch.library.custom_op(f"{_SPACE}::embedding_weights", mutates_args=())
def embedding_weights(
    grad: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> torch.Tensor:
    """The gradient of the weights of an embedding, computed by torch's own kernel."""
    kernel = torch.ops.aten.embedding_dense_backward.default
    made: torch.Tensor = kernel(grad, indices, num_weights, padding_idx, scale_grad_by_freq)
    return made


@embedding_weights.register_fake
def _(
    grad: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> torch.Tensor:
    return grad.new_empty(num_weights, grad.shape[-1])


def decompositions() -> dict[Any, Any]:
    """Operators of torch that a trace replaces with operators of this file."""
    return {torch.ops.aten.embedding_dense_backward.default: getattr(torch.ops, _SPACE).embedding_weights.default}


@grouped_mm.register_fake
def _(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return input.new_empty(input.shape[0], weight.shape[2])


@grouped_mm_weights.register_fake
def _(input: torch.Tensor, grad: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return input.new_empty(offs.shape[0], input.shape[1], grad.shape[1])


def _save(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    input, weight, offs = ctx.saved_tensors
    of_input = grouped_mm(grad, weight.transpose(1, 2), offs) if ctx.needs_input_grad[0] else None
    of_weight = grouped_mm_weights(input, grad, offs) if ctx.needs_input_grad[1] else None
    return of_input, of_weight, None


grouped_mm.register_autograd(_backward, setup_context=_save)


def _cast_grouped_mm(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    # Cast the arguments, as autocast does for other products.
    if torch.is_autocast_enabled(input.device.type):
        dtype = torch.get_autocast_dtype(input.device.type)
        input, weight = input.to(dtype), weight.to(dtype)
    made: torch.Tensor = grouped_mm(input, weight, offs)
    return made


def find_operator(name: str) -> tuple[Any, Any] | None:
    """The operator that replaces one of ours in a graph, and the function that calls it. None for
    all other operators."""
    if name == "stagecraft::grouped_mm":
        return getattr(torch.ops, _SPACE).grouped_mm.default, _cast_grouped_mm
    return None
