"""Processes that compile programs and run new ones for the first time. They import torch once."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

__all__ = ["ANSWER", "REACHED", "Answer", "Workers"]

# The beginnings of a worker's lines: an answer, and the place that it has reached.
ANSWER = "stagecraft answer "
REACHED = "stagecraft reached "
# The time limit of a request.
_LIMIT_S = 6 * 3600


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer of a worker: `value`, or an `error`, or how the process `died`. `reached` is the
    last place that it reported."""

    value: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: str | None = None
    died: str | None = None
    by_signal: bool = False
    reached: str | None = None
    last_error: str | None = None


class Workers:
    """Up to `count` processes. Each handles one request at a time. They start when they are needed, and live until
    `end`."""

    def __init__(self, count: int = 1) -> None:
        self.count = max(count, 1)
        self._places: queue.Queue[_Worker | None] = queue.Queue()
        self._started: list[_Worker] = []
        for _ in range(self.count):
            self._places.put(None)

    def ask(self, request: dict[str, Any]) -> Answer:
        """Waits for a free worker, sends it the request, and waits for its answer."""
        worker = self._places.get()
        try:
            if worker is None or worker.has_ended:
                worker = _Worker()
                self._started.append(worker)
            answer = worker.ask(request)
            if answer.died is not None:
                worker.end()
                worker = None
            return answer
        finally:
            self._places.put(worker)

    def end(self) -> None:
        """Ends the processes, even in the middle of a request. A later request starts new ones."""
        for worker in self._started:
            worker.end()
        self._started.clear()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *unused: object) -> None:
        self.end()


def child_environment() -> dict[str, str]:
    """The environment in which a child process finds this package."""
    root = str(Path(__file__).parents[2])
    others = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{others}" if others else root}


class _Worker:
    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker"],
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.has_ended = False

    def ask(self, request: dict[str, Any]) -> Answer:
        assert self._process.stdin is not None and self._process.stdout is not None
        reached = None
        limit = threading.Timer(_LIMIT_S, self._process.kill)
        limit.daemon = True
        limit.start()
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith(REACHED):
                    reached = line.removeprefix(REACHED).strip()
                if line.startswith(ANSWER):
                    answer = json.loads(line.removeprefix(ANSWER))
                    return Answer(answer, answer.get("error"), reached=reached)
        except (BrokenPipeError, ValueError):
            pass
        finally:
            limit.cancel()
        code = self._process.wait()
        ended = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return Answer(died=f"its process {ended}", by_signal=code < 0, reached=reached, last_error=self._last_error())

    def _last_error(self) -> str | None:
        with contextlib.suppress(OSError, ValueError):
            self._errors.seek(0)
            lines = [line.strip() for line in self._errors if line.strip()]
            return lines[-1] if lines else None
        return None

    def end(self) -> None:
        self.has_ended = True
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):
                    stream.close()
