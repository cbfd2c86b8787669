"""The common part of all schedule classes: microbatches, loss, how a batch is split and results are
merged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch

from stagecraft import engine
from stagecraft._actions import Order, _Action
from stagecraft.microbatch import TensorChunkSpec, _split_tensor, merge_chunks, split_args_kwargs_into_chunks

__all__: list[str] = []

# The target is always split along dim 0.
_TARGET_CHUNK_SPEC = TensorChunkSpec(0)


@dataclass
class _PipelineContext:
    """The second argument of a function that replaces an action."""

    schedule_ref: _PipelineSchedule
    arg_mbs: list[tuple[Any, ...]] | None = None
    kwarg_mbs: list[dict[str, Any]] | None = None
    target_mbs: list[Any] | None = None
    losses: list[Any] | None = None


class _CustomFunctionProtocol(Protocol):
    """A function that replaces an action (`register_custom_function`)."""

    def __call__(self, action: _Action, ctx: _PipelineContext) -> None: ...


def _check_torch_compile_compatibility(stages: Iterable[Any], schedule_name: str) -> None:
    """RuntimeError if a stage has a compiled module: its backward cannot be split into I and W."""
    for stage in stages:
        if not isinstance(stage.submod, torch.nn.Module):
            continue
        for name, module in stage.submod.named_modules():
            if isinstance(module, torch._dynamo.OptimizedModule):
                raise RuntimeError(
                    f"{schedule_name} splits the backward of a stage, which a module compiled by torch.compile does "
                    f"not allow; {name or 'the module'} of a stage is compiled. Use a schedule that does not split: "
                    f"Interleaved1F1B, LoopedBFS, 1F1B or GPipe")


class _PipelineSchedule(ABC):
    """The common part of all schedules: microbatches, loss, how a batch is split and results are
    merged."""

    # The name of the builder, for schedules that are built by name.
    _kind: ClassVar[str | None] = None

    def __init__(self, n_microbatches: int, loss_fn: Callable[..., Any] | None = None,
                 args_chunk_spec: Any = None, kwargs_chunk_spec: Any = None, output_merge_spec: Any = None,
                 scale_grads: bool = True) -> None:
        self._n_microbatches = n_microbatches
        self._loss_fn = loss_fn
        self.scale_grads = scale_grads
        self._args_chunk_spec = args_chunk_spec
        self._kwargs_chunk_spec = kwargs_chunk_spec
        self._output_merge_spec = output_merge_spec
        self._has_backward = loss_fn is not None
        self._internal_losses: dict[int, Any] = {}
        # The lists, if they are known: those of the builder, which are made when they are first read,
        # or the program's own lists.
        self._order: Order | None = None
        self._order_is_own = False

    @property
    def n_microbatches(self) -> int:
        """The number of microbatches of a batch. May be assigned, on all ranks, before the next step."""
        return self._n_microbatches

    @n_microbatches.setter
    def n_microbatches(self, number: int) -> None:
        self._n_microbatches = number
        self._forget_built_lists()

    def _forget_built_lists(self) -> None:
        """Drops lists that were built for a number of microbatches. A program's own lists stay."""
        if not self._order_is_own:
            self._order = None

    @property
    def pipeline_order(self) -> Any:
        """The compute actions of each rank, in order: lists by rank. May be assigned."""
        if self._order is None:
            self._order = self._build_order()
        return self._order

    @pipeline_order.setter
    def pipeline_order(self, order: Any) -> None:
        self._order = order
        self._order_is_own = order is not None

    def _build_order(self) -> Order | None:
        return None

    # The methods that run steps are implemented in stagecraft.engine.

    def step(self, *args: Any, target: Any = None, losses: list[Any] | None = None, return_outputs: bool = True,
             loss_kwargs: dict[str, Any] | None = None, arg_mbs: list[tuple[Any, ...]] | None = None,
             kwarg_mbs: list[dict[str, Any]] | None = None, target_mbs: list[Any] | None = None,
             finalize_gradients: bool = True, **kwargs: Any) -> Any:
        """Runs one batch through the pipeline; with a loss, forward and backward.

        Args:
            args: the batch, on the rank with stage 0; ignored elsewhere.
            kwargs: keyword inputs of this rank's stages, split like args and given to each of them.
            target: for the loss, on the rank of the last stage. Split along dim 0.
            losses: a list that gets the loss of each microbatch, on the rank of the last stage.
            return_outputs: whether the rank of the last stage returns the merged output.
            loss_kwargs: passed on to the loss.
            arg_mbs, kwarg_mbs, target_mbs: microbatches, instead of a batch that is split. Their shapes may differ.
            finalize_gradients: False leaves gradients of replicas local, until a step with True.
        """
        return engine.step(self, args, kwargs, target=target, losses=losses, return_outputs=return_outputs,
                           loss_kwargs=loss_kwargs, arg_mbs=arg_mbs, kwarg_mbs=kwarg_mbs, target_mbs=target_mbs,
                           finalize_gradients=finalize_gradients)

    def eval(self, *args: Any, target: Any = None, losses: list[Any] | None = None,
             arg_mbs: list[tuple[Any, ...]] | None = None, kwarg_mbs: list[dict[str, Any]] | None = None,
             target_mbs: list[Any] | None = None, **kwargs: Any) -> Any:
        """Runs one batch forward only, without gradients. Arguments as for `step`."""
        return engine.evaluate(self, args, kwargs, target=target, losses=losses, arg_mbs=arg_mbs,
                               kwarg_mbs=kwarg_mbs, target_mbs=target_mbs)

    # Whether steps measure memory, for `report` and `memory_estimate`. May be assigned, on all ranks.
    measure_memory = False

    def report(self) -> Any:
        """The use of time in the last step, on all ranks (`stagecraft.reports.Report`). All ranks call it."""
        return engine.report(self)

    def memory_estimate(self, microbatches: int) -> Any:
        """The peak memory of a step with that many microbatches (`stagecraft.reports.MemoryEstimate`).

        Microbatches are assumed to be as large as in the last step with `measure_memory`. All ranks
        call it.
        """
        return engine.memory_estimate(self, microbatches)

    @abstractmethod
    def _step_microbatches(self, arg_mbs: list[Any] | None = None, kwarg_mbs: list[Any] | None = None,
                           target_mbs: list[Any] | None = None, losses: list[Any] | None = None,
                           return_outputs: bool = True, loss_kwargs: dict[str, Any] | None = None) -> Any:
        """Runs microbatches through the pipeline."""

    def _local_stages(self) -> list[Any]:
        """The stages of this rank."""
        raise NotImplementedError

    def _split_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> tuple[list[Any], list[Any]]:
        """The microbatches of a batch: lists of args and of kwargs."""
        if not args and not kwargs:
            return [()] * self._n_microbatches, [{}] * self._n_microbatches
        return split_args_kwargs_into_chunks(args, kwargs, self._n_microbatches, self._args_chunk_spec,
                                             self._kwargs_chunk_spec)

    def _split_target(self, target: Any) -> list[Any] | None:
        """The microbatches of a target, split along dim 0."""
        if target is None:
            return None
        if isinstance(target, torch.Tensor):
            return list(_split_tensor(target, _TARGET_CHUNK_SPEC, self._n_microbatches))
        return [arg[0] for arg in split_args_kwargs_into_chunks((target,), None, self._n_microbatches)[0]]

    def _get_microbatch_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any, arg_mbs: Any,
                               kwarg_mbs: Any, target_mbs: Any) -> tuple[list[Any], list[Any], list[Any] | None]:
        """Args, kwargs and targets of the microbatches: the given ones, or those of the split
        batch."""
        if not isinstance(self._n_microbatches, int) or self._n_microbatches < 1:
            raise ValueError(f"n_microbatches: expected a number of at least 1, got {self._n_microbatches!r}")
        if arg_mbs is None and kwarg_mbs is None and target_mbs is None:
            split_args, split_kwargs = self._split_inputs(args, kwargs)
            self._check_inputs(split_args, split_kwargs)
            return split_args, split_kwargs, self._split_target(target)
        for name, value in (("positional inputs", args), ("keyword inputs", kwargs)):
            if value:
                raise ValueError(f"expected a batch or microbatches (arg_mbs, kwarg_mbs, target_mbs), got both: {name}")
        if target is not None:
            raise ValueError("expected target or microbatches (arg_mbs, kwarg_mbs, target_mbs), got both")
        self._check_inputs(arg_mbs, kwarg_mbs, target_mbs)
        for name, values, kind in (("arg_mbs", arg_mbs, tuple), ("kwarg_mbs", kwarg_mbs, dict)):
            for index, value in enumerate(values or ()):
                if not isinstance(value, kind):
                    raise TypeError(f"{name}[{index}]: expected a {kind.__name__}, got {type(value).__name__}")
        number = self._n_microbatches
        return (arg_mbs if arg_mbs is not None else [()] * number,
                kwarg_mbs if kwarg_mbs is not None else [{}] * number, target_mbs)

    def _check_inputs(self, arg_mbs: list[Any] | None = None, kwarg_mbs: list[Any] | None = None,
                      target_mbs: list[Any] | None = None, losses: list[Any] | None = None) -> tuple[list[Any], list[Any]]:
        """Returns args and kwargs. TypeError if an argument is not a list, ValueError for a list of a
        different length."""
        for name, values in (("arg_mbs", arg_mbs), ("kwarg_mbs", kwarg_mbs), ("target_mbs", target_mbs)):
            if values is None:
                continue
            if not isinstance(values, list):
                raise TypeError(f"{name}: expected a list, got {type(values).__name__}")
            if len(values) != self._n_microbatches:
                raise ValueError(f"{name}: expected {self._n_microbatches} microbatches, got {len(values)}")
        if losses is not None and not isinstance(losses, list):
            raise TypeError(f"losses: expected a list, got {type(losses).__name__}")
        return (arg_mbs if arg_mbs is not None else [()] * self._n_microbatches,
                kwarg_mbs if kwarg_mbs is not None else [{}] * self._n_microbatches)

    def _merge_outputs(self, output_chunks: list[Any]) -> Any:
        """The output of the batch."""
        return merge_chunks(output_chunks, self._output_merge_spec)

    def _compute_loss(self, output: Any, target: Any, loss_kwargs: dict[str, Any] | None = None) -> Any:
        """The loss of one microbatch."""
        if self._loss_fn is None:
            raise ValueError("expected a schedule with loss_fn, got one without")
        return self._loss_fn(output, target, **(loss_kwargs or {}))

    def _maybe_compute_loss(self, stage: Any, output: Any, target_mbs: Any, mb_index: int,
                            loss_kwargs: dict[str, Any] | None = None) -> None:
        """On the last stage, with a loss: computes and keeps the loss of a microbatch."""
        if stage.is_last and self._loss_fn is not None:
            target = None if target_mbs is None else target_mbs[mb_index]
            self._internal_losses[mb_index] = self._compute_loss(output, target, loss_kwargs)

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> Any:
        """On the last stage, with a loss: the kept loss of a microbatch. None elsewhere."""
        if not stage.is_last or self._loss_fn is None:
            return None
        if self._internal_losses and mb_index not in self._internal_losses:
            raise RuntimeError(f"expected the loss of microbatch {mb_index}, got losses of microbatches "
                               f"{sorted(self._internal_losses)} only")
        return self._internal_losses.get(mb_index)

    def _update_losses(self, stages: Any, losses: list[Any] | None) -> None:
        """Puts the losses of a step into the caller's list, by microbatch, and forgets them."""
        local = stages if isinstance(stages, list) else [stages]
        kept, self._internal_losses = self._internal_losses, {}
        if losses is None or not any(stage.is_last for stage in local):
            return
        if len(kept) != self._n_microbatches:
            raise RuntimeError(f"expected {self._n_microbatches} losses, got {len(kept)}")
        losses[:] = [kept[index] for index in sorted(kept)]

    def __repr__(self) -> str:
        stages = [getattr(stage, "stage_index", None) for stage in self._local_stages()]
        return (f"{type(self).__name__}(stages {', '.join(map(str, stages))} of {getattr(self, '_num_stages', '?')}, "
                f"{self._n_microbatches} microbatches, {'with' if self._loss_fn else 'without'} a loss)")

    def __getstate__(self) -> Any:
        raise TypeError(f"{type(self).__name__} runs on a process group and can be neither pickled nor copied; "
                        f"pickle its lists instead: stagecraft.Schedule.of(schedule.pipeline_order)")


class _EngineSchedule(_PipelineSchedule):
    """A schedule whose steps the C++ library runs."""

    # The flags that programs set to False before batches of different shapes: forward, backward.
    _flags: ClassVar[tuple[str, str]]

    def _is_initialized(self) -> bool:
        """Whether the known metadata of values is valid for the next step."""
        return bool(getattr(self, self._flags[0]))

    def _set_initialized(self, training: bool) -> None:
        setattr(self, self._flags[0], True)
        if training:
            setattr(self, self._flags[1], True)

    def _step_microbatches(self, arg_mbs: list[Any] | None = None, kwarg_mbs: list[Any] | None = None,
                           target_mbs: list[Any] | None = None, losses: list[Any] | None = None,
                           return_outputs: bool = True, loss_kwargs: dict[str, Any] | None = None) -> Any:
        return engine.step_microbatches(self, arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs)
