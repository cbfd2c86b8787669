"""What torch's pipelines do where they are known to be wrong: each case runs the installed torch and says the outcome in the
words of the table in docs/coming_from_pytorch.md."""

import contextlib
import logging
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from torch_pair import Signal, run_pair  # noqa: E402

import torch  # noqa: E402
from torch.distributed.pipelining import PipelineStage, schedules  # noqa: E402

CPU, WIDTH, M = torch.device("cpu"), 4, 4
MSE = torch.nn.functional.mse_loss


class Unexpected(Exception):
    """The case took a course that the table has no words for."""


def module_of(stage):
    """The same weights in every process."""
    module = torch.nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(stage)
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return module


def data(rows, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, WIDTH, generator=generator), torch.randn(rows, WIDTH, generator=generator)


class Ours:
    """The stages of one of two ranks, and a schedule of torch's over them."""

    def __init__(self, rank, kind, microbatches=M, modules=None, stage_options=None, **options):
        single = issubclass(kind, schedules.PipelineScheduleSingle)
        v_shaped = kind in (schedules.ScheduleZBVZeroBubble, schedules.ScheduleDualPipeV)
        own = [rank] if single else [rank, 3 - rank] if v_shaped else [rank, rank + 2]
        self.count = 2 if single else 4
        modules = modules or [module_of(stage) for stage in own]
        self.stages = [PipelineStage(module, stage, self.count, CPU, **(stage_options or {}))
                       for module, stage in zip(modules, own)]
        self.has_first, self.has_last = 0 in own, self.count - 1 in own
        self.schedule = kind(self.stages[0] if single else self.stages, microbatches, **{"loss_fn": MSE, **options})

    def call(self, function, x, y):
        """The output and the losses, where the last stage is."""
        losses = []
        target = {"target": y, "losses": losses} if self.has_last else {}
        return function(*((x,) if self.has_first else ()), **target), losses

    def step(self, x, y):
        return self.call(self.schedule.step, x, y)

    def eval(self, x, y):
        return self.call(self.schedule.eval, x, y)

    def grads(self):
        return [parameter.grad.clone() for stage in self.stages for parameter in stage.submod.parameters()]


def values(ends):
    """What both processes returned."""
    if any(end.kind != "returned" for end in ends):
        raise Unexpected("; ".join(f"rank {rank}: {end}" for rank, end in enumerate(ends)))
    return [end.value for end in ends]


def raised(ends, rank, says):
    """The words for a process that raises an error with such a text."""
    end = ends[rank]
    if end.kind != "raised" or says not in end.value:
        raise Unexpected(ends)
    return f"raises {end.value.split(':')[0]}"


def ratio(before, after):
    """By what all gradients were multiplied, as text."""
    found = {round(float((b / a).median()), 3) for a, b in zip(before, after)}
    if len(found) != 1:
        raise Unexpected(found)
    return found.pop()


def eval_scales(kind):
    def rank_main(rank):
        pipeline = Ours(rank, kind)
        pipeline.step(*data(8))
        before = pipeline.grads()
        pipeline.eval(*data(8))
        return ratio(before, pipeline.grads())

    (first, second) = values(run_pair(rank_main))
    if first != second:
        raise Unexpected((first, second))
    return "right" if first == 1 else f"gradients times {first:g}"


def accumulation():
    def rank_main(rank):
        pipeline = Ours(rank, schedules.ScheduleGPipe)
        pipeline.step(*data(8))
        before = pipeline.grads()
        pipeline.step(*data(8))
        return ratio(before, pipeline.grads())

    found = values(run_pair(rank_main))[0]
    return "right" if found == 2 else f"{found:g} times one step"


def batch_norm():
    def rank_main(rank):
        modules = [torch.nn.Sequential(module_of(rank), torch.nn.BatchNorm1d(WIDTH))]
        Ours(rank, schedules.ScheduleGPipe, modules=modules).step(*data(8))
        return int(modules[0][1].num_batches_tracked)

    found = values(run_pair(rank_main))[0]
    return "right" if found == M else f"{found} of {M} batches counted"


