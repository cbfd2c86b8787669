"""Schedules whose lists have transfers, sharding and reductions. Functions may replace their actions."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from stagecraft import engine
from stagecraft._actions import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    HAS_WAITS,
    OVERLAP_F_B,
    REDUCE_GRAD,
    RESHARD,
    UNSHARD,
    WAIT_REDUCE_GRAD,
    Order,
    _ComputationType,
    from_native,
    to_native,
)
from stagecraft._passes import _defer_recv_ops, _resolve_unshard_lookahead, _simulate_comms_compute, _validate_send_waits
from stagecraft._schedule_base import _CustomFunctionProtocol
from stagecraft._schedule_forms import Format, PipelineScheduleMulti, _read_csv, _write_csv

__all__: list[str] = []

logger = logging.getLogger("stagecraft.schedules")


# The types that register_custom_function accepts.
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

    def _forget_built_lists(self) -> None:
        super()._forget_built_lists()
        if not self._comms_are_own:
            self._comms = None

    @property
    def pipeline_order_with_comms(self) -> Any:
        """All actions of each rank, including transfers. Assigned lists run unchanged."""
        if self._comms is None:
            self._comms = self._lower()
        return self._comms

    @pipeline_order_with_comms.setter
    def pipeline_order_with_comms(self, order: Any) -> None:
        self._comms = order
        self._comms_are_own = order is not None

    def _lower(self) -> Order:
        """The lists of `pipeline_order`, lowered as by the installed torch."""
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
        """Verifies lists and uses them for the next steps. `compute_comms` means lists with transfers."""
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
        """Reads lists from a file: compute actions only, or all actions."""
        self._prepare_schedule_with_comms(_read_csv(filename), format)

    def _dump_csv(self, filename: str, format: Format = "compute_comms") -> None:
        """Writes the lists to a file: all actions, or compute actions only."""
        if format not in ("compute_only", "compute_comms"):
            raise NotImplementedError(f"format: expected compute_only or compute_comms, got {format!r}")
        _write_csv(filename, self.pipeline_order if format == "compute_only" else self.pipeline_order_with_comms)

    def _simulate(self) -> Order:
        """The lists of `pipeline_order_with_comms` in steps of one action
        (`_simulate_comms_compute`)."""
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
        """Waits until the parameters of a sharded stage are gathered."""
        engine.assert_unsharded(self, stage)
