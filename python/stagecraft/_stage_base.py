"""The part of a stage that schedules need, and methods that run a stage alone, one microbatch at a
time."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.utils._pytree as pytree

from stagecraft import _C, parallel, values
from stagecraft._stage_call import PipelineStageInfo, Seen, _ContextHandle, _StageCall
from stagecraft._stage_transfers import TransferOps
from stagecraft._utils import InferenceMode, _derive_grad_metas, _StageMeta, validate_tensors_metadata
from stagecraft.world import World, rank_and_size

__all__: list[str] = []


def _normalize_model_output_as_tuple(output: Any) -> tuple[Any, ...]:
    """A list as a tuple, a tuple unchanged, anything else as a tuple with one element."""
    if isinstance(output, list):
        return tuple(output)
    return output if isinstance(output, tuple) else (output,)


class _PipelineStageBase(TransferOps, ABC):
    """The part of a stage that schedules need. Stand-ins in tests derive from it without calling
    its constructor."""

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
        # The metadata of the examples, the known metadata of values (from a step, or from the examples),
        # and its source.
        self._user_meta = _StageMeta()
        self._stage_meta = _StageMeta()
        self._inference_mode: InferenceMode | None = None
        self._looked: Literal["", "forward", "backward"] = ""
        self._local_inputs: dict[int, Any] = {}
        self._local_grads: dict[int, Any] = {}
        # Transfers are matched by their identity, so edges need no groups of their own.
        self.p2p_per_edge = False
        self._reduces = False
        self.stage_index_to_group_rank: dict[int, int] = {
            i: i % self.group_size for i in range(num_stages)
        }
        self.log_prefix = f"[Stage {stage_index}]"
        library: Any = dist
        debug = library.get_debug_level() if dist.is_available() else None
        self._runtime_validate = debug == library.DebugLevel.DETAIL if debug is not None else False

    # A stage runs the module that it has at the time of the call.
    def register_forward_context(
        self, factory: Callable[[PipelineStageInfo], AbstractContextManager[Any]]
    ) -> _ContextHandle:
        """Puts a context around each forward of the stage. A stage can have one context. The handle's
        `remove` ends it."""
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

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.submod).__name__}, {self.stage_index} of "
            f"{self.num_stages}, rank {self.group_rank} of {self.group_size}, device={str(self.device)!r})"
        )

    def __reduce__(self) -> Any:
        raise TypeError("a stage cannot be pickled: it belongs to a group of this process; pickle its module")

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("a stage cannot be copied: it belongs to a group of this process; copy its module")

    # torch's runtime prepares shapes before a step. Here shapes are sent with the values.
    @abstractmethod
    def _prepare_forward_infra(
        self, num_microbatches: int, args: Any, kwargs: Any = None, has_backward: bool = False
    ) -> Any: ...

    @abstractmethod
    def _prepare_backward_infra(self, num_microbatches: int, *args: Any, **kwargs: Any) -> Any: ...

    @abstractmethod
    def _create_grad_recv_info(self, act_send_info: dict[int, list[int]]) -> tuple[Any, ...]: ...

    def _forget_look(self) -> None:
        """The next step finds the metadata of the stage's inputs and outputs again."""
        self._looked = ""
        self._stage_meta = dataclasses.replace(self._user_meta)

    def _begin_look(self, training: bool) -> None:
        """Before a step: decides whether the step finds the metadata of the stage's inputs and
        outputs."""
        if self._looked == "backward" or (self._looked == "forward" and not training):
            return
        given = self._user_meta
        if InferenceMode.needs_dynamic(given, training):
            self._inference_mode = InferenceMode.DYNAMIC
            self._call.seen = Seen()
            return
        self._inference_mode = InferenceMode.STATIC
        self._stage_meta = known = dataclasses.replace(given)
        if training:
            assert known.inputs is not None and known.outputs is not None
            known.input_grads = given.input_grads or _derive_grad_metas(known.inputs)
            known.output_grads = given.output_grads or _derive_grad_metas(known.outputs)
        self._looked = "backward" if training else "forward"

    def _end_look(self, training: bool) -> None:
        """After a step: stores the metadata that it found. Warns if the examples are different."""
        seen, self._call.seen = self._call.seen, None
        if seen is None or seen.inputs is None:
            return
        found = _StageMeta(seen.inputs, seen.outputs)
        if training:
            found.input_grads = seen.grads(seen.inputs, seen.input_grads)
            found.output_grads = None if self.is_last else seen.grads(seen.outputs, seen.output_grads)
        self._stage_meta = found
        self._looked = "backward" if training else "forward"
        for name in ("inputs", "outputs", "input_grads", "output_grads"):
            expected, actual = getattr(self._user_meta, name), getattr(found, name)
            if expected and actual:
                validate_tensors_metadata(f"stage {self.stage_index}, {name}", expected, actual,
                                          raise_on_mismatch=False, warn_on_mismatch=True)

    def clear_runtime_states(self) -> None:
        """Forgets the microbatches in flight and the outputs of the last step."""
        self.fwd_cache.clear()
        self.output_chunks.clear()
        self.backward_state.clear()
        self._local_inputs.clear()
        self._local_grads.clear()
        if self._lone is not None:
            self._lone.reset()

    # Methods for one microbatch. Inside the handler of an action they run parts of the step, outside
    # the stage alone.

    def _own_stage(self) -> Any:
        if self._lone is None:
            _prepare_call(self)
            self._lone = _C.Stage(self.stage_index, self.num_stages, self._call)
        return self._lone

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        """Passes the outputs of the previous stage to this stage. The previous stage must be in
        this process."""
        if self._driven is not None and self._driven.hand_over_output(
            self.stage_index - 1, mb_index, prev_stage_outputs
        ):
            return
        self._local_inputs[mb_index] = _normalize_model_output_as_tuple(prev_stage_outputs)

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        """Passes the gradients of the next stage's inputs to this stage. The next stage must be in
        this process."""
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
        """Divides the gradients. Does nothing inside a step, because the losses of a step are
        weighted."""
        if self._driven is not None or grad_scale_factor == 1:
            return
        for parameter in self.submod.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(grad_scale_factor)

    def start_gradient_reduction(self) -> None:
        """Starts to reduce the gradients of an FSDP module; `wait_for_gradient_reduction` ends it."""
        if self._reduces:
            raise RuntimeError(f"a reduction of stage {self.stage_index} is in progress: wait for it first")
        if self._call.wrapper is None or self._call.wrapper.kind != "FSDPModule":
            raise RuntimeError(f"stage {self.stage_index} has no FSDP module, so it has no gradients to reduce")
        self._reduces = True
        self._call.wrapper.reduce_grad(self._call.module)

    def wait_for_gradient_reduction(self, grad_scale_factor: int) -> None:
        """Ends a reduction, and divides the gradients as `scale_grads` does."""
        if self._reduces:
            self._reduces = False
            self.scale_grads(grad_scale_factor)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Reduces the gradients over data-parallel ranks, if the module does that."""
        if self._call.wrapper is not None:
            self._call.wrapper.reduce_grad(self._call.module)


def _entered(args: Any, stage: _PipelineStageBase) -> tuple[Any, ...]:
    """The arguments of a stage that runs alone. Tensors of a previous stage lose their history."""
    if stage.is_first:
        return tuple(args)
    return tuple(
        a.detach().requires_grad_(a.requires_grad and stage.has_backward)
        if isinstance(a, torch.Tensor) and a.is_floating_point()
        else a
        for a in args
    )


def _prepare_call(stage: _PipelineStageBase) -> None:
    """Prepares a call for the current module of the stage: its wrapper, and how its weights are
    trained."""
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


class _EngineStage(_PipelineStageBase):
    """A stage that the C++ library runs. Shapes are sent with the values, so a step needs no
    preparation."""

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
