"""Schedules as values: build, verify, simulate, compare, draw; needs no torch.

    >>> import stagecraft as sc
    >>> s = sc.Schedule.build("1F1B", ranks=2, microbatches=3)
    >>> s.simulate().makespan
    12.0
"""

from __future__ import annotations

import base64
import html
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stagecraft import _schedule
from stagecraft._actions import Order, _Action, from_native, to_native

__all__ = ["Comparison", "Costs", "CriticalStep", "Finding", "RankStats", "Schedule", "ScheduleRow", "Simulation",
           "compare", "schedule_names"]


def schedule_names() -> list[str]:
    """The names that `Schedule.build` knows."""
    return [kind["name"] for kind in _schedule.schedule_kinds()]


@dataclass(frozen=True)
class Finding:
    """One defect of a schedule (`Schedule.verify`). `str` is a sentence."""

    kind: str
    rank: int | None
    position: int | None
    action: str
    message: str
    cycle: tuple[str, ...]
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Costs:
    """The costs of actions, transfers and memory. Times have any one unit, and so has memory.

    Args:
        F, I, W: time of a forward, and of the two halves of a backward.
        B: time of a whole backward; without it I + W.
        latency, bandwidth: a transfer arrives `latency` after its last byte left.
        output_bytes: size of a stage's output, by stage or for all. Used with a bandwidth.
        memory_forward, memory_freed_by_input, memory_freed_by_weight, memory_sent: memory that F takes, that I and
            W free, and that a sent value takes until its transfer ends. The defaults count activations.
        weights: memory of a stage's parameters, by stage or for all.
        memory_cap: the most memory that a rank may hold.
        overlap: the share of an overlap's parts that run at the same time, from 0 to 1.
        rendezvous: a transfer waits until its receive is posted.
        stages: costs of single stages: {2: {"F": 3}}.
        links: costs of single links: {(0, 1): {"latency": 5}}.
    """

    F: float = 1
    I: float = 1  # noqa: E741
    W: float = 1
    B: float | None = None
    latency: float = 0
    bandwidth: float | None = None
    output_bytes: float | Sequence[float] = ()
    memory_forward: float = 1
    memory_freed_by_input: float = 0
    memory_freed_by_weight: float = 1
    memory_sent: float = 0
    weights: float | Sequence[float] = ()
    memory_cap: float | None = None
    overlap: float = 0
    rendezvous: bool = False
    stages: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    links: Mapping[tuple[int, int], Mapping[str, float]] = field(default_factory=dict)

    def __repr__(self) -> str:
        changed = [f"{name}={value!r}" for name, value in vars(self).items() if value != getattr(_DEFAULT_COSTS, name)]
        return f"Costs({', '.join(changed)})"

    def _native(self) -> _schedule.CostModel:
        return _schedule.CostModel.from_json(json.dumps(self._to_file()))

    def _to_file(self) -> dict[str, Any]:
        """The costs as a cost file of the tool."""
        file: dict[str, Any] = _stage_keys({name: getattr(self, name) for name in _STAGE_KEYS})
        file |= _link_keys({"latency": self.latency, "bandwidth": self.bandwidth})
        for key, value in (("BYTES", self.output_bytes), ("WEIGHTS", self.weights)):
            numbers = [value] if isinstance(value, (int, float)) else list(value)
            if numbers:
                file[key] = numbers
        if self.memory_cap is not None:
            file["CAP"] = self.memory_cap
        file["OVERLAP"] = self.overlap
        file["RENDEZVOUS"] = self.rendezvous
        if self.stages:
            file["stages"] = [_stage_keys(self.stages.get(stage, {})) for stage in range(max(self.stages) + 1)]
        if self.links:
            file["links"] = [{"from": source, "to": target, **_link_keys(costs)}
                             for (source, target), costs in sorted(self.links.items())]
        return file


# Our names, and the keys of a cost file.
_STAGE_KEYS = {"F": "F", "I": "I", "W": "W", "B": "FULL", "memory_forward": "MF", "memory_freed_by_input": "MI",
               "memory_freed_by_weight": "MW", "memory_sent": "MS"}
_LINK_KEYS = {"latency": "C", "bandwidth": "BW"}
_DEFAULT_COSTS = Costs()


