"""Reports of a step: its use of time, and the memory that it needs."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["MemoryEstimate", "RankMemory", "RankReport", "Report", "StageTimes"]


@dataclass(frozen=True)
class RankReport:
    """The use of time of a rank, in microseconds, and the bytes that it sent."""

    compute: float
    bubble: float
    exposed_transfer: float
    other: float
    bubble_share: float
    bytes_sent: int
    bytes_received: int
    peak_memory: int | None


@dataclass(frozen=True)
class StageTimes:
    """The mean times of the actions of a stage, in microseconds, including waits."""

    F: float | None = None
    B: float | None = None
    I: float | None = None
    W: float | None = None


class Report:
    """The use of time in a step. ``str`` is a table. A notebook shows a page.

    Attributes:
        makespan: the time of the step in microseconds.
        bubble: the share of all ranks' time in which they waited for work.
        exposed_transfer: the time in which ranks waited for values that were already sent.
        ranks: a RankReport for each rank.
        stages: the StageTimes of each stage.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        fields = inner.fields()
        self.makespan: float = fields["makespan"]
        self.bubble: float = fields["bubble"]
        self.actions: int = fields["actions"]
        self.not_run: int = fields["not_run"]
        self.ranks = [RankReport(**rank) for rank in fields["ranks"]]
        self.exposed_transfer = sum(rank.exposed_transfer for rank in self.ranks)
        self.timeline: list[list[tuple[str, float, float]]] = inner.timeline()
        self.stages = _stage_times(self.timeline)

    @property
    def schedule(self) -> str:
        """The name of the schedule."""
        return str(self._inner.schedule_name)

    def save(self, path: str | os.PathLike[str], title: str = "") -> None:
        """Writes the report: .html is a page, .json the numbers, .trace.json for ui.perfetto.dev."""
        self._inner.save(os.fspath(path), title)

    def __str__(self) -> str:
        return str(self._inner.text())

    def __repr__(self) -> str:
        return (
            f"<Report of {self.schedule}: {self.makespan / 1000:.3f} ms, bubble {self.bubble:.1%}, "
            f"{len(self.ranks)} ranks>"
        )

    def _repr_html_(self) -> str:
        from html import escape

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report.html"
            self.save(path)
            page = escape(path.read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="600" style="border:0"></iframe>'


def _stage_times(timeline: list[list[tuple[str, float, float]]]) -> dict[int, StageTimes]:
    sums: dict[int, dict[str, list[float]]] = {}
    for row in timeline:
        for text, begin, end in row:
            digits = len(text) - len(text.lstrip("0123456789"))
            kind = text[digits : digits + 1]
            rest = text[digits + 1 :]
            if kind in "FBIW" and rest.isdigit():
                sums.setdefault(int(text[:digits]), {}).setdefault(kind, []).append(end - begin)
    return {
        stage: StageTimes(**{kind: sum(times) / len(times) for kind, times in kinds.items()})
        for stage, kinds in sorted(sums.items())
    }


@dataclass(frozen=True)
class RankMemory:
    """The peak memory of a rank, in bytes of tensors; `at` is the action of the peak."""

    parameters: int
    gradients: int
    activations: int
    at: str

    @property
    def total(self) -> int:
        """The sum of all parts, in bytes."""
        return self.parameters + self.gradients + self.activations


@dataclass(frozen=True)
class MemoryEstimate:
    """The peak memory of a step, by rank."""

    ranks: tuple[RankMemory, ...]

    @classmethod
    def _of(cls, ranks: list[dict[str, Any]]) -> MemoryEstimate:
        return cls(tuple(RankMemory(**rank) for rank in ranks))

    @property
    def peak(self) -> int:
        """The peak of the rank that needs most."""
        return max(rank.total for rank in self.ranks)

    def __str__(self) -> str:
        lines = ["rank  parameters  gradients  activations  total  at"]
        for index, rank in enumerate(self.ranks):
            lines.append(
                f"{index:4}  {rank.parameters:10}  {rank.gradients:9}  {rank.activations:11}  "
                f"{rank.total}  {rank.at}"
            )
        return "\n".join(lines)
