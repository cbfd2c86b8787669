"""Models for the tests of stagecraft.compile, and how a test runs their programs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from stagecraft.compile.chain import Chain
from stagecraft.compile.joint import StageOptions
from stagecraft.compile.package import describe_stage
from stagecraft.compile.pipe_file import PipeFile
from stagecraft.compile.split import split_model
from stagecraft.compile.stages import trace_stages

VOCABULARY = 17


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.before = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(rows, length, width)), self.dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.after(x)))), self.dropout)


class Gpt(nn.Module):
    """Token and position embeddings, blocks, a head, and the loss inside."""

    def __init__(self, layers: int = 2, width: int = 16, dropout: float = 0.0, length: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 2, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Net(nn.Module):
    """Convolutions, batch norms (buffers that forward changes), a frozen weight, a skip connection, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        # Biases before a batch norm have no gradient but rounding.
        self.first = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.renorm = nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 5)
        self.last.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = F.relu(self.norm(self.first(x)))
        b = F.relu_(self.renorm(self.second(a)))
        c = (a + b).mean((2, 3))
        return self.last(c), c


class Tied(nn.Module):
    """The first and the last stage use one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.middle(self.tokens(ids))))


def make_pipe(
    module: nn.Module, args: tuple[Any, ...], folder: Path, how: list[str], dynamic: Any = None, name: str = "model"
) -> Path:
    """Exports a module and lets C++ split it."""
    archive = folder / f"{name}.pt2"
    torch.export.save(torch.export.export(module, args, dynamic_shapes=dynamic, strict=False), archive)
    pipe = folder / f"{name}.pipe"
    split_model(archive, pipe, how)
    return pipe


def gpt_pipe(folder: Path, model: nn.Module, how: list[str], rows: int = 3, length: int = 8) -> Path:
    # Two tensors: torch.export takes one that is given twice for one input.
    ids, targets = torch.zeros(2, rows, length, dtype=torch.int64)
    dims = {0: torch.export.Dim("rows", max=64), 1: torch.export.Dim("length", max=32)}
    return make_pipe(model, (ids, targets.clone()), folder, how, (dims, dims))


class Stages:
    """All stages of a pipe, run as graphs: those that Inductor compiles, so most tests need not wait for it."""

    def __init__(self, path: Path, options: StageOptions | None = None) -> None:
        self.pipe = PipeFile(path)
        self.jobs = trace_stages(self.pipe, options or StageOptions())
        self.descriptions = [describe_stage(self.pipe, job) for job in self.jobs]

        def load(stage: int, name: str) -> Any:
            module = self.jobs[stage].programs.programs[name].module
            return lambda args: module(*args)

        self.chain = Chain(self.pipe, self.descriptions, load, "cpu")

    @property
    def symbols(self) -> list[str]:
        return list(self.jobs[0].programs.symbols)


def assert_close(found: torch.Tensor, expected: torch.Tensor, what: str, tolerance: float = 1e-5) -> None:
    """Relative to the largest element."""
    assert found.shape == expected.shape, what
    error = (found - expected).abs().max() / expected.abs().max().clamp_min(1e-6)
    assert error <= tolerance, f"{what}: {error:.2e}"


def run_tool(words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """The program `stagecraft`."""
    from stagecraft.compile.split import find_program

    return subprocess.run([*find_program(), *words], env={**os.environ, **environment}, capture_output=True, text=True, check=False)
