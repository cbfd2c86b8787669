"""One rank of the pipelines of vs_pytorch.cpp: RANK RANKS STORE MICROBATCHES BATCH (rows); cases SCHEDULE/HIDDEN, "1F1B/16"."""

import datetime
import os
import sys
import time

import torch
import torch.distributed
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules

PATIENCE = datetime.timedelta(seconds=60)
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


class Mlp(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.first = torch.nn.Linear(hidden, hidden)
        self.second = torch.nn.Linear(hidden, hidden)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def pin(rank, ranks):
    """Pins rank r to the r-th processor that this process may use, as the other side does."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) >= ranks:
        os.sched_setaffinity(0, {allowed[rank]})


def stages_of(name, rank, ranks):
    """The stages of a rank, and the number of all stages."""
    if name in V_SHAPED:
        return [rank, 2 * ranks - 1 - rank], 2 * ranks
    if issubclass(schedules.get_schedule_class(name), schedules.PipelineScheduleMulti):
        return [rank, rank + ranks], 2 * ranks
    return [rank], ranks


def make_case(name, hidden, rank, ranks, microbatches, batch):
    """A function that runs one step."""
    own, count = stages_of(name, rank, ranks)
    stages = [pipelining.PipelineStage(Mlp(hidden), index, count, torch.device("cpu")) for index in own]
    schedule = schedules.get_schedule_class(name)(
        stages if count > ranks else stages[0], microbatches, loss_fn=torch.nn.functional.mse_loss)
    args = (torch.randn(batch, hidden),) if 0 in own else ()
    target = torch.randn(batch, hidden) if count - 1 in own else None

    def step():
        schedule.step(*args, target=target, losses=[] if target is not None else None)

    return step


def main():
    rank, ranks = int(sys.argv[1]), int(sys.argv[2])
    store, microbatches, batch = sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    pin(rank, ranks)
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks,
                                         timeout=PATIENCE)
    cases = {}
    for line in sys.stdin:
        case, iterations = line.split()
        if case not in cases:
            name, hidden = case.split("/")
            cases[case] = make_case(name, int(hidden), rank, ranks, microbatches, batch)
        step = cases[case]
        torch.distributed.barrier()
        start = time.perf_counter()
        for _ in range(int(iterations)):
            step()
        torch.distributed.barrier()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
