"""A pipeline in one process: ranks are threads, so no launcher is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn as nn

from stagecraft import _C, parallel
from stagecraft._IR import Pipe
from stagecraft.engine import _rows
from stagecraft.errors import ArgumentError
from stagecraft.microbatch import merge_chunks, split_args_kwargs_into_chunks
from stagecraft.reports import MemoryEstimate, Report
from stagecraft.stage import _StageCall
from stagecraft.values import detached
from stagecraft.world import deliver_log

__all__ = ["Pipeline", "Ports", "StagePlace", "StepResult", "add_loss", "current_stage", "verify_against_reference"]


class Ports:
    """The sources of the inputs of stages.

    By default stages are a chain: the outputs of a stage are the arguments of the next, and the
    model's arguments are those of stage 0. Outputs and inputs that are connected explicitly are not
    part of the chain:

        Ports(3).connect(output=(0, 1), input=(2, 1))   # output 1 of stage 0 skips to stage 2
        Ports(3).feed("mask", input=(1, "mask"))        # a model input that stage 1 takes
    """

    def __init__(self, stages: int, chain: bool = True) -> None:
        self._stages = stages
        self._chain = chain
        self._connections: list[Any] = []
        self._feeds: list[Any] = []

    def connect(self, output: tuple[int, int], input: tuple[int, int | str]) -> Ports:
        """Connects an output of a stage, (stage, number), to an argument of a later stage, (stage,
        position or name)."""
        self._connections.append((tuple(output), tuple(input)))
        return self

    def feed(self, argument: int | str, input: tuple[int, int | str]) -> Ports:
        """Connects an argument of the model, by position or name, to an argument of a stage."""
        self._feeds.append((argument, tuple(input)))
        return self

    def _as_dict(self) -> dict[str, Any]:
        return {
            "stages": self._stages,
            "chain": self._chain,
            "connections": self._connections,
            "feeds": self._feeds,
        }

    @classmethod
    def _from_dict(cls, given: dict[str, Any]) -> Ports:
        ports = cls(given["stages"], given["chain"])
        ports._connections = list(given["connections"])
        ports._feeds = list(given["feeds"])
        return ports

    def __repr__(self) -> str:
        calls = [f".connect(output={a}, input={b})" for a, b in self._connections]
        calls += [f".feed({a!r}, input={b})" for a, b in self._feeds]
        return f"Ports({self._stages}{'' if self._chain else ', chain=False'})" + "".join(calls)


@dataclass(frozen=True)
class StagePlace:
    """The stage and microbatch of a forward."""

    stage: int
    num_stages: int
    microbatch: int
    is_training: bool


def current_stage() -> StagePlace | None:
    """The stage and microbatch whose forward runs on this thread; None outside a stage."""
    place = _C.current_stage()
    return None if place is None else StagePlace(*place)


def add_loss(loss: torch.Tensor) -> None:
    """Adds a loss (load balance, a penalty) to that of the microbatch, inside a stage's forward.

    The loss has the weight of the microbatch. It is dropped outside a forward, and if no backward
    follows.
    """
    _C.add_loss(loss)


@dataclass(frozen=True)
class StepResult:
    """The result of a step of a Pipeline.

    Attributes:
        loss: the weighted sum of the losses; None without a loss.
        losses: the loss of each microbatch, not weighted.
        output: the merged output.
        weights: the weight of each microbatch's loss.
        added_losses: the losses that stages passed to `add_loss`, by microbatch; None if there is
            none.
    """

    loss: torch.Tensor | None
    losses: list[torch.Tensor]
    output: Any
    weights: list[float]
    added_losses: list[torch.Tensor | None] = field(default_factory=list)


class Pipeline:
    """Modules as the stages of a pipeline whose ranks are threads of this process.

    Args:
        modules: the stages, in order, or a `Pipe`.
        schedule: the name of a schedule, or a `Schedule`.
        ranks: the number of ranks; by default one for each stage, or for each two stages, depending on
            the schedule.
        loss_fn: a function of output and target.
        ports: skip edges and model inputs of later stages.
        ties: weights that several stages hold as copies, as lists of (stage, name).
        recompute: the stages that run their forward again instead of keeping activations.
        random: "per_microbatch" (numbers depend on seed, step, stage and microbatch alone) or
            "process" (the process's generators, whose order depends on the threads).
        seed: the seed of "per_microbatch"; by default that of the process's generator.
        timeout: how long a rank waits for a different rank, in seconds.
        threads_per_rank: threads inside operators, for each rank.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module] | Pipe,
        schedule: Any = "1F1B",
        ranks: int | None = None,
        *,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        ports: Ports | None = None,
        ties: Sequence[Sequence[tuple[int, str]]] = (),
        recompute: Sequence[int] = (),
        random: str = "per_microbatch",
        seed: int | None = None,
        timeout: float = 60.0,
        threads_per_rank: int | None = None,
    ) -> None:
        if random not in ("per_microbatch", "process"):
            raise ArgumentError(f"random: expected 'per_microbatch' or 'process', got {random!r}")
        if isinstance(modules, Pipe):
            ports = ports or Ports._from_dict(modules._layout.ports)
            modules = [modules.get_stage_module(s) for s in range(modules.num_stages)]
        self.modules = list(modules)
        self._loss_fn = loss_fn
        self._ports = ports
        self._ties = [list(group) for group in ties]
        count = len(self.modules)
        self._calls = [
            _StageCall(module, _device_of(module), index == count - 1)
            for index, module in enumerate(self.modules)
        ]
        for index, call in enumerate(self._calls):
            call.recompute = index in set(recompute)
            parallel.wrap(call)
            if call.wrapper is not None:
                raise ArgumentError(
                    f"stage {index} is a {call.wrapper.kind}: collectives of processes cannot run in stages "
                    "whose ranks are threads"
                )
            if random == "per_microbatch":
                _refuse_checkpoints(index, call.module)
        if isinstance(schedule, str):
            source: dict[str, Any] = {"name": schedule, "ranks": ranks or _ranks_of(schedule, count)}
            source["stages_per_rank"] = count // source["ranks"]
        else:
            source = {"text": schedule.to_csv()}
        self.schedule_name = schedule if isinstance(schedule, str) else "own schedule"
        self._runner = _C.ThreadRunner(
            source,
            count,
            list(enumerate(self._calls)),
            {
                "loss": self._calls[-1].loss if loss_fn is not None else None,
                "ports": None if ports is None else ports._as_dict(),
                "ties": self._ties,
                "timeout": timeout,
                "seed": seed,
                "random": random,
                "threads_per_rank": threads_per_rank,
            },
        )

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.modules)

    def parameters(self) -> list[nn.Parameter]:
        """The parameters of all stages, each once, for an optimizer."""
        seen: dict[int, nn.Parameter] = {}
        for module in self.modules:
            for parameter in module.parameters():
                seen.setdefault(id(parameter), parameter)
        return list(seen.values())

    def step(
        self,
        *args: Any,
        target: Any = None,
        microbatches: int = 1,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
        scale: str = "mean",
        measure_memory: bool = False,
        **kwargs: Any,
    ) -> StepResult:
        """Trains on a batch that is split into microbatches. 8 rows in 3 microbatches are 3, 3 and
        2.

        Gradients are added to those of the parameters. They are the gradients of the whole batch:
        the weight of a loss is its share of the rows (``scale="mean"``) or 1 (``scale="sum"``).
        """
        if not torch.is_grad_enabled():
            raise RuntimeError("step trains, but gradients are disabled here (torch.no_grad): call eval")
        return self._run(True, args, kwargs, target, microbatches, return_outputs, loss_kwargs, scale,
                         measure_memory)

    def eval(
        self,
        *args: Any,
        target: Any = None,
        microbatches: int = 1,
        loss_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> StepResult:
        """Runs the forwards of a batch, without gradients; the loss is computed if there is a target."""
        return self._run(False, args, kwargs, target, microbatches, True, loss_kwargs, "mean", False)

    def _run(self, training: bool, args: Any, kwargs: Any, target: Any, count: int, return_outputs: bool,
             loss_kwargs: Any, scale: str, measure_memory: bool) -> StepResult:
        if scale not in ("mean", "sum"):
            raise ArgumentError(f"scale: expected 'mean' or 'sum', got {scale!r}")
        arg_mbs, kwarg_mbs = split_args_kwargs_into_chunks(args, kwargs, count)
        targets = None
        if target is not None:
            targets = [piece[0] for piece in split_args_kwargs_into_chunks((target,), None, count)[0]]
        rows = _rows(targets, None) if targets is not None else None
        rows = rows or _rows([(a, k) for a, k in zip(arg_mbs, kwarg_mbs)], None)
        weights = [1.0] * count if scale == "sum" else None
        if weights is None and rows is not None:
            weights = [each / sum(rows) for each in rows]
        for call in self._calls:
            call.clear()
            call.abroad = False
        last = self._calls[-1]
        last.loss_fn = self._loss_fn
        last.targets = targets
        last.loss_kwargs = dict(loss_kwargs or {})
        last.keeps_outputs = return_outputs
        last.wants_loss = self._loss_fn is not None and (training or targets is not None)
        options = {
            "microbatches": count,
            "weights": weights,
            "has_target": not training and last.wants_loss,
            "measure_memory": measure_memory,
        }
        try:
            found = self._runner.run(training, list(zip(arg_mbs, kwarg_mbs)), options)
            outputs = [last.outputs[m] for m in sorted(last.outputs)]
        finally:
            for call in self._calls:
                call.clear()
            deliver_log()
        losses = found["losses"]
        loss = None
        for weight, each in zip(found["weights"], losses):
            loss = each * weight if loss is None else loss + each * weight
        output = merge_chunks(outputs, None) if outputs else None
        return StepResult(loss, losses, output, found["weights"], found["added_losses"])

    def report(self) -> Report:
        """The use of time in the last step."""
        return Report(self._runner.report())

    def memory_estimate(self, microbatches: int) -> MemoryEstimate:
        """The peak memory of a step with that many microbatches, each as large as in the last step
        with ``measure_memory=True``."""
        return MemoryEstimate._of(self._runner.memory_estimate(microbatches))

    def __repr__(self) -> str:
        return f"<Pipeline of {self.num_stages} stages, {self.schedule_name}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Pipeline cannot be pickled: it has threads of this process; pickle its modules")


