"""Stages of a pipeline."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.utils._pytree as pytree

from stagecraft import _C, parallel, values
from stagecraft._utils import (
    PipeInfo,
    _StageMeta,
    _TensorMeta,
    extract_tensor_meta,
    extract_tensor_metas,
    validate_and_normalize_to_tuple,
    validate_static_arg_grad_correspondence,
)
from stagecraft.errors import PipeliningMetadataError
from stagecraft.world import World, rank_and_size

__all__ = ["PipelineStage", "PipelineStageInfo", "build_stage"]


@dataclass(frozen=True, kw_only=True)
class PipelineStageInfo:
    """Which forward runs, for `register_forward_context`. A forward that only looks for shapes does not occur here."""

    stage_index: int
    microbatch_index: int
    is_metadata_inference: bool = False


class _ContextHandle:
    """Takes a forward context away again."""

    def __init__(self, call: _StageCall) -> None:
        self._call: _StageCall | None = call

    def remove(self) -> None:
        """Takes it away; a second call does nothing."""
        call, self._call = self._call, None
        if call is not None:
            call.context = None

    def __enter__(self) -> _ContextHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _normalize_model_output_as_tuple(output: Any) -> tuple[Any, ...]:
    """A list as a tuple, a tuple as it is, anything else as a tuple of one."""
    if isinstance(output, list):
        return tuple(output)
    return output if isinstance(output, tuple) else (output,)


class _RootArgPlaceholder:
    """Stands for an input of the model in ``args_recv_info``."""

    def __init__(self, meta: Any = None) -> None:
        self.meta = meta


class _RecvInfo:
    """Where an input of a stage comes from."""

    def __init__(
        self,
        input_name: str,
        source: int | None,
        buffer: torch.Tensor | None,
        tensor_meta: Any = None,
        *,
        is_root_arg: bool = False,
    ) -> None:
        self.input_name = input_name
        self.source = source
        self.buffer = buffer
        self.tensor_meta = tensor_meta
        self.is_root_arg = is_root_arg

    def __repr__(self) -> str:
        shape = None if self.buffer is None else tuple(self.buffer.shape)
        return f"_RecvInfo(input={self.input_name}, source={self.source}, shape={shape})"


class _StageCall:
    """What the C++ stage calls: the module and what it needs in a step, and nothing that leads back
    to the stage or the schedule (C++ owns this object)."""

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
        self.context: Callable[[int], AbstractContextManager[Any]] | None = None
        self.clear()

    def clear(self) -> None:
        """Forgets what belongs to a step."""
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
        """The loss of a microbatch; without a number, of the one that was forwarded last. `output` is
        only there if the forward is recomputed."""
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


class _PipelineStageBase(ABC):
    """What schedules need of a stage. Stand-ins of tests derive from it without its constructor."""

    def __init__(
        self,
        submodule: nn.Module,
        stage_index: int,
        num_stages: int,
        device: torch.device,
        group: dist.ProcessGroup | World | None = None,
        dw_builder: Callable[[], Callable[..., None]] | None = None,
    ) -> None:
        if stage_index < 0 or stage_index >= num_stages:
            raise ValueError(
                f"stage_index {stage_index} is out of range: a pipeline of {num_stages} stages has "
                f"0 to {num_stages - 1}"
            )
        self.stage_index = stage_index
        self.num_stages = num_stages
        self.group: Any = group
        self.group_rank, self.group_size = rank_and_size(group)
        if self.group_size > num_stages:
            raise RuntimeError(
                f"the group has {self.group_size} ranks, more than the pipeline's {num_stages} stages"
            )
        self.device = torch.device(device) if device is not None else torch.device("cpu")
        self._call = _StageCall(submodule, self.device, stage_index == num_stages - 1)
        self._lone: Any = None
        self._driven: Any = None
        self.dw_builder = dw_builder
        if dw_builder is not None:
            self._call.weight_work = dw_builder
        self.backward_state: dict[int, tuple[Any, ...]] = {}
        self.dw_runner: dict[int, Callable[..., None]] = {}
        self.fwd_cache: dict[int, tuple[Any, list[torch.Tensor]]] = {}
        self.bwd_cache: dict[int, tuple[Any, ...]] = {}
        self.output_chunks: list[Any] = []
        self.args_recv_info: dict[int, tuple[Any, ...]] = {}
        self.grad_recv_info: dict[int, tuple[Any, ...]] = {}
        self.act_send_info: dict[int, list[int]] = {}
        self.grad_send_info: list[Any] | None = None
        self.chunks: int | None = None
        self._has_backward = False
        self._stage_meta = _StageMeta()
        self._local_inputs: dict[int, Any] = {}
        self._local_grads: dict[int, Any] = {}
        self.stage_index_to_group_rank: dict[int, int] = {
            i: i % self.group_size for i in range(num_stages)
        }
        self.log_prefix = f"[Stage {stage_index}]"
        library: Any = dist
        debug = library.get_debug_level() if dist.is_available() else None
        self._runtime_validate = debug == library.DebugLevel.DETAIL if debug is not None else False

    # A stage runs the module that is there at the time of the call.
    def register_forward_context(
        self, factory: Callable[[PipelineStageInfo], AbstractContextManager[Any]]
    ) -> _ContextHandle:
        """Puts a context around each forward of the stage; one at a time. The handle's `remove` ends it."""
        if self._call.context is not None:
            raise RuntimeError("the stage has a forward context already: remove it first")
        index = self.stage_index
        self._call.context = lambda m: factory(PipelineStageInfo(stage_index=index, microbatch_index=m))
        return _ContextHandle(self._call)

    @property
    def submod(self) -> Any:
        call = self.__dict__.get("_call")
        return self.__dict__.get("_own_submod") if call is None else call.module

    @submod.setter
    def submod(self, module: Any) -> None:
        call = self.__dict__.get("_call")
        if call is None:
            self.__dict__["_own_submod"] = module
        else:
            call.module = module

    @property
    def has_backward(self) -> bool:
        """Whether the stage trains in the current step."""
        return self._has_backward

    @has_backward.setter
    def has_backward(self, value: bool) -> None:
        self._has_backward = value

    @property
    def is_first(self) -> bool:
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        return self.stage_index == self.num_stages - 1

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.submod).__name__}, {self.stage_index} of "
            f"{self.num_stages}, rank {self.group_rank} of {self.group_size}, device={str(self.device)!r})"
        )

    def __reduce__(self) -> Any:
        raise TypeError("a stage cannot be pickled: it belongs to a group of this process; pickle its module")

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("a stage cannot be copied: it belongs to a group of this process; copy its module")

    # What upstream's runtime prepares before a step. Here shapes travel with the values.
    @abstractmethod
    def _prepare_forward_infra(
        self, num_microbatches: int, args: Any, kwargs: Any = None, has_backward: bool = False
    ) -> Any: ...

    @abstractmethod
    def _prepare_backward_infra(self, num_microbatches: int, *args: Any, **kwargs: Any) -> Any: ...

    @abstractmethod
    def _create_grad_recv_info(self, act_send_info: dict[int, list[int]]) -> tuple[Any, ...]: ...

    def clear_runtime_states(self) -> None:
        """Forgets the microbatches in flight and the outputs of the last step."""
        self.fwd_cache.clear()
        self.output_chunks.clear()
        self.backward_state.clear()
        self._local_inputs.clear()
        self._local_grads.clear()
        if self._lone is not None:
            self._lone.reset()

    # One chunk at a time: inside a handler of an action, parts of the step; outside, the stage alone.

    def _own_stage(self) -> Any:
        if self._lone is None:
            _prepare_call(self)
            self._lone = _C.Stage(self.stage_index, self.num_stages, self._call)
        return self._lone

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        """Hands the outputs of the previous stage, which is in this process, to this one."""
        if self._driven is not None and self._driven.hand_over_output(
            self.stage_index - 1, mb_index, prev_stage_outputs
        ):
            return
        self._local_inputs[mb_index] = _normalize_model_output_as_tuple(prev_stage_outputs)

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        """Hands the gradients of the next stage's inputs, which is in this process, to this one."""
        if self._driven is not None and self._driven.hand_over_grads(
            self.stage_index + 1, mb_index, next_stage_bwd_outputs
        ):
            return
        self._local_grads[mb_index] = tuple(next_stage_bwd_outputs)

    def get_local_bwd_output(self, mb_index: int) -> tuple[Any, ...]:
        """The gradients of this stage's inputs, for the previous stage."""
        if not self.has_backward:
            raise AssertionError("there are no gradients: the stage runs forwards only")
        if self.is_first:
            raise AssertionError("the first stage has no previous stage to give gradients to")
        return self.bwd_cache.pop(mb_index)

    def forward_one_chunk(
        self,
        fwd_chunk_id: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        save_forward_output: bool = True,
    ) -> Any:
        """Runs the module on one microbatch and returns what it returns."""
        if self._driven is not None:
            part = self._driven.find(self.stage_index, "F", fwd_chunk_id)
            if part is not None:
                return self._driven.forward(part, self, args, kwargs)
        stage = self._own_stage()
        if not self.is_first:
            args = self._local_inputs.pop(fwd_chunk_id, args)
        call = self._call
        call.clear()
        call.is_driven = True
        call.abroad = False
        stage.forward(fwd_chunk_id, _entered(args, self), dict(kwargs or {}), torch.is_grad_enabled())
        output = call.raw.pop(fwd_chunk_id)
        outputs = _normalize_model_output_as_tuple(output)
        self.fwd_cache[fwd_chunk_id] = (outputs, [a for a in pytree.tree_leaves((args, kwargs))])
        if self.is_last and save_forward_output:
            self.output_chunks.append(output)
        return output

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: torch.Tensor | None = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        """Runs the backward of a microbatch, or its input half."""
        if not self.has_backward and self._driven is None:
            return
        if self._driven is not None:
            part = self._driven.find(self.stage_index, "B" if full_backward else "I", bwd_chunk_id)
            if part is not None:
                self._driven.backward(part, self, bwd_chunk_id, full_backward)
                return
        stage = self._own_stage()
        outputs, _ = self.fwd_cache.pop(bwd_chunk_id)
        if self.is_last and loss is not None:
            stage.set_loss(bwd_chunk_id, loss)
            grads: tuple[Any, ...] = ()
        elif self.is_last:
            raise AssertionError(f"stage {self.stage_index} is the last one, so its backward needs a loss")
        else:
            grads = self._local_grads.pop(bwd_chunk_id, ())
            del outputs
        self.bwd_cache[bwd_chunk_id] = stage.backward(bwd_chunk_id, grads, 1.0, full_backward)
        if not full_backward:
            self.dw_runner[bwd_chunk_id] = lambda: stage.backward_weight(bwd_chunk_id)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Runs the weight half of a backward."""
        if not self.has_backward:
            return
        if self._driven is not None:
            part = self._driven.find(self.stage_index, "W", bwd_chunk_id)
            if part is not None:
                self._driven.backward_weight(part)
                return
        work = self.dw_runner.pop(bwd_chunk_id, None)
        if work is None:
            raise AssertionError(
                f"the weight backward of microbatch {bwd_chunk_id} needs an earlier call of "
                "backward_one_chunk with full_backward=False"
            )
        work()

    def scale_grads(self, grad_scale_factor: int) -> None:
        """Divides the gradients, except inside a step: there the losses are weighted already."""
        if self._driven is not None or grad_scale_factor == 1:
            return
        for parameter in self.submod.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(grad_scale_factor)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Reduces the gradients over data-parallel ranks, where the module does that."""
        if self._call.wrapper is not None:
            self._call.wrapper.reduce_grad(self._call.module)

    # Operations of torch.distributed, for callers. The engine has its own transport and does not use them.

    def _peer(self, stage_index: int | None) -> int:
        if stage_index is None:
            raise AssertionError("expected a value of another stage, got an argument of the model")
        peer = self.stage_index_to_group_rank[stage_index]
        return peer if self.group is None else dist.get_global_rank(self.group, peer)

    def _recv_ops(self, infos: Iterable[Any]) -> list[dist.P2POp]:
        return [
            dist.P2POp(dist.irecv, info.buffer, self._peer(info.source), self.group)
            for info in infos
            if isinstance(info, _RecvInfo) and info.buffer is not None and not info.is_root_arg
        ]

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Receives of a microbatch's inputs, into the buffers of ``args_recv_info``."""
        return self._recv_ops(self.args_recv_info.get(fwd_chunk_id, ()))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Receives of the gradients of a microbatch's outputs, into those of ``grad_recv_info``."""
        if not self.has_backward or self.is_last:
            return []
        return self._recv_ops(self.grad_recv_info.get(bwd_chunk_id, ()))

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Sends of a microbatch's outputs, from ``fwd_cache``."""
        outputs = self.fwd_cache[fwd_chunk_id][0]
        ops = []
        for index, output in enumerate(outputs):
            for stage in self.act_send_info.get(index, []):
                if stage is not None:
                    ops.append(dist.P2POp(dist.isend, output, self._peer(stage), self.group))
        return ops

    def _grad_meta(self, index: int) -> Any:
        metas = self._stage_meta.input_grads
        if metas is None or index >= len(metas):
            return None
        return metas[index]

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Sends of the gradients of a microbatch's inputs, from ``bwd_cache``."""
        if not self.has_backward or self.is_first:
            return []
        grads = self.bwd_cache.pop(bwd_chunk_id)
        infos = self.grad_send_info
        if infos is None:
            infos = [self.stage_index - 1] * len(grads)
        ops = []
        for index, (grad, stage) in enumerate(zip(grads, infos, strict=True)):
            if stage is None:
                if isinstance(grad, torch.Tensor):
                    raise RuntimeError(
                        f"stage {self.stage_index} has a gradient for input {index}, which no stage gave"
                    )
                continue
            meta = self._grad_meta(index)
            if meta is None:
                if isinstance(grad, torch.Tensor):
                    raise PipeliningMetadataError(
                        f"stage {self.stage_index}: input {index} has a gradient but no metadata for it: "
                        "DTensor grad metadata cannot be derived from the forward's; pass input_grads"
                    )
                continue
            if grad is None:
                grad = torch.zeros(meta.shape, dtype=meta.dtype, device=self.device)
            ops.append(dist.P2POp(dist.isend, grad, self._peer(stage), self.group))
        return ops


