#!/usr/bin/env python3
"""Exports small models and compiles them into packages, for the tests of this folder.

    make_packages.py STAGECRAFT FOLDER [cpu|cuda]

gpt.scp      a language model of bytes in four stages; the number of rows may change; a weight is tied
images1.scp  dropout, batch normalisation, several outputs with the loss among them; one stage, one size
images2.scp  the same model in two stages
half.scp     one stage under autocast to bfloat16
"""

import os
import pathlib
import subprocess
import sys
import warnings

import torch
from torch import nn
from torch.export import Dim

LENGTH = 16


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, width=32, heads=2, layers=4):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.linear(self.norm(x), self.embed.weight)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.25))
        self.second = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Dropout(0.25), nn.Linear(24, 3))

    def forward(self, pixels, labels):
        logits = self.second(self.first(pixels))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


def export(folder, name, module, args, dynamic=None):
    path = folder / f"{name}.pt2"
    torch.export.save(torch.export.export(module.train(), args, strict=False, dynamic_shapes=dynamic), path)
    return path


def main():
    tool, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    device = sys.argv[3] if len(sys.argv) > 3 else "cpu"
    folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    torch.manual_seed(1)
    rows = Dim("rows", min=1, max=16)
    gpt = export(folder, "gpt", Gpt(), (torch.zeros(2, LENGTH, dtype=torch.long),), ({0: rows},))
    images = export(folder, "images", Images(), (torch.randn(4, 12), torch.zeros(4, dtype=torch.long)))
    half = export(folder, "half", Half(), (torch.randn(4, 16),))
    environment = dict(os.environ, STAGECRAFT_PYTHON=sys.executable)
    # A wrapper that links libstdc++ statically makes packages that crash when they are loaded.
    environment.update({"CXX": "/usr/bin/g++", "CC": "/usr/bin/gcc"} if pathlib.Path("/usr/bin/g++").exists() else {})

    def build(model, name, *options):
        command = [tool, "compile", model, "-o", folder / f"{name}.scp", "--cache", folder / "cache",
                   "--device", device, *options]
        subprocess.run([str(word) for word in command], check=True, env=environment)

    build(gpt, "gpt", "--split", "layers.1,layers.2,layers.3", "--eval")
    build(images, "images1")
    build(images, "images2", "--split", "second")
    build(half, "half", "--bf16")


if __name__ == "__main__":
    main()
