"""What programs of torch.distributed.pipelining do with stages and schedules, on two processes."""

from __future__ import annotations

import gc
import threading
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import stagecraft as sc
from models import WIDTH, batch, block, plain_grads, same, take_grads
from ranks import results, run_ranks
from stagecraft import pipe_split, pipeline
from stagecraft.schedules import PipelineScheduleMulti, _Action, _PipelineScheduleRuntime, _ScheduleForwardOnly
from stagecraft.stage import PipelineStage

CPU = torch.device("cpu")


def mse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output, target)


def lists(*lines: str) -> dict[int, list[Any]]:
    return {rank: [_Action.from_str(text) if text != "-" else None for text in line.split()]
            for rank, line in enumerate(lines)}


class OfLists(PipelineScheduleMulti):
    """A schedule whose lists a subclass has written by hand."""

    order: dict[int, list[Any]]

    def __init__(self, stages: list[Any], n_microbatches: int, **options: Any) -> None:
        super().__init__(stages, n_microbatches, **options)
        self.pipeline_order = self.order
        self._validate_and_set_stage_mapping(self.order)


class VShaped(OfLists):
    order = lists("0F0 0F1 - 3F0 3B0 3F1 3B1 - 0B0 0B1",
                  "- 1F0 2F0 1F1 2F1 - 2B0 1B0 2B1 1B1")


class Unbalanced(OfLists):
    """Rank 0 has three stages, rank 1 two."""

    order = lists("0F0 0F1 1F0 1F1 - - 4F0 4B0 4F1 4B1 - - 1B0 1B1 0B0 0B1",
                  "- - - 2F0 3F0 2F1 3F1 - 3B0 2B0 3B1 2B1")


class WithWeightHalves(OfLists):
    order = lists("0F0 0F1 2F0 2F1 - 2I0 2W0 0I0 2I1 0W0 0I1 2W1 0W1",
                  "- 1F0 1F1 3F0 3I0 3F1 1I0 3I1 3W0 1I1 3W1 1W0 1W1")


class Reordered(OfLists):
    """The backward of microbatch 1 comes first."""

    order = lists("0F0 0F1 - - 0B1 0B0", "- 1F0 1F1 1B1 1B0")


def own_lists(rank: int, size: int) -> None:
    x, y = batch(4)
    for cls, mapping, reverse in ((VShaped, {0: 0, 3: 0, 1: 1, 2: 1}, False),
                                  (Unbalanced, {0: 0, 1: 0, 4: 0, 2: 1, 3: 1}, False),
                                  (WithWeightHalves, {0: 0, 2: 0, 1: 1, 3: 1}, False), (Reordered, {0: 0, 1: 1}, True)):
        count = len(mapping)
        grads, losses, output = plain_grads([block(s) for s in range(count)], x, y, mse, 2, reverse=reverse)
        for runtime in (False, True):
            stages = [PipelineStage(block(s), s, count, CPU) for s in sorted(mapping) if mapping[s] == rank]
            if runtime:
                schedule: Any = _PipelineScheduleRuntime(stages, 2, loss_fn=mse)
                schedule._prepare_schedule_with_comms(cls.order)
            else:
                schedule = cls(stages, 2, loss_fn=mse)
            assert schedule.stage_index_to_group_rank == mapping
            assert all(stage.stage_index_to_group_rank == mapping for stage in stages)
            for _ in range(2):
                found: list[Any] = []
                result = schedule.step(x, target=y, losses=found)
                for stage in stages:
                    assert same(take_grads(stage.submod), grads[stage.stage_index]), (cls, runtime, stage)
                if any(stage.is_last for stage in stages):
                    assert torch.equal(result, output) and same(found, losses)


