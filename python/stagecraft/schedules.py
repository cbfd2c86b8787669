"""Schedules: their text, the passes over their lists, and the classes that run them."""

from __future__ import annotations

import csv
import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.distributed as dist

from stagecraft import _schedule, engine
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
from stagecraft._utils import generate_stage_to_rank_mapping
from stagecraft.microbatch import TensorChunkSpec, _split_tensor, merge_chunks, split_args_kwargs_into_chunks

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

logger = logging.getLogger("stagecraft.schedules")

Format = Literal["compute_only", "compute_comms"]

# The target is always cut along dim 0.
_TARGET_CHUNK_SPEC = TensorChunkSpec(0)


# Transfers, for programs that call them; the engine has its own.


def _batch_p2p(p2p_ops: list[dist.P2POp], desc: str | None = None) -> list[Any]:
    """Starts the transfers and returns their works. Sends alone, and receives alone, are started one by one."""
    if not p2p_ops:
        return []
    logger.debug("%s%d transfers", f"{desc}: " if desc else "", len(p2p_ops))
    kinds = {op.op for op in p2p_ops}
    if kinds == {dist.isend}:
        return [op.op(op.tensor, group=op.group, tag=op.tag, group_dst=op.group_peer) for op in p2p_ops]
    if kinds == {dist.irecv}:
        return [op.op(op.tensor, group=op.group, tag=op.tag, group_src=op.group_peer) for op in p2p_ops]
    works: list[Any] = dist.batch_isend_irecv(p2p_ops)
    return works


def _sorted_batch_p2p(p2p_ops: list[dist.P2POp], desc: str | None = None) -> dict[int, list[Any]]:
    """Starts the transfers peer by peer, ascending, and returns the works of each peer."""
    by_peer: defaultdict[int, list[dist.P2POp]] = defaultdict(list)
    for op in p2p_ops:
        by_peer[op.peer].append(op)
    return {peer: _batch_p2p(by_peer[peer], desc) for peer in sorted(by_peer)}


def _wait_batch_p2p(work: Iterable[Any]) -> None:
    """Waits for each of the works."""
    for each in work:
        each.wait()


@dataclass
class _PipelineContext:
    """What a function that replaces an action gets beside the action."""

    schedule_ref: _PipelineSchedule
    arg_mbs: list[tuple[Any, ...]] | None = None
    kwarg_mbs: list[dict[str, Any]] | None = None
    target_mbs: list[Any] | None = None
    losses: list[Any] | None = None


class _CustomFunctionProtocol(Protocol):
    """A function that replaces an action (`register_custom_function`)."""

    def __call__(self, action: _Action, ctx: _PipelineContext) -> None: ...


def _check_torch_compile_compatibility(stages: Iterable[Any], schedule_name: str) -> None:
    """RuntimeError if a stage has a compiled module: its backward cannot be split into I and W."""
    for stage in stages:
        if not isinstance(stage.submod, torch.nn.Module):
            continue
        for name, module in stage.submod.named_modules():
            if isinstance(module, torch._dynamo.OptimizedModule):
                raise RuntimeError(
                    f"{schedule_name} splits the backward of a stage, which a module compiled by torch.compile does "
                    f"not allow; {name or 'the module'} of a stage is compiled. Use a schedule that does not split: "
                    f"Interleaved1F1B, LoopedBFS, 1F1B or GPipe")


