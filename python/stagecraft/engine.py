"""What runs the steps of a schedule object: batch in, results out."""

from __future__ import annotations

from typing import Any


def step(schedule: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, target: Any, losses: list[Any] | None,
         return_outputs: bool, loss_kwargs: dict[str, Any] | None, arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any,
         finalize_gradients: bool) -> Any:
    """Runs one step (`_PipelineSchedule.step`)."""
    raise NotImplementedError


def evaluate(schedule: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, target: Any, losses: list[Any] | None,
             arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any) -> Any:
    """Runs the forwards of one batch (`_PipelineSchedule.eval`)."""
    raise NotImplementedError


def step_microbatches(schedule: Any, arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any, losses: list[Any] | None,
                      return_outputs: bool, loss_kwargs: dict[str, Any] | None) -> Any:
    """Runs microbatches (`_PipelineSchedule._step_microbatches`)."""
    raise NotImplementedError


def check_adjacent(schedule: Any) -> None:
    """RuntimeError where a stand-in's transfers name a stage that is not its neighbour."""
    raise NotImplementedError


def assert_unsharded(schedule: Any, stage: Any) -> None:
    """Waits until the parameters of a sharded stage are there."""