def _entered(args: Any, stage: _PipelineStageBase) -> tuple[Any, ...]:
    """Arguments of a stage alone: tensors that a previous stage gave have no history here."""
    if stage.is_first:
        return tuple(args)
    return tuple(
        a.detach().requires_grad_(a.requires_grad and stage.has_backward)
        if isinstance(a, torch.Tensor) and a.is_floating_point()
        else a
        for a in args
    )


def _prepare_call(stage: _PipelineStageBase) -> None:
    """Looks at the stage's module as it is now: what wraps it, what trains its weights."""
    call = stage._call
    call.weight_work = stage.dw_builder
    call.device = stage.device
    known = call.seen_module
    parallel.wrap(call)
    if known is not call.module:
        call.seen_module = call.module
        if isinstance(call.module, nn.Module) and any(values._is_dtensor(p) for p in call.module.parameters()):
            from stagecraft import _dtensor

            _dtensor.meshes.add_module(call.module)


class PipelineStage(_PipelineStageBase):
    """A stage that runs a module.

    Args:
        submodule: the module. ``stage.submod`` may be assigned at any time.
        stage_index: the number of the stage, from 0.
        num_stages: the number of stages of the pipeline.
        device: the device on which the stage computes.
        input_args, output_args, output_grads, input_grads: examples, only compared with what a step
            brings when ``_runtime_validate`` is set. Shapes need not be known: they travel with the
            values, and may differ from microbatch to microbatch.
        group: the process group of the pipeline's ranks, or a World; None: the default group.
        dw_builder: returns the function that computes weight gradients outside autograd.
        get_mesh: returns the device mesh of that name and layout, for DTensors.
    """

    def __init__(
        self,
        submodule: nn.Module,
        stage_index: int,
        num_stages: int,
        device: torch.device,
        input_args: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
        output_args: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
        output_grads: torch.Tensor | tuple[torch.Tensor | None, ...] | None = None,
        input_grads: torch.Tensor | tuple[torch.Tensor | None, ...] | None = None,
        group: dist.ProcessGroup | World | None = None,
        dw_builder: Callable[[], Callable[..., None]] | None = None,
        get_mesh: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(submodule, stage_index, num_stages, device, group, dw_builder)
        self.get_mesh = get_mesh
        self.inputs: list[torch.Tensor] | None = None
        self.inputs_meta: Any = None
        self._outputs_meta: Any = None
        arguments = _examples("input_args", input_args, stage_index)
        outputs = _examples("output_args", output_args, stage_index)
        gradients = _examples("output_grads", output_grads, stage_index, allow_none=True)
        given = _examples("input_grads", input_grads, stage_index, allow_none=True)
        if arguments is not None:
            validate_static_arg_grad_correspondence(stage_index, arguments, given, is_input=True)
            self._stage_meta.inputs = tuple(map(extract_tensor_meta, arguments))
            self.inputs_meta = self._stage_meta.inputs
        if outputs is not None:
            validate_static_arg_grad_correspondence(stage_index, outputs, gradients, is_input=False)
            self._stage_meta.outputs = tuple(map(extract_tensor_meta, outputs))
            self._outputs_meta = self._stage_meta.outputs
        if gradients is not None:
            self._stage_meta.output_grads = extract_tensor_metas(gradients, allow_none=True)
        if given is not None:
            self._stage_meta.input_grads = extract_tensor_metas(given, allow_none=True)
        if get_mesh is not None:
            from stagecraft import _dtensor

            _dtensor.meshes.add_source(get_mesh)

    def _prepare_forward_infra(
        self, num_microbatches: int, args: Any, kwargs: Any = None, has_backward: bool = False
    ) -> Any:
        self.chunks = num_microbatches
        self._has_backward = has_backward
        return ()

    def _prepare_backward_infra(self, num_microbatches: int, *args: Any, **kwargs: Any) -> Any:
        self.chunks = num_microbatches
        return None

    def _create_grad_recv_info(self, act_send_info: dict[int, list[int]]) -> tuple[Any, ...]:
        return ()


def _examples(name: str, given: Any, stage_index: int, allow_none: bool = False) -> Any:
    if given is None:
        return None
    items = given if isinstance(given, (tuple, list)) else (given,)
    for item in items:
        if isinstance(item, torch.Tensor) or (item is None and allow_none):
            continue
        raise PipeliningMetadataError(
            f"stage {stage_index}: {name} must be tensors, got {type(item).__name__}"
        )
    return validate_and_normalize_to_tuple(given, allow_none=allow_none)


class _PipelineStage(_PipelineStageBase):
    """A stage of a traced model (`Pipe.build_stage`)."""

    def __init__(
        self,
        stage_module: nn.Module,
        stage_index: int,
        pipe_info: PipeInfo,
        device: torch.device,
        group: dist.ProcessGroup | World | None = None,
    ) -> None:
        super().__init__(stage_module, stage_index, pipe_info.num_stages, device, group)
        self.pipe_info = pipe_info
        if self.device.type != "meta":
            stage_module.to(self.device)

    def _prepare_forward_infra(
        self, num_microbatches: int, args: Any, kwargs: Any = None, has_backward: bool = False
    ) -> Any:
        self.chunks = num_microbatches
        self._has_backward = has_backward
        return ()

    def _prepare_backward_infra(self, num_microbatches: int, *args: Any, **kwargs: Any) -> Any:
        self.chunks = num_microbatches
        return None

    def _create_grad_recv_info(self, act_send_info: dict[int, list[int]]) -> tuple[Any, ...]:
        return ()


def build_stage(
    stage_module: nn.Module,
    stage_index: int,
    pipe_info: PipeInfo,
    device: torch.device,
    group: dist.ProcessGroup | World | None = None,
) -> _PipelineStage:
    """A stage of a traced model, from its module and `Pipe.info()`."""
    return _PipelineStage(stage_module, stage_index, pipe_info, device, group)
