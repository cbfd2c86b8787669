"""DTensors between stages: the local shard travels, and its gradient comes back."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import stagecraft as sc
from models import WIDTH, batch, same
from stagecraft import _dtensor
from stagecraft.errors import PipeliningMetadataError


@pytest.fixture(scope="module")
def mesh() -> object:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


def test_a_border_keeps_placements_and_gradients(mesh: object) -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> DTensor:
            return DTensor.from_local(self.lin(x), mesh, [Shard(0)], run_check=False)

    class Second(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(WIDTH, WIDTH)

        def forward(self, h: DTensor) -> torch.Tensor:
            assert isinstance(h, DTensor) and h.placements == (Shard(0),)
            return self.lin(h.to_local())

    modules = [First(), Second()]
    stages = [sc.PipelineStage(m, i, 2, torch.device("cpu")) for i, m in enumerate(modules)]
    schedule = sc.ScheduleInterleaved1F1B(stages, 2, loss_fn=F.mse_loss)
    x, y = batch(4)
    schedule.step(x, target=y)
    found = [p.grad.clone() for m in modules for p in m.parameters()]
    for module in modules:
        module.zero_grad()
    for xs, ys in zip(x.split(2), y.split(2)):
        (F.mse_loss(modules[1](modules[0](xs)), ys) / 2).backward()
    assert same(found, [p.grad for m in modules for p in m.parameters()])


@pytest.mark.parametrize("placement", [Shard(1), Replicate(), Partial("sum")])
def test_every_placement_is_put_together_again(mesh: object, placement: object) -> None:
    value = DTensor.from_local(torch.ones(2, 3), mesh, [placement], run_check=False)
    description, local, tag = _dtensor.take_apart(value)
    again = _dtensor.put_together(description, local, tag)
    assert again.placements == value.placements and again.shape == value.shape
    assert torch.equal(again.to_local(), value.to_local())


def test_an_unknown_mesh_is_named(mesh: object) -> None:
    description, *tensors = _dtensor.take_apart(DTensor.from_local(torch.ones(2), mesh, [Shard(0)], run_check=False))
    with pytest.raises(PipeliningMetadataError, match="get_mesh"):
        _dtensor.put_together({**description, "names": ["other"]}, *tensors)


@pytest.mark.parametrize("placement", [Shard(1), Replicate(), Partial("sum"), Partial("avg")])
def test_a_gradient_keeps_placements_of_its_own(mesh: object, placement: object) -> None:
    value = DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)], run_check=False).requires_grad_()
    seen = []
    value.register_hook(lambda grad: seen.append(grad.placements))
    description, local, tag = _dtensor.take_apart(value)
    sent = [local.detach().requires_grad_(), tag.detach().requires_grad_()]
    other = _dtensor.put_together(description, *sent)
    other.backward(DTensor.from_local(torch.full((2, 3), 5.0), mesh, [placement], run_check=False))
    torch.autograd.backward([local, tag], [each.grad for each in sent])
    assert seen == [(placement,)]
    assert value.grad is not None and value.grad.to_local().eq(5).all()


def test_gradients_of_two_readers_are_refused(mesh: object) -> None:
    value = DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)], run_check=False).requires_grad_()
    _, local, tag = _dtensor.take_apart(value)
    with pytest.raises(PipeliningMetadataError, match="2 stages read"):
        torch.autograd.backward([local, tag], [torch.ones(2, 3), torch.tensor([2.0, 12.0], dtype=torch.float64)])