class _PipelineSchedule(ABC):
    """What all schedules share: microbatches, loss, how a batch is cut and results are put together."""

    # The name of the builder, for schedules that are built by name.
    _kind: ClassVar[str | None] = None

    def __init__(self, n_microbatches: int, loss_fn: Callable[..., Any] | None = None,
                 args_chunk_spec: Any = None, kwargs_chunk_spec: Any = None, output_merge_spec: Any = None,
                 scale_grads: bool = True) -> None:
        self._n_microbatches = n_microbatches
        self._loss_fn = loss_fn
        self.scale_grads = scale_grads
        self._args_chunk_spec = args_chunk_spec
        self._kwargs_chunk_spec = kwargs_chunk_spec
        self._output_merge_spec = output_merge_spec
        self._has_backward = loss_fn is not None
        self._internal_losses: dict[int, Any] = {}
        # Lists that are known: those of the builder, made when they are first read, or a program's own.
        self._order: Order | None = None
        self._order_is_own = False

    @property
    def n_microbatches(self) -> int:
        """How many microbatches a batch is cut into. May be assigned, on all ranks; the next step has that many."""
        return self._n_microbatches

    @n_microbatches.setter
    def n_microbatches(self, number: int) -> None:
        self._n_microbatches = number
        if not self._order_is_own:
            self._order = None

    @property
    def pipeline_order(self) -> Any:
        """What each rank computes, in order: lists of actions by rank. May be assigned."""
        if self._order is None:
            self._order = self._build_order()
        return self._order

    @pipeline_order.setter
    def pipeline_order(self, order: Any) -> None:
        self._order = order
        self._order_is_own = order is not None

    def _build_order(self) -> Order | None:
        return None

    # What runs, in stagecraft.engine.

    def step(self, *args: Any, target: Any = None, losses: list[Any] | None = None, return_outputs: bool = True,
             loss_kwargs: dict[str, Any] | None = None, arg_mbs: list[tuple[Any, ...]] | None = None,
             kwarg_mbs: list[dict[str, Any]] | None = None, target_mbs: list[Any] | None = None,
             finalize_gradients: bool = True, **kwargs: Any) -> Any:
        """Runs one batch through the pipeline; with a loss, forward and backward.

        Args:
            args: the batch, on the rank with stage 0; ignored elsewhere.
            kwargs: keyword inputs of this rank's stages, cut like args and given to each of them.
            target: cut along dim 0, for the loss, on the rank of the last stage.
            losses: a list that gets the loss of each microbatch, on the rank of the last stage.
            return_outputs: whether the rank of the last stage returns the merged output.
            loss_kwargs: passed on to the loss.
            arg_mbs, kwarg_mbs, target_mbs: microbatches, instead of a batch to cut; shapes may differ.
            finalize_gradients: False leaves gradients of replicas local, until a step with True.
        """
        return engine.step(self, args, kwargs, target=target, losses=losses, return_outputs=return_outputs,
                           loss_kwargs=loss_kwargs, arg_mbs=arg_mbs, kwarg_mbs=kwarg_mbs, target_mbs=target_mbs,
                           finalize_gradients=finalize_gradients)

    def eval(self, *args: Any, target: Any = None, losses: list[Any] | None = None,
             arg_mbs: list[tuple[Any, ...]] | None = None, kwarg_mbs: list[dict[str, Any]] | None = None,
             target_mbs: list[Any] | None = None, **kwargs: Any) -> Any:
        """Runs one batch forward only, without gradients. Arguments as for `step`."""
        return engine.evaluate(self, args, kwargs, target=target, losses=losses, arg_mbs=arg_mbs,
                               kwarg_mbs=kwarg_mbs, target_mbs=target_mbs)

    # Whether steps measure memory, for `report` and `memory_estimate`. May be assigned, on all ranks.
    measure_memory = False

    def report(self) -> Any:
        """Where the time of the last step went, on all ranks (`stagecraft.reports.Report`). All ranks call it."""
        return engine.report(self)

    def memory_estimate(self, microbatches: int) -> Any:
        """The peak memory of a step with that many microbatches (`stagecraft.reports.MemoryEstimate`).

        Each counts as large as in the last step with `measure_memory`. All ranks call it.
        """
        return engine.memory_estimate(self, microbatches)

    @abstractmethod
    def _step_microbatches(self, arg_mbs: list[Any] | None = None, kwarg_mbs: list[Any] | None = None,
                           target_mbs: list[Any] | None = None, losses: list[Any] | None = None,
                           return_outputs: bool = True, loss_kwargs: dict[str, Any] | None = None) -> Any:
        """Runs microbatches through the pipeline."""

    def _local_stages(self) -> list[Any]:
        """The stages of this rank."""
        raise NotImplementedError

    def _split_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> tuple[list[Any], list[Any]]:
        """The microbatches of a batch: lists of args and of kwargs."""
        if not args and not kwargs:
            return [()] * self._n_microbatches, [{}] * self._n_microbatches
        return split_args_kwargs_into_chunks(args, kwargs, self._n_microbatches, self._args_chunk_spec,
                                             self._kwargs_chunk_spec)

    def _split_target(self, target: Any) -> list[Any] | None:
        """The microbatches of a target, cut along dim 0."""
        if target is None:
            return None
        if isinstance(target, torch.Tensor):
            return list(_split_tensor(target, _TARGET_CHUNK_SPEC, self._n_microbatches))
        return [arg[0] for arg in split_args_kwargs_into_chunks((target,), None, self._n_microbatches)[0]]

    def _get_microbatch_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any, arg_mbs: Any,
                               kwarg_mbs: Any, target_mbs: Any) -> tuple[list[Any], list[Any], list[Any] | None]:
        """Args, kwargs and targets of the microbatches: those that were given, or the batch cut."""
        if arg_mbs is None and kwarg_mbs is None and target_mbs is None:
            split_args, split_kwargs = self._split_inputs(args, kwargs)
            self._check_inputs(split_args, split_kwargs)
            return split_args, split_kwargs, self._split_target(target)
        for name, value in (("positional inputs", args), ("keyword inputs", kwargs)):
            if value:
                raise ValueError(f"expected a batch or microbatches (arg_mbs, kwarg_mbs, target_mbs), got both: {name}")
        if target is not None:
            raise ValueError("expected target or microbatches (arg_mbs, kwarg_mbs, target_mbs), got both")
        self._check_inputs(arg_mbs, kwarg_mbs, target_mbs)
        for name, values, kind in (("arg_mbs", arg_mbs, tuple), ("kwarg_mbs", kwarg_mbs, dict)):
            for index, value in enumerate(values or ()):
                if not isinstance(value, kind):
                    raise TypeError(f"{name}[{index}]: expected a {kind.__name__}, got {type(value).__name__}")
        number = self._n_microbatches
        return (arg_mbs if arg_mbs is not None else [()] * number,
                kwarg_mbs if kwarg_mbs is not None else [{}] * number, target_mbs)

    def _check_inputs(self, arg_mbs: list[Any] | None = None, kwarg_mbs: list[Any] | None = None,
                      target_mbs: list[Any] | None = None, losses: list[Any] | None = None) -> tuple[list[Any], list[Any]]:
        """TypeError for what is no list, ValueError for a list of another length. Returns args and kwargs."""
        for name, values in (("arg_mbs", arg_mbs), ("kwarg_mbs", kwarg_mbs), ("target_mbs", target_mbs)):
            if values is None:
                continue
            if not isinstance(values, list):
                raise TypeError(f"{name}: expected a list, got {type(values).__name__}")
            if len(values) != self._n_microbatches:
                raise ValueError(f"{name}: expected {self._n_microbatches} microbatches, got {len(values)}")
        if losses is not None and not isinstance(losses, list):
            raise TypeError(f"losses: expected a list, got {type(losses).__name__}")
        return (arg_mbs if arg_mbs is not None else [()] * self._n_microbatches,
                kwarg_mbs if kwarg_mbs is not None else [{}] * self._n_microbatches)

    def _merge_outputs(self, output_chunks: list[Any]) -> Any:
        """The output of the batch."""
        return merge_chunks(output_chunks, self._output_merge_spec)

    def _compute_loss(self, output: Any, target: Any, loss_kwargs: dict[str, Any] | None = None) -> Any:
        """The loss of one microbatch."""
        if self._loss_fn is None:
            raise ValueError("expected a schedule with loss_fn, got one without")
        return self._loss_fn(output, target, **(loss_kwargs or {}))

    def _maybe_compute_loss(self, stage: Any, output: Any, target_mbs: Any, mb_index: int,
                            loss_kwargs: dict[str, Any] | None = None) -> None:
        """On the last stage, with a loss: computes and keeps the loss of a microbatch."""
        if stage.is_last and self._loss_fn is not None:
            target = None if target_mbs is None else target_mbs[mb_index]
            self._internal_losses[mb_index] = self._compute_loss(output, target, loss_kwargs)

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> Any:
        """On the last stage, with a loss: the kept loss of a microbatch. None elsewhere."""
        if not stage.is_last or self._loss_fn is None:
            return None
        if self._internal_losses and mb_index not in self._internal_losses:
            raise RuntimeError(f"expected the loss of microbatch {mb_index}, got losses of microbatches "
                               f"{sorted(self._internal_losses)} only")
        return self._internal_losses.get(mb_index)

    def _update_losses(self, stages: Any, losses: list[Any] | None) -> None:
        """Puts the losses of a step into the caller's list, by microbatch, and forgets them."""
        local = stages if isinstance(stages, list) else [stages]
        kept, self._internal_losses = self._internal_losses, {}
        if losses is None or not any(stage.is_last for stage in local):
            return
        if len(kept) != self._n_microbatches:
            raise RuntimeError(f"expected {self._n_microbatches} losses, got {len(kept)}")
        losses[:] = [kept[index] for index in sorted(kept)]

    def __repr__(self) -> str:
        stages = [getattr(stage, "stage_index", None) for stage in self._local_stages()]
        return (f"{type(self).__name__}(stages {', '.join(map(str, stages))} of {getattr(self, '_num_stages', '?')}, "
                f"{self._n_microbatches} microbatches, {'with' if self._loss_fn else 'without'} a loss)")

    def __getstate__(self) -> Any:
        raise TypeError(f"{type(self).__name__} runs on a process group and can be neither pickled nor copied; "
                        f"pickle its lists instead: stagecraft.Schedule.of(schedule.pipeline_order)")


