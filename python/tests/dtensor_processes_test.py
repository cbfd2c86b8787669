"""DTensors between stages of four processes: two pipeline ranks, each of two tensor-parallel processes."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import stagecraft as sc
from models import WIDTH, batch
from ranks import results, run_ranks
from stagecraft._utils import InferenceMode, _DTensorMeta, generate_rank_to_stage_mapping
from stagecraft.stage import PipelineStage

CPU = torch.device("cpu")
HIDDEN = 4 * WIDTH


def weights(stage: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(stage)
    return (torch.randn(HIDDEN, WIDTH, generator=generator) / 3, torch.randn(WIDTH, HIDDEN, generator=generator) / 3)


class Sharded(nn.Module):
    """A block whose first weight is cut by rows and whose second by columns; its output is placed as told."""

    def __init__(self, stage: int, tp: DeviceMesh, placement: Any) -> None:
        super().__init__()
        up, down = weights(stage)
        self.up = nn.Parameter(distribute_tensor(up, tp, [Shard(0)]))
        self.down = nn.Parameter(distribute_tensor(down, tp, [Shard(1)]))
        self.tp, self.placement = tp, placement
        self.came: list[Any] = []

    def forward(self, x: Any) -> Any:
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, self.tp, [Replicate()], run_check=False)
        else:
            assert x.device_mesh == self.tp, x.device_mesh
            self.came.append(x.placements)
        h = torch.tanh(x.redistribute(placements=[Replicate()]) @ self.up.t()) @ self.down.t()
        if self.placement is None:
            return h.redistribute(placements=[Replicate()]).to_local()
        return h if isinstance(self.placement, Partial) else h.redistribute(placements=[self.placement])


def reference(stages: int, x: torch.Tensor, y: torch.Tensor, count: int) -> tuple[list[list[torch.Tensor]], torch.Tensor]:
    parameters = [[w.clone().requires_grad_() for w in weights(s)] for s in range(stages)]
    outputs = []
    for xs, ys in zip(x.chunk(count), y.chunk(count)):
        h = xs
        for up, down in parameters:
            h = torch.tanh(h @ up.t()) @ down.t()
        outputs.append(h.detach())
        (F.mse_loss(h, ys) / count).backward()
    return [[p.grad for p in each] for each in parameters], torch.cat(outputs)


def loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output.full_tensor() if isinstance(output, DTensor) else output, target)


def make(mesh: DeviceMesh, per_rank: int, style: str, placement: Any, last: Any, **options: Any) -> list[PipelineStage]:
    count = 2 * per_rank
    own = generate_rank_to_stage_mapping(2, count, style)[mesh.get_local_rank("pp")]
    return [PipelineStage(Sharded(s, mesh["tp"], placement if s + 1 < count else last), s, count, CPU,
                          group=mesh.get_group("pp"), **options) for s in own]


CLASSES = [(sc.ScheduleGPipe, 1, "loop"), (sc.Schedule1F1B, 1, "loop"), (sc.ScheduleInterleaved1F1B, 2, "loop"),
           (sc.ScheduleInterleavedZeroBubble, 2, "loop"), (sc.ScheduleZBVZeroBubble, 2, "v")]


def all_classes(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    x, y = batch(8)
    for cls, per_rank, style in CLASSES:
        grads, output = reference(2 * per_rank, x, y, 4)
        for placement in (Replicate(), Shard(0), Shard(1), Partial()):
            stages = make(mesh, per_rank, style, placement, None)
            schedule = cls(stages[0] if per_rank == 1 else stages, 4, loss_fn=loss)
            for _ in range(2):
                for stage in stages:
                    stage.submod.zero_grad()
                result = schedule.step(x, target=y)
                for stage in stages:
                    for p, expected in zip(stage.submod.parameters(), grads[stage.stage_index]):
                        assert torch.allclose(p.grad.full_tensor(), expected, rtol=1e-4, atol=1e-6), (cls, placement)
                    assert all(came == (placement,) for came in stage.submod.came)
                    assert stage.is_first or stage.submod.came
                if result is not None:
                    assert torch.allclose(result, output, rtol=1e-4, atol=1e-6)
            for stage in stages:
                metas = stage._stage_meta
                assert stage._inference_mode is InferenceMode.DYNAMIC
                if not stage.is_first:
                    (came,), (grad,) = metas.inputs, metas.input_grads
                    assert isinstance(came, _DTensorMeta) and came.placements == (placement,)
                    assert isinstance(grad, _DTensorMeta) and grad.global_shape == came.global_shape
                if not stage.is_last:
                    (out,), (grad,) = metas.outputs, metas.output_grads
                    assert isinstance(out, _DTensorMeta) and out.placements == (placement,)
                    assert isinstance(grad, _DTensorMeta)


def outputs_of_the_last_stage(rank: int, size: int) -> None:
    """The last stage's DTensors go to the loss as they are, and are merged."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    x, y = batch(8)
    _, output = reference(2, x, y, 4)
    (stage,) = make(mesh, 1, "loop", Replicate(), Shard(1))
    result = sc.Schedule1F1B(stage, 4, loss_fn=loss).step(x, target=y)
    assert (result is not None) == stage.is_last
    if result is not None:
        assert isinstance(result, DTensor) and result.placements == (Shard(1),) and result.shape == output.shape
        assert torch.allclose(result.full_tensor(), output, rtol=1e-4, atol=1e-6)
    evaluated = sc.Schedule1F1B(stage, 4, loss_fn=loss).eval(x)
    assert (evaluated is not None) == stage.is_last


def given_examples(rank: int, size: int) -> None:
    """Examples of values and gradients are kept as they are; ones that differ from what comes are warned of."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    x, y = batch(8)
    is_first = mesh.get_local_rank("pp") == 0
    asked: list[Any] = []

    def get_mesh(names: Any, layout: Any) -> DeviceMesh:
        asked.append(names)
        return mesh["tp"]

    def sharded(rows: int, grad: bool) -> DTensor:
        return DTensor.from_local(torch.zeros(rows // 2, WIDTH), mesh["tp"], [Shard(0)], run_check=False).requires_grad_(grad)

    def example(rows: int) -> dict[str, Any]:
        if is_first:
            return {"input_args": torch.zeros(rows, WIDTH), "output_args": sharded(rows, True),
                    "output_grads": sharded(rows, False), "input_grads": (None,)}
        return {"input_args": sharded(rows, True), "output_args": torch.zeros(rows, WIDTH, requires_grad=True),
                "input_grads": sharded(rows, False), "output_grads": torch.zeros(rows, WIDTH)}

    (stage,) = make(mesh, 1, "loop", Shard(0), None, get_mesh=get_mesh, **example(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sc.ScheduleGPipe(stage, 4, loss_fn=loss).step(x, target=y)
    assert stage._inference_mode is InferenceMode.STATIC and stage._stage_meta.inputs == stage._user_meta.inputs
    without = {key: value for key, value in example(4).items() if "grads" not in key}
    (stage,) = make(mesh, 1, "loop", Shard(0), None, **without)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sc.ScheduleGPipe(stage, 4, loss_fn=loss).step(x, target=y)
    assert any("Metadata mismatch" in str(each.message) for each in caught)


def scenarios(rank: int, size: int, names: list[str]) -> None:
    for name in names:
        globals()[name](rank, size)


def test_two_by_two_processes() -> None:
    results(run_ranks(4, scenarios, ["all_classes", "outputs_of_the_last_stage", "given_examples"], deadline=180))
