"""Stages whose modules reduce gradients over data-parallel ranks: DDP, FSDP and replicate.

A pipeline runs many backwards of a stage in a step, and gradients are complete after the last one.
The classes here tell the wrapper of a module which backward is the last.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.nn.parallel import DistributedDataParallel

__all__: list[str] = []


def _fsdp_class() -> Any:
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:
        return None
    return FSDPModule


class _DataParallel:
    """DDP: reduces in the last backward of the step only."""

    kind = "DistributedDataParallel"

    def __init__(self, module: DistributedDataParallel) -> None:
        self._module = module
        self._outputs: dict[int, list[torch.Tensor]] = {}

    def forward(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with module.no_sync():
            output = module(*args, **kwargs)
        if module.find_unused_parameters:
            from stagecraft import _C

            place = _C.current_stage()
            if place is not None:
                self._outputs[place[2]] = [
                    leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)
                ]
        return output

    def begin_backward(self, kind: str, microbatch: int, last: bool) -> None:
        outputs = self._outputs.pop(microbatch, [])
        self._module.require_backward_grad_sync = last
        if last:
            self._outputs.clear()
            self._module.reducer.prepare_for_backward(outputs)

    def end_backward(self, kind: str, microbatch: int, last: bool) -> None:
        self._module.require_backward_grad_sync = True

    def reduce_grad(self, module: Any) -> None:
        pass


class _Sharded:
    """FSDP: the schedule determines when weights are gathered and released, and gradients
    reduced."""

    kind = "FSDPModule"

    def __init__(self, module: Any) -> None:
        self._module = module
        self._gathering: list[Any] = []

    def forward(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._wait()
        return module(*args, **kwargs)

    def _wait(self) -> None:
        for handle in self._gathering:
            if handle is not None:
                handle.wait()
        self._gathering.clear()

    def _parts(self) -> list[Any]:
        kind = _fsdp_class()
        return [part for part in self._module.modules() if isinstance(part, kind)]

    def _set_last(self, is_last: bool) -> None:
        self._module.set_is_last_backward(is_last)
        self._module.set_reshard_after_backward(is_last)
        self._module.set_requires_gradient_sync(is_last)

    def begin_backward(self, kind: str, microbatch: int, last: bool) -> None:
        self._wait()
        self._set_last(False)

    def end_backward(self, kind: str, microbatch: int, last: bool) -> None:
        pass

    def unshard(self) -> None:
        self._gathering += [part.unshard(async_op=True) for part in self._parts()]

    def reshard(self) -> None:
        self._wait()
        for part in self._parts():
            part.reshard()

    def reduce_grad(self, module: Any) -> None:
        self._set_last(True)
        root = self._module._get_fsdp_state()
        for state in root._state_ctx.all_states:
            groups = getattr(state, "_fsdp_param_groups", None)
            if groups is None:
                groups = [state._fsdp_param_group]
            for group in groups:
                if group is not None:
                    group.post_backward()
        root._root_post_backward_final_callback()


def wrap(call: Any) -> None:
    """Sets the wrapper calls that the stage's module needs around its forwards and backwards."""
    module = call.module
    known = call.wrapper
    if known is not None and known._module is module:
        return
    sharded = _fsdp_class()
    call.wrapper = None
    call.begin_backward = call.end_backward = None
    call.unshard = call.reshard = call.reduce_grad = None
    if isinstance(module, DistributedDataParallel):
        call.wrapper = _DataParallel(module)
    elif sharded is not None and isinstance(module, sharded):
        wrapper = _Sharded(module)
        call.wrapper = wrapper
        call.unshard = wrapper.unshard
        call.reshard = wrapper.reshard
        call.reduce_grad = lambda: wrapper.reduce_grad(None)
    if call.wrapper is not None:
        call.begin_backward = call.wrapper.begin_backward
        call.end_backward = call.wrapper.end_backward
