"""Compiled stages against eager torch and torch.compile, in turns on one thread: forward and backward of GPT blocks.

    python benchmarks/compiled_python.py                      a stage of two blocks of 256, and of 768, on the CPU
    python benchmarks/compiled_python.py --device cuda --model 12x768 --stages 4 --batch 8 --length 1024 --bf16

The stages come from `stagecraft compile`; their programs run in a bare loop, without a runtime. Ratios below 1 mean
that the compiled stages are faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from stagecraft.compile.__main__ import main as compile_command
from stagecraft.compile.chain import Chain, load_chain
from stagecraft.compile.package import read_description

HEAD = 64
VOCABULARY = 256


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD
        self.before = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, length, 3, self.heads, HEAD).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Gpt(nn.Module):
    """A GPT that returns its loss."""

    def __init__(self, layers: int, width: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


class Blocks(nn.Module):
    """Two blocks after a stage with weights, so that their input needs a gradient."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.blocks = nn.Sequential(Block(width), Block(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.blocks(x * self.scale)
        return made


def run_blocks(options: argparse.Namespace, width: int, folder: Path, rows: list[dict[str, Any]]) -> bool:
    """A stage in the middle: F+B and F+I+W of its programs, eager and torch.compile."""
    torch.manual_seed(0)
    model = Blocks(width)
    x = torch.randn(options.batch, options.length, width)
    archive, package = folder / f"blocks{width}.pt2", folder / f"blocks{width}.scp"
    torch.export.save(torch.export.export(model, (x,), strict=False), archive)
    words = [str(archive), "-o", str(package), "--split", "blocks.0", "--jobs", str(options.jobs), "--quiet"]
    if compile_command([*words, *(["--cache", options.cache] if options.cache else ["--no-cache"])]) != 0:
        sys.exit(1)
    runner = load_chain(package, "cpu").runners[1]
    x.requires_grad_()
    given = x.detach()
    grad = torch.randn_like(given)
    compiled = torch.compile(model.blocks)

    def ours(halves: bool) -> dict[int, torch.Tensor]:
        with torch.no_grad():
            runner.grads.clear()
            runner.forward({0: given}, {})
            return (runner.input_then_weight_backward if halves else runner.backward)({0: grad})

    def theirs(module: Any) -> None:
        model.zero_grad(set_to_none=True)
        x.grad = None
        module(x).backward(grad)

    theirs(model.blocks)
    assert x.grad is not None
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None} | {"x": x.grad}
    good = True
    for halves in (False, True):
        found = {"x": ours(halves)[0]}
        found |= {runner.stage["parameters"][i]: each for i, each in runner.grads.items()}
        error, name = worst_difference(found, expected)
        good = good and error <= 1e-5
        print(f"two blocks of {width}: {'F+I+W' if halves else 'F+B'} against eager, worst {error:.1e} ({name})")
    steps: dict[str, Callable[[], Any]] = {
        "F+B": lambda: ours(False),
        "F+I+W": lambda: ours(True),
        "eager": lambda: theirs(model.blocks),
        "torch.compile": lambda: theirs(compiled),
    }
    medians = in_turns(steps, "cpu", options.rounds, options.repeats)
    add_rows(f"two blocks of {width}", medians, rows)
    return good


def add_rows(what: str, medians: dict[str, float], rows: list[dict[str, Any]]) -> None:
    """Prints times and ratios."""
    for name, median in medians.items():
        ratios = [f"{ours} is {medians[ours] / median:.3f} of it" for ours in ("F+B", "F+I+W") if not name.startswith("F+")]
        print(f"  {name:14s} {median:9.2f} ms   {', '.join(ratios)}".rstrip(), flush=True)
    for reference, goal in (("eager", 0.85), ("torch.compile", 1.0)):
        if reference in medians:
            ratio = medians["F+B"] / medians[reference]
            rows.append({"what": f"{what}, F+B", "reference": reference, "ours": medians["F+B"],
                         "theirs": medians[reference], "unit": "ms", "ratio": ratio, "goal": goal, "met": ratio <= goal})


def export(options: argparse.Namespace, layers: int, width: int, folder: Path) -> tuple[Gpt, Path]:
    """A model and its archive of torch.export."""
    torch.manual_seed(0)
    model = Gpt(layers, width, options.length)
    ids, targets = (torch.zeros(options.batch, options.length, dtype=torch.int64) for _ in range(2))
    dims: Any = None
    if options.dynamic:
        rows, length = torch.export.Dim("rows", max=1024), torch.export.Dim("length", max=options.length)
        dims = ({0: rows, 1: length}, {0: rows, 1: length})
    archive = folder / f"gpt_{layers}x{width}.pt2"
    torch.export.save(torch.export.export(model, (ids, targets), dynamic_shapes=dims, strict=False), archive)
    return model, archive


def split_words(layers: int, stages: int) -> list[str]:
    """Splits the blocks into equal parts. Inner stages are the same, and are compiled once."""
    points = [f"blocks.{layers * stage // stages}" for stage in range(1, stages)]
    return ["--split", ",".join(points)] if points else ["--stages", "1"]


