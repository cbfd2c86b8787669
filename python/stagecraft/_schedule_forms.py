"""Schedules with one stage on each rank, and with several."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal

from stagecraft import _compare, _schedule
from stagecraft._actions import Order, _Action, from_native
from stagecraft._passes import _add_reduce_grad, _validate_schedule
from stagecraft._schedule_base import _EngineSchedule
from stagecraft._utils import generate_stage_to_rank_mapping

__all__: list[str] = []

logger = logging.getLogger("stagecraft.schedules")

Format = Literal["compute_only", "compute_comms"]


class PipelineScheduleSingle(_EngineSchedule):
    """A schedule with one stage on each rank."""

    _flags = ("_stage_forward_initialized", "_stage_backward_initialized")

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
        """The actions of each rank, including its reduction of gradients. None for a class without a
        list."""
        if self._kind is None:
            return None
        built = _schedule.Schedule.build(self._kind, self._num_stages, self._n_microbatches)
        if self._kind == "ForwardOnly":
            return from_native(built)
        return {rank: list(_add_reduce_grad(actions, self._n_microbatches))
                for rank, actions in from_native(built).items()}

    def _build_order(self) -> Order | None:
        return self._get_pipeline_order()


def _set_stage_mapping(stages: Iterable[Any], mapping: dict[int, int]) -> None:
    for stage in stages:
        stage.stage_index_to_group_rank = mapping


class PipelineScheduleMulti(_EngineSchedule):
    """A schedule with any number of stages on each rank.

    A subclass assigns `pipeline_order` after `super().__init__`, and calls `_validate_and_set_stage_mapping` if its
    stages are not placed in a loop.
    """

    _style: ClassVar[str] = "loop"
    _flags = ("_stages_forward_initialized", "_stages_backward_initialized")

    def __init__(self, stages: list[Any], n_microbatches: int, loss_fn: Callable[..., Any] | None = None,
                 args_chunk_spec: Any = None, kwargs_chunk_spec: Any = None, output_merge_spec: Any = None,
                 use_full_backward: bool | None = None, scale_grads: bool = True,
                 backward_requires_autograd: bool = True) -> None:
        super().__init__(n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads)
        if not stages:
            raise ValueError(f"{type(self).__name__}: expected the stages of this rank, got none")
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
        """Verifies lists, and reads the placement of stages from them. AssertionError for lists that cannot run."""
        self.stage_index_to_group_rank = _validate_schedule(
            actions, self.pp_group_size, self._num_stages, self._n_microbatches)
        _set_stage_mapping(self._stages, self.stage_index_to_group_rank)

    def _validate_adjacent_stage_communication(self) -> None:
        """RuntimeError if the transfers of a stage name a stage that is not its neighbour."""
        _compare.check_adjacent(self)

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


def _write_csv(filename: str, order: Mapping[int, Iterable[_Action | None]]) -> None:
    with open(filename, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for rank in range(len(order)):
            writer.writerow(["" if action is None else str(action) for action in order[rank]])


def _read_csv(filename: str) -> Order:
    with open(filename, newline="", encoding="utf-8") as file:
        return {rank: [_Action.from_str(field) for field in row] for rank, row in enumerate(csv.reader(file))}