def _ranks_of(schedule: str, stages: int) -> int:
    from stagecraft._schedule import Schedule

    for per_rank in (1, 2):
        if stages % per_rank:
            continue
        try:
            Schedule.build(schedule, stages // per_rank, 2 * stages, per_rank)
            return stages // per_rank
        except ValueError:
            continue
    raise ArgumentError(f"{schedule} does not fit {stages} stages; pass ranks")


def _device_of(module: nn.Module) -> torch.device:
    for tensor in module.parameters():
        return tensor.device
    return torch.device("cpu")


def _refuse_checkpoints(index: int, module: nn.Module) -> None:
    for name, part in module.named_modules():
        if type(part).__name__ == "CheckpointWrapper":
            raise ArgumentError(
                f"stage {index}: {name or 'its module'} is a checkpoint wrapper, which draws other random "
                "numbers when it runs again; use recompute=[...], or random='process'"
            )


def verify_against_reference(
    pipe: Pipeline, *args: Any, target: Any = None, microbatches: int | None = None, **kwargs: Any
) -> None:
    """Compares the gradients and outputs of a step with those of the modules without a pipeline,
    bit for bit.

    The modules run one after the other in this thread, microbatch by microbatch, with the same
    weights. Afterwards gradients are restored. AssertionError says what differs and by how much.
    """
    if pipe._loss_fn is None:
        raise ArgumentError("verify_against_reference needs a pipeline with a loss")
    if pipe._ports is not None:
        ports = pipe._ports
    else:
        ports = Ports(pipe.num_stages)
    count = microbatches or max(2, pipe.num_stages)
    parameters = pipe.parameters()
    before = [p.grad for p in parameters]

    def take() -> list[torch.Tensor | None]:
        grads = [p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        return grads

    try:
        take()
        result = pipe.step(*args, target=target, microbatches=count, **kwargs)
        actual = take()
        arg_mbs, kwarg_mbs = split_args_kwargs_into_chunks(args, kwargs, count)
        targets = [None] * count
        if target is not None:
            targets = [piece[0] for piece in split_args_kwargs_into_chunks((target,), None, count)[0]]
        outputs, losses = [], []
        for m in range(count):
            output = _run_uncut(pipe.modules, ports, arg_mbs[m], kwarg_mbs[m])
            losses.append(pipe._loss_fn(output, targets[m]))
            outputs.append(detached(output))
        # Gradients are summed in the order of the backwards.
        for m in _backward_order(pipe, count):
            losses[m].backward(torch.full_like(losses[m], result.weights[m]))
        expected = take()
        expected = _sum_ties(pipe, parameters, expected)
    finally:
        for p, grad in zip(parameters, before):
            p.grad = grad
    names = {
        id(p): f"{name} of stage {i}" for i, m in enumerate(pipe.modules) for name, p in m.named_parameters()
    }
    problems = []
    for p, ours, theirs in zip(parameters, actual, expected):
        if (ours is None) != (theirs is None):
            problems.append(f"{names[id(p)]}: gradient {'missing' if ours is None else 'not expected'}")
        elif ours is not None and theirs is not None and not torch.equal(ours, theirs):
            gap = (ours - theirs).abs().max().item()
            problems.append(f"{names[id(p)]}: gradients differ by up to {gap:.3g}")
    merged = merge_chunks(outputs, None)
    if isinstance(merged, torch.Tensor) and not torch.equal(merged, result.output):
        problems.append(f"outputs differ by up to {(merged - result.output).abs().max().item():.3g}")
    if problems:
        raise AssertionError("the pipeline differs from the modules: " + "; ".join(problems))


def _backward_order(pipe: Pipeline, count: int) -> list[int]:
    """The microbatches in the order in which the last step ran the backwards of the last stage."""
    last = pipe.num_stages - 1
    found: list[tuple[float, int]] = []
    for row in pipe.report().timeline:
        for text, begin, _ in row:
            for kind in ("B", "W"):
                head = f"{last}{kind}"
                if text.startswith(head) and text[len(head) :].isdigit():
                    found.append((begin, int(text[len(head) :])))
    order = [m for _, m in sorted(found)]
    return order if sorted(order) == list(range(count)) else list(range(count))


def _run_uncut(modules: list[nn.Module], ports: Ports, args: Any, kwargs: Any) -> Any:
    made: dict[tuple[int, int], Any] = {}
    chain: list[Any] = []
    output: Any = None
    connected = {tuple(a) for a, _ in ports._connections}
    fed_positions = {a for a, _ in ports._feeds if isinstance(a, int)}
    fed_names = {a for a, _ in ports._feeds if isinstance(a, str)}
    for index, module in enumerate(modules):
        placed: dict[int, Any] = {}
        named: dict[str, Any] = {}
        for source, (stage, where) in ports._connections:
            if stage == index:
                (placed if isinstance(where, int) else named)[where] = made[tuple(source)]
        for argument, (stage, where) in ports._feeds:
            if stage == index:
                value = args[argument] if isinstance(argument, int) else kwargs[argument]
                (placed if isinstance(where, int) else named)[where] = value
        rest = [a for i, a in enumerate(args) if i not in fed_positions] if index == 0 else chain
        if not ports._chain:
            rest = []
        elif index == 0:
            named.update({k: v for k, v in kwargs.items() if k not in fed_names})
        given = iter(rest)
        positional = [
            placed[i] if i in placed else next(given) for i in range(len(placed) + len(rest))
        ]
        output = module(*positional, **named)
        values = list(output) if isinstance(output, (tuple, list)) else [output]
        made.update({(index, n): value for n, value in enumerate(values)})
        chain = [value for n, value in enumerate(values) if (index, n) not in connected]
    return output


def _sum_ties(pipe: Pipeline, parameters: Any, grads: Any) -> Any:
    """Gives each copy of a tied weight the sum of all copies' gradients, added from the last stage
    to the first."""
    by_id = {id(p): i for i, p in enumerate(parameters)}
    result = list(grads)
    for group in pipe._ties:
        copies = [dict(pipe.modules[stage].named_parameters())[name] for stage, name in group]
        order = sorted(range(len(group)), key=lambda i: -group[i][0])
        total = None
        for i in order:
            grad = grads[by_id[id(copies[i])]]
            if grad is not None:
                total = grad if total is None else total + grad
        for copy in copies:
            result[by_id[id(copy)]] = total
    return result
