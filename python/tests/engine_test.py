"""Steps of all schedule classes in one process, against the same modules without a pipeline."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import threading
import time
import warnings
import weakref
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import stagecraft as sc
from models import WIDTH, batch, block, plain_grads, same, take_grads
from stagecraft import schedules
from stagecraft._utils import _TensorMeta
from stagecraft.schedules import PipelineScheduleMulti, _Action, _PipelineScheduleRuntime, _ScheduleForwardOnly
from stagecraft.stage import PipelineStage, _PipelineStageBase, _RecvInfo

SINGLE = [sc.ScheduleGPipe, sc.Schedule1F1B]
MULTI = [sc.ScheduleLoopedBFS, sc.ScheduleInterleaved1F1B, sc.ScheduleInterleavedZeroBubble,
         sc.ScheduleZBVZeroBubble, sc.ScheduleDualPipeV]


def mse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output, target)


def make(cls: Any, count: int, loss: Any = mse, **options: Any) -> tuple[Any, list[nn.Module]]:
    number = 1 if cls in SINGLE or cls is _ScheduleForwardOnly else 2
    modules = [block(seed) for seed in range(number)]
    stages = [PipelineStage(module, i, number, torch.device("cpu")) for i, module in enumerate(modules)]
    return cls(stages[0] if number == 1 else stages, count, loss_fn=loss, **options), modules


@pytest.mark.parametrize("cls", SINGLE + MULTI)
@pytest.mark.parametrize("scale", [True, False])
def test_gradients_losses_and_output_are_those_of_the_modules(cls: Any, scale: bool) -> None:
    x, y = batch(8)
    schedule, modules = make(cls, 4, scale_grads=scale)
    grads, losses, output = plain_grads(modules, x, y, mse, 4, "mean" if scale else "sum",
                                        reverse=cls is sc.ScheduleLoopedBFS)
    seen: list[Any] = ["dropped"]
    result = schedule.step(x, target=y, losses=seen)
    assert torch.equal(result, output)
    assert same(seen, losses)
    for module, expected in zip(modules, grads):
        assert same(take_grads(module), expected)
    stages = schedule._local_stages()
    assert all(not stage.fwd_cache for stage in stages)
    assert len(stages[-1].output_chunks) == 4 and not any(s.output_chunks for s in stages[:-1])


@pytest.mark.parametrize("cls", SINGLE + MULTI)
def test_eval_then_step(cls: Any) -> None:
    x, y = batch(8)
    schedule, modules = make(cls, 4)
    grads, losses, output = plain_grads(modules, x, y, mse, 4, reverse=cls is sc.ScheduleLoopedBFS)
    seen: list[Any] = []
    assert torch.equal(schedule.eval(x, target=y, losses=seen), output)
    assert same(seen, losses)
    assert torch.equal(schedule.eval(x), output)
    assert all(p.grad is None for m in modules for p in m.parameters())
    schedule.step(x, target=y)
    assert all(same(take_grads(m), g) for m, g in zip(modules, grads))


def test_steps_accumulate_as_one_larger_batch() -> None:
    x, y = batch(8)
    schedule, (module,) = make(sc.ScheduleGPipe, 4)
    schedule.step(x, target=y)
    once = [p.grad.clone() for p in module.parameters()]
    schedule.step(x, target=y)
    for p, first in zip(module.parameters(), once):
        assert torch.allclose(p.grad, 2 * first, rtol=1e-6, atol=1e-7)


def test_uneven_rows_count_by_their_number() -> None:
    x, y = batch(10)
    schedule, modules = make(sc.ScheduleInterleaved1F1B, 4)
    grads, losses, output = plain_grads(modules, x, y, mse, 4)
    result = schedule.step(x, target=y)
    assert result.shape == x.shape and torch.equal(result, output)
    assert all(same(take_grads(m), g) for m, g in zip(modules, grads))
    whole = F.mse_loss(modules[1](modules[0](x)), y)
    whole.backward()
    for module, expected in zip(modules, grads):
        for p, grad in zip(module.parameters(), expected):
            assert torch.allclose(p.grad, grad, rtol=1e-5, atol=1e-6)


def test_microbatches_of_other_shapes_and_numbers() -> None:
    schedule, modules = make(sc.ScheduleGPipe, 4)
    pieces = [batch(rows, seed=rows) for rows in (1, 5)]
    schedule.n_microbatches = 2
    losses: list[Any] = []
    schedule.step(arg_mbs=[(x,) for x, _ in pieces], target_mbs=[y for _, y in pieces], losses=losses)
    assert len(losses) == 2
    with pytest.raises(ValueError, match="both"):
        schedule.step(pieces[0][0], arg_mbs=[(pieces[0][0],)] * 2)
    with pytest.raises(ValueError, match="2 microbatches, got 1"):
        schedule.step(arg_mbs=[(pieces[0][0],)])


def test_kwargs_go_to_each_stage_and_any_object_passes_as_it_is() -> None:
    class Scaled(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.inner = block(seed)
            self.seen: list[Any] = []

        def forward(self, x: torch.Tensor, *, factor: torch.Tensor, what: Any = None) -> torch.Tensor:
            self.seen.append(what)
            return self.inner(x) * factor

    modules = [Scaled(0), Scaled(1)]
    stages = [PipelineStage(m, i, 2, torch.device("cpu")) for i, m in enumerate(modules)]
    schedule = sc.ScheduleInterleaved1F1B(stages, 2, loss_fn=mse)
    x, y = batch(4)
    factor = torch.tensor([[1.0], [2.0], [3.0], [4.0]], requires_grad=True)
    word = object()
    schedule.step(x, target=y, factor=factor, what=word)
    assert all(module.seen == [word, word] for module in modules)
    assert factor.grad is not None and factor.grad.abs().sum() > 0


def test_dicts_tuples_none_and_named_values_cross_a_border() -> None:
    from collections import namedtuple

    Pair = namedtuple("Pair", ["left", "right"])
    globals()["Pair"] = Pair
    Pair.__module__, Pair.__qualname__ = __name__, "Pair"

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> Any:
            h = self.lin(x)
            return {"h": h, "n": 3, "none": None, "pair": Pair(h.sin(), ["text", 2.5])}

    class Second(nn.Module):
        def forward(self, values: Any) -> torch.Tensor:
            assert values["n"] == 3 and values["none"] is None
            assert type(values["pair"]) is Pair and values["pair"].right == ["text", 2.5]
            return values["h"] * values["pair"].left

    first = First()
    modules: list[nn.Module] = [first, Second()]
    stages = [PipelineStage(m, i, 2, torch.device("cpu")) for i, m in enumerate(modules)]
    schedule = sc.ScheduleInterleaved1F1B(stages, 2, loss_fn=mse)
    x, y = batch(4)
    grads, _, output = plain_grads([nn.Sequential(*modules)], x, y, mse, 2)
    assert torch.equal(schedule.step(x, target=y), output)
    assert same(take_grads(first), grads[0])


def test_return_outputs_and_losses_arguments() -> None:
    x, y = batch(4)
    schedule, _ = make(sc.Schedule1F1B, 2)
    assert schedule.step(x, target=y, return_outputs=False) is None
    assert schedule._stage.output_chunks == []
    with pytest.raises(TypeError, match="list"):
        schedule.step(x, target=y, losses=())
    with torch.no_grad(), pytest.raises(RuntimeError, match="eval"):
        schedule.step(x, target=y)


def test_loss_kwargs_reach_the_loss() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor, *, factor: float) -> torch.Tensor:
        return F.mse_loss(output, target) * factor

    x, y = batch(4)
    schedule, _ = make(sc.ScheduleGPipe, 2, loss)
    losses: list[Any] = []
    schedule.step(x, target=y, losses=losses, loss_kwargs={"factor": 0.0})
    assert all(each.item() == 0 for each in losses)


def test_forward_only_has_no_loss() -> None:
    x, y = batch(4)
    schedule, (module,) = make(_ScheduleForwardOnly, 2, None)
    assert torch.equal(schedule.step(x), torch.cat([module(c) for c in x.split(2)]).detach())
    with pytest.raises(RuntimeError, match="no loss"):
        schedule.step(x, target=y)


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)
        self.error: BaseException | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        return self.lin(x)


def broken_schedule() -> tuple[Any, Broken]:
    module = Broken()
    stages = [PipelineStage(block(0), 0, 2, torch.device("cpu")), PipelineStage(module, 1, 2, torch.device("cpu"))]
    return sc.ScheduleInterleaved1F1B(stages, 4, loss_fn=mse), module


def test_an_exception_of_a_module_is_the_cause_of_a_stage_error() -> None:
    schedule, module = broken_schedule()
    x, y = batch(8)
    module.error = KeyError("the user's own")
    with pytest.raises(sc.StageError) as caught:
        schedule.step(x, target=y)
    error = caught.value
    assert (error.rank, error.stage, error.microbatch, error.action) == (0, 1, 0, "1F0")
    assert error.__cause__ is module.error
    assert error.__cause__.__traceback__ is not None
    assert pickle.loads(pickle.dumps(error)).stage == 1
    assert all(p.grad is None for p in module.parameters())
    module.error = None
    schedule.step(x, target=y)
    assert all(p.grad is not None for p in module.parameters())


def test_an_exception_in_a_backward_hook_is_the_cause() -> None:
    x, y = batch(4)
    schedule, (module,) = make(sc.ScheduleGPipe, 2)
    handle = next(module.parameters()).register_hook(lambda grad: 1 / 0)
    with pytest.raises(sc.StageError) as caught:
        schedule.step(x, target=y)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    handle.remove()
    schedule.step(x, target=y)


def test_sys_exit_and_keyboard_interrupt_pass_as_they_are() -> None:
    schedule, module = broken_schedule()
    x, y = batch(8)
    for error in (SystemExit(3), KeyboardInterrupt()):
        module.error = error
        with pytest.raises(type(error)):
            schedule.step(x, target=y)
    module.error = None
    schedule.step(x, target=y)


def test_ctrl_c_ends_a_step() -> None:
    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.05)
            return x * torch.ones((), requires_grad=True)

    schedule = sc.ScheduleGPipe(PipelineStage(Slow(), 0, 1, torch.device("cpu")), 100, loss_fn=mse)
    x, y = batch(100)
    began = []

    def interrupt() -> None:
        began.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.3, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        schedule.step(x, target=y)
    # The limit is 0.1 s; a busy machine gets more.
    assert time.monotonic() - began[0] < 1.0
    timer.join()


def test_a_schedule_dies_when_it_is_dropped() -> None:
    x, y = batch(8)
    gc.disable()
    try:
        for cls in (sc.ScheduleGPipe, sc.ScheduleZBVZeroBubble):
            schedule, modules = make(cls, 4)
            schedule.step(x, target=y)
            references = [weakref.ref(schedule), *[weakref.ref(s) for s in schedule._local_stages()],
                          *[weakref.ref(m) for m in modules]]
            del schedule, modules
            assert [r() for r in references] == [None] * len(references)
    finally:
        gc.enable()


def test_no_tensor_is_left_in_a_cycle() -> None:
    x, y = batch(8)
    schedule, _ = make(sc.ScheduleInterleavedZeroBubble, 4)
    schedule.step(x, target=y)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        schedule.step(x, target=y)
        schedule.eval(x)
        gc.collect()
        assert not [each for each in gc.garbage if isinstance(each, torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def test_memory_is_flat_over_a_thousand_steps() -> None:
    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    x, y = batch(8)
    schedule, _ = make(sc.ScheduleInterleaved1F1B, 4)
    for _ in range(200):
        schedule.step(x, target=y)
    before = resident()
    for _ in range(1000):
        schedule.step(x, target=y)
    assert resident() - before < 4 << 20


def test_what_a_stage_takes_and_gives_is_known_after_a_step() -> None:
    x, y = batch(8)
    schedule, _ = make(sc.ScheduleInterleaved1F1B, 4)
    stages = schedule._local_stages()
    assert all(stage._stage_meta.inputs is None for stage in stages)
    schedule.eval(x)
    assert stages[1]._stage_meta.inputs[0].shape == (2, WIDTH) and stages[1]._stage_meta.input_grads is None
    schedule.step(x, target=y)
    first, last = (stage._stage_meta for stage in stages)
    assert first.inputs[0].shape == first.outputs[0].shape == last.inputs[0].shape == (2, WIDTH)
    assert first.input_grads == (None,) and first.output_grads[0].shape == (2, WIDTH)
    assert last.inputs[0].requires_grad and last.input_grads[0].shape == (2, WIDTH) and last.output_grads is None
    again = schedule._local_stages()[1]._stage_meta
    schedule.step(x, target=y)
    assert schedule._local_stages()[1]._stage_meta is again


def test_programs_may_reset_what_is_known() -> None:
    x, _ = batch(8)
    schedule, _ = make(sc.ScheduleGPipe, 4, None)
    schedule._stage._runtime_validate = True
    schedule.step(x)
    assert schedule._stage_forward_initialized
    with pytest.raises(sc.MetadataError, match="shape mismatch"):
        schedule.step(batch(4)[0])
    schedule._stage_forward_initialized = False
    schedule.step(batch(4)[0])
    assert schedule._stage._stage_meta.inputs[0].shape == (1, WIDTH)


def test_examples_of_a_stage() -> None:
    x, y = batch(8)
    CPU = torch.device("cpu")

    def step(**examples: Any) -> PipelineStage:
        stage = PipelineStage(block(0), 0, 1, CPU, **examples)
        sc.ScheduleGPipe(stage, 4, loss_fn=mse).step(x, target=y)
        return stage

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step(input_args=x[:2])._stage_meta.inputs[0].shape == (2, WIDTH)
        stage = step(input_args=(x[:2],), output_args=x[:2])
        assert stage._stage_meta.inputs == stage._user_meta.inputs and stage._stage_meta.output_grads == (None,)
        step(input_args=x[:2], output_args=x[:2], output_grads=x[:2], input_grads=(None,))
    with pytest.warns(UserWarning, match="Metadata mismatch"):
        step(input_args=x[:3])
    with pytest.raises(sc.MetadataError, match="tensors"):
        PipelineStage(block(0), 0, 1, CPU, input_args=("text",))
    for index, number in ((2, 2), (-1, 2)):
        with pytest.raises(ValueError, match="out of range"):
            PipelineStage(block(0), index, number, CPU)


class Normed(nn.Module):
    """Counts its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.lin(x))


