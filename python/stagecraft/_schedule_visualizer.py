"""Drawings of schedules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stagecraft import data
from stagecraft._actions import (
    BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, FULL_BACKWARD, OVERLAP_F_B, _Action, _ComputationType)
from stagecraft.schedules import (
    PipelineScheduleMulti, PipelineScheduleSingle, _PipelineSchedule, _PipelineScheduleRuntime, get_schedule_class)

__all__ = ["OpKey", "add_schedule_op_spacing", "get_schedule_ops", "visualize_schedule"]

Ops = list[list["_Action | None"]]


class OpKey(NamedTuple):
    """A compute action of a stage and microbatch."""

    stage_index: int
    computation_type: _ComputationType
    microbatch_index: int


class _ComputationTypeVisual:
    """The look of a type of action."""

    def __init__(self, color: str, text: str = "", width: int = 1) -> None:
        self.color = color
        self.text = text
        self.width = width


action_type_to_color_mapping = {
    FORWARD: _ComputationTypeVisual("#4c78a8", "Forward"),
    BACKWARD_INPUT: _ComputationTypeVisual("#59a89c", "Backward Input"),
    BACKWARD_WEIGHT: _ComputationTypeVisual("#7fb069", "Backward Weight"),
    FULL_BACKWARD: _ComputationTypeVisual("#f28e2b", "Full Backward", 2),
    OVERLAP_F_B: _ComputationTypeVisual("#9467bd", "Overlap F+B", 3),
}


class _ShapeOnly:
    """A stage that has only a place in the pipeline."""

    submod = None
    device = None
    p2p_per_edge = False

    def __init__(self, index: int, num_stages: int, ranks: int) -> None:
        self.stage_index = index
        self.num_stages = num_stages
        self.group_size = ranks
        self.group_rank = 0
        self.stage_index_to_group_rank: dict[int, int] | None = None


def get_schedule_ops(schedule: str | type[_PipelineSchedule], pp_degree: int, num_microbatches: int,
                     num_stages_per_rank: int | None = None, add_spacing: bool = False, with_comms: bool = False,
                     defer_pp_recv: bool = False) -> Ops:
    """The list of each rank of a schedule, by name or class.

    Args:
        add_spacing: add idle slots, so that a column is a point in time.
        with_comms: all actions, including transfers.
        defer_pp_recv: receives as late as possible. Only with `with_comms`.
    """
    if add_spacing and with_comms:
        raise ValueError("expected add_spacing or with_comms, got both: transfers have no width")
    found: Any = get_schedule_class(schedule) if isinstance(schedule, str) else schedule
    if issubclass(found, PipelineScheduleSingle):
        per_rank = 1 if num_stages_per_rank is None else num_stages_per_rank
        if per_rank != 1:
            raise AssertionError(f"{found.__name__} has 1 stage on each rank, got num_stages_per_rank={per_rank}")
        made: Any = found(_ShapeOnly(0, pp_degree, pp_degree), num_microbatches)
    elif issubclass(found, PipelineScheduleMulti):
        per_rank = 2 if num_stages_per_rank is None else num_stages_per_rank
        if per_rank < 2:
            raise AssertionError(f"{found.__name__}: expected at least 2 stages on each rank, got {per_rank}")
        stages = [_ShapeOnly(index * pp_degree, pp_degree * per_rank, pp_degree) for index in range(per_rank)]
        options = {"defer_pp_recv": defer_pp_recv} if issubclass(found, _PipelineScheduleRuntime) else {}
        made = found(stages, num_microbatches, **options)
    else:
        raise ValueError(f"expected a schedule class, got {found}")
    order = made.pipeline_order
    if with_comms:
        order = made.pipeline_order_with_comms if isinstance(made, _PipelineScheduleRuntime) else data.Schedule.of(
            {rank: [action for action in actions if action is not None and action.is_compute_op]
             for rank, actions in order.items()}).lower(target="torch-2.13").lists
    ops = [list(order[rank]) for rank in range(pp_degree)]
    return add_schedule_op_spacing(ops) if add_spacing else ops


def add_schedule_op_spacing(schedule: Sequence[Iterable[_Action | None]]) -> Ops:
    """The lists with idle slots, so that the position of an action is the time at which it starts (F, I, W 1; B 2;
    overlap 3)."""
    lists = [[action for action in actions if action is not None and action.is_compute_op] for actions in schedule]
    run = data.Schedule.of(lists).simulate(data.Costs(B=2))
    spaced: Ops = []
    for rank, actions in enumerate(lists):
        starts = {text: start for text, start, _ in run.timeline(rank)}
        line: list[_Action | None] = []
        clock = 0.0
        for action in actions:
            first = action if action.sub_actions is None else action.sub_actions[0]
            start = starts[str(first)]
            line.extend([None] * round(start - clock))
            line.append(action)
            clock = start + (action_type_to_color_mapping[action.computation_type].width
                             if action.sub_actions is None else sum(
                                 action_type_to_color_mapping[part.computation_type].width
                                 for part in action.sub_actions))
        spaced.append(line)
    return spaced


def visualize_schedule(schedule: Sequence[Iterable[_Action | None]], filename: str | None = None) -> Any:
    """Draws lists: .svg and .html by our drawings, other endings by matplotlib; without a file, for a notebook."""
    lists = [[action for action in actions if action is not None] for actions in schedule]
    run = data.Schedule.of(lists).simulate(data.Costs(B=2))
    if filename is None:
        return run
    if Path(filename).suffix.lower() in (".svg", ".html"):
        run.draw(filename)
    else:
        _draw_with_matplotlib(run, filename)
    return None


def _draw_with_matplotlib(run: data.Simulation, filename: str) -> None:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError(f"{filename}: matplotlib draws this form and is not installed; .svg and .html need nothing "
                          f"else") from None
    figure, axes = plt.subplots(figsize=(12, 0.5 * run.schedule.ranks + 1))
    for rank in range(run.schedule.ranks):
        for text, start, end in run.timeline(rank):
            action = _Action.from_str(text)
            visual = action_type_to_color_mapping.get(action.computation_type) if action is not None else None
            if visual is not None:
                axes.barh(rank, end - start, left=start, color=visual.color, edgecolor="white")
    axes.invert_yaxis()
    axes.set_ylabel("rank")
    figure.savefig(filename)
    plt.close(figure)
