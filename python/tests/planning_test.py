"""Plans of models: cuts at names of layers, a schedule that runs, bounds, memory."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import stagecraft as sc
from models import batch, block


def mse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output, target)


class Model(nn.Module):
    """Six layers; the last costs as much as the others together."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([block(s) for s in range(5)])
        self.head = nn.Sequential(*[block(s) for s in range(5, 10)])
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_an_estimate_cuts_by_cost_and_its_schedule_runs() -> None:
    model = Model()
    x, y = batch(8)
    plan = sc.plan(model, x[:2], ranks=2, microbatches=4, measure=False, time_limit=0.2, stages_per_rank=[1])
    assert plan.ranks == 2 and plan.microbatches == 4 and plan.unit == ""
    # The head is half of the work.
    assert plan.cuts == ("head",) or plan.cuts[0].startswith("head.0"), plan.cuts
    assert plan.schedule.verify() == [] and plan.schedule.ranks == 2
    assert 0 < plan.bound <= plan.time and plan.why and len(plan.peak_memory) == 2
    assert plan.schedule_name in str(plan)
    pipe = sc.pipeline(model, (x[:2],), split_spec=plan.split_spec)
    run = sc.Pipeline(pipe, schedule=plan.schedule, loss_fn=mse)
    sc.verify_against_reference(run, x, target=y, microbatches=4)


def test_measuring_leaves_the_model_as_it_is(tmp_path: Any) -> None:
    model = Model()
    x, y = batch(2)
    mse(model(x), y).backward()
    grads = [p.grad for p in model.parameters()]
    values = [p.grad.clone() for p in model.parameters()]
    plan = sc.plan(model, (x,), ranks=2, loss_fn=mse, target=y, time_limit=0.2, steps=1)
    assert plan.unit == "ms" and plan.microbatches == 8 and plan.time > 0
    assert all(p.grad is before and torch.equal(p.grad, value)
               for p, before, value in zip(model.parameters(), grads, values))
    assert model.calls.item() == 0
    file = tmp_path / "model.plan"
    plan.save(file)
    done = subprocess.run([sys.executable, "-m", "stagecraft", "simulate", str(file)], capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_memory_is_a_number_or_a_text() -> None:
    model = Model()
    x, _ = batch(2)
    options: dict[str, Any] = {"ranks": 2, "measure": False, "time_limit": 0.1}
    assert sc.plan(model, x, memory="16GiB", **options).cuts
    assert sc.plan(model, x, memory=16 * 2**30, **options).cuts
    assert sc.plan(model, {"x": x}, memory="16 GB", **options).cuts
    with pytest.raises(sc.Error):
        sc.plan(model, x, memory="1KiB", **options)
    for wrong in ("16 pigs", "GiB", ""):
        with pytest.raises(ValueError, match="memory"):
            sc.plan(model, x, memory=wrong, **options)
    with pytest.raises(ValueError, match="recompute"):
        sc.plan(model, x, recompute="some", **options)
    with pytest.raises(ValueError):
        sc.plan(model, x, ranks=100, measure=False)