def compile_model(options: argparse.Namespace, archive: Path, layers: int, package: Path) -> float:
    start = time.monotonic()
    words = [str(archive), "-o", str(package), *split_words(layers, options.stages), "--device", options.device]
    words += ["--jobs", str(options.jobs)] + ["--bf16"] * options.bf16
    words += ["--cache", options.cache] if options.cache else ["--no-cache"]
    words += [] if options.dynamic else ["--fix", "all"]
    if compile_command(words) != 0:
        sys.exit(1)
    return time.monotonic() - start


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(step: Callable[[], Any], device: str, repeats: int) -> float:
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    synchronize(device)
    return (time.perf_counter() - start) / repeats


def in_turns(steps: dict[str, Callable[[], Any]], device: str, rounds: int, repeats: int) -> dict[str, float]:
    """The median times in ms. The order of the steps is reversed in every round."""
    for step in steps.values():
        for _ in range(3):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    for _ in range(rounds):
        for name in order:
            times[name].append(timed(steps[name], device, repeats))
        order.reverse()
    return {name: 1e3 * statistics.median(each) for name, each in times.items()}


def eager_step(model: nn.Module, args: tuple[torch.Tensor, ...], options: argparse.Namespace) -> Callable[[], torch.Tensor]:
    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        with torch.autocast(options.device, torch.bfloat16, enabled=options.bf16):
            loss: torch.Tensor = model(*args)
        loss.backward()
        return loss

    return step


def worst_difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> tuple[float, str]:
    """Largest difference of an element, relative to the largest element of its tensor."""
    worst = (0.0, "")
    for name, grad in expected.items():
        error = ((found[name] - grad).abs().max() / grad.abs().max().clamp_min(1e-30)).item()
        worst = max(worst, (error, name))
    return worst


def check(chain: Chain, model: nn.Module, args: tuple[torch.Tensor, ...], sizes: dict[str, int], options: argparse.Namespace) -> bool:
    """Compares the gradients of F+B and F+I+W with those of eager mode, and prints how much eager
    mode differs from itself."""
    step = eager_step(model, args, options)

    def eager_grads() -> tuple[float, dict[str, torch.Tensor]]:
        loss = step().item()
        return loss, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    loss, expected = eager_grads()
    print(f"  eager against itself: {worst_difference(eager_grads()[1], expected)[0]:.1e}")
    good = True
    limit = 3e-2 if options.bf16 else 1e-5 if options.device == "cpu" else 5e-3
    whole: dict[str, torch.Tensor] = {}
    for halves in (False, True):
        found = chain.step(args, halves, sizes)[0].item()
        grads = chain.grads()
        error, name = worst_difference(grads, expected)
        same = sum(torch.equal(grads[key], whole[key]) for key in whole)
        bits = f", bitwise F+B in {same} of {len(whole)}" if halves else ""
        print(f"  {'F+I+W' if halves else 'F+B  '} against eager: loss {found:.5f} and {loss:.5f}, worst {error:.1e} ({name}){bits}")
        whole = grads
        good = good and error <= limit and abs(found - loss) < 1e-2 * abs(loss)
    print(f"  gradients {'agree' if good else 'DIFFER'} (limit {limit:.0e})")
    return good


def run_case(options: argparse.Namespace, layers: int, width: int, folder: Path, rows: list[dict[str, Any]]) -> bool:
    model, archive = export(options, layers, width, folder)
    package = folder / f"gpt_{layers}x{width}.scp"
    seconds = compile_model(options, archive, layers, package)
    model.to(options.device)
    chain = load_chain(package, options.device)
    print(f"GPT {layers} x {width}, {options.stages} stages, microbatch {options.batch} x {options.length}, "
          f"{options.device}{', bf16' if options.bf16 else ''}: compiled in {seconds:.0f} s", flush=True)
    ids = torch.randint(0, VOCABULARY, (options.batch, options.length), device=options.device)
    args = (ids, ids.roll(-1, 1).contiguous())
    names = read_description(package)["symbols"]
    sizes = dict(zip(names, (options.batch, options.length)))
    good = check(chain, model, args, sizes, options)
    steps: dict[str, Callable[[], Any]] = {
        "F+B": lambda: chain.step(args, False, sizes),
        "F+I+W": lambda: chain.step(args, True, sizes),
        "eager": eager_step(model, args, options),
    }
    if options.torch_compile:
        steps["torch.compile"] = eager_step(torch.compile(model, dynamic=options.dynamic), args, options)  # type: ignore[arg-type]
    medians = in_turns(steps, options.device, options.rounds, options.repeats)
    add_rows(f"GPT {layers} x {width}", medians, rows)
    memory = read_description(package)["stages"]
    for number, stage in enumerate(memory):
        held = {key: f"{value / 1e6:.1f} MB" for key, value in stage["bytes"].items()}
        print(f"  stage {number}: {', '.join(f'{key} {value}' for key, value in held.items())}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--model", action="append", metavar="LAYERSxWIDTH", help="a whole model; default: blocks of 256 and 768")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--dynamic", action="store_true", help="rows and length may change")
    parser.add_argument("--no-torch-compile", dest="torch_compile", action="store_false")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cache", help="folder of compiled programs; none without")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", help="write the rows there")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
        # Backwards run on the calling thread, as in the programs.
        torch.autograd.set_multithreading_enabled(False)
    rows: list[dict[str, Any]] = []
    good = True
    with tempfile.TemporaryDirectory(prefix="stagecraft-bench-") as folder:
        for width in () if options.model else (256, 768):
            good = run_blocks(options, width, Path(folder), rows) and good
        for model in options.model or []:
            layers, width = (int(number) for number in model.split("x"))
            good = run_case(options, layers, width, Path(folder), rows) and good
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
