#!/usr/bin/env python3
"""Milliseconds for an update on one CUDA device: `stagecraft train` against PyTorch's loop over the same
model.

    gpu.py PROGRAM [--quick] [--models big,small,tiny,llama] [--compile] [--compiled] [--dropout P] [--graphs on,off] [--ranks 1,2,4] [--rounds N]

PROGRAM: bin/stagecraft-train of a build. bf16 autocast, AdamW, clipping, one read of loss and norm an update. PyTorch's columns:
eager, eager as one CUDA graph, and with --compile torch.compile without and with a graph. `llama` is a LLaMA of transformers,
which stagecraft trains from a .pt2 that this script exports; it is left out if transformers is not installed. With --rounds all
columns are measured N times in turns, and the median round counts: without graphs the host decides, and it is not always as fast.
With --compiled the GPTs are also exported, compiled in four stages by `stagecraft compile` (minutes), and trained from the package.

Memory, in MiB: that of the whole device while the process runs (including CUDA's own), and the most memory that torch's
allocator had reserved (PyTorch), or the peaks of a step that is run and of a step that is replayed (stagecraft).

If tests/gpu_attention of the same build exists, it adds attention in bf16 against torch's. If tests/gpu_compiled exists,
--compiled adds steps of each package against its programs in a bare loop, without an optimizer.
"""

import argparse
import json
import os
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
    "llama": (8, 512, 8, 512, 32, 8),
}


def find_transformers():
    try:
        import transformers
    except ImportError:
        return None
    return transformers


def make_llama(sizes):
    layers, width, heads, context, _, _ = sizes
    torch.manual_seed(1)
    transformers = find_transformers()
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=256, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=heads // 2, max_position_embeddings=context, tie_word_embeddings=True, use_cache=False,
        bos_token_id=0, eos_token_id=0)).train()


def export_llama(sizes, path):
    context = sizes[3]
    ids = torch.randint(0, 256, (2, context))
    rows = {0: torch.export.Dim("rows", min=1, max=64)}
    program = torch.export.export(make_llama(sizes), (), {"input_ids": ids, "labels": ids.clone()}, strict=False,
                                  dynamic_shapes={"input_ids": rows, "labels": rows})
    torch.export.save(program, path)


def make_gpt(sizes):
    layers, width, heads, context, _, _ = sizes
    notes = {"layers": layers, "width": width, "heads": heads, "context": context, "vocabulary": 256}
    model = Gpt(notes, 0, layers).cuda()
    for block in model.blocks.values():
        block.turn = block.turn.cuda()
    return model