@pytest.mark.parametrize("cls", SINGLE + MULTI)
def test_no_forward_but_those_of_the_microbatches(cls: Any) -> None:
    x, y = batch(8)
    number = 1 if cls in SINGLE else 2
    modules = [Normed() for _ in range(number)]
    stages = [PipelineStage(m, i, number, torch.device("cpu")) for i, m in enumerate(modules)]
    schedule = cls(stages[0] if number == 1 else stages, 4, loss_fn=mse)
    for count, run in enumerate((schedule.step, schedule.eval, schedule.step), 1):
        run(x, target=y)
        assert [m.norm.num_batches_tracked.item() for m in modules] == [4 * count] * number


class Aside(nn.Module):
    """Parameters that meet no value of the input before the output."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.inner = block(seed)
        self.left, self.right = nn.Parameter(torch.rand(WIDTH)), nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        aside = (self.left * self.right).exp()
        return self.inner(x) * aside + self.left


@pytest.mark.parametrize("cls", MULTI)
def test_parameters_aside_of_the_input_get_gradients(cls: Any) -> None:
    x, y = batch(8)
    torch.manual_seed(3)
    modules: list[nn.Module] = [Aside(0), Aside(1)]
    stages = [PipelineStage(m, i, 2, torch.device("cpu")) for i, m in enumerate(modules)]
    grads, _, output = plain_grads(modules, x, y, mse, 4, reverse=cls is sc.ScheduleLoopedBFS)
    assert torch.equal(cls(stages, 4, loss_fn=mse).step(x, target=y), output)
    for module, expected in zip(modules, grads):
        found = take_grads(module)
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(found, expected, strict=True))


def test_a_group_without_other_processes() -> None:
    """Upstream's suite steps on a `fake` group of one rank; with more ranks nobody would answer."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    x, y = batch(8)
    for size in (1, 2):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
        try:
            stage = PipelineStage(block(0), 0, size, torch.device("cpu"))
            assert (stage.group_rank, stage.group_size) == (0, size)
            schedule = sc.Schedule1F1B(stage, 4, loss_fn=mse)
            if size == 1:
                schedule.step(x, target=y)
                assert all(p.grad is not None for p in stage.submod.parameters())
                schedule.eval(x)
            else:
                with pytest.raises(RuntimeError, match="fake"):
                    schedule.step(x)
                with pytest.raises(RuntimeError, match="more than the pipeline's"):
                    PipelineStage(block(0), 0, 1, torch.device("cpu"))
        finally:
            dist.destroy_process_group()


