#!/usr/bin/env python3
"""Milliseconds an update on one CUDA device: `stagecraft train` beside PyTorch's loop over the same GPT.

    gpu.py PROGRAM [--quick] [--models big,small,tiny] [--compile] [--dropout P]

PROGRAM: bin/stagecraft-train of a build. bf16 autocast, AdamW, clipping, one read of loss and norm an update. PyTorch's columns:
eager, eager as one CUDA graph, and with --compile torch.compile without and with a graph.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import torch

from train_vs_pytorch_worker import Gpt, loss_of

MODELS = {  # layers, width, heads, context, batch, microbatches
    "big": (12, 768, 12, 1024, 32, 4),
    "small": (4, 256, 4, 256, 64, 16),
    "tiny": (2, 64, 4, 64, 64, 32),
}
RANKS = (1, 2, 4)


def make_update(sizes, compiled, capturable):
    layers, width, heads, context, batch, microbatches = sizes
    notes = {"layers": layers, "width": width, "heads": heads, "context": context, "vocabulary": 256}
    model = Gpt(notes, 0, layers).cuda()
    for block in model.blocks.values():
        block.turn = block.turn.cuda()
    run = torch.compile(model) if compiled else model
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=3e-3, betas=(0.9, 0.95), fused=True, capturable=capturable)
    ids = torch.randint(256, (batch, context), device="cuda")
    targets = torch.randint(256, (batch, context), device="cuda")

    def update():
        total = torch.zeros((), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            for part, goal in zip(ids.tensor_split(microbatches), targets.tensor_split(microbatches)):
                loss = loss_of(run(part).float(), goal) / microbatches
                loss.backward()
                total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return torch.stack((total, norm))

    return update


def as_graph(update):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            update()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = update()

    def replay():
        graph.replay()
        return result

    return replay


def time_pytorch(sizes, updates, compiled=False, graph=False):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    update = make_update(sizes, compiled, capturable=graph)
    for _ in range(3):
        update()
    if graph:
        update = as_graph(update)
    times = []
    for _ in range(updates):
        begin = time.perf_counter()
        update().tolist()
        times.append(time.perf_counter() - begin)
    memory = torch.cuda.max_memory_reserved()
    del update
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    return statistics.median(times[len(times) // 3:]), memory


class UsedMemory:
    """The most memory of the device that other processes use while it runs."""

    def __enter__(self):
        torch.cuda.empty_cache()
        self.before, self.most, self.is_over = self.used(), 0, False
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over = True
        self.thread.join()

    def watch(self):
        while not self.is_over:
            self.most = max(self.most, self.used() - self.before)
            time.sleep(0.05)

    @staticmethod
    def used():
        free, total = torch.cuda.mem_get_info()
        return total - free


def time_ours(program, sizes, updates, ranks, graphs, dropout=0.0):
    layers, width, heads, context, batch, microbatches = sizes
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text.txt"
        text.write_text("It is a truth universally acknowledged. " * 4000)
        words = [program, "--data", str(text), "--device", "cuda", "--bf16", "--json", "--eval-every", "0", "--sample", "0",
                 "--steps", str(updates + 6), "--layers", str(layers), "--width", str(width), "--heads", str(heads),
                 "--context", str(context), "--batch", str(batch), "--microbatches", str(microbatches),
                 "--ranks", str(ranks), "--graphs", graphs]
        if ranks > layers:
            return None
        if dropout:
            words += ["--dropout", str(dropout)]
        with UsedMemory() as memory:
            ran = subprocess.run(words, capture_output=True, text=True)
    if ran.returncode != 0:
        print(ran.stderr, file=sys.stderr)
        return None
    steps = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    times = [step["seconds"] for step in steps if "seconds" in step and "step" in step]
    if ran.stderr:
        print(ran.stderr, file=sys.stderr)
    return statistics.median(times[len(times) // 3:]), memory.most


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--dropout", type=float, default=0.0)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu: there is no CUDA device; nothing was measured")
        return 0
    updates = 9 if options.quick else 30
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; milliseconds an update (MiB of the device)")
    for name in options.models.split(","):
        sizes = MODELS[name]
        rows = {"PyTorch, eager": time_pytorch(sizes, updates),
                "PyTorch, eager, one graph": time_pytorch(sizes, updates, graph=True)}
        if options.compile:
            rows["PyTorch, compiled"] = time_pytorch(sizes, updates, compiled=True)
            rows["PyTorch, compiled, one graph"] = time_pytorch(sizes, updates, compiled=True, graph=True)
        for graphs in ("on", "off"):
            for ranks in RANKS:
                rows[f"stagecraft, {ranks} ranks, graphs {graphs}"] = time_ours(
                    options.program, sizes, updates, ranks, graphs, options.dropout)
        print(f"{name}: layers, width, heads, context, batch, microbatches = {sizes}")
        for row, measured in rows.items():
            if measured is None:
                print(f"  {row:32}      -")
                continue
            seconds, memory = measured
            reference = rows["PyTorch, eager, one graph" if "graphs on" in row else "PyTorch, eager"][0]
            print(f"  {row:32} {seconds * 1e3:9.1f}  ({memory / 2**20:7.0f})  {seconds / reference:5.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
