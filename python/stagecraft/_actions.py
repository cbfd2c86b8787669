"""Actions of a schedule and their text; needs no torch.

In C++ an action is one number. There is one `_Action` for each number that has occurred, so that a
list costs a lookup for each action.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import NamedTuple, Union

from stagecraft import _schedule
from stagecraft._check import TORCH_VERSION

# Lists of torch 2.15 have waits for sends and reductions. Lists of earlier versions have no such
# actions.
HAS_WAITS = tuple(int(part) for part in TORCH_VERSION.split(".")[:2]) >= (2, 15)

Code = Union[int, "tuple[int, ...]", None]


class _ComputationType(str, Enum):
    """The type of an action. The value is its word in the text of a schedule."""

    FORWARD = "F"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    FULL_BACKWARD = "B"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    REDUCE_GRAD = "REDUCE_GRAD"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    OVERLAP_F_B = "OVERLAP_F_B"
    WAIT_SEND_F = "WAIT_SEND_F"
    WAIT_SEND_B = "WAIT_SEND_B"
    WAIT_REDUCE_GRAD = "WAIT_REDUCE_GRAD"

    __hash__ = str.__hash__

    @staticmethod
    def from_str(action: str) -> _ComputationType:
        """The type of that word. RuntimeError for any other text."""
        found = _BY_WORD.get(action)
        if found is None:
            raise RuntimeError(f"expected one of {', '.join(_BY_WORD)}, got {action!r}")
        return found


_BY_WORD: dict[str, _ComputationType] = {kind.value: kind for kind in _ComputationType}

FORWARD = _ComputationType.FORWARD
BACKWARD_INPUT = _ComputationType.BACKWARD_INPUT
BACKWARD_WEIGHT = _ComputationType.BACKWARD_WEIGHT
FULL_BACKWARD = _ComputationType.FULL_BACKWARD
UNSHARD = _ComputationType.UNSHARD
RESHARD = _ComputationType.RESHARD
REDUCE_GRAD = _ComputationType.REDUCE_GRAD
SEND_F = _ComputationType.SEND_F
RECV_F = _ComputationType.RECV_F
SEND_B = _ComputationType.SEND_B
RECV_B = _ComputationType.RECV_B
OVERLAP_F_B = _ComputationType.OVERLAP_F_B
WAIT_SEND_F = _ComputationType.WAIT_SEND_F
WAIT_SEND_B = _ComputationType.WAIT_SEND_B
WAIT_REDUCE_GRAD = _ComputationType.WAIT_REDUCE_GRAD
F, I, W, B = FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FULL_BACKWARD

_COMPUTE = frozenset((FORWARD, FULL_BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, OVERLAP_F_B))
_ACTION = re.compile(r"(\d+)([A-Z_]+)(\d*)")
_OVERLAP = re.compile(r"\(([^()]*)\)([A-Z_]+)")


class _Action(NamedTuple):
    """One entry of a rank's list: a stage, a type and a microbatch. `2F0` as text.

    An overlap has its parts in `sub_actions`: `(0F7;7B3)OVERLAP_F_B`.
    """

    stage_index: int
    computation_type: _ComputationType
    microbatch_index: int | None = None
    sub_actions: tuple[_Action, ...] | None = None

    def __str__(self) -> str:
        word = self.computation_type.value
        if self.sub_actions is not None:
            return f"({';'.join(map(str, self.sub_actions))}){word}"
        microbatch = "" if self.microbatch_index is None else self.microbatch_index
        return f"{self.stage_index}{word}{microbatch}"

    def __repr__(self) -> str:
        return str(self)

    @property
    def is_compute_op(self) -> bool:
        """Whether it is F, I, W, B or an overlap of them."""
        return self.computation_type in _COMPUTE

    @staticmethod
    def from_str(action_string: str) -> _Action | None:
        """The action of a text; None for an empty text. RuntimeError for any other text."""
        text = action_string.strip()
        if not text:
            return None
        match = _ACTION.fullmatch(text)
        if match:
            stage, word, microbatch = match.groups()
            if word in _BY_WORD and word != OVERLAP_F_B.value:
                return _Action(int(stage), _BY_WORD[word], int(microbatch) if microbatch else None)
        match = _OVERLAP.fullmatch(text)
        if match and match.group(2) == OVERLAP_F_B.value:
            parts = tuple(_Action.from_str(part) for part in match.group(1).split(";") if part.strip())
            actions = tuple(part for part in parts if part is not None)
            return _Action(-1, OVERLAP_F_B, None, actions or None)
        raise RuntimeError(
            f"expected an action, such as 2F0, 1UNSHARD or (0F7;7B3)OVERLAP_F_B, got {action_string!r}")


Order = dict[int, list[Union[_Action, None]]]

# The numbers of the types in C++ (ActionType).
_NUMBERS = {
    kind: number
    for number, kind in enumerate((
        FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FULL_BACKWARD, SEND_F, RECV_F, SEND_B, RECV_B,
        WAIT_SEND_F, WAIT_SEND_B, UNSHARD, RESHARD, REDUCE_GRAD, WAIT_REDUCE_GRAD))
}
_TYPES = tuple(_NUMBERS)
_NO_MICROBATCH = 0xFFFFFFFF


_schedule.set_action_class(_Action, (*_TYPES, OVERLAP_F_B))


def _code_of_one(action: _Action) -> int:
    microbatch = action.microbatch_index
    return (action.stage_index << 40 | _NUMBERS[action.computation_type] << 32
            | (_NO_MICROBATCH if microbatch is None else microbatch))


def encode(action: _Action | None) -> Code:
    """The code of an action in C++."""
    if action is None:
        return None
    if action.sub_actions is not None:
        return tuple(_code_of_one(part) for part in action.sub_actions)
    if action.computation_type is OVERLAP_F_B:
        raise AssertionError("OVERLAP_F_B: expected sub_actions, got none")
    return _code_of_one(action)


def encode_list(actions: Iterable[_Action | None]) -> list[Code]:
    """The codes of a rank's list."""
    return [encode(action) for action in actions]


def to_native(order: Mapping[int, Iterable[_Action | None]], level: str | None = None,
              stage_to_rank: Callable[[int], int] | None = None, num_stages: int = 0) -> _schedule.Schedule:
    """The C++ schedule of lists by rank. Ranks are 0 to the number of lists."""
    lists = [encode_list(order[rank]) for rank in range(len(order))]
    ranks = None
    if stage_to_rank is not None:
        ranks = [stage_to_rank(stage) for stage in range(num_stages)]
    return _schedule.Schedule.from_lists(lists, ranks, level)


def from_native(schedule: _schedule.Schedule) -> Order:
    """Lists by rank of a C++ schedule."""
    # The collector is disabled, because the many tuples of a large schedule would start it
    # repeatedly, and it would find nothing.
    collects = gc.isenabled()
    gc.disable()
    try:
        return dict(enumerate(schedule.lists()))
    finally:
        if collects:
            gc.enable()