class OwnWeightGrad(torch.autograd.Function):
    """A linear layer whose backward gives the input's gradient alone, and leaves the rest for later."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: Any) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        ctx.layer.pending.append((x.detach(), grads[0].detach()))
        return grads[0] @ weight, None, None


class OwnLinear(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(seed)) / 2)
        self.pending: list[Any] = []
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = OwnWeightGrad.apply(x, self.weight, self)
        return made.tanh()

    def weight_work(self) -> Any:
        pieces, self.pending = self.pending, []

        def run() -> None:
            self.calls += 1
            for x, grad in pieces:
                more = grad.t() @ x
                self.weight.grad = more if self.weight.grad is None else self.weight.grad + more

        return run


def own_weight_gradients(rank: int, size: int) -> None:
    """`dw_builder`: weight gradients that autograd does not compute, in full and in split backwards."""
    x, y = batch(4)
    plain = [nn.Parameter(OwnLinear(s).weight.detach().clone()) for s in range(4)]

    def expected(count: int) -> list[torch.Tensor]:
        for p in plain:
            p.grad = None
        for xs, ys in zip(x.chunk(2), y.chunk(2)):
            h = xs
            for p in plain[:count]:
                h = (h @ p.t()).tanh()
            (mse(h, ys) / 2).backward()
        return [p.grad for p in plain[:count]]

    for make, count in ((lambda s: sc.ScheduleGPipe(s[0], 2, loss_fn=mse), 2),
                        (lambda s: WithWeightHalves(s, 2, loss_fn=mse), 4),
                        (lambda s: sc.ScheduleInterleavedZeroBubble(s, 2, loss_fn=mse), 4)):
        modules = {s: OwnLinear(s) for s in range(rank, count, 2)}
        stages = [PipelineStage(m, s, count, CPU, dw_builder=m.weight_work) for s, m in modules.items()]
        make(stages).step(x, target=y)
        for s, module in modules.items():
            assert module.calls == 2 and not module.pending, (count, s, module.calls)
            assert torch.allclose(module.weight.grad, expected(count)[s], rtol=1e-5, atol=1e-7)
    # A builder beside weights that autograd trains: full backwards run both.
    calls: list[int] = []
    stage = PipelineStage(block(rank), rank, 2, CPU, dw_builder=lambda: lambda: calls.append(1))
    sc.ScheduleGPipe(stage, 2, loss_fn=mse).step(x, target=y)
    assert len(calls) == 2 and all(p.grad is not None for p in stage.submod.parameters())
    try:
        stage.backward_weight_one_chunk(0)
        raise AssertionError("a weight half without its input half")
    except AssertionError as error:
        assert "backward_one_chunk" in str(error)


def forward_only(rank: int, size: int) -> None:
    """Many batches, with traffic of the program's own between; nothing is left behind."""
    stage = PipelineStage(block(rank), rank, size, CPU)
    schedule = _ScheduleForwardOnly(stage, 4)
    plain = [block(s) for s in range(size)]
    x, _ = batch(8)
    expected = x
    gc.collect()
    for round_number in range(20):
        if rank == 0:
            schedule.step(x)
            x = torch.empty(8, WIDTH)
            dist.recv(x, size - 1)
        else:
            dist.send(schedule.step(), 0)
        with torch.no_grad():
            expected = torch.cat([plain[1](plain[0](piece)) for piece in expected.chunk(4)])
        if rank == 0:
            assert torch.equal(x, expected), round_number
    if rank > 0:
        assert len(stage.output_chunks) == 4 and not stage.fwd_cache
        stage.clear_runtime_states()
        assert stage.output_chunks == []


def without_gradients(rank: int, size: int) -> None:
    """`eval`, and steps without a loss, under no_grad and inference_mode; modules in eval mode too."""
    x, y = batch(8)
    plain = [block(s) for s in range(2)]
    expected = torch.cat([plain[1](plain[0](piece)) for piece in x.chunk(4)]).detach()
    for mode in (torch.no_grad, torch.inference_mode):
        stage = PipelineStage(block(rank).eval(), rank, size, CPU)
        trains = sc.Schedule1F1B(stage, 4, loss_fn=mse)
        with mode():
            for schedule in (sc.ScheduleGPipe(stage, 4), trains):
                losses: list[Any] = []
                out = schedule.eval(x, target=y, losses=losses) if schedule is trains else schedule.step(x)
                if stage.is_last:
                    assert torch.equal(out, expected) and (schedule is not trains or len(losses) == 4)
                    assert not out.requires_grad
        assert all(p.grad is None for p in stage.submod.parameters())
        trains.step(x, target=y)
        assert all(p.grad is not None for p in stage.submod.parameters())


