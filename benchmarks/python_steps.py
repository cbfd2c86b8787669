#!/usr/bin/env python3
"""Steps of Stagecraft's Python package against torch.distributed.pipelining, in the same two gloo processes.

A stage is Linear, ReLU, Linear; 32 microbatches; one thread inside operators; each process is pinned to a core. A
round runs both, and ours a second time, in turns whose order is reversed from round to round; the time of a step is
the maximum over the ranks; medians are printed. `--rounds`, `--schedule` and `--hidden` reduce the run. With tiny
stages, ours also run traced (`pipeline()`), against upstream's stages of modules.

The column "floor" is the time of a rank's own forwards and backwards in a bare loop, without transfers and without a
wait for the other rank, over upstream's step: the ratio of a pipeline that calls the same modules cannot be below
it.
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
# The greatest ratios that are acceptable: tiny stages, large stages, tiny traced stages.
BARS = {"GPipe": (0.50, 0.82, 0.45), "1F1B": (0.70, 0.90, 0.55), "LoopedBFS": (0.45, 0.76, 0.40),
        "Interleaved1F1B": (0.50, 0.75, 0.45), "InterleavedZeroBubble": (0.45, 0.65, 0.40),
        "ZBVZeroBubble": (0.50, 0.77, 0.45), "DualPipeV": (0.50, 0.83, 0.45)}
MICROBATCHES = 32


def own_stages(rank, per_rank, style):
    count = 2 * per_rank
    return [rank, count - 1 - rank] if style == "v" and per_rank == 2 else list(range(rank, count, 2))


def module_of(index, hidden):
    import torch

    torch.manual_seed(index)
    return torch.nn.Sequential(torch.nn.Linear(hidden, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden))


def stages_of(package, own, count, hidden):
    import torch

    return [package.PipelineStage(module_of(index, hidden), index, count, torch.device("cpu")) for index in own]


def traced_stages_of(package, own, count, hidden, example):
    import torch

    model = torch.nn.Sequential(*[module_of(index, hidden) for index in range(count)])
    pipe = package.pipeline(model, (example,), split_spec={str(s): package.SplitPoint.BEGINNING for s in range(1, count)})
    return [pipe.build_stage(index, torch.device("cpu")) for index in own]


def bare_work(modules, rows, hidden, loss, is_last):
    """The forwards and backwards of a rank's modules, microbatch by microbatch, as a loop."""
    import torch

    x, y = torch.randn(rows, hidden), torch.randn(rows, hidden)
    for _ in range(MICROBATCHES):
        for number, module in enumerate(modules):
            out = module(x.detach().requires_grad_())
            if is_last and number + 1 == len(modules):
                loss(out, y).backward()
            else:
                out.backward(y)


def rank_main(rank, store, names, hiddens, rounds, summary, answer):
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
            own, count = own_stages(rank, per_rank, style), 2 * per_rank
            kinds = [(stages_of(upstream, own, count, hidden), their_class)]
            kinds += [(stages_of(ours, own, count, hidden), our_class) for _ in range(2)]
            if hidden <= 64:
                kinds.append((traced_stages_of(ours, own, count, hidden, x[:rows]), our_class))
            runs = [(stages, find(name)(stages[0] if per_rank == 1 else stages, MICROBATCHES, loss_fn=loss))
                    for stages, find in kinds]
            has_last = any(stage.is_last for stage in runs[0][0])

            bare = len(runs)

            def step(index):
                stages, schedule = runs[index if index != bare else 0]
                for stage in stages:
                    stage.submod.zero_grad()
                dist.barrier()
                begin = time.perf_counter()
                if index == bare:
                    bare_work([stage.submod for stage in stages], rows, hidden, loss, has_last)
                elif rank == 0:
                    schedule.step(x, **({"target": y} if has_last else {}))
                else:
                    schedule.step(**({"target": y} if has_last else {}))
                took = torch.tensor(time.perf_counter() - begin)
                dist.all_reduce(took, op=dist.ReduceOp.MAX)
                return took.item()

            times = [[] for _ in range(bare + 1)]
            for round_number in range(rounds + 2):
                order = list(range(bare + 1))
                for index in order if round_number % 2 == 0 else reversed(order):
                    took = step(index)
                    if round_number >= 2:
                        times[index].append(took)
            if rank == 0:
                answer.send((name, hidden, [summary(each) for each in times]))
    if rank == 0:
        answer.send(None)
    dist.destroy_process_group()


