"""Schedules: their text, the passes over their lists, and the classes that run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist  # noqa: F401, tests patch it here

from stagecraft._actions import _Action as _Action
from stagecraft._actions import _ComputationType as _ComputationType
from stagecraft._actions import B as B
from stagecraft._actions import BACKWARD_INPUT as BACKWARD_INPUT
from stagecraft._actions import BACKWARD_WEIGHT as BACKWARD_WEIGHT
from stagecraft._actions import F as F
from stagecraft._actions import FORWARD as FORWARD
from stagecraft._actions import from_native as from_native
from stagecraft._actions import FULL_BACKWARD as FULL_BACKWARD
from stagecraft._actions import HAS_WAITS as HAS_WAITS
from stagecraft._actions import I as I
from stagecraft._actions import Order as Order
from stagecraft._actions import OVERLAP_F_B as OVERLAP_F_B
from stagecraft._actions import RECV_B as RECV_B
from stagecraft._actions import RECV_F as RECV_F
from stagecraft._actions import REDUCE_GRAD as REDUCE_GRAD
from stagecraft._actions import RESHARD as RESHARD
from stagecraft._actions import SEND_B as SEND_B
from stagecraft._actions import SEND_F as SEND_F
from stagecraft._actions import to_native as to_native
from stagecraft._actions import UNSHARD as UNSHARD
from stagecraft._actions import W as W
from stagecraft._actions import WAIT_REDUCE_GRAD as WAIT_REDUCE_GRAD
from stagecraft._actions import WAIT_SEND_B as WAIT_SEND_B
from stagecraft._actions import WAIT_SEND_F as WAIT_SEND_F
from stagecraft._liveness import PipelineActivationLiveness as PipelineActivationLiveness
from stagecraft._liveness import analyze_pipeline_activation_liveness as analyze_pipeline_activation_liveness
from stagecraft._passes import _add_reduce_grad as _add_reduce_grad
from stagecraft._passes import _add_send_recv as _add_send_recv
from stagecraft._passes import _add_unshard_reshard as _add_unshard_reshard
from stagecraft._passes import _add_wait_send as _add_wait_send
from stagecraft._passes import _add_wait_send_budget as _add_wait_send_budget
from stagecraft._passes import _defer_recv_ops as _defer_recv_ops
from stagecraft._passes import _dump_chrometrace as _dump_chrometrace
from stagecraft._passes import _format_pipeline_order as _format_pipeline_order
from stagecraft._passes import _get_1f1b_rank_ops as _get_1f1b_rank_ops
from stagecraft._passes import _get_profiler_function_name as _get_profiler_function_name
from stagecraft._passes import _get_warmup_ops as _get_warmup_ops
from stagecraft._passes import _merge_bw as _merge_bw
from stagecraft._passes import _requires_reduce_grad as _requires_reduce_grad
from stagecraft._passes import _resolve_unshard_lookahead as _resolve_unshard_lookahead
from stagecraft._passes import _simulate_comms_compute as _simulate_comms_compute
from stagecraft._passes import _validate_schedule as _validate_schedule
from stagecraft._passes import _validate_send_waits as _validate_send_waits
from stagecraft._schedule_base import _check_torch_compile_compatibility as _check_torch_compile_compatibility
from stagecraft._schedule_base import _CustomFunctionProtocol as _CustomFunctionProtocol
from stagecraft._schedule_base import _PipelineContext as _PipelineContext
from stagecraft._schedule_base import _PipelineSchedule as _PipelineSchedule
from stagecraft._schedule_base import _TARGET_CHUNK_SPEC as _TARGET_CHUNK_SPEC
from stagecraft._schedule_forms import PipelineScheduleMulti as PipelineScheduleMulti
from stagecraft._schedule_forms import PipelineScheduleSingle as PipelineScheduleSingle
from stagecraft._schedule_runtime import _PipelineScheduleRuntime as _PipelineScheduleRuntime
from stagecraft._transfers import _batch_p2p as _batch_p2p
from stagecraft._transfers import _sorted_batch_p2p as _sorted_batch_p2p
from stagecraft._transfers import _wait_batch_p2p as _wait_batch_p2p

__all__ = [
    "PipelineActivationLiveness",
    "PipelineScheduleMulti",
    "PipelineScheduleSingle",
    "Schedule1F1B",
    "ScheduleDualPipeV",
    "ScheduleGPipe",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleLoopedBFS",
    "ScheduleZBVZeroBubble",
    "analyze_pipeline_activation_liveness",
    "get_schedule_class",
]


class _ScheduleForwardOnly(PipelineScheduleSingle):
    """Forward only; has no loss."""

    _kind = "ForwardOnly"

    def _step_microbatches(self, arg_mbs: list[Any] | None = None, kwarg_mbs: list[Any] | None = None,
                           target_mbs: list[Any] | None = None, losses: list[Any] | None = None,
                           return_outputs: bool = True, loss_kwargs: dict[str, Any] | None = None) -> Any:
        if target_mbs is not None or losses is not None:
            raise RuntimeError("a forward-only schedule has no loss: expected neither target nor losses")
        return super()._step_microbatches(arg_mbs, kwarg_mbs, None, None, return_outputs, loss_kwargs)


class ScheduleGPipe(PipelineScheduleSingle):
    """All forwards, then all backwards. Any number of microbatches."""

    _kind = "GPipe"


class Schedule1F1B(PipelineScheduleSingle):
    """A few forwards, then one forward and one backward in turns. Holds activations of at most as many microbatches as
    there are stages from this one on."""

    _kind = "1F1B"


def _check_two_stages(name: str, stages: list[Any]) -> None:
    if len(stages) != 2:
        raise ValueError(f"{name} has exactly 2 stages on each rank, got {len(stages)}")


class _NamedMulti(_PipelineScheduleRuntime):
    """The common constructor of schedules with several stages on each rank."""

    def __init__(self, stages: list[Any], n_microbatches: int, loss_fn: Callable[..., Any] | None = None,
                 args_chunk_spec: Any = None, kwargs_chunk_spec: Any = None, output_merge_spec: Any = None,
                 scale_grads: bool = True, backward_requires_autograd: bool = True, defer_pp_recv: bool = False,
                 max_active_stages: int = 3, unshard_lookahead: Any = "full", **options: Any) -> None:
        self._check(stages, n_microbatches)
        super().__init__(stages, n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec,
                         scale_grads=scale_grads, backward_requires_autograd=backward_requires_autograd,
                         defer_pp_recv=defer_pp_recv, max_active_stages=max_active_stages,
                         unshard_lookahead=unshard_lookahead, **options)

    def _check(self, stages: list[Any], n_microbatches: int) -> None:
        """Refuses stages and microbatches that the schedule cannot be built for."""

    def _check_rounds(self, stages: list[Any], n_microbatches: int) -> None:
        rounds = max(1, n_microbatches // stages[0].group_size)
        if n_microbatches % rounds != 0:
            raise ValueError(f"{type(self).__name__}: expected a number of microbatches that is a multiple of its "
                             f"{rounds} rounds (microbatches / ranks), got {n_microbatches} microbatches on "
                             f"{stages[0].group_size} ranks")
        self.number_of_rounds = rounds
        self.microbatches_per_round = n_microbatches // rounds


class ScheduleLoopedBFS(_NamedMulti):
    """Stage by stage, each for all microbatches. Stages are placed in a loop."""

    _kind = "LoopedBFS"

    def __init__(self, stages: list[Any], n_microbatches: int, loss_fn: Callable[..., Any] | None = None,
                 output_merge_spec: Any = None, scale_grads: bool = True, backward_requires_autograd: bool = True,
                 defer_pp_recv: bool = False, max_active_stages: int = 3, unshard_lookahead: Any = "full", *,
                 args_chunk_spec: Any = None, kwargs_chunk_spec: Any = None, **options: Any) -> None:
        super().__init__(stages, n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec,
                         scale_grads, backward_requires_autograd, defer_pp_recv, max_active_stages, unshard_lookahead,
                         **options)


class ScheduleInterleaved1F1B(_NamedMulti):
    """1F1B with several stages on each rank, placed in a loop."""

    _kind = "Interleaved1F1B"

    def _check(self, stages: list[Any], n_microbatches: int) -> None:
        self._check_rounds(stages, n_microbatches)


class ScheduleInterleavedZeroBubble(_NamedMulti):
    """Interleaved 1F1B with the backward split into I and W, so that W fills idle time."""

    _kind = "InterleavedZeroBubble"

    def _check(self, stages: list[Any], n_microbatches: int) -> None:
        _check_torch_compile_compatibility(stages, type(self).__name__)
        self._check_rounds(stages, n_microbatches)


class ScheduleZBVZeroBubble(_NamedMulti):
    """Zero bubble on a V: rank r has stages r and 2P-1-r."""

    _kind = "ZBVZeroBubble"
    _style = "v"

    def _check(self, stages: list[Any], n_microbatches: int) -> None:
        _check_torch_compile_compatibility(stages, type(self).__name__)
        _check_two_stages(type(self).__name__, stages)


class ScheduleDualPipeV(_NamedMulti):
    """Forwards and backwards of two microbatches side by side, on a V: rank r has stages r and 2P-1-r."""

    _kind = "DualPipeV"
    _style = "v"

    def _check(self, stages: list[Any], n_microbatches: int) -> None:
        _check_torch_compile_compatibility(stages, type(self).__name__)
        _check_two_stages(type(self).__name__, stages)
        if n_microbatches < stages[0].num_stages:
            raise ValueError(f"{type(self).__name__}: expected at least as many microbatches as stages "
                             f"({stages[0].num_stages}), got {n_microbatches}")


_CLASSES: dict[str, type[_PipelineSchedule]] = {
    "1F1B": Schedule1F1B,
    "Interleaved1F1B": ScheduleInterleaved1F1B,
    "GPipe": ScheduleGPipe,
    "LoopedBFS": ScheduleLoopedBFS,
    "InterleavedZeroBubble": ScheduleInterleavedZeroBubble,
    "PipelineScheduleSingle": PipelineScheduleSingle,
    "PipelineScheduleMulti": PipelineScheduleMulti,
    "ZBVZeroBubble": ScheduleZBVZeroBubble,
    "DualPipeV": ScheduleDualPipeV,
}


def get_schedule_class(schedule_name: str) -> type[Any]:
    """The class of a schedule's name. Upper and lower case do not matter. ValueError for an unknown
    name."""
    for name, found in _CLASSES.items():
        if name.lower() == schedule_name.lower():
            return found
    raise ValueError(f"expected one of {', '.join(_CLASSES)}, got {schedule_name!r}")
