#!/usr/bin/env python3
"""Exports small models and compiles them into packages, for the tests of this folder.

    make_packages.py STAGECRAFT FOLDER [cpu|cuda [NAME...]]

gpt.scp     a language model with its loss, in four stages. The two inner stages are the same. A skip connection leads
            from the first stage to the last. Rows and length may change
drop1.scp   a language model with dropout and without attention, in one stage
drop2.scp   the same model in two stages. Its first stage is also the first stage of gpt.scp
mlp.scp     two stages, the loss outside; rows may change. Two worker processes compile it
half.scp    one stage under autocast to bfloat16: batch normalisation, two outputs, one size, a program for evaluation

One process makes all of them, since Python takes seconds to import torch.
"""

import os
import pathlib
import sys
import warnings

from quick_compile import prepare_to_compile  # before torch

import torch
from torch import nn
from torch.nn import functional as F
from torch.export import Dim

ROWS, LENGTH, VOCABULARY = 3, 8, 17


class Block(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.after(x))))


class DroppingBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + F.dropout(self.down(F.dropout(torch.tanh(self.up(x)), 0.25)), 0.25)


class Gpt(nn.Module):
    def __init__(self, block, layers, width=16):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(32, width)
        self.blocks = nn.ModuleList(block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids, targets):
        x = first = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        # The first value skips the blocks.
        return F.cross_entropy(self.head(self.norm(x + first)).flatten(0, 1), targets.flatten())


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 16)

    def forward(self, x):
        wide = self.norm(self.up(x))
        return self.down(F.gelu(wide)), wide


def export(folder, name, module, args, dynamic=None):
    path = folder / f"{name}.pt2"
    torch.export.save(torch.export.export(module.train(), args, strict=False, dynamic_shapes=dynamic), path)
    return path


def main():
    tool, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    device = sys.argv[3] if len(sys.argv) > 3 else "cpu"
    folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    dims = {0: Dim("rows", max=64), 1: Dim("length", max=32)}

    def tokens(name, **options):
        torch.manual_seed(1)
        ids, targets = torch.zeros(2, ROWS, LENGTH, dtype=torch.long)
        return export(folder, name, Gpt(**options), (ids, targets.clone()), (dims, dims))

    def mlp(name):
        torch.manual_seed(1)
        return export(folder, name, Mlp(), (torch.randn(4, 6),), ({0: Dim("rows", max=64)},))

    def half(name):
        torch.manual_seed(1)
        return export(folder, name, Half(), (torch.randn(4, 16),))

    prepare_to_compile(tool, folder)
    from stagecraft.compile.__main__ import main as compile_here
    from stagecraft.compile.workers import Workers

    builds = {
        "gpt": (lambda: tokens("gpt", block=Block, layers=2), ["--split", "blocks.0,blocks.1,norm"]),
        "drop2": (lambda: tokens("drop", block=DroppingBlock, layers=1), ["--split", "blocks.0"]),
        "drop1": (lambda: tokens("drop", block=DroppingBlock, layers=1), []),
        "mlp": (lambda: mlp("mlp"), ["--split", "b", "--jobs", "2"]),
        "half": (lambda: half("half"), ["--bf16", "--eval"]),
    }
    # CI has two cores; machines with a GPU have more.
    count = 2 if device == "cpu" else min(10, len(os.sched_getaffinity(0)))
    with Workers(count) as workers:
        for name in sys.argv[4:] or builds:
            make, options = builds[name]
            words = [str(word) for word in (make(), "-o", folder / f"{name}.scp", "--device", device, *options)]
            words += ["--jobs", str(count)] if device == "cuda" else []
            if compile_here(words, workers) != 0:
                raise SystemExit(1)


if __name__ == "__main__":
    main()