@pytest.mark.parametrize("number", [0, -1, "4"])
def test_numbers_of_microbatches_that_make_no_sense(number: Any) -> None:
    x, y = batch(4)
    schedule, _ = make(sc.ScheduleGPipe, number)
    with pytest.raises(ValueError, match="n_microbatches"):
        schedule.step(x, target=y)


def test_stages_that_do_not_fit_the_schedule() -> None:
    CPU = torch.device("cpu")
    x, y = batch(4)
    with pytest.raises(ValueError, match="got none"):
        PipelineScheduleMulti([], 2)
    with pytest.raises(ValueError, match="one of 2"):
        sc.ScheduleGPipe(PipelineStage(block(0), 0, 2, CPU), 2, loss_fn=mse).step(x, target=y)
    twice = [PipelineStage(block(0), 0, 2, CPU), PipelineStage(block(0), 0, 2, CPU)]
    with pytest.raises(ValueError, match=r"\[0, 0\]"):
        sc.ScheduleInterleaved1F1B(twice, 2, loss_fn=mse).step(x, target=y)


@pytest.mark.parametrize("loss, words", [(lambda o, t: 1.0, "float"), (lambda o, t: (o - t).sum(1), "one element"),
                                         (lambda o, t: 1 / 0, "ZeroDivisionError")])