def mode_switches():
    def rank_main(rank):
        calls = []
        modules = [module_of(rank)]
        modules[0].register_forward_hook(lambda *_: calls.append(1))
        pipeline = Ours(rank, schedules.ScheduleGPipe, modules=modules)
        for call in (pipeline.step, pipeline.eval, pipeline.step):
            call(*data(8))
        return len(calls)

    found = values(run_pair(rank_main))[0]
    return "right" if found == 3 * M else f"{found} forwards for {3 * M}"


def eval_of_zbv():
    return raised(run_pair(lambda rank: Ours(rank, schedules.ScheduleZBVZeroBubble).eval(*data(8)), timeout=3),
                  1, "")


def forward_only(*sizes):
    """Rows that come out of the last of several batches."""
    def rank_main(rank):
        pipeline = Ours(rank, schedules._ScheduleForwardOnly, loss_fn=None)
        output = None
        for rows in sizes:
            output = pipeline.schedule.step(*((data(rows)[0],) if rank == 0 else ()))
        return None if output is None else len(output)

    ends = run_pair(rank_main, timeout=3)
    if ends[1].kind == "died":
        return "the process aborts"
    if ends[1].kind != "returned":
        raise Unexpected(ends)
    return "right" if ends[1].value == sizes[-1] else f"{ends[1].value} rows"


def deferred_receives():
    def rank_main(rank):
        pipeline = Ours(rank, schedules.ScheduleZBVZeroBubble, 3, defer_pp_recv=True)
        x, y = data(6)
        pipeline.step(x, y)
        model = torch.nn.Sequential(*(module_of(stage) for stage in range(4)))
        MSE(model(x), y).backward()
        expected = [parameter.grad for stage in pipeline.stages for parameter in model[stage.stage_index].parameters()]
        return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(pipeline.grads(), expected))

    ends = run_pair(rank_main, timeout=5)
    return "right" if all(values(ends)) else "wrong gradients"


class Reordered(schedules._PipelineScheduleRuntime):
    """Both ranks compute microbatch 1 before microbatch 0."""

    def __init__(self, stages, n_microbatches, **options):
        super().__init__(stages, n_microbatches, **options)
        text = {rank: ",".join(f"{s}F{m}" for s in (rank, rank + 2) for m in (1, 0)) + ","
                + ",".join(f"{s}B{m}" for s in (rank + 2, rank) for m in (1, 0)) for rank in range(2)}
        order = {rank: [schedules._Action.from_str(word) for word in row.split(",")] for rank, row in text.items()}
        self.pipeline_order = order
        self._prepare_schedule_with_comms(order)


def order_of_losses():
    """Losses are found by the order of execution, so the backward of a microbatch begins at the loss of a different one."""
    def rank_main(rank):
        x, y = data(4)
        pipeline = Ours(rank, Reordered, 2)
        pipeline.step(x, y)
        model = torch.nn.Sequential(*(module_of(stage) for stage in range(4)))
        MSE(model(x), y).backward()
        expected = [parameter.grad for stage in pipeline.stages for parameter in model[stage.stage_index].parameters()]
        return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(pipeline.grads(), expected))

    ends = run_pair(rank_main, timeout=3)
    if ends[1].kind == "raised":
        return raised(ends, 1, "backward")
    return "right" if all(values(ends)) else "wrong gradients"


def transposed():
    class Transposed(torch.nn.Module):
        def forward(self, x):
            return x.t()

    modules = {0: lambda: torch.nn.Sequential(module_of(0), Transposed()), 1: Transposed}
    return raised(run_pair(lambda rank: Ours(rank, schedules.ScheduleGPipe, modules=[modules[rank]()]).step(*data(16)),
                           timeout=3), 0, "")


def dict_output():
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module_of(1)

        def forward(self, x):
            return {"y": self.inner(x)}

    ends = run_pair(lambda rank: Ours(rank, schedules.ScheduleGPipe, modules=[module_of(0) if rank == 0 else Named()],
                                      loss_fn=lambda output, y: MSE(output["y"], y)).step(*data(8)), timeout=3)
    return raised(ends, 1, "")


def static_examples():
    example = torch.zeros(2, WIDTH)
    return raised(run_pair(lambda rank: Ours(rank, schedules.ScheduleGPipe, stage_options={
        "input_args": example, "output_args": example}).step(*data(8)), timeout=3), 0, "")


def too_few_microbatches():
    def rank_main(rank):
        try:
            Ours(rank, schedules.Schedule1F1B, 1).step(*data(4))
        except ValueError:
            return "raises ValueError"
        return "right"

    return values(run_pair(rank_main))[0]


