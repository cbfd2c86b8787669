"""Steps of two and four gloo processes, against the same modules without a pipeline."""

from __future__ import annotations

import datetime
import logging
import os
import signal
import sys
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import stagecraft as sc
from models import WIDTH, batch, block, plain_grads, same, take_grads
from ranks import results, run_ranks
from stagecraft._utils import PipeliningMetadataError, generate_rank_to_stage_mapping
from stagecraft.schedules import PipelineScheduleMulti, _Action, _PipelineScheduleRuntime, _ScheduleForwardOnly
from stagecraft.stage import PipelineStage

CPU = torch.device("cpu")


def mse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output, target)


def stages_of(rank: int, size: int, per_rank: int, style: str = "loop", make: Any = block) -> list[PipelineStage]:
    count = size * per_rank
    return [PipelineStage(make(s), s, count, CPU) for s in generate_rank_to_stage_mapping(size, count, style)[rank]]


def check(rank: int, size: int, schedule: Any, stages: list[Any], count: int, rows: int = 8, scale: str = "mean",
          **kwargs: Any) -> None:
    """One step against the uncut modules, gradients bit for bit."""
    x, y = batch(rows)
    grads, losses, output = plain_grads([block(s) for s in range(stages[0].num_stages)], x, y, mse, count, scale,
                                        reverse=isinstance(schedule, sc.ScheduleLoopedBFS))
    seen: list[Any] = []
    # Positional arguments are ignored on other ranks.
    result = schedule.step(x, target=y, losses=seen, **kwargs)
    for stage in stages:
        assert same(take_grads(stage.submod), grads[stage.stage_index]), (rank, stage.stage_index)
    if any(stage.is_last for stage in stages):
        assert torch.equal(result, output) and same(seen, losses)
    else:
        assert result is None and seen == []


def all_classes(rank: int, size: int) -> None:
    for cls in (sc.ScheduleGPipe, sc.Schedule1F1B):
        (stage,) = stages_of(rank, size, 1)
        for count in (2 * size, 1):
            schedule = cls(stage, count, loss_fn=mse)
            check(rank, size, schedule, [stage], count)
    for cls in (sc.ScheduleLoopedBFS, sc.ScheduleInterleaved1F1B, sc.ScheduleInterleavedZeroBubble):
        stages = stages_of(rank, size, 2)
        schedule = cls(stages, 2 * size, loss_fn=mse, scale_grads=False)
        check(rank, size, schedule, stages, 2 * size, 2 * size, scale="sum")
    for cls in (sc.ScheduleZBVZeroBubble, sc.ScheduleDualPipeV):
        stages = stages_of(rank, size, 2, "v")
        schedule = cls(stages, 2 * size, loss_fn=mse)
        check(rank, size, schedule, stages, 2 * size, 2 * size + 3)
        check(rank, size, schedule, stages, 2 * size, 4 * size)
        x, y = batch(8)
        out = schedule.eval(x, target=y)
        assert (out is not None) == any(s.is_last for s in stages)
    # Receives held back, and fewer microbatches than stages.
    stages = stages_of(rank, size, 2, "v")
    check(rank, size, sc.ScheduleZBVZeroBubble(stages, 3, loss_fn=mse, defer_pp_recv=True), stages, 3)