def _renamed(costs: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    unknown = set(costs) - set(keys)
    if unknown:
        raise ValueError(f"expected costs among {', '.join(keys)}, got {', '.join(sorted(unknown))}")
    return {keys[name]: value for name, value in costs.items() if value is not None}


def _stage_keys(costs: Mapping[str, Any]) -> dict[str, Any]:
    return _renamed(costs, _STAGE_KEYS)


def _link_keys(costs: Mapping[str, Any]) -> dict[str, Any]:
    return _renamed(costs, _LINK_KEYS)


def _frame(page: str, height: int) -> str:
    """A page inside a notebook's cell."""
    return (f'<iframe srcdoc="{html.escape(page, quote=True)}" width="100%" height="{height}" '
            f'style="border:none"></iframe>')


class Schedule:
    """A list of actions for each rank, for one step, and the placement of the stages.

    A value: `==`, `hash` and `pickle` work, `str` is its text (CSV, a line for each rank), and a notebook shows its
    drawing. Made by `build`, `read`, `parse` or `of`.
    """

    __slots__ = ("_native", "_text")

    def __init__(self, native: _schedule.Schedule) -> None:
        self._native = native
        self._text: str | None = None

    @staticmethod
    def build(name: str, *, ranks: int, microbatches: int, stages_per_rank: int | None = None) -> Schedule:
        """The schedule with that name (`schedule_names`). Upper and lower case do not matter. ArgumentError for a
        shape that it cannot have."""
        return Schedule(_schedule.Schedule.build(name, ranks, microbatches, stages_per_rank))

    @staticmethod
    def of(lists: Mapping[int, Iterable[_Action | str | None]] | Sequence[Iterable[_Action | str | None]]) -> Schedule:
        """A schedule of lists of actions or of their texts, by rank."""
        by_rank = lists if isinstance(lists, Mapping) else dict(enumerate(lists))
        return Schedule(to_native({
            rank: [_Action.from_str(action) if isinstance(action, str) else action for action in actions]
            for rank, actions in by_rank.items()}))

    @staticmethod
    def parse(text: str) -> Schedule:
        """A schedule from CSV (torch's form: a line for each rank) or JSON. ParseError, with line and column, for
        other text."""
        return Schedule(_schedule.Schedule.parse(text))

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Schedule:
        """A schedule from a file."""
        return Schedule(_schedule.Schedule.read(os.fspath(path)))

    @property
    def level(self) -> str:
        """"compute" if the schedule has compute actions only, or "lowered" if it has all
        actions."""
        return self._native.level

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self._native.num_ranks

    @property
    def stages(self) -> int:
        """The number of stages."""
        return self._native.num_stages

    @property
    def microbatches(self) -> int:
        """The number of microbatches."""
        return self._native.num_microbatches

    @property
    def placement(self) -> tuple[int, ...]:
        """The rank of each stage; -1 for a stage that no rank has."""
        return tuple(self._native.ranks)

    @property
    def lists(self) -> Order:
        """The actions of each rank, in order; None for an idle slot."""
        return from_native(self._native)

    def verify(self, *, mode: str | None = None, microbatches: int | None = None) -> list[Finding]:
        """The reasons why the schedule cannot be executed; [] if it can.

        Args:
            mode: "training", "forward-only" or "partial"; by default inferred from its actions.
            microbatches: the required number of microbatches; by default as many as occur.
        """
        return [Finding(**{**finding, "cycle": tuple(finding["cycle"])})
                for finding in self._native.verify(mode, microbatches)]

    def check(self, *, mode: str | None = None, microbatches: int | None = None) -> Schedule:
        """Returns the schedule itself. ScheduleError, with the findings and the cycle of a deadlock,
        if it cannot be executed."""
        self._native.check(mode, microbatches)
        return self

    def lower(self, *, target: str = "stagecraft", shard: bool = True, max_active_stages: int = 3,
              unshard_lookahead: str | Sequence[int] = "full", reduce_grads: bool = True,
              reduction_wait: str | None = None, prefetch: int | None = None, max_sends: int | None = None,
              mode: str | None = None) -> Schedule:
        """The schedule with its transfers, sharding and reductions.

        Args:
            target: "stagecraft", "torch-2.13" or "torch-2.15": the runtime for which lists are
                made.
            shard, max_active_stages, unshard_lookahead: UNSHARD and RESHARD.
            reduce_grads, reduction_wait: REDUCE_GRAD, and "at_once" or "deferred" for its wait.
            prefetch: the number of compute actions between a receive and its use.
            max_sends: the most outstanding sends of a rank.
        """
        lookahead = unshard_lookahead if isinstance(unshard_lookahead, str) else list(unshard_lookahead)
        return Schedule(self._native.lower(
            target=target, shard=shard, max_active_stages=max_active_stages, unshard_lookahead=lookahead,
            reduce_grads=reduce_grads, reduction_wait=reduction_wait, prefetch=prefetch, max_sends=max_sends,
            mode=mode))

    def simulate(self, costs: Costs | None = None) -> Simulation:
        """A simulation of the schedule. ScheduleError if it cannot be executed."""
        used = costs if costs is not None else Costs()
        return Simulation(self, used, _schedule.simulate(self._native, used._native()))

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """The text of the schedule, as torch writes it. Also written to a file, if a path is
        given."""
        text = str(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The schedule as JSON, with level and placement. Also written to a file, if a path is
        given."""
        text = self._native.to_json()
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def to_table(self) -> str:
        """A table to read: a line for each time step, a column for each rank."""
        return self._native.to_table()

    def draw(self, path: str | os.PathLike[str] | None = None, *, costs: Costs | None = None, **options: Any) -> str:
        """A drawing of the schedule's simulation (`Simulation.draw`)."""
        return self.simulate(costs).draw(path, **options)

    def __str__(self) -> str:
        if self._text is None:
            self._text = self._native.to_csv()
        return self._text

    def __repr__(self) -> str:
        return (f"<Schedule: {self.level}, {self.ranks} ranks, {self.stages} stages, {self.microbatches} microbatches, "
                f"{self._native.num_actions} actions>")

    def _repr_svg_(self) -> str | None:
        try:
            return self.simulate()._repr_svg_()
        except Exception:  # a schedule that cannot be executed has no drawing
            return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and bool(self._native == other._native)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Schedule._from_json, (self._native.to_json(),)

    @staticmethod
    def _from_json(text: str) -> Schedule:
        return Schedule(_schedule.Schedule.parse(text))


@dataclass(frozen=True)
class RankStats:
    """The results of one rank in a simulation."""

    first_start: float
    last_end: float
    busy: float
    bubble: float
    exposed_transfer: float
    peak_memory: float
    transfers_sent: int


@dataclass(frozen=True)
class CriticalStep:
    """A step of the critical path; `cause` says why it could not start earlier: start, rank, value or transfer."""

    rank: int
    action: str
    start: float
    end: float
    cause: str


class Simulation:
    """The simulation of a schedule (`Schedule.simulate`). `str` is a table; a notebook shows its drawing."""

    __slots__ = ("_costs", "_native", "_schedule")

    def __init__(self, schedule: Schedule, costs: Costs, native: _schedule.Simulated) -> None:
        self._schedule = schedule
        self._costs = costs
        self._native = native

    @property
    def schedule(self) -> Schedule:
        """The schedule that was simulated."""
        return self._schedule

    @property
    def costs(self) -> Costs:
        """The costs of the simulation."""
        return self._costs

    @property
    def makespan(self) -> float:
        """The time from 0 to the last end of any action."""
        return self._native.makespan

    @property
    def bubble(self) -> float:
        """The share of all ranks' time without compute."""
        return self._native.bubble

    @property
    def exposed_transfer(self) -> float:
        """The time that ranks were idle only because of a transfer, summed over all ranks."""
        return self._native.exposed_transfer

    @property
    def transfers(self) -> int:
        """The number of values and gradients that were sent to a different rank."""
        return self._native.transfers

    @property
    def peak_memory(self) -> float:
        """The highest peak memory of any rank."""
        return self._native.peak_memory

    @property
    def over_cap(self) -> tuple[int, ...]:
        """The ranks that held more than Costs.memory_cap."""
        return tuple(self._native.over_cap)

    @property
    def ranks(self) -> tuple[RankStats, ...]:
        """The results of each rank."""
        names = RankStats.__dataclass_fields__
        return tuple(RankStats(**{name: getattr(rank, name) for name in names}) for rank in self._native.ranks)

    @property
    def critical_path(self) -> tuple[CriticalStep, ...]:
        """The actions from one that starts at 0 to one that ends last. Each had to wait for the one
        before it."""
        return tuple(CriticalStep(*step) for step in self._native.critical_path)

    def timeline(self, rank: int) -> list[tuple[str, float, float]]:
        """(action, start, end) of every action of a rank."""
        return self._native.timeline(rank)

    def draw(self, path: str | os.PathLike[str] | None = None, *, form: str | None = None, title: str = "",
             **options: Any) -> str:
        """A drawing as text. Also written to a file, if a path is given.

        Args:
            path: its ending determines the form: .html a page, .svg a figure, .json a trace, anything else plain
                text.
            form: "html", "svg", "trace" or "text", instead of the ending.
            options: of a figure: width, memory, transfers, summary, background; of text: width, color.
        """
        endings = {".html": "html", ".htm": "html", ".svg": "svg", ".json": "trace"}
        if form is None:
            form = endings.get(Path(path).suffix.lower(), "text") if path is not None else "text"
        draw: Any = {"html": _schedule.draw_html, "svg": _schedule.draw_svg, "trace": _schedule.draw_trace,
                "text": _schedule.draw_terminal}.get(form)
        if draw is None:
            raise ValueError(f"form: expected html, svg, trace or text, got {form!r}")
        drawing: str = draw(self._native, title=title, **options)
        if path is not None:
            Path(path).write_text(drawing, encoding="utf-8")
        return drawing

    def _repr_svg_(self) -> str:
        return self.draw(form="svg")

    def _repr_html_(self) -> str:
        picture = base64.b64encode(self.draw(form="svg").encode()).decode()
        return f'<img alt="{html.escape(repr(self))}" src="data:image/svg+xml;base64,{picture}"/>'

    def to_page(self, height: int = 480) -> str:
        """The page of `draw("x.html")` in a frame, for `IPython.display.HTML`."""
        return _frame(self.draw(form="html"), height)

    def __str__(self) -> str:
        lines = [f"makespan {self.makespan:g}, bubble {100 * self.bubble:.1f} %, peak memory {self.peak_memory:g}, "
                 f"{self.transfers} transfers",
                 f"{'rank':>4} {'busy':>10} {'bubble':>8} {'exposed':>10} {'memory':>10}"]
        for index, rank in enumerate(self.ranks):
            lines.append(f"{index:>4} {rank.busy:>10g} {100 * rank.bubble:>6.1f} % {rank.exposed_transfer:>10g} "
                         f"{rank.peak_memory:>10g}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Simulation: makespan {self.makespan:g}, bubble {100 * self.bubble:.1f} %, {len(self._native.ranks)} ranks>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Schedule.simulate, (self._schedule, self._costs)


@dataclass(frozen=True)
class ScheduleRow:
    """A schedule of a comparison."""

    name: str
    stages_per_rank: int
    makespan: float
    bubble: float
    exposed_transfer: float
    transfers: int
    peak_memory: float
    over_cap: bool


@dataclass(frozen=True)
class Comparison:
    """Every schedule that fits a shape, the fastest first, and why others do not fit. `str` is a table."""

    ranks: int
    microbatches: int
    costs: Costs
    schedules: tuple[ScheduleRow, ...]
    unfit: Mapping[str, str]

    @property
    def best(self) -> ScheduleRow:
        """The fastest schedule within Costs.memory_cap, or the fastest of all if none fits."""
        return next((row for row in self.schedules if not row.over_cap), self.schedules[0])

    def __str__(self) -> str:
        lines = [f"{'schedule':<24} {'stages/rank':>11} {'makespan':>12} {'bubble':>8} {'memory':>10}"]
        for row in self.schedules:
            lines.append(f"{row.name:<24} {row.stages_per_rank:>11} {row.makespan:>12g} {100 * row.bubble:>6.1f} % "
                         f"{row.peak_memory:>10g}{'  over the cap' if row.over_cap else ''}")
        lines += [f"{name:<24} {reason}" for name, reason in self.unfit.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("schedule", "stages/rank", "makespan", "bubble", "memory"))
        rows = "".join(
            f"<tr><td>{html.escape(row.name)}</td><td>{row.stages_per_rank}</td><td>{row.makespan:g}</td>"
            f"<td>{100 * row.bubble:.1f} %</td><td>{row.peak_memory:g}</td></tr>" for row in self.schedules)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def compare(*, ranks: int, microbatches: int, stages_per_rank: int | None = None,
            costs: Costs | None = None) -> Comparison:
    """Simulates every schedule that trains, with its default number of stages on each rank and with
    `stages_per_rank`.

    Costs are those of a rank's whole part of the model: with L stages on a rank, each stage has 1/L of them. They
    are the same for all stages (ArgumentError).
    """
    used = costs if costs is not None else Costs()
    result = _schedule.compare(ranks, microbatches, stages_per_rank, used._native())
    return Comparison(ranks, microbatches, used, tuple(ScheduleRow(**row) for row in result["schedules"]),
                      {name: reason for name, _, reason in result["unfit"]})