def peer_fails():
    """The other rank's error, with a time-out of 3 seconds."""
    def rank_main(rank):
        modules = [module_of(rank)]
        calls = []

        def fail(*_):
            calls.append(1)
            if len(calls) == 3:
                raise RuntimeError("boom")

        if rank == 0:
            modules[0].register_forward_hook(fail)
        pipeline = Ours(rank, schedules.ScheduleGPipe, modules=modules)
        try:
            pipeline.step(*data(8))
        except RuntimeError as error:
            if rank == 0:
                finished.wait()
            return str(error)
        finally:
            if rank == 1:
                finished.give()
        return ""

    finished = Signal()
    said = values(run_pair(rank_main, timeout=3))
    if "failed to run forward" not in said[0]:
        raise Unexpected(said)
    return "waits for the time-out" if said[1] and "imed out" in said[1] else said[1]


@contextlib.contextmanager
def records_of(name):
    """What is logged meanwhile."""
    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


def untaken_send():
    """Both ranks fail, rank 0 with a send that rank 1 has not received. If the send is waited for, its failure is logged."""
    def rank_main(rank):
        def fail(module, inputs, output):
            calls.append(1)
            if rank == 0 and len(calls) == 5:  # the first forward finds out shapes, outputs of the next three are sent
                posted.give()
                raise RuntimeError("boom")
            if rank == 1 and len(calls) == 2:
                posted.wait()
                raise RuntimeError("boom")

        calls = []
        modules = [torch.nn.Linear(WIDTH, WIDTH)]
        modules[0].register_forward_hook(fail)
        pipeline = Ours(rank, schedules.ScheduleLoopedBFS, modules=[modules[0], torch.nn.Linear(WIDTH, WIDTH)])
        rows = 400_000  # more than a socket takes
        with records_of("torch.distributed.pipelining.schedules") as logged:
            try:
                pipeline.step(*data(rows))
            except RuntimeError as error:
                message = str(error)
        if rank == 0:
            raised_here.give()
        else:
            raised_here.wait()
        return message, logged

    posted, raised_here = Signal(), Signal()
    found = values(run_pair(rank_main, timeout=3))
    if "failed to run forward" not in found[0][0]:
        raise Unexpected(found)
    return "waits for the time-out" if any("drain" in record for record in found[0][1]) else "right"


def early_retry():
    """Rank 0 fails in its second forward and steps again with a second batch while rank 1 is in the first attempt."""
    def rank_main(rank):
        seen, calls = [], []

        def hook(module, inputs, output):
            calls.append(1)
            if len(calls) == 1:
                return  # finds out shapes
            if rank == 0 and len(calls) == 3:
                entered.wait()
                raise RuntimeError("boom")
            if rank == 1:
                seen.append(inputs[0].detach().clone())
                if len(calls) == 2:
                    entered.give()
                    retried.wait()

        # What rank 1 is given is what rank 0 was given.
        modules = [torch.nn.Linear(WIDTH, WIDTH, bias=False)]
        with torch.no_grad():
            modules[0].weight.copy_(torch.eye(WIDTH))
        modules[0].register_forward_hook(hook)
        pipeline = Ours(rank, schedules.ScheduleGPipe, modules=modules)
        first, second = data(8, 1), data(8, 2)
        error = None
        try:
            pipeline.step(*first)
        except RuntimeError as caught:
            error = str(caught)
        if rank == 0:
            retried.give()
            with contextlib.suppress(RuntimeError):
                pipeline.step(*second)
            ended.wait()
        else:
            ended.give()
        chunks = [(batch, chunk) for batch, (x, _) in enumerate((first, second)) for chunk in x.split(2)]
        return error, [next(batch for batch, chunk in chunks if torch.equal(chunk, each)) for each in seen]

    entered, retried, ended = Signal(), Signal(), Signal()
    error, found = values(run_pair(rank_main, timeout=3))[1]
    if not found or found[0] != 0:
        raise Unexpected(found)
    if 1 not in found:
        return "right"
    return "mixes both batches without an error" if error is None else "mixes both batches, then raises"


def unknown_word():
    return f"read as {schedules._Action.from_str('1WAIT_SEND_X0')}"