class WithKwargs(nn.Module):
    """Reads a keyword input in both halves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = block(0), block(1)

    def forward(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        x = self.first(x) + y
        pipe_split()
        return self.second(x) * scale


def traced_kwargs(rank: int, size: int) -> None:
    """Keyword inputs of a traced model, given where stage 0 is; several steps with an optimizer."""
    model, plain = WithKwargs(), WithKwargs()
    x, y = batch(8)
    target = batch(8, seed=5)[1]
    pipe = pipeline(model, (x[:2],), {"y": y[:2]})
    assert pipe.num_stages == 2
    stage = pipe.build_stage(rank, CPU)
    assert set(stage.submod.state_dict()) <= set(model.state_dict())
    schedule = sc.Schedule1F1B(stage, 4, loss_fn=mse)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        theirs.zero_grad()
        losses: list[Any] = []
        out = schedule.step(x, y=y) if rank == 0 else schedule.step(target=target, losses=losses)
        outputs = []
        for xs, ys, ts in zip(x.chunk(4), y.chunk(4), target.chunk(4)):
            outputs.append(plain(xs, y=ys))
            (mse(outputs[-1], ts) / 4).backward()
        if rank == 1:
            assert torch.allclose(out, torch.cat(outputs), rtol=1e-5, atol=1e-6) and len(losses) == 4
        expected = dict(plain.named_parameters())
        for name, p in stage.submod.named_parameters():
            assert torch.allclose(p.grad, expected[name].grad, rtol=1e-4, atol=1e-6), name
        optimizer.step()
        theirs.step()


class LateInput(nn.Module):
    """Its second half reads an input of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = block(0), block(1)

    def forward(self, x: torch.Tensor, late: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        pipe_split()
        return self.second(x + late)


def late_inputs(rank: int, size: int) -> None:
    model = LateInput()
    x, late = batch(4)
    pipe = pipeline(model, (x[:2], late[:2]))
    stage = pipe.build_stage(rank, CPU)
    schedule = sc.ScheduleGPipe(stage, 2, loss_fn=mse)
    out = schedule.step(x, late, target=x)
    if rank == 1:
        assert torch.allclose(out, torch.cat([model(a, b) for a, b in zip(x.chunk(2), late.chunk(2))]), rtol=1e-5)


def training_programs(rank: int, size: int) -> None:
    """Loss curves of programs with an optimizer, modules wrapped after construction, losses on one rank."""
    x, y = batch(8)
    plain = nn.Sequential(block(0), block(1))
    theirs = torch.optim.Adam(plain.parameters(), lr=0.01)
    stage = PipelineStage(block(rank), rank, size, CPU, input_args=x[:2], output_args=x[:2])
    schedule = sc.ScheduleGPipe(stage, 4, loss_fn=mse)
    optimizer = torch.optim.Adam(stage.submod.parameters(), lr=0.01)
    # What programs reset before a batch of another shape.
    schedule._stage_forward_initialized = False
    stage.submod = nn.Sequential(stage.submod)
    for _ in range(5):
        optimizer.zero_grad()
        theirs.zero_grad()
        losses: list[Any] = []
        schedule.step(x, target=y, losses=losses)
        total = 0.0
        for xs, ys in zip(x.chunk(4), y.chunk(4)):
            each = mse(plain(xs), ys)
            (each / 4).backward()
            total += each.item() / 4
        if rank == 1:
            assert abs(sum(each.item() for each in losses) / 4 - total) < 1e-6
        optimizer.step()
        theirs.step()
    assert stage.inputs_meta is not None and stage._outputs_meta is not None


def handlers_on_threads(rank: int, size: int) -> None:
    """An overlap whose backward runs on a thread of its own, as frameworks of mixtures of experts have it."""
    from stagecraft import schedules

    count = 4
    own = [rank, count - 1 - rank]
    stages = [PipelineStage(block(s), s, count, CPU) for s in own]
    mine = {s.stage_index: s for s in stages}
    schedule = sc.ScheduleDualPipeV(stages, 8, loss_fn=mse)
    x, y = batch(8)
    grads, _, _ = plain_grads([block(s) for s in range(count)], x, y, mse, 8)
    threads: set[str] = set()

    def overlap(action: Any, ctx: Any) -> None:
        forward, backward = action.sub_actions
        assert ctx.schedule_ref is schedule

        def run_backward() -> None:
            threads.add(threading.current_thread().name)
            stage, m = mine[backward.stage_index], backward.microbatch_index
            if not stage.is_last and stage.stage_index + 1 not in mine:
                schedules._wait_batch_p2p(schedule.bwd_recv_ops.pop((stage.stage_index, m)))
            full = backward.computation_type is schedules.FULL_BACKWARD
            loss = schedule._maybe_get_loss(stage, m)
            schedule.backward_counter[stage.stage_index] += 1
            stage.backward_one_chunk(m, loss=loss, full_backward=full,
                                     last_backward=schedule.backward_counter[stage.stage_index] == 8)

        thread = threading.Thread(target=run_backward, name="backward")
        thread.start()
        stage, m = mine[forward.stage_index], forward.microbatch_index
        schedule._assert_unsharded(stage)
        if not stage.is_first and stage.stage_index - 1 not in mine:
            schedules._wait_batch_p2p(schedule.fwd_recv_ops.pop((stage.stage_index, m)))
        output = stage.forward_one_chunk(m, ctx.arg_mbs[m], ctx.kwarg_mbs[m])
        schedule._maybe_compute_loss(stage, output, ctx.target_mbs, m)
        thread.join()

    schedule.register_custom_function(schedules.OVERLAP_F_B, overlap)
    for _ in range(2):
        schedule.step(x, target=y)
        for stage in stages:
            assert same(take_grads(stage.submod), grads[stage.stage_index]), stage
    assert threads == {"backward"}


def leaks(rank: int, size: int) -> None:
    """No tensor is in a cycle after steps of any class."""
    x, y = batch(8)
    made: list[Any] = []
    for cls in (sc.ScheduleGPipe, sc.Schedule1F1B):
        made.append(cls(PipelineStage(block(rank), rank, 2, CPU), 4, loss_fn=mse))
    for cls in (sc.ScheduleLoopedBFS, sc.ScheduleInterleaved1F1B, sc.ScheduleInterleavedZeroBubble):
        made.append(cls([PipelineStage(block(s), s, 4, CPU) for s in (rank, rank + 2)], 4, loss_fn=mse))
    for cls in (sc.ScheduleZBVZeroBubble, sc.ScheduleDualPipeV):
        made.append(cls([PipelineStage(block(s), s, 4, CPU) for s in (rank, 3 - rank)], 4, loss_fn=mse))
    for schedule in made:
        schedule.step(x, target=y)
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            schedule.step(x, target=y)
            gc.collect()
            left = [each for each in gc.garbage if isinstance(each, torch.Tensor)]
            assert not left, (type(schedule), len(left))
        finally:
            gc.set_debug(0)
            gc.garbage.clear()


def scenarios(rank: int, size: int, names: list[str]) -> None:
    for name in names:
        globals()[name](rank, size)


def test_lists_of_a_program() -> None:
    results(run_ranks(2, scenarios, ["own_lists", "own_weight_gradients"]))


def test_forwards() -> None:
    results(run_ranks(2, scenarios, ["forward_only", "without_gradients"]))


def test_traced_inputs() -> None:
    results(run_ranks(2, scenarios, ["traced_kwargs", "late_inputs"]))


def test_training() -> None:
    results(run_ranks(2, scenarios, ["training_programs", "handlers_on_threads", "leaks"]))