def test_losses_that_are_no_numbers(loss: Any, words: str) -> None:
    x, y = batch(4)
    schedule, _ = make(sc.ScheduleGPipe, 2, loss)
    with pytest.raises(sc.StageError, match=words):
        schedule.step(x, target=y)


def test_one_step_at_a_time() -> None:
    x, y = batch(8)
    inside: list[Any] = []

    class Nested(nn.Module):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            try:
                schedule.step(x, target=y)
            except ValueError as error:
                inside.append(str(error))
            return h * torch.ones((), requires_grad=True)

    schedule = sc.ScheduleGPipe(PipelineStage(Nested(), 0, 1, torch.device("cpu")), 2, loss_fn=mse)
    schedule.step(x, target=y)
    assert len(inside) == 2 and "in progress" in inside[0]
    plain, _ = make(sc.ScheduleGPipe, 4)
    outcomes: list[Any] = []

    def run() -> None:
        for _ in range(20):
            try:
                plain.step(x, target=y)
                outcomes.append("ok")
            except sc.Error as error:
                outcomes.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "ok" in outcomes and all(each == "ok" or "in progress" in each for each in outcomes), set(outcomes)


def test_what_stages_of_newer_versions_have() -> None:
    x, _ = batch(4)
    stage = PipelineStage(block(0), 0, 2, torch.device("cpu"))
    assert stage.p2p_per_edge is False
    stage.forward_one_chunk(0, (x,))
    stage.release_fwd_send_outputs(0)
    assert stage.fwd_cache[0][0] == ()
    stage.release_fwd_send_outputs(7)
    with pytest.raises(RuntimeError, match="FSDP"):
        stage.start_gradient_reduction()
    stage.wait_for_gradient_reduction(2)
    meta = _TensorMeta.from_tensor(x)
    info = _RecvInfo("x", 0, meta)
    assert info.buffer is None and info.tensor_meta is meta
    assert info.allocate_buffer(torch.device("cpu")).shape == x.shape
    with pytest.raises(sc.MetadataError, match="make the group"):
        info.set_buffer(x)
    assert info.take_buffer().shape == x.shape and info.buffer is None
    old = _RecvInfo("x", 0, x, meta)
    assert old.buffer is x and old.tensor_meta is meta
    with pytest.raises(sc.MetadataError, match="metadata"):
        _RecvInfo("x", 0, None).allocate_buffer(torch.device("cpu"))


