"""What runs the steps of a schedule object: a batch in, results out.

There is one runtime, in C++. A schedule object has one runner, made at its first step; C++ code
owns modules and losses, never the schedule or its stages, so that both die when they are dropped.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from typing import Any

import torch
import torch.utils._pytree as pytree

from stagecraft import _C, values
from stagecraft.errors import ArgumentError, PipeliningMetadataError
from stagecraft.microbatch import TensorChunkSpec
from stagecraft.reports import MemoryEstimate, Report
from stagecraft.stage import _PipelineStageBase, _prepare_call
from stagecraft.world import deliver_log, world_of

__all__: list[str] = []


def _rows(microbatches: list[Any], spec: Any) -> list[float] | None:
    """The rows of each microbatch, by its first tensor that is cut; None if there is none."""
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
    """The weights of the losses: shares of the rows, or 1. None: this rank does not know."""
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


class _Wait:
    """A receive that is posted: `wait` brings the values."""

    def __init__(self, driven: _Driven, part: int, forward: bool) -> None:
        self._driven, self._part, self._forward = driven, part, forward

    def wait(self, timeout: Any = None) -> bool:
        if self._forward:
            self._driven.inputs(self._part)
        else:
            self._driven.output_grads(self._part)
        return True

    def is_completed(self) -> bool:
        return False


class _Driven:
    """An action whose handler is Python code. Stages and schedule are bound to it meanwhile, for
    any thread that the handler starts."""

    def __init__(self, schedule: Any, action: Any) -> None:
        self._action = action
        self._schedule = schedule
        self._stages = {stage.stage_index: stage for stage in _stages_of(schedule)}
        self._parts = {part: i for i, part in enumerate(action.parts)}
        self._lock = threading.RLock()
        self._inputs: dict[int, Any] = {}
        self._grads_in: dict[int, Any] = {}
        self._outputs: dict[int, tuple[Any, int, Any]] = {}
        self._grads: dict[int, Any] = {}
        self._done: set[int] = set()

    def __enter__(self) -> _Driven:
        schedule = self._schedule
        schedule._driven = self
        schedule.fwd_recv_ops = {}
        schedule.bwd_recv_ops = {}
        for stage in self._stages.values():
            stage._driven = self
            stage._call.is_driven = True
        for (index, kind, microbatch), part in self._parts.items():
            if kind == "F" and index > 0 and index - 1 not in self._stages:
                schedule.fwd_recv_ops[index, microbatch] = [_Wait(self, part, True)]
            last = self._stages[index].is_last if index in self._stages else True
            if kind in ("B", "I") and not last and index + 1 not in self._stages:
                schedule.bwd_recv_ops[index, microbatch] = [_Wait(self, part, False)]
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._schedule._driven = None
            for stage in self._stages.values():
                stage._driven = None
                stage._call.is_driven = False
                stage.bwd_cache.clear()

    def find(self, stage: int, kind: str, microbatch: int) -> int | None:
        return self._parts.get((stage, kind, microbatch))

    def inputs(self, part: int) -> Any:
        with self._lock:
            if part not in self._inputs:
                self._inputs[part] = self._action.take_inputs(part)
            return self._inputs[part]

    def output_grads(self, part: int) -> Any:
        with self._lock:
            if part not in self._grads_in:
                self._grads_in[part] = self._action.take_output_grads(part)
            return self._grads_in[part]

    def forward(self, part: int, stage: Any, args: Any, kwargs: Any) -> Any:
        microbatch = self._action.parts[part][2]
        given, named = self.inputs(part)
        if stage.is_first and args:
            given = tuple(args)
        call = stage._call
        if kwargs is not None and call.kwargs is not None:
            call.kwargs[microbatch] = kwargs
        value = self._action.forward(part, given, named)
        raw = call.raw[microbatch]
        if not stage.is_last:
            del call.raw[microbatch]
        with self._lock:
            self._outputs[part] = (stage, microbatch, value)
        return raw

    def hand_over_output(self, stage: int, microbatch: int, outputs: Any) -> bool:
        part = self.find(stage, "F", microbatch)
        if part is None or part not in self._outputs:
            return False
        with self._lock:
            self._action.finish_forward(part, values.outgoing(outputs, False), None, False)
            self._done.add(part)
        return True

    def backward(self, part: int, stage: Any, microbatch: int, full: bool) -> None:
        grads = self.output_grads(part)
        result = self._action.backward(part, grads, full)
        stage.bwd_cache[microbatch] = result
        with self._lock:
            self._grads[part] = result

    def backward_weight(self, part: int) -> None:
        self._action.backward_weight(part)

    def hand_over_grads(self, stage: int, microbatch: int, grads: Any) -> bool:
        part = self.find(stage, "B", microbatch)
        if part is None:
            part = self.find(stage, "I", microbatch)
        if part is None or part not in self._grads:
            return False
        with self._lock:
            self._action.finish_backward(part, tuple(grads))
            self._done.add(part)
        return True

    def _finish(self) -> None:
        """Hands over what the handler has computed and not handed over."""
        for part, (stage, microbatch, value) in self._outputs.items():
            if part in self._done:
                continue
            if stage.is_last:
                losses = self._schedule._internal_losses
                loss = losses.get(microbatch)
                call = stage._call
                raw = call.raw.pop(microbatch, None)
                if call.keeps_outputs:
                    call.outputs[microbatch] = values.detached(raw)
                self._action.finish_forward(part, value, loss, True)
                if loss is not None:
                    losses[microbatch] = loss.detach()
            else:
                self._action.finish_forward(part, value, None, False)
        for part, grads in self._grads.items():
            if part not in self._done:
                self._action.finish_backward(part, grads)


def _stages_of(schedule: Any) -> list[Any]:
    stages: list[Any] = schedule._local_stages()
    return stages


def _functions_of(schedule: Any) -> dict[Any, Any]:
    functions: dict[Any, Any] = getattr(schedule, "_comp_type_to_function_map", {})
    return functions


_OVERRIDES = {
    "forward_one_chunk": ("F",),
    "backward_one_chunk": ("B", "I"),
    "backward_weight_one_chunk": ("W",),
}


def _run_part(schedule: Any, action: Any, context: Any) -> None:
    """What upstream's runtime does for an action, for stages that override a part of it."""
    kind = action.computation_type.value
    stage = next(s for s in _stages_of(schedule) if s.stage_index == action.stage_index)
    m = action.microbatch_index
    if kind == "F":
        args = context.arg_mbs[m] if context.arg_mbs else ()
        kwargs = context.kwarg_mbs[m] if context.kwarg_mbs else {}
        output = stage.forward_one_chunk(m, args, kwargs)
        schedule._maybe_compute_loss(stage, output, context.target_mbs, m)
    elif kind == "W":
        schedule.backward_counter[stage.stage_index] += 1
        last = schedule.backward_counter[stage.stage_index] == schedule._n_microbatches
        stage.backward_weight_one_chunk(m, last_backward=last)
    else:
        full = kind == "B"
        if full:
            schedule.backward_counter[stage.stage_index] += 1
        last = full and schedule.backward_counter[stage.stage_index] == schedule._n_microbatches
        stage.backward_one_chunk(
            m, loss=schedule._maybe_get_loss(stage, m), full_backward=full, last_backward=last
        )


