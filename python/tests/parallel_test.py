"""Data parallelism inside the stages of a pipeline: DDP and FSDP on four gloo processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

import stagecraft as sc
from models import batch, block, plain_grads, take_grads
from ranks import results, run_ranks
from stagecraft.stage import PipelineStage

CPU = torch.device("cpu")


def mse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output, target)


def expected_of(count: int, stages: int) -> list[list[torch.Tensor]]:
    """The mean of the gradients of both data-parallel ranks."""
    all_grads = []
    for replica in range(2):
        x, y = batch(8, seed=replica)
        all_grads.append(plain_grads([block(s) for s in range(stages)], x, y, mse, count)[0])
    return [[(a + b) / 2 for a, b in zip(one, two)] for one, two in zip(*all_grads)]


def close(found: list[Any], expected: list[torch.Tensor]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine is not None and torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def ddp(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    pp, dp = mesh["pp"].get_group(), mesh["dp"].get_group()
    x, y = batch(8, seed=mesh["dp"].get_local_rank())
    mine = mesh["pp"].get_local_rank()
    for cls, per_rank in ((sc.ScheduleGPipe, 1), (sc.ScheduleInterleaved1F1B, 2)):
        count = 2 * per_rank
        modules = {s: DDP(block(s), process_group=dp) for s in range(mine, count, 2)}
        stages = [PipelineStage(m, s, count, CPU, group=pp) for s, m in modules.items()]
        schedule = cls(stages[0] if per_rank == 1 else stages, 4, loss_fn=mse)
        expected = expected_of(4, count)
        for _ in range(2):
            schedule.step(x, target=y)
            for s, module in modules.items():
                close(take_grads(module), expected[s])
    split = sc.ScheduleInterleavedZeroBubble(stages, 4, loss_fn=mse)
    with pytest.raises(sc.ArgumentError, match="DistributedDataParallel"):
        split.step(x, target=y)


def fsdp(rank: int, size: int) -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    pp = mesh["pp"].get_group()
    x, y = batch(8, seed=mesh["dp"].get_local_rank())
    mine = mesh["pp"].get_local_rank()
    for cls, per_rank in ((sc.Schedule1F1B, 1), (sc.ScheduleInterleaved1F1B, 2), (sc.ScheduleInterleavedZeroBubble, 2)):
        count = 2 * per_rank
        modules: dict[int, nn.Module] = {}
        for s in range(mine, count, 2):
            modules[s] = block(s)
            fully_shard(modules[s], mesh=mesh["dp"])
        stages = [PipelineStage(m, s, count, CPU, group=pp) for s, m in modules.items()]
        schedule = cls(stages[0] if per_rank == 1 else stages, 4, loss_fn=mse)
        expected = expected_of(4, count)
        for _ in range(2):
            schedule.step(x, target=y)
            for s, module in modules.items():
                found = [p.grad.full_tensor() if p.grad is not None else None for p in module.parameters()]
                close(found, expected[s])
                for p in module.parameters():
                    p.grad = None


def test_ddp() -> None:
    results(run_ranks(4, ddp, deadline=120))


def test_fsdp() -> None:
    results(run_ranks(4, fsdp, deadline=120))