def test_own_lists_run_as_they_are() -> None:
    x, y = batch(4)
    modules = [block(0), block(1)]
    stages = [PipelineStage(m, i, 2, torch.device("cpu")) for i, m in enumerate(modules)]
    schedule = _PipelineScheduleRuntime(stages, 2, loss_fn=mse)
    text = ["0F0", "1F0", "1I0", "0F1", "0I0", "1W0", "1F1", "1B1", "0W0", "0B1"]
    schedule._prepare_schedule_with_comms({0: [_Action.from_str(t) for t in text]})
    grads, _, output = plain_grads(modules, x, y, mse, 2)
    assert torch.equal(schedule.step(x, target=y), output)
    assert all(same(take_grads(m), g) for m, g in zip(modules, grads))

    class Mine(PipelineScheduleMulti):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.pipeline_order = {0: [_Action.from_str(t) for t in ("0F0", "1F0", "1B0", "0F1", "", "0B0", "1F1", "1B1", "0B1")]}

    Mine(stages, 2, loss_fn=mse).step(x, target=y)
    assert all(same(take_grads(m), g) for m, g in zip(modules, grads))


def test_wrapped_after_construction() -> None:
    x, y = batch(4)
    schedule, (module,) = make(sc.ScheduleGPipe, 2)
    schedule.step(x, target=y)
    grads = take_grads(module)
    schedule._stage.submod = nn.Sequential(module)
    schedule.step(x, target=y)
    assert same(take_grads(module), grads)