class PipelineScheduleSingle(_PipelineSchedule):
    """A schedule with one stage on each rank."""

    def __init__(self, stage: Any, n_microbatches: int, loss_fn: Callable[..., Any] | None = None,
                 args_chunk_spec: Any = None, kwargs_chunk_spec: Any = None, output_merge_spec: Any = None,
                 scale_grads: bool = True) -> None:
        super().__init__(n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads)
        self._stage = stage
        self._num_stages = stage.num_stages
        self._stage_forward_initialized = False
        self._stage_backward_initialized = False
        self.pp_group_size = stage.group_size
        self.stage_index_to_group_rank = {index: index for index in range(self._num_stages)}
        stage.stage_index_to_group_rank = self.stage_index_to_group_rank

    def _local_stages(self) -> list[Any]:
        return [self._stage]

    def _get_pipeline_order(self) -> Order | None:
        """What each rank computes, its reduction of gradients included; None for a class without a list."""
        if self._kind is None:
            return None
        built = _schedule.Schedule.build(self._kind, self._num_stages, self._n_microbatches)
        if self._kind == "ForwardOnly":
            return from_native(built)
        return {rank: list(_add_reduce_grad(actions, self._n_microbatches))
                for rank, actions in from_native(built).items()}

    def _build_order(self) -> Order | None:
        return self._get_pipeline_order()

    def _step_microbatches(self, arg_mbs: list[Any] | None = None, kwarg_mbs: list[Any] | None = None,
                           target_mbs: list[Any] | None = None, losses: list[Any] | None = None,
                           return_outputs: bool = True, loss_kwargs: dict[str, Any] | None = None) -> Any:
        return engine.step_microbatches(self, arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs)


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
    """A few forwards, then one forward and one backward in turns. Holds at most as many activations as stages follow."""

    _kind = "1F1B"


