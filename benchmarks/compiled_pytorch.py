"""The models of compiled.cpp: four GPT blocks of a width, one a stage.

    compiled_pytorch.py make FOLDER STAGECRAFT WIDTH...    exports and compiles FOLDER/blocksWIDTH.scp, unless it is there
    compiled_pytorch.py serve WIDTH...                     cases `eager:WIDTH` and `compile:WIDTH`: F + B of one block;
                                                           `compile_forward:WIDTH`: F alone
"""

import os
import pathlib
import subprocess
import sys

import torch
from torch import nn

import pytorch_cases

ROWS, LENGTH, BLOCKS = 2, 64, 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Blocks(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(BLOCKS))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def make(folder, tool, widths):
    folder.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, STAGECRAFT_PYTHON=sys.executable)
    for width in widths:
        package = folder / f"blocks{width}.scp"
        if package.exists():
            continue
        torch.manual_seed(1)
        model = folder / f"blocks{width}.pt2"
        torch.export.save(torch.export.export(Blocks(width).train(), (torch.randn(ROWS, LENGTH, width),), strict=False), model)
        split = ",".join(f"blocks.{i}" for i in range(1, BLOCKS))
        subprocess.run([tool, "compile", model, "-o", package, "--split", split, "--cache", folder / "cache"], check=True,
                       env=environment)


def block_cases(width):
    torch.manual_seed(1)
    block = Block(width)
    x, grad = torch.randn(ROWS, LENGTH, width, requires_grad=True), torch.randn(ROWS, LENGTH, width)
    compiled = torch.compile(block)
    return {f"eager:{width}": lambda: block(x).backward(grad), f"compile:{width}": lambda: compiled(x).backward(grad),
            f"compile_forward:{width}": lambda: compiled(x)}


def main():
    torch.set_num_threads(1)
    command, *rest = sys.argv[1:]
    if command == "make":
        make(pathlib.Path(rest[0]), rest[1], rest[2:] and [int(width) for width in rest[2:]])
        return
    cases = {}
    for width in rest:
        cases.update(block_cases(int(width)))
    pytorch_cases.serve(cases)


if __name__ == "__main__":
    main()
