"""The errors that Stagecraft raises on purpose.

The class of an error says what the caller can do. The message says what was expected, what came and
where. All of them can be pickled, so they survive a multiprocessing queue.
"""

from __future__ import annotations

import builtins
from typing import Any

__all__ = [
    "ArgumentError",
    "Error",
    "FileError",
    "GraphError",
    "MetadataError",
    "ParseError",
    "PeerError",
    "PipeliningMetadataError",
    "ScheduleError",
    "StageError",
    "TimeoutError",
]


def _rebuild(cls: type[Error], args: tuple[Any, ...], state: dict[str, Any]) -> Error:
    error = cls(*args)
    error.__dict__.update(state)
    return error


class Error(RuntimeError):
    """Every error that Stagecraft raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class ArgumentError(Error, ValueError):
    """An argument that the call cannot accept."""


class MetadataError(Error):
    """Values whose structure, shape, dtype or stride differs from the expected one."""


PipeliningMetadataError = MetadataError


class ParseError(Error, ValueError):
    """Text that does not parse.

    Attributes:
        lineno: the line, from 1.
        column: the column in bytes, from 1.
    """

    def __init__(self, message: str = "", lineno: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.lineno = lineno
        self.column = column


class ScheduleError(Error, AssertionError):
    """A schedule that cannot be executed.

    Attributes:
        actions: the text of each offending action, most telling first.
    """

    def __init__(self, message: str = "", actions: list[str] | tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.actions = list(actions)


class StageError(Error):
    """Code of a stage failed. ``__cause__`` is the exception that it raised, if it was raised in this
    process.

    Attributes:
        rank, stage, microbatch: the place of the failure; -1 for a stage or microbatch that is not
            known.
        action: the text of the action, such as "2F0".
    """

    def __init__(self, message: str = "", rank: int = -1, stage: int = -1, microbatch: int = -1,
                 action: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.stage = stage
        self.microbatch = microbatch
        self.action = action


class PeerError(Error):
    """A different rank failed, left or could not be reached.

    Attributes:
        peer: the number of that rank.
        remote_traceback: the traceback of the failure there, as text; empty if it did not send one.
    """

    def __init__(self, message: str = "", peer: int = -1, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.peer = peer
        self.remote_traceback = remote_traceback


class TimeoutError(Error, builtins.TimeoutError):
    """A wait reached its deadline."""


class GraphError(Error):
    """A model that cannot be held as a graph, with the node and the operator."""


class FileError(Error, OSError):
    """A file that cannot be read or written, is damaged, or has a different format."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""