def test_functions_can_replace_actions() -> None:
    """Handlers that do by hand what the runtime does, on threads of their own, give the same gradients."""
    x, y = batch(8)
    seen: list[str] = []

    def forward(action: Any, ctx: Any) -> None:
        schedule = ctx.schedule_ref
        stages = {s.stage_index: s for s in schedule._stages}
        stage, m = stages[action.stage_index], action.microbatch_index
        seen.append(str(action))
        output = stage.forward_one_chunk(m, ctx.arg_mbs[m], ctx.kwarg_mbs[m])
        schedule._maybe_compute_loss(stage, output, ctx.target_mbs, m)
        if stage.stage_index + 1 in stages:
            stages[stage.stage_index + 1].set_local_fwd_input(output, m)

    def backward(action: Any, ctx: Any) -> None:
        schedule = ctx.schedule_ref
        stages = {s.stage_index: s for s in schedule._stages}
        stage, m = stages[action.stage_index], action.microbatch_index
        schedule.backward_counter[stage.stage_index] += 1
        last = schedule.backward_counter[stage.stage_index] == schedule._n_microbatches

        def run() -> None:
            stage.backward_one_chunk(m, loss=schedule._maybe_get_loss(stage, m), full_backward=True, last_backward=last)
            if last:
                stage.scale_grads(schedule._n_microbatches)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if stage.stage_index - 1 in stages:
            stages[stage.stage_index - 1].set_local_bwd_input(stage.get_local_bwd_output(m), m)

    schedule, modules = make(sc.ScheduleDualPipeV, 4)
    grads, losses, output = plain_grads(modules, x, y, mse, 4)

    def overlap(action: Any, ctx: Any) -> None:
        seen.append("overlap")
        for part in action.sub_actions:
            (forward if part.computation_type is schedules.FORWARD else backward)(part, ctx)

    schedule.register_custom_function(schedules.FORWARD, forward)
    schedule.register_custom_function(schedules.FULL_BACKWARD, backward)
    schedule.register_custom_function(schedules.OVERLAP_F_B, overlap)
    kept: list[Any] = []
    assert torch.equal(schedule.step(x, target=y, losses=kept), output)
    assert "overlap" in seen and same(kept, losses)
    assert all(same(take_grads(m), g) for m, g in zip(modules, grads))


def test_a_stage_may_override_its_parts() -> None:
    class Counting(PipelineStage):
        calls = 0

        def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
            type(self).calls += 1
            return super().forward_one_chunk(*args, **kwargs)

    x, y = batch(4)
    module = block(0)
    schedule = sc.ScheduleGPipe(Counting(module, 0, 1, torch.device("cpu")), 2, loss_fn=mse)
    grads, _, output = plain_grads([module], x, y, mse, 2)
    assert torch.equal(schedule.step(x, target=y), output)
    assert Counting.calls == 2 and same(take_grads(module), grads[0])


