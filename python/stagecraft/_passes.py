"""Passes over lists of actions, under the names that torch gives them; needs no torch.

A pass returns new lists and does not change its arguments. The installed torch determines which
actions the lists have: from 2.15 on, they have waits for reductions and sends.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stagecraft import _schedule, errors
from stagecraft._actions import (
    BACKWARD_INPUT, BACKWARD_WEIGHT, F, FORWARD, FULL_BACKWARD, HAS_WAITS, RECV_B, RECV_F,
    REDUCE_GRAD, SEND_B, SEND_F, WAIT_REDUCE_GRAD, WAIT_SEND_B, WAIT_SEND_F, Order, _Action, _ComputationType,
    encode_list, from_native, to_native)

Lists = Mapping[int, Iterable["_Action | None"]]
StageToRank = Callable[[int], int]


def _parts(action: _Action) -> tuple[_Action, ...]:
    return (action,) if action.sub_actions is None else action.sub_actions


def _one_list(actions: Iterable[_Action | None]) -> _schedule.Schedule:
    return _schedule.Schedule.from_lists([encode_list(actions)], None, "compute")


def _only_list(schedule: _schedule.Schedule) -> list[_Action]:
    return [action for action in schedule.lists()[0] if action is not None]


def _requires_reduce_grad(action_type: _ComputationType) -> bool:
    """Whether an action of that type makes gradients of parameters: W and B."""
    return action_type in (BACKWARD_WEIGHT, FULL_BACKWARD)


def _get_profiler_function_name(action: _Action) -> str:
    """The label of an action in a profile, such as PP:2F0."""
    return f"PP:{action}"


def _format_pipeline_order(pipeline_order: Lists, error_step_number: int | None = None) -> str:
    """A table with a line for each time step and a column for each rank. The step with the given
    number is marked."""
    ranks = sorted(pipeline_order)
    columns = [["" if action is None else str(action) for action in pipeline_order[rank]] for rank in ranks]
    steps = max((len(column) for column in columns), default=0)
    widths = [max([len(f"Rank {rank}"), *map(len, column)]) for rank, column in zip(ranks, columns)]
    step_width = max(2, len(str(max(steps - 1, 0))))
    indent = " " * (len("Step : ") + step_width)
    lines = [indent + " ".join(f"Rank {rank}".ljust(width) for rank, width in zip(ranks, widths))]
    for step in range(steps):
        cells = (column[step] if step < len(column) else "" for column in columns)
        row = " ".join(cell.ljust(width) for cell, width in zip(cells, widths))
        mark = " <-- ERROR HERE" if step == error_step_number else ""
        lines.append(f"Step {step:0{step_width}}: {row}{mark}")
    return "\n".join(lines) + "\n"


def _validate_schedule(actions: Lists, pp_group_size: int, num_stages: int, num_microbatches: int) -> dict[int, int]:
    """The rank of each stage. AssertionError, with the findings, unless the lists are a complete schedule."""
    if len(actions) != pp_group_size:
        raise AssertionError(f"expected lists for {pp_group_size} ranks, got {len(actions)}")
    stage_to_rank: dict[int, int] = {}
    for rank in range(pp_group_size):
        if rank not in actions:
            raise AssertionError(f"expected a list for each rank below {pp_group_size}, got none for rank {rank}")
        for position, action in enumerate(actions[rank]):
            if action is None:
                continue
            if not isinstance(action, _Action):
                raise AssertionError(f"rank {rank}, slot {position}: expected an _Action or None, got {action!r}")
            for part in _parts(action):
                home = stage_to_rank.setdefault(part.stage_index, rank)
                if home != rank:
                    raise AssertionError(
                        f"rank {rank}, slot {position}, {action}: stage {part.stage_index} is on rank {home}")
                if part.stage_index >= num_stages:
                    raise AssertionError(
                        f"rank {rank}, slot {position}, {action}: there are {num_stages} stages")
    schedule = to_native(actions, None, lambda stage: stage_to_rank.get(stage, -1), num_stages)
    schedule.check("training", num_microbatches)
    return stage_to_rank


def _merge_bw(compute_actions: Iterable[_Action | None]) -> list[_Action]:
    """Makes a B of each I that is directly followed by its W. Drops idle slots."""
    return _only_list(_one_list(compute_actions).merge_backward())


def _add_unshard_reshard(compute_actions: Iterable[_Action | None], max_active_stages: int = 3, *,
                         unshard_lookahead: int | None = None) -> list[_Action]:
    """Inserts UNSHARD and RESHARD, so that at most `max_active_stages` stages hold their parameters. Drops idle slots."""
    actions = list(compute_actions)
    if HAS_WAITS:
        for action in actions:
            if action is not None and len({part.stage_index for part in _parts(action)}) > max_active_stages:
                raise ValueError(f"{action} needs more than max_active_stages={max_active_stages} stages at a time")
    lookahead: str | list[int] = "full" if unshard_lookahead is None else [unshard_lookahead]
    return _only_list(_one_list(actions).shard_stages(max_active_stages, lookahead))


def _add_reduce_grad(actions: Iterable[_Action | None], n_microbatches: int,
                     defer_reduce_grad_wait: bool = False) -> list[_Action]:
    """Inserts a stage's REDUCE_GRAD after its n-th B or W. Drops idle slots.

    From torch 2.15 on, its WAIT_REDUCE_GRAD follows at once or, deferred, before the next REDUCE_GRAD.
    """
    counts: defaultdict[int, int] = defaultdict(int)
    pending: _Action | None = None
    result: list[_Action] = []
    for action in actions:
        if action is None:
            continue
        result.append(action)
        for part in _parts(action):
            if not _requires_reduce_grad(part.computation_type):
                continue
            counts[part.stage_index] += 1
            if counts[part.stage_index] != n_microbatches:
                continue
            if pending is not None:
                result.append(pending)
                pending = None
            result.append(_Action(part.stage_index, REDUCE_GRAD))
            if HAS_WAITS:
                wait = _Action(part.stage_index, WAIT_REDUCE_GRAD)
                if defer_reduce_grad_wait:
                    pending = wait
                else:
                    result.append(wait)
    if pending is not None:
        result.append(pending)
    return result


def _add_send_recv(compute_actions: Lists, stage_to_rank: StageToRank, num_stages: int) -> Order:
    """Inserts SEND and RECV. AssertionError when the ranks would wait for each other."""
    return from_native(to_native(compute_actions, "compute", stage_to_rank, num_stages).add_transfers())


def _add_wait_send(comm_actions: Lists) -> Order:
    """Inserts a wait for each send: after the backward that follows a SEND_F, or at the end."""
    return from_native(to_native(comm_actions, "lowered").add_send_waits())


def _add_wait_send_budget(comm_actions: Lists, stage_to_rank: StageToRank, max_outstanding_sends: int) -> Order:
    """Moves waits forward, so that no rank has more outstanding sends than the maximum."""
    num_stages = 1 + max((part.stage_index for actions in comm_actions.values() for action in actions
                          if action is not None for part in _parts(action)), default=0)
    schedule = to_native(comm_actions, "lowered", stage_to_rank, num_stages)
    return from_native(schedule.limit_sends(max_outstanding_sends))


def _validate_send_waits(comm_actions: Lists) -> None:
    """ValueError unless each send occurs once and has one wait, after it."""
    send_of = {WAIT_SEND_F: SEND_F, WAIT_SEND_B: SEND_B}
    for rank, actions in comm_actions.items():
        pending: dict[tuple[_ComputationType, int, int], bool] = {}
        for action in actions:
            if action is None:
                continue
            kind = action.computation_type
            if kind not in (SEND_F, SEND_B, WAIT_SEND_F, WAIT_SEND_B):
                continue
            if action.microbatch_index is None:
                raise ValueError(f"rank {rank}, {action}: expected a microbatch")
            key = (send_of.get(kind, kind), action.stage_index, action.microbatch_index)
            if kind in send_of:
                if not pending.get(key, False):
                    raise ValueError(f"rank {rank}, {action}: expected an earlier {key[0].value} without a wait")
                pending[key] = False
            elif key in pending:
                raise ValueError(f"rank {rank}, {action}: comes a second time")
            else:
                pending[key] = True
        left = [f"{stage}{kind.value}{microbatch}" for (kind, stage, microbatch), waits in pending.items() if waits]
        if left:
            raise ValueError(f"rank {rank}: expected a wait for each send, got none for {', '.join(left)}")


def _resolve_unshard_lookahead(unshard_lookahead: Any, num_pp_ranks: int, max_active_stages: int) -> tuple[int, ...]:
    """How many stages each rank unshards ahead: "full", "auto" or a tuple with a number for each rank."""
    if type(max_active_stages) is not int or max_active_stages < 1:
        raise ValueError(f"max_active_stages: expected a positive int, got {max_active_stages!r}")
    if unshard_lookahead == "full":
        return (max_active_stages,) * num_pp_ranks
    if unshard_lookahead == "auto":
        return tuple(min(rank + 2, max_active_stages) for rank in range(num_pp_ranks))
    if (isinstance(unshard_lookahead, tuple) and len(unshard_lookahead) == num_pp_ranks
            and all(type(number) is int and 1 <= number <= max_active_stages for number in unshard_lookahead)):
        return unshard_lookahead
    raise ValueError(f"unshard_lookahead: expected 'full', 'auto' or a tuple of {num_pp_ranks} numbers from 1 to "
                     f"{max_active_stages}, got {unshard_lookahead!r}")


class _HeldReceives:
    """The receives of a rank that are held back, in the order in which they came."""

    def __init__(self, stage_to_rank: StageToRank) -> None:
        self._stage_to_rank = stage_to_rank
        self._held: dict[_Action, int] = {}

    def hold(self, receive: _Action) -> None:
        source = receive.stage_index + (-1 if receive.computation_type is RECV_F else 1)
        self._held[receive] = self._stage_to_rank(source)

    def release_from(self, peer: int) -> list[_Action]:
        """Releases all receives from that rank."""
        released = [receive for receive, source in self._held.items() if source == peer]
        for receive in released:
            del self._held[receive]
        return released

    def release_for(self, action: _Action) -> list[_Action]:
        """Releases the receives that a compute action reads."""
        released = []
        for part in _parts(action):
            kind = part.computation_type
            if kind is BACKWARD_WEIGHT:
                continue
            receive = _Action(part.stage_index, RECV_F if kind is FORWARD else RECV_B, part.microbatch_index)
            if self._held.pop(receive, None) is not None:
                released.append(receive)
        return released

    def left(self) -> list[_Action]:
        return list(self._held)


def _defer_recv_ops(actions: Lists, stage_to_rank: StageToRank) -> Order:
    """Moves each receive back to the action that reads its value.

    A SEND to a rank of higher number is preceded by all receives from that rank that were held back.
    AssertionError for a receive that nothing reads. A schedule with defer_pp_recv shows these lists. In
    the lists that run, receives are placed so that no two ranks can wait for each other.
    """
    result: Order = {}
    for rank, entries in actions.items():
        held = _HeldReceives(stage_to_rank)
        out: list[_Action | None] = []
        for action in entries:
            if action is None:
                continue
            kind = action.computation_type
            if kind in (RECV_F, RECV_B):
                held.hold(action)
                continue
            if kind in (SEND_F, SEND_B):
                peer = stage_to_rank(action.stage_index + (1 if kind is SEND_F else -1))
                if peer > rank:
                    out.extend(held.release_from(peer))
            elif action.is_compute_op:
                out.extend(held.release_for(action))
            out.append(action)
        if held.left():
            raise AssertionError(f"rank {rank}: no later action reads {', '.join(map(str, held.left()))}")
        result[rank] = out
    return result


def _simulate_comms_compute(pipeline_order: Lists, stage_to_rank: StageToRank, num_stages: int) -> Order:
    """Runs lowered lists in steps of one action. None means that a rank waits. ValueError for a deadlock."""
    order = {rank: [action for action in pipeline_order[rank] if action is not None] for rank in pipeline_order}
    try:
        steps = _schedule.unit_steps(to_native(order, "lowered", stage_to_rank, num_stages))
    except errors.ScheduleError as error:
        raise ValueError(str(error)) from None
    result: Order = {}
    for rank, done in enumerate(steps):
        line: list[_Action | None] = [None] * (done[-1][1] + 1 if done else 0)
        for slot, step in done:
            line[step] = order[rank][slot]
        result[rank] = line
    return result


def _dump_chrometrace(schedule: Lists, filename: str) -> None:
    """Writes the lists as a trace for ui.perfetto.dev: one microsecond for each slot, a process for
    each rank."""
    events = []
    for rank in sorted(schedule):
        for step, action in enumerate(schedule[rank]):
            if action is not None:
                events.append({"name": str(action), "cat": "computation" if action.is_compute_op else "communication",
                               "ph": "X", "pid": rank, "tid": rank, "ts": step, "dur": 1})
    with open(filename, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events}, file)


def _get_warmup_ops(rank: int, n_local_stages: int, microbatches_per_round: int, pp_group_size: int,
                    n_microbatches: int, multiply_factor: int = 2) -> int:
    """How many forwards an interleaved schedule has on a rank before its first backward."""
    ahead = (n_local_stages - 1) * microbatches_per_round + multiply_factor * (pp_group_size - 1 - rank)
    return min(ahead, n_microbatches * n_local_stages)


def _get_1f1b_rank_ops(n_local_stages: int, pp_group_size: int, warmup_ops: int, fwd_bwd_ops: int, cooldown_ops: int,
                       rank: int, forward_stage_index: Callable[[int], int], backward_stage_index: Callable[[int], int],
                       num_1f1b_microbatches: int = 0, enable_zero_bubble: bool = False) -> list[_Action | None]:
    """The list of one rank of an interleaved schedule. Two functions return the stage for the number of an operation.

    With `enable_zero_bubble` a backward is I, and its W comes `num_1f1b_microbatches` backwards later.
    """
    forwards: defaultdict[int, int] = defaultdict(int)
    backwards: defaultdict[int, int] = defaultdict(int)
    weights: defaultdict[int, int] = defaultdict(int)
    done: list[int] = []
    result: list[_Action | None] = [None] * rank

    def add(counter: defaultdict[int, int], stage: int, kind: _ComputationType) -> None:
        result.append(_Action(stage, kind, counter[stage]))
        counter[stage] += 1

    for op in range(warmup_ops):
        add(forwards, forward_stage_index(op), F)
    if warmup_ops:
        idle = pp_group_size - rank - 1 if enable_zero_bubble else (
            n_local_stages * pp_group_size + 2 * (pp_group_size - 1 - rank) - (warmup_ops + rank))
        result.extend([None] * idle)
    made = 0
    for op in range(warmup_ops, warmup_ops + fwd_bwd_ops + cooldown_ops):
        if op < warmup_ops + fwd_bwd_ops:
            add(forwards, forward_stage_index(op), F)
        elif not enable_zero_bubble:
            result.append(None)
        stage = backward_stage_index(op)
        add(backwards, stage, BACKWARD_INPUT if enable_zero_bubble else FULL_BACKWARD)
        done.append(stage)
        if enable_zero_bubble and op - warmup_ops >= num_1f1b_microbatches:
            add(weights, done[made], BACKWARD_WEIGHT)
            made += 1
    if enable_zero_bubble:
        for stage in done[made:]:
            add(weights, stage, BACKWARD_WEIGHT)
    return result
