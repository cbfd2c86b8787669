"""The sources of a runner: the lists of a schedule, and the connections of its stages."""

from __future__ import annotations

import re
from typing import Any

__all__: list[str] = []


def ports_of(schedule: Any) -> Any:
    for stage in schedule._local_stages():
        ports = getattr(getattr(stage, "pipe_info", None), "ports", None)
        if ports is not None:
            return ports
    return None


def ties_of(schedule: Any) -> list[list[tuple[int, str]]]:
    """Weights that stages of several ranks read. Stages of one rank share the tensor, so only one of them is
    listed."""
    place = schedule.stage_index_to_group_rank
    for stage in schedule._local_stages():
        ties = getattr(getattr(stage, "pipe_info", None), "ties", None)
        if ties is None:
            continue
        groups = []
        for group in ties:
            first: dict[int, tuple[int, str]] = {}
            for index, name in group:
                first.setdefault(place[index], (index, name))
            if len(first) > 1:
                groups.append(list(first.values()))
        return groups
    return []


def has_ports(schedule: Any) -> bool:
    return ports_of(schedule) is not None


def _text_of(order: Any) -> str:
    """Lists of actions as a CSV of schedules: a line for each rank."""
    lines = []
    for rank in range(len(order)):
        fields = ["" if action is None else str(action) for action in order[rank]]
        lines.append('""' if fields == [""] else ",".join(fields))
    return "\n".join(lines) + "\n"


def source_of(schedule: Any) -> dict[str, Any]:
    """The description from which the runner makes its schedule; see bindings/runner.cpp."""
    if getattr(schedule, "_comms_are_own", False):
        return {"text": _text_of(schedule.pipeline_order_with_comms)}
    options: dict[str, Any] = {"max_active_stages": getattr(schedule, "_max_active_stages", None)}
    if getattr(schedule, "_defer_pp_recv", False):
        options["prefetch"] = 0
    if schedule._order_is_own or schedule._kind is None:
        return {"text": _text_of(schedule.pipeline_order), **options}
    return {
        "name": schedule._kind,
        "ranks": schedule.pp_group_size,
        "stages_per_rank": len(schedule._local_stages()),
        **options,
    }


def splits_backward(schedule: Any, source: dict[str, Any]) -> bool:
    text = source["text"] if "text" in source else _text_of(schedule.pipeline_order)
    # A number follows the type: 2W0 is a weight backward, 2WAIT_REDUCE_GRAD is a wait.
    return re.search(r"\dW\d", text) is not None
