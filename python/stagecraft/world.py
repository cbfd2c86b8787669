"""The worlds of Stagecraft: one for each process group, made at its first step."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from stagecraft import _C

__all__ = ["World"]

_logger = logging.getLogger("stagecraft")
# The numbers of stagecraft::LogLevel.
_LEVELS = {0: logging.DEBUG, 1: logging.INFO, 2: logging.WARNING, 3: logging.ERROR}

_worlds: weakref.WeakKeyDictionary[Any, World] = weakref.WeakKeyDictionary()
_open: weakref.WeakSet[World] = weakref.WeakSet()
_alone: World | None = None


def deliver_log() -> None:
    """Hands the lines that C++ code has logged to `logging`."""
    for level, text in _C.take_log():
        _logger.log(_LEVELS.get(level, logging.ERROR), "%s", text)


def log_wait(rank: int, seconds: int, table: str) -> None:
    """Logs the position of all ranks while this rank waits."""
    _logger.warning("rank %d has waited for %d s:\n%s", rank, seconds, table)


class World:
    """The ranks that run a pipeline together, as this process sees them.

    Schedules make the world of their stages' group themselves. Without torch.distributed, a program
    that a launcher has started (torchrun, mpirun, srun) joins one by ``World.from_environment()``
    and gives it to its stages as ``group``.
    """

    def __init__(self, inner: Any, timeout: float) -> None:
        self._inner = inner
        self.timeout = timeout
        _open.add(self)

    @classmethod
    def from_environment(
        cls, transport: str = "auto", ranks: int | None = None, timeout: float = 60.0
    ) -> World:
        """Joins the processes that the launcher has started; a world of one rank without a launcher.

        Args:
            transport: "auto", "gloo", "nccl" or "mpi"; "auto" is what suits the launcher.
            ranks: the expected number of ranks, or None.
            timeout: how long ranks wait for each other, in seconds.
        """
        return cls(_C.World.from_environment(transport, ranks, timeout), timeout)

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return int(self._inner.rank)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return int(self._inner.num_ranks)

    @property
    def is_open(self) -> bool:
        """Whether the world was not closed."""
        return bool(self._inner.is_open)

    def barrier(self) -> None:
        """Waits until all ranks have called it."""
        self._inner.barrier(self.timeout)

    def close(self) -> None:
        """Leaves the world. Ranks that wait for this one then fail."""
        self._inner.close()
        deliver_log()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self.is_open:
            return "World(closed)"
        return f"World(rank={self.rank}, size={self.size}, transport={self._inner.name!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a World cannot be pickled: it belongs to this process")


def rank_and_size(group: Any) -> tuple[int, int]:
    """This process's rank in a group, and the group's size. Without torch.distributed: one rank."""
    if isinstance(group, World):
        return group.rank, group.size
    if group is None and not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def _timeout_of(group: Any) -> float:
    """The group's own timeout, in seconds."""
    finders: tuple[Callable[[], Any], ...] = (
        lambda: group._get_backend(_device_of(group)).options._timeout,
        lambda: group.options._timeout,
    )
    for find in finders:
        try:
            return float(find().total_seconds())
        except (AttributeError, RuntimeError, TypeError):
            continue
    return float(dist.distributed_c10d.default_pg_timeout.total_seconds())


def _device_of(group: Any) -> Any:
    return group._device_types[0]


def _store_of(group: Any) -> Any:
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    return dist.distributed_c10d._world.pg_map[group][1]


def world_of(group: Any) -> World:
    """The world of a group. All ranks of the group call it together the first time."""
    global _alone
    if isinstance(group, World):
        return group
    if rank_and_size(group)[1] == 1:
        if _alone is None or not _alone.is_open:
            _alone = World(_C.World.local(), 60.0)
        return _alone
    if group is None:
        group = dist.group.WORLD
    known = _worlds.get(group)
    if known is not None and known.is_open:
        return known
    if dist.get_backend(group) == "fake":
        raise RuntimeError(
            f"the group has {dist.get_world_size(group)} ranks and the backend 'fake', which has no "
            "other processes; stages can run on a fake group of one rank only"
        )
    timeout = _timeout_of(group)
    world = World(
        _C.World.join_store(
            _store_of(group),
            dist.get_rank(group),
            dist.get_world_size(group),
            job="0",
            address=os.environ.get("STAGECRAFT_ADDRESS", ""),
            timeout=timeout,
            max_silence=float(os.environ.get("STAGECRAFT_MAX_SILENCE", "10")),
        ),
        timeout,
    )
    _worlds[group] = world
    return world


def _close_all() -> None:
    for world in list(_open):
        if world.is_open:
            world._inner.close()


def _forget_all() -> None:
    """Drops all worlds in a forked child process, such as a worker of a DataLoader, because it has
    none of the threads."""
    global _alone
    for world in list(_open):
        world._inner.forget()
    _worlds.clear()
    _alone = None


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
