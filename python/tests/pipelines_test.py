"""Pipelines whose ranks are threads of this process."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import stagecraft as sc
from models import WIDTH, batch, block, plain_grads, same, take_grads


def mse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output, target)


@pytest.mark.parametrize(("schedule", "ranks"), [("GPipe", 4), ("1F1B", 4), ("Interleaved1F1B", 2), ("ZBVZeroBubble", 2),
                                                ("InterleavedZeroBubble", 2), ("DualPipeV", 2), ("LoopedBFS", 2)])
def test_gradients_are_those_of_the_modules(schedule: str, ranks: int) -> None:
    modules = [block(s) for s in range(4)]
    pipe = sc.Pipeline(modules, schedule=schedule, ranks=ranks, loss_fn=mse)
    x, y = batch(13)
    reverse = schedule == "LoopedBFS"
    grads, losses, output = plain_grads(modules, x, y, mse, 4, reverse=reverse)
    result = pipe.step(x, target=y, microbatches=4)
    assert torch.equal(result.output, output) and same(result.losses, losses)
    assert all(same(take_grads(m), g) for m, g in zip(modules, grads))
    sc.verify_against_reference(pipe, x, target=y, microbatches=4)
    assert torch.equal(pipe.eval(x, microbatches=4).output, output)


class Bottom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        h = self.embed(x)
        return h.tanh(), h.sin()


class Top(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        sc.add_loss(h.square().mean() * 0.01)
        place = sc.current_stage()
        assert place is not None and place.stage == 2 and place.num_stages == 3
        return self.head(h + skip)


def test_skip_edges_ties_recompute_and_added_losses() -> None:
    bottom, middle, top = Bottom(), block(1), Top()
    with torch.no_grad():
        top.head.weight.copy_(bottom.embed.weight)
    pipe = sc.Pipeline([bottom, middle, top], schedule="1F1B", ranks=3, loss_fn=mse,
                       ports=sc.Ports(3).connect(output=(0, 1), input=(2, 1)),
                       ties=[[(0, "embed.weight"), (2, "head.weight")]], recompute=[1])
    x, y = batch(8)
    result = pipe.step(x, target=y, microbatches=3)
    assert len(result.losses) == 3 and result.weights == [3 / 8, 3 / 8, 2 / 8]
    assert all(loss is not None for loss in result.added_losses)
    assert torch.equal(bottom.embed.weight.grad, top.head.weight.grad)
    assert sc.current_stage() is None

    class Plain(Top):
        def forward(self, h: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
            return self.head(h + skip)

    plain = Plain()
    with torch.no_grad():
        plain.head.weight.copy_(bottom.embed.weight)
    pipe = sc.Pipeline([bottom, middle, plain], schedule="1F1B", ranks=3, loss_fn=mse,
                       ports=sc.Ports(3).connect(output=(0, 1), input=(2, 1)),
                       ties=[[(0, "embed.weight"), (2, "head.weight")]], recompute=[1])
    sc.verify_against_reference(pipe, x, target=y)


def test_what_differs_is_named() -> None:
    class Odd(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.inner = block(0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            type(self).calls += 1
            return self.inner(x) * type(self).calls

    pipe = sc.Pipeline([Odd(), block(1)], schedule="GPipe", loss_fn=mse)
    x, y = batch(4)
    with pytest.raises(AssertionError, match="inner.0.weight of stage 0: gradients differ by up to"):
        sc.verify_against_reference(pipe, x, target=y)


def test_random_numbers_do_not_depend_on_ranks() -> None:
    def grads(ranks: int) -> Any:
        modules = [nn.Sequential(block(s), nn.Dropout(0.5)) for s in range(4)]
        pipe = sc.Pipeline(modules, schedule="LoopedBFS", ranks=ranks, loss_fn=mse, seed=7)
        x, y = batch(8)
        pipe.step(x, target=y, microbatches=2)
        return [g for m in modules for g in take_grads(m)]

    assert same(grads(1), grads(2)) and same(grads(2), grads(4))


def test_failures_name_the_stage_and_the_next_step_works() -> None:
    class Broken(nn.Module):
        fails = True

        def __init__(self) -> None:
            super().__init__()
            self.inner = block(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if type(self).fails:
                raise ZeroDivisionError("mine")
            return self.inner(x)

    pipe = sc.Pipeline([block(0), Broken(), block(2)], schedule="1F1B", loss_fn=mse)
    x, y = batch(8)
    with pytest.raises(sc.StageError) as caught:
        pipe.step(x, target=y, microbatches=4)
    assert caught.value.stage == 1 and isinstance(caught.value.__cause__, ZeroDivisionError)
    Broken.fails = False
    sc.verify_against_reference(pipe, x, target=y)
    with pytest.raises(TypeError, match="threads"):
        pickle.dumps(pipe)
    with pytest.raises(ValueError, match="checkpoint|does not fit"):
        sc.Pipeline([block(0)] * 3, schedule="ZBVZeroBubble")


def test_ctrl_c_ends_a_step_of_threads() -> None:
    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.02)
            return x * torch.ones((), requires_grad=True)

    pipe = sc.Pipeline([Slow(), Slow()], schedule="GPipe", loss_fn=mse)
    x, y = batch(200)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pipe.step(x, target=y, microbatches=200)
    assert time.monotonic() - begin < 2
    timer.join()


def test_report_of_threads() -> None:
    pipe = sc.Pipeline([block(0), block(1)], schedule="1F1B", loss_fn=mse)
    x, y = batch(8)
    pipe.step(x, target=y, microbatches=4, measure_memory=True)
    report = pipe.report()
    assert len(report.ranks) == 2 and report.ranks[0].peak_memory is not None
    assert "<iframe" in report._repr_html_()
    assert pipe.memory_estimate(16).peak > 0