def bare_loop(hidden=16, count=200):
    """On one rank: microseconds for each action beyond the bare Python loop of the same forwards and backwards in the
    same order."""
    import torch
    import stagecraft as ours

    torch.set_num_threads(1)
    module = module_of(0, hidden)
    x, y = torch.randn(2 * MICROBATCHES, hidden), torch.randn(2 * MICROBATCHES, hidden)
    loss = torch.nn.functional.mse_loss
    weight = torch.tensor(1 / MICROBATCHES)

    def forwards_first():
        losses = [loss(module(a), b) for a, b in zip(x.split(2), y.split(2))]
        for each in losses:
            each.backward(weight)

    def in_turns():
        for a, b in zip(x.split(2), y.split(2)):
            loss(module(a), b).backward(weight)

    found = {}
    for name, cls, bare in (("GPipe", ours.ScheduleGPipe, forwards_first), ("1F1B", ours.Schedule1F1B, in_turns)):
        schedule = cls(ours.PipelineStage(module, 0, 1, torch.device("cpu")), MICROBATCHES, loss_fn=loss)
        times = [[], []]
        for _ in range(count):
            for index, call in enumerate((bare, lambda: schedule.step(x, target=y, return_outputs=False))):
                module.zero_grad()
                begin = time.perf_counter()
                call()
                times[index].append(time.perf_counter() - begin)
        # The minimum is used, because other programs can only add to a time.
        bare_time, our_time = (min(each) for each in times)
        found[name] = tuple(each / (2 * MICROBATCHES) * 1e6 for each in (our_time - bare_time, bare_time))
    return found


class StandIn:
    """The attributes of a stage that schedule classes read."""

    def __init__(self, rank, ranks, stages, index):
        self.stage_index, self.num_stages, self.group_rank, self.group_size = index, stages, rank, ranks
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.submod, self.has_backward, self.device = None, True, "cpu"


def lists_time(ranks=64, per_rank=4, microbatches=128):
    """Seconds to make the lists of Interleaved1F1B, lowered ones too, as Python lists: (upstream's, ours)."""
    import stagecraft.schedules as ours
    import torch.distributed.pipelining.schedules as upstream

    took = []
    for package in (upstream, ours):
        stages = [StandIn(0, ranks, ranks * per_rank, index) for index in range(0, ranks * per_rank, ranks)]
        begin = time.perf_counter()
        schedule = package.ScheduleInterleaved1F1B(stages, microbatches, loss_fn=lambda *_: None)
        if package is upstream:
            schedule._prepare_schedule_with_comms(schedule.pipeline_order)
        lists = schedule.pipeline_order, schedule.pipeline_order_with_comms
        took.append(time.perf_counter() - begin)
        assert all(len(each) == ranks for each in lists)
    return took


def import_time():
    import subprocess
    import sys

    # Byte code is cached, as after an installation.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

    def took(code):
        return min(float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                                        env=env).stdout) for _ in range(3))

    code = "import torch, torch.distributed, time; b = time.perf_counter(); {} print((time.perf_counter() - b) * 1000)"
    return took(code.format("import stagecraft, stagecraft.schedules;")) - took(code.format("pass;"))


def two_processes(names, hiddens, rounds, summary):
    """Prints a row for each schedule and size."""
    context = multiprocessing.get_context("spawn")
    store = os.path.join(tempfile.mkdtemp(), "store")
    mine, theirs = context.Pipe(duplex=False)
    processes = [context.Process(target=rank_main, args=(rank, store, names, hiddens, rounds, summary, theirs))
                 for rank in range(2)]
    for process in processes:
        process.start()
    print(f"{'schedule':29} {'hidden':>6} {'upstream ms':>12} {'ours ms':>9} {'ratio':>6} {'A/A':>6} {'floor':>6} {'bar':>5}")
    while mine.poll(600):
        row = mine.recv()
        if row is None:
            break
        name, hidden, (upstream, first, second, *traced, bare) = row
        for label, time_of, bar in [(name, first, BARS[name][0 if hidden <= 64 else 1])] + [
                (f"{name} traced", each, BARS[name][2]) for each in traced]:
            ratio = time_of / upstream
            print(f"{label:29} {hidden:6} {upstream * 1e3:12.2f} {time_of * 1e3:9.2f} {ratio:6.2f} {second / first:6.2f} "
                  f"{bare / upstream:6.2f} {bar:5.2f}{'' if ratio <= bar else '  missed'}", flush=True)
    for process in processes:
        process.join(30)
        if process.is_alive():
            process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--schedule", action="append", choices=list(SCHEDULES))
    parser.add_argument("--hidden", type=int, action="append")
    parser.add_argument("--only-one-rank", action="store_true", help="leave out the steps of two processes")
    parser.add_argument("--fastest", action="store_true", help="the fastest rounds instead of medians, for a busy machine")
    options = parser.parse_args()
    names, hiddens = options.schedule or list(SCHEDULES), options.hidden or [16, 512]
    if not options.only_one_rank:
        two_processes(names, hiddens, options.rounds, min if options.fastest else statistics.median)
    for name, (extra, bare) in bare_loop().items():
        print(f"one rank, {name}: {extra:.1f} us an action over the bare Python loop, which takes {bare:.1f} (bar 12)")
    theirs, our_time = lists_time()
    print(f"lists of 64 ranks, 4 stages each, 128 microbatches: upstream {theirs:.2f} s, ours {our_time:.2f} s, ratio "
          f"{our_time / theirs:.3f} (bar 0.15)")
    print(f"import stagecraft.schedules beyond torch: {import_time():.0f} ms (bar 60)")


if __name__ == "__main__":
    main()