class _Engine:
    """The runner of one schedule object."""

    def __init__(self) -> None:
        self._runner: Any = None
        self._key: Any = None
        self._modules: dict[int, Any] = {}
        self._failed = False
        self._context: Any = None
        self.reduces = True

    @property
    def runner(self) -> Any:
        if self._runner is None:
            raise ArgumentError("there is no step yet")
        return self._runner

    def _prepare(self, schedule: Any) -> Any:
        stages = _stages_of(schedule)
        source = _source_of(schedule)
        for stage in stages:
            _prepare_call(stage)
            if stage._call.wrapper is not None and _splits_backward(schedule, source):
                if stage._call.wrapper.kind == "DistributedDataParallel":
                    raise ArgumentError(
                        f"{type(schedule).__name__} runs input and weight backward apart, which "
                        "DistributedDataParallel does not follow; use a schedule of full backwards, or FSDP"
                    )
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
        for stage in stages:
            module = stage._call.module
            if self._failed or self._modules.get(stage.stage_index) is not module:
                self._runner.refresh(stage.stage_index, stage._call.tensors)
                self._modules[stage.stage_index] = module
        self._failed = False
        return world

    def _build(self, schedule: Any, stages: Any, world: Any, source: Any, handlers: Any) -> None:
        last = next((s for s in stages if s.is_last), None)
        has_loss = last is not None and schedule._loss_fn is not None
        options = {
            "timeout": world.timeout,
            "loss": last._call.loss if has_loss and last is not None else None,
            "random": "process",
            "ports": _ports_of(schedule),
            "ties": _ties_of(schedule) if world.size > 1 else [],
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
        for name, kinds in _OVERRIDES.items():
            if any(getattr(type(s), name) is not getattr(_PipelineStageBase, name) for s in stages):
                for kind in kinds:
                    handlers[kind] = self._handler(schedule, _run_part)
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
            with _Driven(own, action):
                function(own, what, me._context)

        return handle

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
        stages = _stages_of(schedule)
        count = schedule._n_microbatches
        if any(not hasattr(stage, "_call") for stage in stages):
            return _run_stand_ins(schedule, stages, arg_mbs, kwarg_mbs)
        first = next((s for s in stages if s.is_first), None)
        last = next((s for s in stages if s.is_last), None)
        if first is not None and first._runtime_validate:
            _validate_first(first, arg_mbs, kwarg_mbs)
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
        if _has_ports(schedule):
            # Model inputs enter at each stage that reads them.
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
        if first is not None and first._runtime_validate:
            _remember_first(first, arg_mbs, kwarg_mbs)
        if losses is not None and last is not None:
            losses[:] = result["losses"]


# What upstream checks before a step of stages that are not its own.


def _run_stand_ins(schedule: Any, stages: Any, arg_mbs: Any, kwarg_mbs: Any) -> None:
    args = arg_mbs[0] if arg_mbs else ()
    kwargs = kwarg_mbs[0] if kwarg_mbs else {}
    for stage in stages:
        stage._prepare_forward_infra(schedule._n_microbatches, args, kwargs, has_backward=schedule._has_backward)
    check_adjacent(schedule)
    order = schedule.pipeline_order
    if any(action is not None for actions in order.values() for action in actions):
        names = ", ".join(sorted({type(stage).__name__ for stage in stages}))
        raise TypeError(
            f"stages of {names} cannot be run: they override _prepare_forward_infra and have no module "
            "that the engine could call; use PipelineStage"
        )


def check_adjacent(schedule: Any) -> None:
    """RuntimeError where a stand-in's transfers name a stage that is not its neighbour."""
    for stage in _stages_of(schedule):
        index = stage.stage_index
        sources = {
            info.source
            for info in getattr(stage, "args_recv_info", {}).get(0, ())
            if getattr(info, "source", None) is not None and not getattr(info, "is_root_arg", False)
        }
        targets = {
            to for group in getattr(stage, "act_send_info", {}).values() for to in group if to is not None
        }
        for what, found, allowed in (("reads", sources, index - 1), ("sends to", targets, index + 1)):
            if found - {allowed}:
                raise RuntimeError(
                    f"stage {index} {what} stages {sorted(found)}, but stages of this class have "
                    f"adjacent-stage communication only: stage {allowed} was expected. Stages that are "
                    "PipelineStages may have skip edges"
                )


# `_runtime_validate`: the rank of stage 0 compares before it meets any other rank.


def _metas(tree: Any) -> Any:
    from stagecraft._utils import extract_tensor_metas

    leaves = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return extract_tensor_metas(tuple(leaves))


def _output_metas(stage: Any, args: Any, kwargs: Any) -> Any:
    """What the module returns for a microbatch. The module and all random numbers are as before."""
    module = stage.submod
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    with torch.no_grad(), torch.random.fork_rng():
        output = module(*args, **kwargs)
        for buffer, before in buffers:
            buffer.copy_(before)
    return _metas(output)


def _compare(what: str, expected: Any, actual: Any) -> None:
    if len(expected) != len(actual):
        raise PipeliningMetadataError(f"{what}: expected {len(expected)} tensors, got {len(actual)}")
    for index, (before, now) in enumerate(zip(expected, actual)):
        if type(before) is not type(now):
            raise PipeliningMetadataError(f"{what} {index}: expected {before}, got {now}")
        difference = before.get_diff(now)
        if difference:
            raise PipeliningMetadataError(f"{what} {index}: " + "; ".join(difference))


def _validate_first(stage: Any, arg_mbs: Any, kwarg_mbs: Any) -> None:
    known = stage.__dict__.get("_seen_meta")
    if known is None:
        if stage._stage_meta.inputs is None:
            return
        known = (stage._stage_meta.inputs, stage._stage_meta.outputs)
    inputs, outputs = known
    for args in arg_mbs or ():
        _compare(f"input of stage {stage.stage_index}", inputs, _metas(args))
    if outputs is not None and arg_mbs:
        kwargs = kwarg_mbs[0] if kwarg_mbs else {}
        actual = _output_metas(stage, arg_mbs[0], kwargs)
        _compare(f"output of stage {stage.stage_index}", outputs, actual)


def _remember_first(stage: Any, arg_mbs: Any, kwarg_mbs: Any) -> None:
    if "_seen_meta" in stage.__dict__ or not arg_mbs:
        return
    kwargs = kwarg_mbs[0] if kwarg_mbs else {}
    stage._seen_meta = (_metas(arg_mbs[0]), _output_metas(stage, arg_mbs[0], kwargs))


# What schedules.py calls.


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
    stages = _stages_of(schedule)
    # Positional arguments count where stage 0 is, the target where the last one is.
    if not any(stage.is_first for stage in stages) and not _has_ports(schedule):
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
    """Where the time of the last step went (`_PipelineSchedule.report`)."""
    return Report(_engine_of(schedule).runner.report())


def memory_estimate(schedule: Any, microbatches: int) -> MemoryEstimate:
    """The peak memory of a step (`_PipelineSchedule.memory_estimate`)."""
    return MemoryEstimate._of(_engine_of(schedule).runner.memory_estimate(microbatches))


# What runs ---------------------------------------------------------------------------------------


def _ports_of(schedule: Any) -> Any:
    for stage in _stages_of(schedule):
        ports = getattr(getattr(stage, "pipe_info", None), "ports", None)
        if ports is not None:
            return ports
    return None


def _ties_of(schedule: Any) -> list[list[tuple[int, str]]]:
    """Weights that stages of several ranks read. Stages of one rank share the tensor, so one of them counts."""
    place = schedule.stage_index_to_group_rank
    for stage in _stages_of(schedule):
        ties = getattr(getattr(stage, "pipe_info", None), "ties", None)
        if ties is None:
            continue
        groups = []
        for group in ties:
            first: dict[int, tuple[int, str]] = {}
            for index, name in group:
                first.setdefault(place[index], (index, name))
            if len(first) > 1:
                groups.append(list(first.values()))
        return groups
    return []


def _has_ports(schedule: Any) -> bool:
    return _ports_of(schedule) is not None


def _text_of(order: Any) -> str:
    """Lists of actions as a CSV of schedules: a line for each rank."""
    lines = []
    for rank in range(len(order)):
        fields = ["" if action is None else str(action) for action in order[rank]]
        lines.append('""' if fields == [""] else ",".join(fields))
    return "\n".join(lines) + "\n"


def _source_of(schedule: Any) -> dict[str, Any]:
    """What the runner makes its schedule from; see bindings/runner.cpp."""
    if getattr(schedule, "_comms_are_own", False):
        return {"text": _text_of(schedule.pipeline_order_with_comms)}
    options: dict[str, Any] = {"max_active_stages": getattr(schedule, "_max_active_stages", None)}
    if getattr(schedule, "_defer_pp_recv", False):
        options["prefetch"] = 0
    if schedule._order_is_own or schedule._kind is None:
        return {"text": _text_of(schedule.pipeline_order), **options}
    return {
        "name": schedule._kind,
        "ranks": schedule.pp_group_size,
        "stages_per_rank": len(_stages_of(schedule)),
        **options,
    }


def _splits_backward(schedule: Any, source: dict[str, Any]) -> bool:
    if "name" in source:
        return source["name"] in ("InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV", "ZeroBubble")
    kinds = {text.lstrip("0123456789")[:1] for text in source["text"].replace("\n", ",").split(",")}
    return "W" in kinds