def test_a_stage_alone() -> None:
    x, _ = batch(2)
    modules = [block(0), block(1)]
    stages = [PipelineStage(m, i, 2, torch.device("cpu")) for i, m in enumerate(modules)]
    for stage in stages:
        stage.has_backward = True
    hidden = stages[0].forward_one_chunk(0, (x,))
    stages[1].set_local_fwd_input(hidden, 0)
    loss = stages[1].forward_one_chunk(0, ()).sum()
    stages[1].backward_one_chunk(0, loss=loss)
    stages[0].set_local_bwd_input(stages[1].get_local_bwd_output(0), 0)
    stages[0].backward_one_chunk(0, full_backward=False)
    assert all(p.grad is None for p in modules[0].parameters())
    stages[0].backward_weight_one_chunk(0)
    grads = [take_grads(m) for m in modules]
    modules[1](modules[0](x)).sum().backward()
    assert all(same(take_grads(m), g) for m, g in zip(modules, grads))
    with pytest.raises(AssertionError, match="backward_one_chunk"):
        stages[0].backward_weight_one_chunk(0)
    stages[0].has_backward = False
    stages[0].backward_weight_one_chunk(0)


class StandIn(_PipelineStageBase):
    """A stage that knows only where its values come from and go to."""

    def __init__(self, sources: list[int], targets: list[int]) -> None:
        self.stage_index, self.num_stages, self.group_size, self.group_rank = 1, 4, 4, 1
        self.submod = None
        self.args_recv_info: Any = {}
        self.act_send_info: Any = {}
        self._given = sources, targets

    def _create_grad_recv_info(self, act_send_info: Any) -> Any:
        return ()

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        self.args_recv_info = {0: tuple(_RecvInfo(f"in{s}", s, None) for s in self._given[0])}
        self.act_send_info = {0: self._given[1]}
        return ()

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        return ()


@pytest.mark.parametrize(("sources", "targets", "is_fine"), [([0], [2], True), ([], [], True), ([0, 3], [2], False),
                                                            ([0], [2, 3], False)])
def test_stand_ins_may_only_name_their_neighbours(sources: Any, targets: Any, is_fine: bool) -> None:
    schedule = PipelineScheduleMulti([StandIn(sources, targets)], 1)
    schedule.pipeline_order = {rank: [None] for rank in range(4)}
    if is_fine:
        schedule.step()
    else:
        with pytest.raises(RuntimeError, match="adjacent-stage communication"):
            schedule.step()
    schedule.pipeline_order = {1: [_Action.from_str("1F0")]}
    if is_fine:
        with pytest.raises(TypeError, match="_prepare_forward_infra"):
            schedule.step()


def test_random_numbers_are_the_process_s() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(lambda h: F.dropout(self.lin(h)), x, use_reentrant=False)

    import torch.utils.checkpoint

    x, y = batch(4)
    module = Noisy()
    schedule = sc.ScheduleGPipe(PipelineStage(module, 0, 1, torch.device("cpu")), 2, loss_fn=mse)
    torch.manual_seed(5)
    grads, losses, output = plain_grads([module], x, y, mse, 1)
    schedule.n_microbatches = 1
    torch.manual_seed(5)
    assert torch.equal(schedule.step(x, target=y), output)
    assert same(take_grads(module), grads[0])


def test_report_and_memory() -> None:
    x, y = batch(8)
    schedule, _ = make(sc.ScheduleInterleaved1F1B, 4)
    with pytest.raises(ValueError, match="no step"):
        schedule.report()
    schedule.measure_memory = True
    schedule.step(x, target=y)
    report = schedule.report()
    assert report.makespan > 0 and 0 <= report.bubble < 1 and len(report.ranks) == 1
    assert report.stages[1].F > 0 and report.stages[0].B > 0
    assert "rank" in str(report)
    assert schedule.memory_estimate(64).peak >= schedule.memory_estimate(4).peak > 0


def test_profiler_ranges_and_log(caplog: pytest.LogCaptureFixture) -> None:
    x, y = batch(4)
    schedule, _ = make(sc.ScheduleGPipe, 2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        schedule.step(x, target=y)
    names = {event.name for event in profile.events()}
    assert {"PP:0F0", "PP:0F1", "PP:0B0", "PP:0B1"} <= names


def test_running_things_refuse_to_be_pickled() -> None:
    schedule, _ = make(sc.ScheduleGPipe, 2)
    for each in (schedule, schedule._stage):
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(each)
    assert "0 of 1" in repr(schedule._stage)
