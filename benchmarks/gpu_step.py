#!/usr/bin/env python3
"""Step time of 1F1B with four ranks on one CUDA device against PyTorch's loop over the same stages, in
turns.

    gpu_step.py PROGRAM [HIDDEN ROWS MICROBATCHES]      PROGRAM: tests/gpu_step of a build
"""

import statistics
import subprocess
import sys
import time

import torch

ROUNDS = 15
STAGES = 4


def pytorch_loop(hidden, rows, microbatches):
    device = "cuda"
    blocks = [[(torch.randn(4 * hidden, hidden, device=device) * 0.02).requires_grad_(),
               (torch.randn(hidden, 4 * hidden, device=device) * 0.02).requires_grad_()] for _ in range(STAGES)]
    x = torch.randn(rows * microbatches, hidden, device=device)
    target = torch.randn(rows * microbatches, hidden, device=device)

    def step():
        for part, goal in zip(x.tensor_split(microbatches), target.tensor_split(microbatches)):
            h = part
            for up, down in blocks:
                h = h + torch.nn.functional.linear(torch.nn.functional.gelu(torch.nn.functional.linear(h, up)), down)
            (torch.nn.functional.mse_loss(h, goal) / microbatches).backward()
        for block in blocks:
            for weight in block:
                weight.grad = None

    def timed(iterations):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(iterations):
            step()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    return timed


def main():
    program = sys.argv[1]
    hidden, rows, microbatches = (int(text) for text in (sys.argv[2:5] or ("1024", "256", "16")))
    child = subprocess.Popen([program, str(hidden), str(rows), str(microbatches)], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ours(case):
        def timed(iterations):
            child.stdin.write(f"{case} {iterations}\n")
            child.stdin.flush()
            return float(child.stdout.readline())
        return timed

    contenders = {"stagecraft 1F1B, 4 ranks": ours("pipeline"), "the loop in C++": ours("loop"),
                  "the loop in PyTorch": pytorch_loop(hidden, rows, microbatches)}
    times = {name: [] for name in contenders}
    for timed in contenders.values():
        timed(5)
    for _ in range(ROUNDS):
        for name, timed in contenders.items():
            times[name].append(timed(5) / 5)
    child.stdin.close()
    child.wait(timeout=60)
    base = statistics.median(times["the loop in PyTorch"])
    print(f"hidden {hidden}, {microbatches} microbatches of {rows} rows, {STAGES} stages, {torch.cuda.get_device_name()}")
    for name, values in times.items():
        median = statistics.median(values)
        spread = (statistics.quantiles(values, n=4)[2] - statistics.quantiles(values, n=4)[0]) / 2 / median
        print(f"{name:28} {median * 1e3:8.3f} ms +-{spread * 100:.0f}%   {median / base:.3f} of PyTorch's loop")


if __name__ == "__main__":
    main()