def _set_stage_mapping(stages: Iterable[Any], mapping: dict[int, int]) -> None:
    for stage in stages:
        stage.stage_index_to_group_rank = mapping


class PipelineScheduleMulti(_PipelineSchedule):
    """A schedule with any number of stages on each rank.

    A subclass assigns `pipeline_order` after `super().__init__`, and calls `_validate_and_set_stage_mapping` if its
    stages are not placed round the ranks.
    """

    _style: ClassVar[str] = "loop"

    def __init__(self, stages: list[Any], n_microbatches: int, loss_fn: Callable[..., Any] | None = None,
                 args_chunk_spec: Any = None, kwargs_chunk_spec: Any = None, output_merge_spec: Any = None,
                 use_full_backward: bool | None = None, scale_grads: bool = True,
                 backward_requires_autograd: bool = True) -> None:
        super().__init__(n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads)
        if use_full_backward is not None:
            logger.warning("use_full_backward has no effect: the schedule's lists say which backward a stage runs")
        self._stages = stages
        self._num_stages = stages[0].num_stages
        self.pp_group_size = stages[0].group_size
        self.rank = stages[0].group_rank
        self.n_local_stages = len(stages)
        self._backward_requires_autograd = backward_requires_autograd
        self._stages_forward_initialized = False
        self._stages_backward_initialized = False
        self.stage_index_to_group_rank = generate_stage_to_rank_mapping(
            self.pp_group_size, self._num_stages, self._style)
        _set_stage_mapping(stages, self.stage_index_to_group_rank)

    def _local_stages(self) -> list[Any]:
        return list(self._stages)

    def _should_compute_loss(self, stage: Any) -> bool:
        return bool(stage.is_last) and self._loss_fn is not None

    def _build_order(self) -> Order | None:
        return {} if self._kind is None else from_native(self._native_order())

    def _native_order(self) -> _schedule.Schedule:
        """The lists of a schedule that is built by name, in C++."""
        if self._kind is None:
            raise ValueError(f"{type(self).__name__} has no lists of its own; assign pipeline_order")
        return _schedule.Schedule.build(self._kind, self.pp_group_size, self._n_microbatches, self.n_local_stages)

    def _validate_and_set_stage_mapping(self, actions: Order) -> None:
        """Verifies lists, and takes from them which rank has which stage. AssertionError for lists that cannot run."""
        self.stage_index_to_group_rank = _validate_schedule(
            actions, self.pp_group_size, self._num_stages, self._n_microbatches)
        _set_stage_mapping(self._stages, self.stage_index_to_group_rank)

    def _validate_adjacent_stage_communication(self) -> None:
        """RuntimeError where a stage's transfers name a stage that is not its neighbour."""
        engine.check_adjacent(self)

    def _dump_csv(self, filename: str) -> None:
        """Writes `pipeline_order`: a line for each rank."""
        _write_csv(filename, self.pipeline_order)

    def _load_csv(self, filename: str, format: Format = "compute_only") -> None:
        """Reads `pipeline_order` from a file and verifies it."""
        if format != "compute_only":
            raise AssertionError(f"format: expected compute_only, got {format}")
        order = _read_csv(filename)
        self._validate_and_set_stage_mapping(order)
        self.pipeline_order = order

    def _step_microbatches(self, arg_mbs: list[Any] | None = None, kwarg_mbs: list[Any] | None = None,
                           target_mbs: list[Any] | None = None, losses: list[Any] | None = None,
                           return_outputs: bool = True, loss_kwargs: dict[str, Any] | None = None) -> Any:
        return engine.step_microbatches(self, arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs)


