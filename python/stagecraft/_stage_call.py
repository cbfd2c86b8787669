"""The object that a C++ stage calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn as nn
import torch.utils._pytree as pytree

from stagecraft import values
from stagecraft._utils import _derive_grad_metas, extract_tensor_meta

__all__: list[str] = []


@dataclass(frozen=True, kw_only=True)
class PipelineStageInfo:
    """The forward that runs, for `register_forward_context`. (torch also runs forwards to find shapes. Stagecraft
    does not.)"""

    stage_index: int
    microbatch_index: int
    is_metadata_inference: bool = False


class _ContextHandle:
    """Removes a forward context."""

    def __init__(self, call: _StageCall) -> None:
        self._call: _StageCall | None = call

    def remove(self) -> None:
        """Removes the context. A second call does nothing."""
        call, self._call = self._call, None
        if call is not None:
            call.context = None

    def __enter__(self) -> _ContextHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def tensor_metas(tree: Any) -> tuple[Any, ...]:
    """The metadata of the tensors in a tree of values."""
    return tuple(extract_tensor_meta(leaf) for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))


class Seen:
    """The metadata of the first forward of a step, and of gradients of DTensors, which have placements of their
    own."""

    def __init__(self) -> None:
        self.inputs: tuple[Any, ...] | None = None
        self.outputs: tuple[Any, ...] = ()
        self.input_grads: dict[int, Any] = {}
        self.output_grads: dict[int, Any] = {}

    def look(self, args: Any, output: Any) -> None:
        """Notes a forward. Gradients are noted when they arrive."""
        self.inputs, self.outputs = tensor_metas(args), tensor_metas(output)
        for tree, found in ((args, self.input_grads), (output, self.output_grads)):
            leaves = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
            for index, leaf in enumerate(leaves):
                if values._is_dtensor(leaf) and leaf.requires_grad:
                    leaf.register_hook(_note(found, index))

    def grads(self, metas: tuple[Any, ...], found: dict[int, Any]) -> tuple[Any, ...]:
        """Metadata of gradients: that of the values, except for DTensors."""
        return tuple(found.get(index, derived) for index, derived in enumerate(_derive_grad_metas(metas)))


def _note(found: dict[int, Any], index: int) -> Callable[[torch.Tensor], None]:
    def note(grad: torch.Tensor) -> None:
        found.setdefault(index, extract_tensor_meta(grad))

    return note


class _StageCall:
    """The object that a C++ stage calls and owns: the module, and all that it needs in a step. It
    must not refer to the stage or the schedule, because C++ would keep them alive."""

    __slots__ = (
        "__weakref__",
        "abroad",
        "begin_backward",
        "context",
        "device",
        "end_backward",
        "is_driven",
        "is_last",
        "keeps_outputs",
        "last_forward",
        "kwargs",
        "loss_fn",
        "loss_kwargs",
        "module",
        "outputs",
        "raw",
        "recompute",
        "reduce_grad",
        "reshard",
        "seen",
        "seen_module",
        "targets",
        "unshard",
        "wants_loss",
        "weight_work",
        "wrapper",
    )

    def __init__(self, module: Any, device: torch.device, is_last: bool) -> None:
        self.module = module
        self.device = device
        self.is_last = is_last
        self.recompute = False
        self.weight_work: Callable[[], Any] | None = None
        self.wrapper: Any = None
        self.begin_backward: Callable[..., None] | None = None
        self.end_backward: Callable[..., None] | None = None
        self.unshard: Callable[[], None] | None = None
        self.reshard: Callable[[], None] | None = None
        self.reduce_grad: Callable[[], None] | None = None
        self.loss_fn: Callable[..., Any] | None = None
        self.seen_module: Any = None
        self.seen: Seen | None = None
        self.context: Callable[[int], AbstractContextManager[Any]] | None = None
        self.clear()

    def clear(self) -> None:
        """Releases the data of a step."""
        self.kwargs: list[dict[str, Any]] | None = None
        self.targets: list[Any] | None = None
        self.loss_kwargs: dict[str, Any] = {}
        self.raw: dict[int, Any] = {}
        self.outputs: dict[int, Any] = {}
        self.keeps_outputs = True
        self.wants_loss = False
        self.last_forward = 0
        self.is_driven = False
        self.abroad = True

    def tensors(self) -> tuple[list[Any], list[Any]]:
        if not isinstance(self.module, nn.Module):
            return [], []
        return (
            [(name, value) for name, value in self.module.named_parameters() if not _is_lazy(value)],
            [(name, value) for name, value in self.module.named_buffers() if not _is_lazy(value)],
        )

    def forward(self, m: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.kwargs is not None:
            kwargs = {**kwargs, **self.kwargs[m]} if kwargs else self.kwargs[m]
        args = values.incoming(args)
        if self.context is not None:
            output = self._run_in_context(m, args, kwargs)
        else:
            output = self._run(args, kwargs)
        if self.seen is not None and self.seen.inputs is None:
            self.seen.look(args, output)
        if self.is_last:
            self.last_forward = m
            if self.wants_loss or self.is_driven:
                self.raw[m] = output
                if not self.recompute:
                    return None
            else:
                if self.keeps_outputs:
                    self.outputs[m] = values.detached(output)
                return None
        elif self.is_driven:
            self.raw[m] = output
        return values.outgoing(output, self.abroad)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.wrapper is None:
            return self.module(*args, **kwargs)
        return self.wrapper.forward(self.module, args, kwargs)

    def _run_in_context(self, m: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self.context is not None
        outputs = []
        with self.context(m):
            outputs.append(self._run(args, kwargs))
        if not outputs:
            raise RuntimeError("the forward context has swallowed an exception of the stage's module")
        return outputs[0]

    def loss(self, m: int | None, output: Any) -> Any:
        """The loss of a microbatch; without a number, that of the last forward. `output` is passed
        only if the forward is recomputed."""
        index = self.last_forward if m is None else m
        raw = self.raw.pop(index, None)
        if self.recompute:
            raw = values.incoming((output,))[0]
        assert self.loss_fn is not None
        if self.targets is None:
            loss = self.loss_fn(raw, None, **self.loss_kwargs)
        else:
            loss = self.loss_fn(raw, self.targets[index], **self.loss_kwargs)
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"the loss must be a tensor with one element, got {type(loss).__name__}")
        if self.keeps_outputs:
            self.outputs[index] = values.detached(raw)
        return loss


def _is_lazy(value: torch.Tensor) -> bool:
    return isinstance(value, (nn.UninitializedParameter, nn.UninitializedBuffer))
