"""Runs the steps of a schedule object.

There is one runtime, in C++. A schedule object has one runner, made at its first step; C++ code
owns modules and losses, never the schedule or its stages, so that Python frees both when they are
dropped.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree

from stagecraft import _C, _compare, _driven, _sources
from stagecraft.errors import ArgumentError
from stagecraft.microbatch import TensorChunkSpec
from stagecraft.reports import MemoryEstimate, Report
from stagecraft._stage_base import _PipelineStageBase, _prepare_call
from stagecraft.world import deliver_log, world_of

__all__: list[str] = []


def _rows(microbatches: list[Any], spec: Any) -> list[float] | None:
    """The rows of each microbatch, by its first tensor that is split; None if there is none."""
    if spec is None:
        # Nearly all arguments are plain tensors. Flattening a tree takes microseconds.
        plain = [each[0] if type(each) is tuple and len(each) == 1 else each for each in microbatches]
        if all(isinstance(each, torch.Tensor) and each.dim() > 0 for each in plain):
            counts = [float(each.shape[0]) for each in plain]
            return counts if sum(counts) > 0 else None
    first = pytree.tree_leaves(microbatches[0])
    dims: list[int | None] = [0] * len(first)
    if spec is not None:
        specs = pytree.tree_leaves(spec, is_leaf=lambda s: isinstance(s, TensorChunkSpec))
        if len(specs) == len(first):
            dims = [s.split_dim if isinstance(s, TensorChunkSpec) else None for s in specs]
    for index, (leaf, dim) in enumerate(zip(first, dims)):
        if dim is None or not isinstance(leaf, torch.Tensor) or leaf.dim() <= dim:
            continue
        sizes = []
        for microbatch in microbatches:
            leaves = pytree.tree_leaves(microbatch)
            if index >= len(leaves) or not isinstance(leaves[index], torch.Tensor):
                return None
            sizes.append(float(leaves[index].shape[dim]))
        return sizes if sum(sizes) > 0 else None
    return None


def _weights(schedule: Any, arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any) -> list[float] | None:
    """The weights of the losses: shares of the rows, or 1. None if this rank does not know them."""
    if not schedule.scale_grads:
        return [1.0] * schedule._n_microbatches
    rows = None
    if target_mbs is not None:
        rows = _rows(target_mbs, None)
    if rows is None and arg_mbs is not None:
        rows = _rows(arg_mbs, schedule._args_chunk_spec)
    if rows is None and kwarg_mbs is not None:
        rows = _rows(kwarg_mbs, schedule._kwargs_chunk_spec)
    if rows is None:
        return None
    total = sum(rows)
    return [each / total for each in rows]


def _functions_of(schedule: Any) -> dict[Any, Any]:
    functions: dict[Any, Any] = getattr(schedule, "_comp_type_to_function_map", {})
    return functions


class _Engine:
    """The runner of one schedule object."""

    def __init__(self) -> None:
        self._runner: Any = None
        self._key: Any = None
        # Keeps the objects alive that the key names by their addresses.
        self._keyed: Any = None
        self._modules: dict[int, Any] = {}
        self._failed = False
        self._context: Any = None
        self._lock = threading.Lock()
        self.reduces = True

    @property
    def runner(self) -> Any:
        if self._runner is None:
            raise ArgumentError("there is no step yet")
        return self._runner

    def _prepare(self, schedule: Any) -> Any:
        stages = schedule._local_stages()
        source = _sources.source_of(schedule)
        for stage in stages:
            _prepare_call(stage)
        world = world_of(stages[0].group)
        handlers = self._handlers(schedule, stages)
        key = (
            id(world),
            tuple(sorted((k, str(v)) for k, v in source.items())),
            tuple((id(s), s.stage_index, id(s._call.wrapper), s._call.recompute) for s in stages),
            schedule._loss_fn is None,
            tuple(sorted(handlers)),
            tuple(id(f) for f in _functions_of(schedule).values()),
        )
        if key != self._key:
            self._build(schedule, stages, world, source, handlers)
            self._key = key
            self._keyed = (world, [stage._call.wrapper for stage in stages])
        for stage in stages:
            module = stage._call.module
            if self._failed or self._modules.get(stage.stage_index) is not module:
                self._runner.refresh(stage.stage_index, stage._call.tensors)
                self._modules[stage.stage_index] = module
        self._failed = False
        return world

    def _build(self, schedule: Any, stages: Any, world: Any, source: Any, handlers: Any) -> None:
        wrappers = [stage._call.wrapper for stage in stages if stage._call.wrapper is not None]
        has_ddp = any(wrapper.kind == "DistributedDataParallel" for wrapper in wrappers)
        if has_ddp and _sources.splits_backward(schedule, source):
            raise ArgumentError(
                f"{type(schedule).__name__} splits backwards into input and weight backward, which "
                "DistributedDataParallel does not follow; use a schedule of full backwards, or FSDP"
            )
        last = next((s for s in stages if s.is_last), None)
        has_loss = last is not None and schedule._loss_fn is not None
        options = {
            "timeout": world.timeout,
            "loss": last._call.loss if has_loss and last is not None else None,
            "random": "process",
            "ports": _sources.ports_of(schedule),
            "ties": _sources.ties_of(schedule) if world.size > 1 else [],
        }
        self._runner = None
        self._runner = _C.RankRunner(
            world._inner,
            source,
            stages[0].num_stages,
            [(stage.stage_index, stage._call) for stage in stages],
            options,
        )
        self._modules = {stage.stage_index: stage._call.module for stage in stages}
        for kind, function in handlers.items():
            self._runner.set_handler(kind, function)

    def _handlers(self, schedule: Any, stages: Any) -> dict[str, Any]:
        handlers: dict[str, Any] = {}
        for name, kinds in _driven.OVERRIDES.items():
            if any(getattr(type(s), name) is not getattr(_PipelineStageBase, name) for s in stages):
                for kind in kinds:
                    handlers[kind] = self._handler(schedule, _driven.run_part)
        for kind, function in _functions_of(schedule).items():
            handlers[kind.value] = self._handler(schedule, lambda s, a, c, f=function: f(a, c))
        return handlers

    def _handler(self, schedule: Any, function: Any) -> Any:
        # The runner must not own the schedule.
        reference = weakref.ref(schedule)
        engine = weakref.ref(self)

        def handle(action: Any) -> None:
            from stagecraft.schedules import _Action, _ComputationType

            own = reference()
            me = engine()
            assert own is not None and me is not None
            parts = [
                _Action(s, _ComputationType.from_str(kind), m if m >= 0 else None)
                for s, kind, m in action.parts
            ]
            if action.is_overlap:
                what = _Action(-1, _ComputationType.OVERLAP_F_B, None, tuple(parts))
            else:
                what = parts[0]
            with _driven.Driven(own, action):
                function(own, what, me._context)

        return handle

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise ArgumentError("a step of this schedule is in progress: stages and other threads cannot start another")
        try:
            yield
        finally:
            self._lock.release()

    def run(
        self,
        schedule: Any,
        training: bool,
        arg_mbs: Any,
        kwarg_mbs: Any,
        target_mbs: Any,
        losses: Any,
        return_outputs: bool,
        loss_kwargs: Any,
    ) -> None:
        """One step at a time: a second one, on another thread or inside a stage, is refused."""
        with self._alone():
            stages = schedule._local_stages()
            count = schedule._n_microbatches
            if any(not hasattr(stage, "_call") for stage in stages):
                return _compare.run_stand_ins(schedule, stages, arg_mbs, kwarg_mbs)
            if not schedule._is_initialized():
                for stage in stages:
                    stage._forget_look()
            first = next((s for s in stages if s.is_first), None)
            last = next((s for s in stages if s.is_last), None)
            if first is not None and first._runtime_validate:
                _compare.validate_first(first, arg_mbs, kwarg_mbs)
            world = self._prepare(schedule)
            has_kwargs = kwarg_mbs is not None and any(kwarg_mbs)
            options: dict[str, Any] = {
                "microbatches": count,
                "weights": _weights(
                    schedule,
                    arg_mbs if first is not None else None,
                    kwarg_mbs if first is not None else None,
                    target_mbs if last is not None else None,
                ),
                "measure_memory": schedule.measure_memory,
                "reduce_grads": self.reduces,
            }
            for stage in stages:
                call = stage._call
                call.clear()
                call.abroad = world.size > 1
                call.kwargs = [dict(each) for each in kwarg_mbs] if has_kwargs else None
                stage._has_backward = training
                stage._begin_look(training)
                stage.chunks = count
                stage.fwd_cache.clear()
                stage.bwd_cache.clear()
                stage.output_chunks.clear()
            if last is not None:
                call = last._call
                call.loss_fn = schedule._loss_fn
                call.targets = target_mbs
                call.loss_kwargs = dict(loss_kwargs or {})
                call.keeps_outputs = return_outputs
                call.wants_loss = schedule._loss_fn is not None and (training or target_mbs is not None)
                options["has_target"] = not training and call.wants_loss
            inputs: list[Any] = []
            if _sources.has_ports(schedule):
                # Each stage gets the model inputs that it reads.
                given = zip(arg_mbs or [()] * count, kwarg_mbs or [{}] * count)
                inputs = [(tuple(args), kwargs) for args, kwargs in given]
                if not any(args or kwargs for args, kwargs in inputs):
                    inputs = []
                for stage in stages:
                    stage._call.kwargs = None
            elif first is not None and arg_mbs is not None:
                inputs = [(tuple(args), {}) for args in arg_mbs]
            if self._key[4]:
                from stagecraft.schedules import _PipelineContext

                self._context = _PipelineContext(
                    schedule,
                    arg_mbs if arg_mbs is not None else [()] * count,
                    kwarg_mbs if kwarg_mbs is not None else [{}] * count,
                    target_mbs,
                    losses,
                )
                if not hasattr(schedule, "backward_counter"):
                    schedule.backward_counter = defaultdict(int)
                schedule.backward_counter.clear()
                schedule._internal_losses.clear()
            try:
                result = self._runner.run(training, inputs, options)
                if last is not None and return_outputs:
                    outputs = last._call.outputs
                    last.output_chunks.extend(outputs[m] for m in sorted(outputs))
            except BaseException:
                self._failed = True
                raise
            finally:
                self._context = None
                schedule._internal_losses.clear()
                for stage in stages:
                    stage._call.clear()
                deliver_log()
            for stage in stages:
                stage._end_look(training)
            schedule._set_initialized(training)
            if losses is not None and last is not None:
                losses[:] = result["losses"]


# The functions that schedules.py calls.


def _engine_of(schedule: Any) -> _Engine:
    engine: _Engine | None = schedule.__dict__.get("_engine")
    if engine is None:
        engine = schedule.__dict__["_engine"] = _Engine()
    return engine


def step(schedule: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, target: Any, losses: list[Any] | None,
         return_outputs: bool, loss_kwargs: dict[str, Any] | None, arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any,
         finalize_gradients: bool) -> Any:
    """Runs one step (`_PipelineSchedule.step`)."""
    trains = schedule._loss_fn is not None
    if trains and not torch.is_grad_enabled():
        raise RuntimeError(
            "step trains, but gradients are disabled here (torch.no_grad): call eval for the forwards alone")
    schedule._has_backward = trains
    _engine_of(schedule).reduces = finalize_gradients
    return _run_batch(schedule, args, kwargs, target, losses, return_outputs, loss_kwargs, arg_mbs, kwarg_mbs,
                      target_mbs)


def evaluate(schedule: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, target: Any, losses: list[Any] | None,
             arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any) -> Any:
    """Runs the forwards of one batch (`_PipelineSchedule.eval`)."""
    before = schedule._has_backward
    schedule._has_backward = False
    try:
        with torch.no_grad():
            return _run_batch(schedule, args, kwargs, target, losses, True, None, arg_mbs, kwarg_mbs, target_mbs)
    finally:
        schedule._has_backward = before


def _run_batch(schedule: Any, args: Any, kwargs: Any, target: Any, losses: Any, return_outputs: bool,
               loss_kwargs: Any, arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any) -> Any:
    stages = schedule._local_stages()
    # Positional arguments are used on the rank of stage 0, the target on the rank of the last
    # stage.
    if not any(stage.is_first for stage in stages) and not _sources.has_ports(schedule):
        args = ()
    if not any(stage.is_last for stage in stages):
        target = None
    if losses is not None and not isinstance(losses, list):
        raise TypeError(f"losses: expected a list, got {type(losses).__name__}")
    arg_mbs, kwarg_mbs, target_mbs = schedule._get_microbatch_inputs(
        args, kwargs, target, arg_mbs, kwarg_mbs, target_mbs)
    schedule._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs)
    last = next((stage for stage in stages if stage.is_last), None)
    if last is None or not return_outputs or not getattr(last, "output_chunks", None):
        return None
    return schedule._merge_outputs(last.output_chunks)


def step_microbatches(schedule: Any, arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any, losses: list[Any] | None,
                      return_outputs: bool, loss_kwargs: dict[str, Any] | None) -> Any:
    """Runs microbatches (`_PipelineSchedule._step_microbatches`)."""
    schedule._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
    training = schedule._has_backward and schedule._loss_fn is not None
    _engine_of(schedule).run(
        schedule, training, arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs)


def assert_unsharded(schedule: Any, stage: Any) -> None:
    """Waits until the parameters of a sharded stage are there."""
    wrapper = stage._call.wrapper
    if wrapper is not None and hasattr(wrapper, "_wait"):
        wrapper._wait()


def report(schedule: Any) -> Report:
    """The use of time in the last step (`_PipelineSchedule.report`)."""
    return Report(_engine_of(schedule).runner.report())


def memory_estimate(schedule: Any, microbatches: int) -> MemoryEstimate:
    """The peak memory of a step (`_PipelineSchedule.memory_estimate`)."""
    return MemoryEstimate._of(_engine_of(schedule).runner.memory_estimate(microbatches))