def _write_csv(filename: str, order: Mapping[int, Iterable[_Action | None]]) -> None:
    with open(filename, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for rank in range(len(order)):
            writer.writerow(["" if action is None else str(action) for action in order[rank]])


def _read_csv(filename: str) -> Order:
    with open(filename, newline="", encoding="utf-8") as file:
        return {rank: [_Action.from_str(field) for field in row] for rank, row in enumerate(csv.reader(file))}


# What register_custom_function takes.
_REPLACEABLE = (FORWARD, FULL_BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, OVERLAP_F_B, UNSHARD, RESHARD, REDUCE_GRAD,
                WAIT_REDUCE_GRAD)


class _PipelineScheduleRuntime(PipelineScheduleMulti):
    """A schedule whose lists have transfers, sharding and reductions; functions may replace its actions."""

    def __init__(self, *args: Any, defer_pp_recv: bool = False, max_active_stages: int = 3,
                 unshard_lookahead: Any = "full", defer_reduce_grad_wait: bool = False,
                 max_outstanding_sends: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if max_outstanding_sends is not None and (type(max_outstanding_sends) is not int or max_outstanding_sends < 0):
            raise ValueError(f"max_outstanding_sends: expected None or an int of at least 0, got {max_outstanding_sends!r}")
        _resolve_unshard_lookahead(unshard_lookahead, self.pp_group_size, max_active_stages)
        self._defer_pp_recv = defer_pp_recv
        self._max_active_stages = max_active_stages
        self._unshard_lookahead = unshard_lookahead
        self._defer_reduce_grad_wait = defer_reduce_grad_wait
        self._max_outstanding_sends = max_outstanding_sends
        self._comp_type_to_function_map: dict[_ComputationType, Callable[..., None]] = {}
        self.backward_counter: defaultdict[int, int] = defaultdict(int)
        self.fwd_recv_ops: dict[tuple[int, int], Any] = {}
        self.bwd_recv_ops: dict[tuple[int, int], Any] = {}
        self.unshard_ops: defaultdict[int, list[Any]] = defaultdict(list)
        self.unsharded_stages: set[int] = set()
        self._comms: Order | None = None
        self._comms_are_own = False

    @property
    def n_microbatches(self) -> int:
        """How many microbatches a batch is cut into. May be assigned, on all ranks; the next step has that many."""
        return self._n_microbatches

    @n_microbatches.setter
    def n_microbatches(self, number: int) -> None:
        self._n_microbatches = number
        if not self._order_is_own:
            self._order = None
        if not self._comms_are_own:
            self._comms = None

    @property
    def pipeline_order_with_comms(self) -> Any:
        """All that each rank does, transfers included. What is assigned runs as it is."""
        if self._comms is None:
            self._comms = self._lower()
        return self._comms

    @pipeline_order_with_comms.setter
    def pipeline_order_with_comms(self, order: Any) -> None:
        self._comms = order
        self._comms_are_own = order is not None

    def _lower(self) -> Order:
        """The lists of `pipeline_order`, lowered as the installed torch does it."""
        if self._order_is_own or self._kind is None:
            mapping = self.stage_index_to_group_rank
            native = to_native(self.pipeline_order, "compute", lambda stage: mapping.get(stage, -1), self._num_stages)
        else:
            native = self._native_order()
        if HAS_WAITS:
            lookahead = self._unshard_lookahead
            lowered = native.lower(
                target="torch-2.15", max_active_stages=self._max_active_stages,
                unshard_lookahead=list(lookahead) if isinstance(lookahead, tuple) else lookahead,
                reduction_wait="deferred" if self._defer_reduce_grad_wait else "at_once")
        else:
            lowered = native.lower(target="torch-2.13", max_active_stages=self._max_active_stages)
        if self._max_outstanding_sends and HAS_WAITS and not self._defer_pp_recv:
            lowered = lowered.limit_sends(self._max_outstanding_sends)
        order = from_native(lowered)
        if self._defer_pp_recv:
            order = _defer_recv_ops(order, self.stage_index_to_group_rank.__getitem__)
        return order

    def _prepare_schedule_with_comms(self, actions: Order, format: Format = "compute_only") -> None:
        """Verifies lists and makes them those that run; `compute_comms` are lists with their transfers."""
        self._validate_and_set_stage_mapping(actions)
        if format == "compute_comms":
            for rank, entries in actions.items():
                if any(action is None for action in entries):
                    raise AssertionError(f"rank {rank}: expected no idle slots in a list with transfers")
            if HAS_WAITS:
                _validate_send_waits(actions)
            self.pipeline_order_with_comms = {rank: list(entries) for rank, entries in actions.items()}
        elif format == "compute_only":
            for rank, entries in actions.items():
                for action in entries:
                    if action is not None and not action.is_compute_op:
                        raise ValueError(f"rank {rank}, {action}: expected F, I, W, B or an overlap in a compute schedule")
            self.pipeline_order = actions
            self._comms, self._comms_are_own = None, False
        else:
            raise NotImplementedError(f"format: expected compute_only or compute_comms, got {format!r}")

    def _load_csv(self, filename: str, format: Format = "compute_only") -> None:
        """Reads lists from a file: what is computed, or all that is done."""
        self._prepare_schedule_with_comms(_read_csv(filename), format)

    def _dump_csv(self, filename: str, format: Format = "compute_comms") -> None:
        """Writes the lists: all that is done, or what is computed."""
        if format not in ("compute_only", "compute_comms"):
            raise NotImplementedError(f"format: expected compute_only or compute_comms, got {format!r}")
        _write_csv(filename, self.pipeline_order if format == "compute_only" else self.pipeline_order_with_comms)

    def _simulate(self) -> Order:
        """The lists of `pipeline_order_with_comms` in lock step (`_simulate_comms_compute`)."""
        return _simulate_comms_compute(self.pipeline_order_with_comms, self.stage_index_to_group_rank.__getitem__,
                                       self._num_stages)

    def register_custom_function(self, computation_type: _ComputationType,
                                 custom_function: _CustomFunctionProtocol) -> None:
        """Replaces all actions of a type by calls of `custom_function(action, ctx)`."""
        if computation_type not in _REPLACEABLE:
            raise ValueError(f"expected one of {', '.join(kind.value for kind in _REPLACEABLE)}, "
                             f"got {getattr(computation_type, 'value', computation_type)}")
        if computation_type in self._comp_type_to_function_map:
            logger.warning("the function for %s is replaced", computation_type.value)
        self._comp_type_to_function_map[computation_type] = custom_function

    def _assert_unsharded(self, stage: Any) -> None:
        """Waits until the parameters of a sharded stage are there."""
        engine.assert_unsharded(self, stage)


def _check_two_stages(name: str, stages: list[Any]) -> None:
    if len(stages) != 2:
        raise ValueError(f"{name} has exactly 2 stages on each rank, got {len(stages)}")


class ScheduleLoopedBFS(_PipelineScheduleRuntime):
    """Stage by stage, all microbatches each; stages are placed round the ranks."""

    _kind = "LoopedBFS"

    def __init__(self, stages: list[Any], n_microbatches: int, loss_fn: Callable[..., Any] | None = None,
                 output_merge_spec: Any = None, scale_grads: bool = True, backward_requires_autograd: bool = True,
                 defer_pp_recv: bool = False, max_active_stages: int = 3, unshard_lookahead: Any = "full", *,
                 args_chunk_spec: Any = None, kwargs_chunk_spec: Any = None, **options: Any) -> None:
        super().__init__(stages, n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec,
                         scale_grads=scale_grads, backward_requires_autograd=backward_requires_autograd,
                         defer_pp_recv=defer_pp_recv, max_active_stages=max_active_stages,
                         unshard_lookahead=unshard_lookahead, **options)


class _NamedMulti(_PipelineScheduleRuntime):
    """What the schedules below share: their constructor."""

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
        """Refuses what the schedule cannot be built for."""

    def _check_rounds(self, stages: list[Any], n_microbatches: int) -> None:
        rounds = max(1, n_microbatches // stages[0].group_size)
        if n_microbatches % rounds != 0:
            raise ValueError(f"{type(self).__name__}: expected a number of microbatches that is a multiple of its "
                             f"{rounds} rounds (microbatches / ranks), got {n_microbatches} microbatches on "
                             f"{stages[0].group_size} ranks")
        self.number_of_rounds = rounds
        self.microbatches_per_round = n_microbatches // rounds


class ScheduleInterleaved1F1B(_NamedMulti):
    """1F1B with several stages on each rank, placed round the ranks."""

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
    """The class of a schedule's name, in any case. ValueError for an unknown one."""
    for name, found in _CLASSES.items():
        if name.lower() == schedule_name.lower():
            return found
    raise ValueError(f"expected one of {', '.join(_CLASSES)}, got {schedule_name!r}")


@dataclass(frozen=True, eq=True)
class PipelineActivationLiveness:
    """Which activations of a rank can share a buffer (`analyze_pipeline_activation_liveness`)."""

    pp_rank: int
    granularity: Literal["microbatch", "stage_microbatch"]
    stage_indices: tuple[int, ...]
    num_microbatches: int
    slot_by_stage_and_microbatch: Mapping[tuple[int, int], int]
    num_slots: int
    _activation_lifetime_by_stage_and_microbatch: Mapping[tuple[int, int], tuple[int, int]]

    __hash__ = None  # type: ignore[assignment]

    def slot_for(self, stage_index: int, microbatch_index: int) -> int:
        """The buffer of a stage and microbatch."""
        slot: int = self._find(self.slot_by_stage_and_microbatch, stage_index, microbatch_index)
        return slot

    def get_activation_lifetime(self, stage_index: int, microbatch_index: int) -> tuple[int, int]:
        """The positions in the rank's list from its F to its B or W."""
        table = self._activation_lifetime_by_stage_and_microbatch
        lifetime: tuple[int, int] = self._find(table, stage_index, microbatch_index)
        return lifetime

    def _find(self, table: Mapping[tuple[int, int], Any], stage: int, microbatch: int) -> Any:
        if (stage, microbatch) not in table:
            raise ValueError(f"expected a stage of {self.stage_indices} and a microbatch below {self.num_microbatches}, "
                             f"got stage {stage}, microbatch {microbatch}")
        return table[stage, microbatch]


def analyze_pipeline_activation_liveness(
        schedule: PipelineScheduleMulti, *, pp_rank: int, stage_indices: Iterable[int],
        granularity: Literal["microbatch", "stage_microbatch"]) -> PipelineActivationLiveness:
    """Which activations of a rank can share a buffer, from F to B or W. ValueError for lists that are not complete."""
    if granularity not in ("microbatch", "stage_microbatch"):
        raise ValueError(f"granularity: expected microbatch or stage_microbatch, got {granularity!r}")
    stages = tuple(stage_indices)
    lists = schedule.pipeline_order_with_comms if isinstance(schedule, _PipelineScheduleRuntime) else schedule.pipeline_order
    if pp_rank not in lists:
        raise ValueError(f"pp_rank: expected one of {sorted(lists)}, got {pp_rank}")
    activations = to_native(lists).activation_slots(pp_rank, list(stages), granularity == "microbatch")
    slots = {pair: slot for pair, (slot, _, _) in activations.items()}
    return PipelineActivationLiveness(
        pp_rank, granularity, stages, schedule._n_microbatches, MappingProxyType(slots),
        max(slots.values(), default=-1) + 1,
        MappingProxyType({pair: (first, last) for pair, (_, first, last) in activations.items()}))
