"""Processes for tests: each is a rank of a gloo group, and none outlives its deadline."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch.distributed", "stagecraft.schedules", "stagecraft.stage", "stagecraft._IR"])


@dataclass
class End:
    """How a process ended: "ok", "raised" or "died"."""

    kind: str
    value: Any = None
    text: str = ""
    seconds: float = 0.0


def _main(function: Callable[..., Any], rank: int, size: int, store: str, args: tuple[Any, ...], answer: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    begin = time.monotonic()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=60))
    try:
        value = function(rank, size, *args)
        end = End("ok", value, seconds=time.monotonic() - begin)
    except Exception as error:
        try:
            error = pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(repr(error))
        end = End("raised", error, traceback.format_exc(), time.monotonic() - begin)
    answer.send(end)
    answer.close()
    if end.kind == "ok":
        dist.destroy_process_group()


def run_ranks(size: int, function: Callable[..., Any], *args: Any, deadline: float = 100.0) -> list[End]:
    """Calls ``function(rank, size, *args)`` in a process for each rank and returns how each ended."""
    folder = tempfile.mkdtemp()
    store = os.path.join(folder, "store")
    limit = time.monotonic() + deadline
    pipes, processes = [], []
    for rank in range(size):
        mine, theirs = _context.Pipe(duplex=False)
        process = _context.Process(target=_main, args=(function, rank, size, store, args, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    ends = []
    for rank, (pipe, process) in enumerate(zip(pipes, processes)):
        end = End("died", text=f"rank {rank} gave no answer in {deadline} s")
        try:
            if pipe.poll(max(0.0, limit - time.monotonic())):
                end = pipe.recv()
        except EOFError:
            process.join(5)
            end = End("died", process.exitcode, f"exit code {process.exitcode}")
        ends.append(end)
    for process in processes:
        process.join(max(0.1, min(5.0, limit - time.monotonic())))
        if process.is_alive():
            process.kill()
            process.join()
    return ends


def results(ends: list[End]) -> list[Any]:
    """What all ranks returned; fails with the first rank's traceback that raised."""
    for rank, end in enumerate(ends):
        if end.kind == "raised" and type(end.value).__name__ != "PeerError":
            raise AssertionError(f"rank {rank}: {end.text}")
    for rank, end in enumerate(ends):
        assert end.kind == "ok", f"rank {rank}: {end.text}"
    return [end.value for end in ends]
