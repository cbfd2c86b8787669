#!/usr/bin/env python3
"""Steps of Stagecraft's Python package against torch.distributed.pipelining, in the same two gloo processes.

A stage is Linear, ReLU, Linear; 32 microbatches; one thread inside operators; each process is pinned to a core. A
round runs both, and ours a second time, in turns whose order is reversed from round to round; the time of a step is
the maximum over the ranks; medians are printed. `--rounds`, `--schedule` and `--hidden` choose less.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import statistics
import tempfile
import time

SCHEDULES = {"GPipe": 1, "1F1B": 1, "LoopedBFS": 2, "Interleaved1F1B": 2, "InterleavedZeroBubble": 2,
             "ZBVZeroBubble": 2, "DualPipeV": 2}
# The greatest ratios that are acceptable: tiny stages, large stages.
BARS = {"GPipe": (0.50, 0.82), "1F1B": (0.70, 0.90), "LoopedBFS": (0.45, 0.76), "Interleaved1F1B": (0.50, 0.75),
        "InterleavedZeroBubble": (0.45, 0.65), "ZBVZeroBubble": (0.50, 0.77), "DualPipeV": (0.50, 0.83)}
MICROBATCHES = 32


def stages_of(package, rank, per_rank, hidden, style):
    import torch

    count = 2 * per_rank
    own = [rank, count - 1 - rank] if style == "v" and per_rank == 2 else list(range(rank, count, 2))
    made = []
    for index in own:
        torch.manual_seed(index)
        module = torch.nn.Sequential(torch.nn.Linear(hidden, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden))
        made.append(package.PipelineStage(module, index, count, torch.device("cpu")))
    return made


def rank_main(rank, store, names, hiddens, rounds, answer):
    if hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    import torch
    import torch.distributed as dist
    import torch.distributed.pipelining as upstream
    import stagecraft as ours
    from stagecraft.schedules import get_schedule_class as our_class
    from torch.distributed.pipelining.schedules import get_schedule_class as their_class

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=120))
    loss = torch.nn.functional.mse_loss
    for hidden in hiddens:
        rows = 2 if hidden <= 64 else 64
        torch.manual_seed(0)
        x, y = torch.randn(rows * MICROBATCHES, hidden), torch.randn(rows * MICROBATCHES, hidden)
        for name in names:
            per_rank = SCHEDULES[name]
            style = "v" if name in ("ZBVZeroBubble", "DualPipeV") else "loop"
            runs = []
            for package, find in ((upstream, their_class), (ours, our_class), (ours, our_class)):
                stages = stages_of(package, rank, per_rank, hidden, style)
                schedule = find(name)(stages[0] if per_rank == 1 else stages, MICROBATCHES, loss_fn=loss)
                runs.append((stages, schedule))
            has_last = any(stage.is_last for stage in runs[0][0])

            def step(index):
                stages, schedule = runs[index]
                for stage in stages:
                    stage.submod.zero_grad()
                dist.barrier()
                begin = time.perf_counter()
                if rank == 0:
                    schedule.step(x, **({"target": y} if has_last else {}))
                else:
                    schedule.step(**({"target": y} if has_last else {}))
                took = torch.tensor(time.perf_counter() - begin)
                dist.all_reduce(took, op=dist.ReduceOp.MAX)
                return took.item()

            times = [[], [], []]
            for round_number in range(rounds + 2):
                order = (0, 1, 2) if round_number % 2 == 0 else (2, 1, 0)
                for index in order:
                    took = step(index)
                    if round_number >= 2:
                        times[index].append(took)
            if rank == 0:
                answer.send((name, hidden, [statistics.median(each) for each in times]))
    if rank == 0:
        answer.send(None)
    dist.destroy_process_group()


def bare_loop(hidden=16, count=200):
    """One rank: microseconds an action over the bare Python loop of the same forwards and backwards."""
    import torch
    import stagecraft as ours

    torch.set_num_threads(1)
    module = torch.nn.Sequential(torch.nn.Linear(hidden, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden))
    x, y = torch.randn(2 * MICROBATCHES, hidden), torch.randn(2 * MICROBATCHES, hidden)
    loss = torch.nn.functional.mse_loss
    weight = torch.tensor(1 / MICROBATCHES)

    def bare():
        outputs = [loss(module(a), b) for a, b in zip(x.split(2), y.split(2))]
        for each in outputs:
            each.backward(weight)

    found = {}
    for name in ("GPipe", "1F1B"):
        stage = ours.PipelineStage(module, 0, 1, torch.device("cpu"))
        cls = {"GPipe": ours.ScheduleGPipe, "1F1B": ours.Schedule1F1B}[name]
        schedule = cls(stage, MICROBATCHES, loss_fn=loss)
        times = [[], []]
        for _ in range(count):
            for index, call in enumerate((bare, lambda: schedule.step(x, target=y, return_outputs=False))):
                module.zero_grad()
                begin = time.perf_counter()
                call()
                times[index].append(time.perf_counter() - begin)
        bare_time, our_time = (statistics.median(each) for each in times)
        found[name] = (our_time - bare_time) / (2 * MICROBATCHES) * 1e6
    return found


def import_time():
    import subprocess
    import sys

    def took(code):
        return min(float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
                   for _ in range(3))

    code = "import torch, torch.distributed, time; b = time.perf_counter(); {} print((time.perf_counter() - b) * 1000)"
    return took(code.format("import stagecraft, stagecraft.schedules;")) - took(code.format("pass;"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--schedule", action="append", choices=list(SCHEDULES))
    parser.add_argument("--hidden", type=int, action="append")
    options = parser.parse_args()
    names, hiddens = options.schedule or list(SCHEDULES), options.hidden or [16, 512]
    context = multiprocessing.get_context("spawn")
    store = os.path.join(tempfile.mkdtemp(), "store")
    mine, theirs = context.Pipe(duplex=False)
    processes = [context.Process(target=rank_main, args=(rank, store, names, hiddens, options.rounds, theirs))
                 for rank in range(2)]
    for process in processes:
        process.start()
    print(f"{'schedule':22} {'hidden':>6} {'upstream ms':>12} {'ours ms':>9} {'ratio':>6} {'A/A':>6} {'bar':>5}")
    while mine.poll(600):
        row = mine.recv()
        if row is None:
            break
        name, hidden, (upstream, first, second) = row
        bar = BARS[name][0 if hidden <= 64 else 1]
        ratio = first / upstream
        print(f"{name:22} {hidden:6} {upstream * 1e3:12.2f} {first * 1e3:9.2f} {ratio:6.2f} {second / first:6.2f} "
              f"{bar:5.2f}{'' if ratio <= bar else '  missed'}", flush=True)
    for process in processes:
        process.join(30)
        if process.is_alive():
            process.kill()
    for name, extra in bare_loop().items():
        print(f"one rank, {name}: {extra:.1f} us an action over the bare Python loop (bar 12)")
    print(f"import stagecraft.schedules beyond torch: {import_time():.0f} ms (bar 60)")


if __name__ == "__main__":
    main()