def one_object(rank: int, size: int) -> None:
    """Kwargs, other numbers and shapes of microbatches, evals between, the user's own group beside."""
    (stage,) = stages_of(rank, size, 1)
    schedule = sc.Schedule1F1B(stage, 4, loss_fn=mse)
    check(rank, size, schedule, [stage], 4)
    schedule.n_microbatches = 2
    check(rank, size, schedule, [stage], 2, rows=5)
    pieces = [batch(rows, seed=rows) for rows in (3, 1)]
    schedule.step(arg_mbs=[(x,) for x, _ in pieces], target_mbs=[y for _, y in pieces])
    take_grads(stage.submod)
    assert schedule.step(batch(4)[0], target=batch(4)[1], return_outputs=False) is None
    assert stage.output_chunks == []
    take_grads(stage.submod)
    # The program's own traffic in its group.
    other = torch.full((2,), float(rank))
    if rank == 0:
        dist.send(other, 1)
    elif rank == 1:
        dist.recv(other, 0)
        assert other.eq(0).all()
    forward = _ScheduleForwardOnly(stage, 2)
    x, _ = batch(4)
    out = forward.step(x) if rank == 0 else forward.step()
    assert (out is None) == (rank != size - 1)
    check(rank, size, schedule, [stage], 2)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = block(rank)

        def forward(self, x: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
            return self.inner(x) if factor is None else self.inner(x) * factor

    mine = PipelineStage(Scaled(), rank, size, CPU)
    again = sc.ScheduleGPipe(mine, 2, loss_fn=mse)
    kwargs = {"factor": torch.full((4, 1), 2.0)} if rank == 1 else {}
    again.step(x, target=x, **kwargs)
    assert all(p.grad is not None for p in mine.submod.parameters())


def own_lists(rank: int, size: int) -> None:
    stages = stages_of(rank, size, 1)
    order = {0: ["0F0", "0F1", "", "0B0", "0B1"], 1: ["", "1F0", "1I0", "1F1", "1W0", "1B1"]}
    actions = {r: [_Action.from_str(t) for t in texts] for r, texts in order.items()}

    class Mine(PipelineScheduleMulti):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.pipeline_order = actions
            self._validate_and_set_stage_mapping(actions)

    check(rank, size, Mine(stages, 2, loss_fn=mse), stages, 2)
    runtime = _PipelineScheduleRuntime(stages, 2, loss_fn=mse)
    runtime._prepare_schedule_with_comms(actions)
    check(rank, size, runtime, stages, 2)
    lowered = runtime.pipeline_order_with_comms
    again = _PipelineScheduleRuntime(stages, 2, loss_fn=mse)
    again._prepare_schedule_with_comms(lowered, format="compute_comms")
    check(rank, size, again, stages, 2)


def values(rank: int, size: int) -> None:
    """Dicts, None, numbers and views between processes; an object only if it may be pickled."""

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = block(0)
            self.extra: Any = None

        def forward(self, x: torch.Tensor) -> Any:
            h = self.inner(x)
            return {"h": h.t(), "none": None, "n": 7, "deep": [(h[:, ::2], "text")], "extra": self.extra}

    class Second(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = block(1)
            self.seen: Any = None

        def forward(self, values: Any) -> torch.Tensor:
            assert values["none"] is None and values["n"] == 7 and values["deep"][0][1] == "text"
            assert values["h"].stride() == (1, WIDTH)
            self.seen = values["extra"]
            return self.inner(values["h"].t()) + values["deep"][0][0].sum()

    modules = [First(), Second()]
    stage = PipelineStage(modules[rank], rank, 2, CPU)
    schedule = sc.ScheduleGPipe(stage, 2, loss_fn=mse)
    x, y = batch(4)
    grads, _, _ = plain_grads([nn.Sequential(*modules)], x, y, mse, 2)
    schedule.step(x, target=y)
    own = [p for p in modules[rank].parameters()]
    expected = grads[0][: len(own)] if rank == 0 else grads[0][len(own) :]
    assert same([p.grad for p in own], expected)
    if rank == 0:
        modules[0].extra = {1, 2}
    try:
        schedule.step(x, target=y)
        raise AssertionError("a set cannot cross")
    except sc.Error as error:
        assert "allow_pickle" in str(error), str(error)
    sc.allow_pickle()
    schedule.step(x, target=y)
    if rank == 1:
        assert modules[1].seen == {1, 2}


def validated(rank: int, size: int) -> None:
    """With _runtime_validate the rank of stage 0 refuses what differs before it meets anybody."""
    (stage,) = stages_of(rank, size, 1)
    stage._runtime_validate = True
    schedule = sc.ScheduleGPipe(stage, 2)
    x, _ = batch(4)
    schedule.step(x)
    if rank != 0:
        return

    def refused(word: str, value: torch.Tensor) -> None:
        try:
            schedule.step(value)
        except PipeliningMetadataError as error:
            assert word in str(error), str(error)
        else:
            raise AssertionError(f"{word} was accepted")

    refused("shape mismatch", batch(8)[0])
    refused("dtype mismatch", x.int())
    handle = stage.submod.register_forward_hook(lambda m, a, out: out.flatten())
    refused("shape mismatch", x)
    handle.remove()
    stage.submod.register_forward_hook(lambda m, a, out: out.bfloat16())
    refused("dtype mismatch", x)


def custom(rank: int, size: int) -> None:
    """Functions that wait for receives by hand, in every overlap of a DualPipeV."""
    from stagecraft import schedules

    stages = stages_of(rank, size, 2, "v")
    schedule = sc.ScheduleDualPipeV(stages, 8, loss_fn=mse)
    mine = {s.stage_index: s for s in stages}
    waited = []

    def forward(action: Any, ctx: Any) -> None:
        stage, m = mine[action.stage_index], action.microbatch_index
        if not stage.is_first and stage.stage_index - 1 not in mine:
            assert (stage.stage_index, m) in schedule.fwd_recv_ops
            schedules._wait_batch_p2p(schedule.fwd_recv_ops.pop((stage.stage_index, m)))
            waited.append(m)
        output = stage.forward_one_chunk(m, ctx.arg_mbs[m], ctx.kwarg_mbs[m])
        schedule._maybe_compute_loss(stage, output, ctx.target_mbs, m)
        if stage.stage_index + 1 in mine:
            mine[stage.stage_index + 1].set_local_fwd_input(output, m)

    def overlap(action: Any, ctx: Any) -> None:
        for part in action.sub_actions:
            stage, m = mine[part.stage_index], part.microbatch_index
            if part.computation_type is schedules.FORWARD:
                forward(part, ctx)
                continue
            if not stage.is_last and stage.stage_index + 1 not in mine:
                schedules._wait_batch_p2p(schedule.bwd_recv_ops.pop((stage.stage_index, m)))
            full = part.computation_type is schedules.FULL_BACKWARD
            stage.backward_one_chunk(m, loss=schedule._maybe_get_loss(stage, m), full_backward=full)
            if stage.stage_index - 1 in mine:
                mine[stage.stage_index - 1].set_local_bwd_input(stage.get_local_bwd_output(m), m)

    schedule.register_custom_function(schedules.FORWARD, forward)
    schedule.register_custom_function(schedules.OVERLAP_F_B, overlap)
    check(rank, size, schedule, stages, 8)
    assert waited


def report(rank: int, size: int) -> None:
    (stage,) = stages_of(rank, size, 1)
    schedule = sc.Schedule1F1B(stage, 4, loss_fn=mse)
    schedule.measure_memory = True
    check(rank, size, schedule, [stage], 4)
    found = schedule.report()
    assert len(found.ranks) == size and set(found.stages) == set(range(size))
    assert sum(r.bytes_sent for r in found.ranks) > 0
    assert schedule.memory_estimate(8).peak > 0


def scenarios(rank: int, size: int, names: list[str]) -> None:
    for name in names:
        globals()[name](rank, size)


def test_two_processes() -> None:
    results(run_ranks(2, scenarios, ["all_classes", "one_object", "own_lists", "values", "report", "custom", "validated"]))


def test_four_processes() -> None:
    results(run_ranks(4, scenarios, ["all_classes", "custom"], deadline=150))


# Failures ------------------------------------------------------------------------------------------


class Failing(nn.Module):
    """Fails in its second step, on one rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.inner = block(rank)
        self.fails: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails is not None:
            self.fails()
        return self.inner(x)


def _raise() -> None:
    raise KeyError("the user's own")


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)


def failing(rank: int, size: int, culprit: int, how: str) -> Any:
    module = Failing(rank)
    schedule = sc.Schedule1F1B(PipelineStage(module, rank, size, CPU), 4, loss_fn=mse)
    x, y = batch(8)
    schedule.step(x, target=y)
    if rank == culprit:
        module.fails = {"raise": _raise, "exit": lambda: sys.exit(3), "interrupt": _interrupt,
                        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL)}[how]
    begin = time.monotonic()
    try:
        schedule.step(x, target=y)
    except sc.PeerError as error:
        outcome: tuple[Any, ...] = ("peer", error.peer, str(error))
    except sc.StageError as error:
        outcome = ("stage", error.stage, repr(error.__cause__))
    except KeyboardInterrupt:
        outcome = ("interrupted",)
    except SystemExit as error:
        outcome = ("exit", error.code)
    else:
        outcome = ("nothing",)
    took = time.monotonic() - begin
    if how != "kill":
        module.fails = None
        take_grads(module)
        check(rank, size, schedule, [schedule._stage], 4) if how == "raise" else schedule.step(x, target=y)
    return outcome, took


@pytest.mark.parametrize("how", ["raise", "exit", "interrupt", "kill"])
def test_a_failure_of_one_rank_reaches_all(how: str) -> None:
    culprit = 1
    ends = run_ranks(3, failing, culprit, how)
    for rank, end in enumerate(ends):
        if rank == culprit:
            if how == "kill":
                assert end.kind == "died"
                continue
            assert end.kind == "ok", end.text
            expected = {"raise": ("stage", culprit, """KeyError("the user's own")"""), "exit": ("exit", 3),
                        "interrupt": ("interrupted",)}[how]
            assert end.value[0] == expected
            continue
        assert end.kind == "ok", end.text
        (kind, peer, text), took = end.value
        assert (kind, peer) == ("peer", culprit) and f"rank {culprit}" in text, text
        if how == "interrupt":
            assert "interrupted" in text
        # The goal is 2 s; a machine with more processes than cores gets more.
        assert took < 6, (rank, took)


def deadlocked(rank: int, size: int) -> Any:
    """Rank 1 never comes: rank 0's wait ends with Ctrl-C."""
    (stage,) = stages_of(rank, size, 1)
    schedule = sc.ScheduleGPipe(stage, 2, loss_fn=mse)
    x, y = batch(4)
    schedule.step(x, target=y)
    if rank == 0:
        import threading

        begin = time.monotonic()
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            schedule.step(x, target=y)
        except KeyboardInterrupt:
            return time.monotonic() - begin
        return "nothing"
    time.sleep(1.5)
    try:
        schedule.step(x, target=y)
    except sc.PeerError as error:
        return str(error)
    return "nothing"


def test_ctrl_c_in_a_wait() -> None:
    waited, told = results(run_ranks(2, deadlocked))
    assert isinstance(waited, float) and waited < 1.4
    assert "rank 0: interrupted" in told


def stuck(rank: int, size: int) -> Any:
    """A body that does not return: the others' time-out names it, with a table of ranks; waits are logged before."""
    os.environ["STAGECRAFT_WAIT_LOG"] = "1"
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("stagecraft").addHandler(handler)
    group = dist.new_group(timeout=datetime.timedelta(seconds=4))
    module = Failing(rank)
    stage = PipelineStage(module, rank, size, CPU, group=group)
    schedule = sc.Schedule1F1B(stage, 2, loss_fn=mse)
    x, y = batch(4)
    schedule.step(x, target=y)
    if rank == 1:
        module.fails = lambda: time.sleep(7)
    begin = time.monotonic()
    try:
        schedule.step(x, target=y)
        return "nothing", 0.0, lines
    except sc.Error as error:
        outcome = type(error).__name__, time.monotonic() - begin, [str(error), *lines]
    module.fails = None
    take_grads(module)
    grads, _, _ = plain_grads([block(s) for s in range(size)], x, y, mse, 2)
    schedule.step(x, target=y)
    assert same(take_grads(module), grads[rank])
    return outcome


def test_a_body_that_does_not_return() -> None:
    (first, waited, lines), (second, _, _) = results(run_ranks(2, stuck))
    assert first == "TimeoutError" and 3 < waited < 7, (first, waited)
    assert second in ("PeerError", "StageError", "TimeoutError"), second
    told = [line for line in lines if "has waited" in line]
    assert told and "rank" in told[0] and "1F0" in told[0], lines


def two_schedules(rank: int, size: int) -> None:
    """A world recovers whichever of its schedules steps next."""
    module = Failing(rank)
    bad = sc.ScheduleGPipe(PipelineStage(module, rank, size, CPU), 2, loss_fn=mse)
    (stage,) = stages_of(rank, size, 1)
    good = sc.Schedule1F1B(stage, 2, loss_fn=mse)
    check(rank, size, good, [stage], 2)
    x, y = batch(4)
    module.fails = _raise if rank == 0 else None
    for _ in range(2):
        with pytest.raises(sc.Error):
            bad.step(x, target=y)
        check(rank, size, good, [stage], 2)


def test_schedules_of_one_group_recover_together() -> None:
    results(run_ranks(2, two_schedules))
