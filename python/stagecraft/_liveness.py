"""Which activations of a rank can share a buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from stagecraft._actions import to_native
from stagecraft._schedule_forms import PipelineScheduleMulti
from stagecraft._schedule_runtime import _PipelineScheduleRuntime

__all__: list[str] = []


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
    """Which activations of a rank can share a buffer, from F to B or W. ValueError for incomplete lists."""
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
