"""Plans: where to split a model, which schedule to run, and the distance to a lower bound."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stagecraft import _schedule
from stagecraft.data import Schedule
from stagecraft.errors import ArgumentError

if TYPE_CHECKING:
    import torch
    import torch.nn as nn

__all__ = ["Plan", "plan"]

_UNITS = {"": 1, "b": 1, **{prefix + end: base ** power
                            for power, prefix in enumerate("kmgt", 1)
                            for end, base in (("b", 1000), ("ib", 1024))}}


@dataclass(frozen=True)
class Plan:
    """A way to run a model, from `plan`. `str` is a table of the ways that were considered."""

    cuts: tuple[str, ...]  #: the modules before which the model is split
    schedule: Schedule  #: what each rank computes, in order
    schedule_name: str  #: of a built-in schedule, or "synthesised"
    time: float  #: of a step, in `unit`
    bound: float  #: no order of these stages takes less
    why: str  #: what the bound rests on, and why others do not fit
    recompute: tuple[int, ...]  #: the stages that run their forward again
    stages_per_rank: int
    ranks: int
    microbatches: int
    unit: str  #: "ms", or "" for millions of operations
    peak_memory: tuple[float, ...]  #: bytes of each rank, weights included
    _text: str = field(repr=False)
    _file: str = field(repr=False)

    @property
    def split_spec(self) -> dict[str, Any]:
        """The split as `pipeline` takes it."""
        from stagecraft._IR import SplitPoint

        return {name: SplitPoint.BEGINNING for name in self.cuts}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a plan file, which `stagecraft simulate` and `stagecraft train` read."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self._file)

    def __str__(self) -> str:
        return self._text


def _bytes_of(memory: float | str | None) -> float | None:
    if memory is None or isinstance(memory, (int, float)):
        return memory
    found = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]*)\s*", memory)
    if found is None or found[2].lower() not in _UNITS:
        raise ArgumentError(f"memory: expected a number of bytes, or one with a unit such as '16GiB', got {memory!r}")
    return float(found[1]) * float(_UNITS[found[2].lower()])


def _mean_of(output: Any, _: Any) -> torch.Tensor:
    """A number that depends on all outputs. Its backward costs as much as that of a loss."""
    import torch
    import torch.utils._pytree as pytree

    means = [leaf.mean() for leaf in pytree.tree_leaves(output)
             if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    if not means:
        raise ArgumentError("no output of the model has a gradient; pass loss_fn")
    return torch.stack([mean.float() for mean in means]).sum()


def _costs_of(model: nn.Module, example: Any, target: Any, loss_fn: Callable[..., Any] | None, ranks: int,
              steps: int) -> str:
    """The costs of the model's layers. Afterwards gradients and buffers are restored."""
    from stagecraft import _C, capture

    args, kwargs = example if isinstance(example, tuple) else (example,), {}
    if isinstance(example, dict):
        args, kwargs = (), example
    graph = capture.graph_of(model, args, kwargs)
    names = _C.layer_names(graph)
    if not steps:
        return _C.estimate_layers(graph, names)
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    # Gradients are set aside, because backwards would add to them.
    for parameter, _ in grads:
        parameter.grad = None
    try:
        return _C.measure_layers(graph, names, args, kwargs, target, loss_fn or _mean_of, ranks, steps)
    finally:
        for parameter, grad in grads:
            parameter.grad = grad
        for buffer, before in buffers:
            buffer.detach().copy_(before)


def plan(model: nn.Module, example: Any, *, ranks: int, memory: float | str | None = None,
         microbatches: int | None = None, loss_fn: Callable[..., Any] | None = None, target: Any = None,
         measure: bool = True, steps: int = 3, time_limit: float = 5.0, stages_per_rank: Sequence[int] = (1, 2),
         recompute: str = "auto", seed: int = 1) -> Plan:
    """The best plan that is found for a model: split, placement, recompute, and the order of actions.

    The model is traced, and its layers are measured on the example.

    Args:
        model: the whole model.
        example: one microbatch: a tensor, a tuple of arguments, or a dict of keyword arguments.
        ranks: the number of ranks.
        memory: the memory of each rank, in bytes or as "16GiB"; None: unlimited.
        microbatches: the microbatches of a step; by default four for each rank.
        loss_fn, target: the loss of the example; without it, the mean of the outputs.
        measure: False estimates costs from operations and bytes, and runs nothing.
        steps: how often layers are measured.
        time_limit: the time of the search, in seconds.
        stages_per_rank: the numbers to choose from.
        recompute: "auto", "none" or "all".
        seed: the seed of the search.

    ArgumentError for a model that has fewer layers than ranks. An Error says what is missing if nothing fits.
    """
    costs = _costs_of(model, example, target, loss_fn, ranks, steps if measure else 0)
    count = 4 * ranks if microbatches is None else microbatches
    found = _schedule.make_plan(costs, ranks, _bytes_of(memory), count, time_limit, seed, list(stages_per_rank),
                                recompute)
    return Plan(
        cuts=tuple(found["cuts"]), schedule=Schedule(found["schedule"]), schedule_name=found["schedule_name"],
        time=found["time"], bound=found["bound"], why=found["why"].strip(), recompute=tuple(found["recompute"]),
        stages_per_rank=found["stages_per_rank"], ranks=ranks, microbatches=count, unit="ms" if measure else "",
        peak_memory=tuple(found["peaks"]), _text=found["text"].strip(), _file=found["file"])
