"""Two gloo processes for tests that run torch's own pipelines. The processes are forked, so that torch is imported once."""

import datetime
import io
import multiprocessing
import os
import pathlib
import pickle
import sys
import tempfile
import time
import traceback
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
import torch.distributed  # noqa: E402

VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


def require_version(first=(2, 13), last=(2, 15)):
    """Ends the program with an error unless torch is one of the versions that the test was written for."""
    if not first <= VERSION <= last:
        sys.exit(f"expected torch {first[0]}.{first[1]} to {last[0]}.{last[1]}, got torch {torch.__version__}: "
                 "its pipelines were never compared with Stagecraft's")


class End:
    """How a process ended: it returned, raised, died or hung."""

    def __init__(self, kind, value=None, said=""):
        self.kind, self.value, self.said = kind, value, said

    def __repr__(self):
        return f"{self.kind} {self.value!r} {self.said[-2000:]}"


def _rank(function, rank, folder, timeout, result, leave):
    said = os.open(folder / f"said{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2,
                                             timeout=datetime.timedelta(seconds=timeout))
        kind, value = "returned", function(rank)
    except BaseException as error:
        traceback.print_exc()
        kind, value = "raised", f"{type(error).__name__}: {error}"
    stream = io.BytesIO()
    pickle.dump((kind, value), stream)
    result.send_bytes(stream.getvalue())
    if kind == "returned":
        leave.wait()  # the other process may still need the connection
    os._exit(0)  # without closing the process group, for which both would be needed


def run_pair(function, timeout=60, limit=120):
    """Calls function(rank) in two processes with a process group of that timeout in seconds, and returns how each ended.
    A process that raises leaves at once, one that returns stays until both have ended. A process that runs longer than the
    limit is killed."""
    context = multiprocessing.get_context("fork")
    leave = context.Event()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        processes, results = [], []
        for rank in range(2):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(function, rank, folder, timeout, sender, leave))
            process.start()
            sender.close()
            processes.append(process)
            results.append(receiver)
        deadline = time.monotonic() + limit
        ends = []
        for process, result in zip(processes, results):
            end = End("hung")
            if result.poll(max(0, deadline - time.monotonic())):
                try:
                    end = End(*pickle.loads(result.recv_bytes()))
                except EOFError:
                    process.join()
                    end = End("died", process.exitcode)
            else:
                process.kill()
            ends.append(end)
        leave.set()
        for rank, process in enumerate(processes):
            process.join()
            ends[rank].said = (folder / f"said{rank}").read_text(errors="replace")
        return ends


class Signal:
    """Tells processes that are forked later that something has happened."""

    def __init__(self):
        self.event = multiprocessing.get_context("fork").Event()

    def give(self):
        self.event.set()

    def wait(self):
        if not self.event.wait(60):
            raise TimeoutError("the other process did not come so far")
