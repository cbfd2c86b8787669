"""Models that tests share, and the gradients of the uncut model."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn

WIDTH = 6


def block(seed: int, width: int = WIDTH) -> nn.Module:
    """A block whose weights the seed alone decides."""
    generator = torch.Generator().manual_seed(seed)
    made = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return made


def batch(rows: int, width: int = WIDTH, seed: int = 99) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator), torch.randn(rows, width, generator=generator)


def plain_grads(modules: list[nn.Module], x: torch.Tensor, y: torch.Tensor, loss: Any, count: int,
                scale: str = "mean", reverse: bool = False) -> tuple[list[list[torch.Tensor]], list[torch.Tensor], torch.Tensor]:
    """Gradients by module, losses and output of the modules without a pipeline, by microbatch.

    `reverse`: backwards run from the last microbatch to the first, as LoopedBFS has them. Sums of gradients have that
    order.
    """
    losses, outputs, backwards = [], [], []
    for xs, ys in zip(torch.tensor_split(x, count), torch.tensor_split(y, count)):
        out = xs
        for module in modules:
            out = module(out)
        each = loss(out, ys)
        weight = len(xs) / len(x) if scale == "mean" else 1.0
        backwards.append((each, weight))
        losses.append(each.detach())
        outputs.append(out.detach())
    for each, weight in reversed(backwards) if reverse else backwards:
        each.backward(torch.full_like(each, weight))
    grads = []
    for module in modules:
        grads.append([p.grad.clone() for p in module.parameters()])
        for p in module.parameters():
            p.grad = None
    return grads, losses, torch.cat(outputs)


def take_grads(module: nn.Module) -> list[torch.Tensor | None]:
    grads = [p.grad for p in module.parameters()]
    for p in module.parameters():
        p.grad = None
    return grads


def same(a: Any, b: Any) -> bool:
    """Whether two lists of tensors are equal bit for bit."""
    return len(a) == len(b) and all(x is not None and y is not None and torch.equal(x, y) for x, y in zip(a, b))