class WithLoss(torch.nn.Module):
    """A model for export that returns its loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return loss_of(self.model(input_ids).float(), labels)


def compile_gpt(name, stagecraft, folder):
    """Exports the model, compiles it in four equal stages, and returns the package."""
    sizes = MODELS[name]
    layers, _, _, context, batch, microbatches = sizes
    archive, package = folder / f"{name}.pt2", folder / f"{name}.scp"
    ids = torch.randint(0, 256, (batch // microbatches, context), device="cuda")
    program = torch.export.export(WithLoss(make_gpt(sizes)), (ids, ids.clone()), strict=False)
    torch.export.save(program, archive)
    stages = min(4, layers)
    points = ",".join(f"model.blocks.{layers * stage // stages}" for stage in range(1, stages))
    begin = time.perf_counter()
    subprocess.run([str(stagecraft), "compile", str(archive), "-o", str(package), "--split", points, "--device", "cuda", "--bf16",
                    "--fix", "all", "--jobs", str(min(16, len(os.sched_getaffinity(0)))), "--quiet"], check=True)
    print(f"{name}: {stages} stages compiled in {time.perf_counter() - begin:.0f} s, {package.stat().st_size / 2**20:.0f} MiB")
    return package


def make_update(name, compiled, capturable):
    sizes = MODELS[name]
    _, _, _, context, batch, microbatches = sizes
    is_llama = name == "llama"
    model = make_llama(sizes).cuda() if is_llama else make_gpt(sizes)
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
                whole = run(input_ids=part, labels=part).loss if is_llama else loss_of(run(part).float(), goal)
                loss = whole / microbatches
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


def time_pytorch(name, updates, compiled=False, graph=False):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = UsedMemory.used()
    update = make_update(name, compiled, capturable=graph)
    for _ in range(3):
        update()
    if graph:
        update = as_graph(update)
    times = []
    for _ in range(updates):
        begin = time.perf_counter()
        update().tolist()
        times.append(time.perf_counter() - begin)
    memory = (UsedMemory.used() - before, f"{torch.cuda.max_memory_reserved() / 2**20:.0f} reserved")
    del update
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    return statistics.median(times[len(times) // 3:]), memory


class UsedMemory:
    """Measures the most memory of the device that other processes use during its lifetime."""

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


def peaks_of(report):
    """The memory in a report of stagecraft."""
    facts = {fact["name"]: fact["value"] for fact in report["facts"]}
    device = report["ranks"][0]["device_memory"] or {}
    return facts.get("peak memory of a device") or f"{device.get('peak_allocated', 0) / 2**20:.0f} allocated"


def time_ours(program, name, updates, ranks, graphs, folder, dropout=0.0, package=None):
    """Trains with stagecraft. Returns the median seconds, the memory of the device, the memory in the report, and the
    device's time of the last step."""
    layers, width, heads, context, batch, microbatches = MODELS[name]
    if ranks > layers:
        return None
    text, report = folder / "text.txt", folder / "report.json"
    text.write_text("It is a truth universally acknowledged. " * 4000)
    words = [program, "--data", str(text), "--device", "cuda", "--bf16", "--json", "--eval-every", "0", "--sample", "0",
             "--steps", str(updates + 6), "--context", str(context), "--batch", str(batch), "--microbatches", str(microbatches),
             "--ranks", str(ranks), "--graphs", graphs, "--report-json", str(report)]
    if package:
        words += ["--model", str(package), "--schedule", "1F1B" if ranks == min(4, layers) else "Interleaved1F1B"]
    elif name == "llama":
        words += ["--model", str(folder / "llama.pt2")]
    else:
        words += ["--layers", str(layers), "--width", str(width), "--heads", str(heads)]
        words += ["--dropout", str(dropout)] if dropout else []
    with UsedMemory() as memory:
        ran = subprocess.run(words, capture_output=True, text=True)
    if ran.stderr:
        print(ran.stderr, file=sys.stderr)
    if ran.returncode != 0:
        return None
    steps = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    # The last two steps are for the report: one measures memory, one is recorded.
    times = [step["seconds"] for step in steps if "seconds" in step and "step" in step][:-2]
    told = json.loads(report.read_text())
    return statistics.median(times[len(times) // 3:]), (memory.most, peaks_of(told)), told["step"]["makespan"] / 1e3


def run_model(name, updates, options, folder):
    kinds = options.graphs.split(",")
    columns = {"PyTorch, eager": lambda: time_pytorch(name, updates)}
    if "on" in kinds:
        columns["PyTorch, eager, one graph"] = lambda: time_pytorch(name, updates, graph=True)
    if options.compile:
        columns["PyTorch, compiled"] = lambda: time_pytorch(name, updates, compiled=True)
        columns["PyTorch, compiled, one graph"] = lambda: time_pytorch(name, updates, compiled=True, graph=True)
    if name == "llama":
        export_llama(MODELS[name], folder / "llama.pt2")
    for graphs in kinds:
        for ranks in map(int, filter(None, options.ranks.split(","))):
            columns[f"stagecraft, {ranks} ranks, graphs {graphs}"] = lambda ranks=ranks, graphs=graphs: time_ours(
                options.program, name, updates, ranks, graphs, folder, options.dropout)
    package = None
    if options.compiled and name != "llama":
        package = compile_gpt(name, pathlib.Path(options.program).with_name("stagecraft"), folder)
        for graphs in kinds:
            for ranks in map(int, filter(None, (options.compiled_ranks or options.ranks).split(","))):
                columns[f"compiled, {ranks} ranks, graphs {graphs}"] = lambda ranks=ranks, graphs=graphs: time_ours(
                    options.program, name, updates, ranks, graphs, folder, package=package)
    rounds = [{row: measure() for row, measure in columns.items()} for _ in range(options.rounds)]
    rows = {}
    for row in columns:
        found = sorted((one[row] for one in rounds if one[row] is not None), key=lambda measured: measured[0])
        rows[row] = found[len(found) // 2] if found else None
        if len(found) > 1:
            print(f"  {row:32} rounds: " + " ".join(f"{measured[0] * 1e3:.1f}" for measured in found))
    print(f"{name}: layers, width, heads, context, batch, microbatches = {MODELS[name]}")
    for row, measured in rows.items():
        if measured is None:
            print(f"  {row:32}      -")
            continue
        seconds, (device, allocator), *step = measured
        reference = rows["PyTorch, eager, one graph" if "graphs on" in row else "PyTorch, eager"][0]
        print(f"  {row:32} {seconds * 1e3:9.1f}  {seconds / reference:5.2f}  {step[0] if step else float('nan'):9.1f}  "
              f"{device / 2**20:8.0f}  {allocator}", flush=True)
    bare = pathlib.Path(options.program).parents[1] / "tests" / "gpu_compiled"
    if package and bare.exists():
        _, _, _, context, batch, microbatches = MODELS[name]
        words = [str(bare), str(package), str(microbatches), str(batch // microbatches), str(context), str(max(updates, 21))]
        subprocess.run(words, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--graphs", default="on,off")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--compiled-ranks", help="of compiled stages, if not those of --ranks")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu: there is no CUDA device; nothing was measured")
        return 0
    updates = 9 if options.quick else 30
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; milliseconds an update, its ratio to PyTorch (graphs on: as one "
          "graph; else eager), milliseconds of the device for a step, MiB of the device, MiB of the allocator")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models.split(","):
            if name == "llama" and find_transformers() is None:
                print("llama: transformers is not installed, so there is nothing to export")
                continue
            run_model(name, updates, options, pathlib.Path(folder))
    attention = pathlib.Path(options.program).parents[1] / "tests" / "gpu_attention"
    if attention.exists():
        return subprocess.run([str(attention), "5" if options.quick else "15"]).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
