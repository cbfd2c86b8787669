"""What runs the steps of a schedule object: a batch in, results out.

There is one runtime, in C++. A schedule object has one runner, made at its first step; C++ code
owns modules and losses, never the schedule or its stages, so that both die when they are dropped.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from typing import Any

import torch
import torch.utils._pytree as pytree

from stagecraft import _C, values
from stagecraft.errors import ArgumentError, PipeliningMetadataError
from stagecraft.microbatch import TensorChunkSpec, merge_chunks, split_args_kwargs_into_chunks
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


def _weights(schedule: Any, arg_mbs: Any, target_mbs: Any) -> list[float] | None:
    """The weights of the losses: shares of the rows, or 1. None: this rank does not know."""
    if not schedule.scale_grads:
        return [1.0] * schedule._n_microbatches
    rows = None
    if target_mbs is not None:
        rows = _rows(target_mbs, None)
    if rows is None and arg_mbs is not None:
        rows = _rows(arg_mbs, schedule._args_chunk_spec)
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
        self.losses: dict[int, torch.Tensor] = {}

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
                loss = self.losses.get(microbatch)
                call = stage._call
                raw = call.raw.pop(microbatch, None)
                if call.keeps_outputs:
                    call.outputs[microbatch] = values.detached(raw)
                self._action.finish_forward(part, value, loss, True)
            else:
                self._action.finish_forward(part, value, None, False)
        for part, grads in self._grads.items():
            if part not in self._done:
                self._action.finish_backward(part, grads)


def _stages_of(schedule: Any) -> list[Any]:
    stages = getattr(schedule, "_stages", None)
    return list(stages) if stages is not None else [schedule._stage]


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

    @property
    def runner(self) -> Any:
        if self._runner is None:
            raise ArgumentError("there is no step yet")
        return self._runner

    def _prepare(self, schedule: Any) -> Any:
        stages = _stages_of(schedule)
        for stage in stages:
            _prepare_call(stage)
            if schedule._splits_backward() and stage._call.wrapper is not None:
                if stage._call.wrapper.kind == "DistributedDataParallel":
                    raise ArgumentError(
                        f"{type(schedule).__name__} runs input and weight backward apart, which "
                        "DistributedDataParallel does not follow; use a schedule of full backwards, or FSDP"
                    )
        world = world_of(stages[0].group)
        source = schedule._source()
        handlers = self._handlers(schedule, stages)
        key = (
            id(world),
            tuple(sorted((k, str(v)) for k, v in source.items())),
            tuple((id(s), s.stage_index, id(s._call.wrapper), s._call.recompute) for s in stages),
            schedule._loss_fn is None,
            tuple(sorted(handlers)),
            tuple(id(f) for f in schedule._custom_functions.values()),
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
            "random": schedule._random,
            "ports": schedule._ports_of_pipe(),
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
        for kind, function in schedule._custom_functions.items():
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
            _check_stand_ins(schedule, stages, arg_mbs, kwarg_mbs)
            return
        first = next((s for s in stages if s.is_first), None)
        last = next((s for s in stages if s.is_last), None)
        if first is not None and first._runtime_validate:
            _validate_first(first, arg_mbs, kwarg_mbs)
        world = self._prepare(schedule)
        has_kwargs = kwarg_mbs is not None and any(kwarg_mbs)
        options: dict[str, Any] = {
            "microbatches": count,
            "weights": _weights(
                schedule, arg_mbs if first is not None else None, target_mbs if last is not None else None
            ),
            "measure_memory": schedule.measure_memory,
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
        if first is not None and arg_mbs is not None:
            inputs = [(tuple(args), {}) for args in arg_mbs]
        if schedule._custom_functions or len(self._key[4]) > 0:
            from stagecraft.schedules import _PipelineContext

            self._context = _PipelineContext(
                schedule,
                arg_mbs if arg_mbs is not None else [()] * count,
                kwarg_mbs if kwarg_mbs is not None else [{}] * count,
                target_mbs,
                losses,
            )
            schedule.backward_counter = Counter()
            schedule._losses_of_step = {}
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
            for stage in stages:
                stage._call.clear()
            deliver_log()
        if first is not None and first._runtime_validate:
            _remember_first(first, arg_mbs, kwarg_mbs)
        if losses is not None and last is not None:
            losses.clear()
            losses.extend(result["losses"])


# What upstream checks before a step of stages that are not its own.


def _check_stand_ins(schedule: Any, stages: Any, arg_mbs: Any, kwarg_mbs: Any) -> None:
    args = arg_mbs[0] if arg_mbs else ()
    kwargs = kwarg_mbs[0] if kwarg_mbs else {}
    for stage in stages:
        stage._prepare_forward_infra(schedule._n_microbatches, args, kwargs)
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
    order = schedule.pipeline_order
    if any(action is not None for actions in order.values() for action in actions):
        names = ", ".join(sorted({type(stage).__name__ for stage in stages}))
        raise TypeError(
            f"stages of {names} cannot be run: they override _prepare_forward_infra and have no module "
            "that the engine could call; use PipelineStage"
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


class _Steps:
    """`step` and `eval` of every schedule class."""

    # What the classes of schedules.py have.
    _n_microbatches: int
    _loss_fn: Any
    _args_chunk_spec: Any
    _kwargs_chunk_spec: Any
    _output_merge_spec: Any
    scale_grads: bool

    _random = "process"
    measure_memory = False
    _driven: Any = None

    def _source(self) -> dict[str, Any]:
        """What the engine builds its schedule from; see bindings/runner.cpp."""
        raise NotImplementedError

    def _splits_backward(self) -> bool:
        return False

    def _ports_of_pipe(self) -> Any:
        for stage in _stages_of(self):
            info = getattr(stage, "pipe_info", None)
            ports = getattr(info, "ports", None)
            if ports is not None:
                return ports
        return None

    @property
    def _engine(self) -> _Engine:
        engine = self.__dict__.get("_own_engine")
        if engine is None:
            engine = self.__dict__["_own_engine"] = _Engine()
        return engine

    @property
    def _custom_functions(self) -> dict[Any, Any]:
        return getattr(self, "_comp_type_to_function_map", {})

    # Batches ------------------------------------------------------------------------------------

    def _check_inputs(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
    ) -> tuple[Any, Any]:
        count = self._n_microbatches
        for name, given in (
            ("arg_mbs", arg_mbs),
            ("kwarg_mbs", kwarg_mbs),
            ("target_mbs", target_mbs),
        ):
            if given is not None and len(given) != count:
                raise ValueError(f"expected {name} of {count} microbatches, got {len(given)}")
        if losses is not None and not isinstance(losses, list):
            raise TypeError(f"losses must be a list, got {type(losses).__name__}")
        return (
            arg_mbs if arg_mbs is not None else [()] * count,
            kwarg_mbs if kwarg_mbs is not None else [{}] * count,
        )

    def _split_inputs(
        self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> tuple[list[Any], list[Any]]:
        if not args and not kwargs:
            return [()] * self._n_microbatches, [{}] * self._n_microbatches
        return split_args_kwargs_into_chunks(
            args,
            kwargs or {},
            self._n_microbatches,
            self._args_chunk_spec,
            self._kwargs_chunk_spec,
        )

    def _split_target(self, target: Any) -> list[Any] | None:
        if target is None:
            return None
        count = self._n_microbatches
        if isinstance(target, torch.Tensor):
            return list(torch.tensor_split(target, count))
        pieces, _ = split_args_kwargs_into_chunks((target,), {}, count)
        return [piece[0] for piece in pieces]

    def _merge_outputs(self, output_chunks: list[Any]) -> Any:
        return merge_chunks(output_chunks, self._output_merge_spec)

    # Losses -------------------------------------------------------------------------------------

    def _compute_loss(self, output: Any, target: Any, loss_kwargs: Any = None) -> Any:
        return self._loss_fn(output, target, **(loss_kwargs or {}))

    def _maybe_compute_loss(
        self, stage: Any, output: Any, target_mbs: Any, mb_index: int, loss_kwargs: Any = None
    ) -> None:
        if not stage.is_last or self._loss_fn is None:
            return
        target = target_mbs[mb_index] if target_mbs is not None else None
        loss = self._compute_loss(output, target, loss_kwargs)
        self.__dict__.setdefault("_losses_of_step", {})[mb_index] = loss.detach()
        if self._driven is not None:
            self._driven.losses[mb_index] = loss
        else:
            self._losses_of_step[mb_index] = loss

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> Any:
        if not stage.is_last or self._loss_fn is None:
            return None
        known = self.__dict__.get("_losses_of_step", {})
        if mb_index not in known:
            raise RuntimeError(
                f"there is no loss of microbatch {mb_index}; known: {sorted(known)}"
            )
        return known[mb_index]

    def _update_losses(self, stages: Any, losses: Any) -> None:
        stages = stages if isinstance(stages, list) else [stages]
        known = self.__dict__.get("_losses_of_step", {})
        if losses is not None and any(stage.is_last for stage in stages):
            losses.clear()
            losses.extend(known[m] for m in sorted(known))
        known.clear()

    # Steps --------------------------------------------------------------------------------------

    @property
    def n_microbatches(self) -> int:
        """The number of microbatches of the next step. All ranks assign the same."""
        return self._n_microbatches

    @n_microbatches.setter
    def n_microbatches(self, count: int) -> None:
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"expected a number of microbatches from 1, got {count!r}")
        self._n_microbatches = count
        self._on_new_count()

    def _on_new_count(self) -> None:
        pass

    def _run_batch(
        self,
        training: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        target: Any,
        losses: Any,
        return_outputs: bool,
        loss_kwargs: Any,
        arg_mbs: Any,
        kwarg_mbs: Any,
        target_mbs: Any,
    ) -> Any:
        given = [
            name
            for name, value in (
                ("arg_mbs", arg_mbs),
                ("kwarg_mbs", kwarg_mbs),
                ("target_mbs", target_mbs),
            )
            if value is not None
        ]
        whole = bool(args) or bool(kwargs) or target is not None
        if given and whole:
            raise ValueError(
                f"a batch is given whole or in microbatches: {', '.join(given)} came with a whole batch"
            )
        stages = _stages_of(self)
        if not given:
            is_first = any(stage.is_first for stage in stages)
            arg_mbs, kwarg_mbs = self._split_inputs(args if is_first else (), kwargs)
            if is_first and not args:
                arg_mbs = None if not kwargs else arg_mbs
            target_mbs = self._split_target(target) if any(s.is_last for s in stages) else None
        for stage in stages:
            if hasattr(stage, "_call"):
                stage.clear_runtime_states()
        self._mode = training
        try:
            self._step_microbatches(
                arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs
            )
        finally:
            self._mode = None
        last = next((stage for stage in stages if stage.is_last), None)
        if last is None or not return_outputs or not getattr(last, "output_chunks", None):
            return None
        return self._merge_outputs(last.output_chunks)

    _mode: bool | None = None

    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Runs a step on microbatches; results are in the stages (``output_chunks``) and `losses`."""
        self._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        training = self._trains() if self._mode is None else self._mode
        self._engine.run(
            self, training, arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs
        )

    def _trains(self) -> bool:
        return self._loss_fn is not None

    def step(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Trains on a batch: forward and backward of all its microbatches. All ranks call it.

        Positional arguments count on the rank of stage 0, `target` on that of the last stage; named
        arguments go to each stage of the rank that gives them. Without a loss it runs the forwards.

        Args:
            target: what the loss compares the output with; cut along dimension 0.
            losses: a list that gets the loss of each microbatch, on the rank of the last stage.
            return_outputs: whether outputs are kept and returned.
            loss_kwargs: named arguments of the loss.
            arg_mbs, kwarg_mbs, target_mbs: the batch in microbatches, instead of whole.

        Returns:
            The merged output on the rank of the last stage, else None.
        """
        if self._trains() and not torch.is_grad_enabled():
            raise RuntimeError(
                "step trains, but gradients are disabled here (torch.no_grad); call eval for the forwards"
            )
        return self._run_batch(
            self._trains(),
            args,
            kwargs,
            target,
            losses,
            return_outputs,
            loss_kwargs,
            arg_mbs,
            kwarg_mbs,
            target_mbs,
        )

    def eval(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Any] | None = None,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        return_outputs: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Runs the forwards of a batch, without gradients. The loss is computed if there is a target."""
        with torch.no_grad():
            return self._run_batch(
                False,
                args,
                kwargs,
                target,
                losses,
                return_outputs,
                None,
                arg_mbs,
                kwarg_mbs,
                target_mbs,
            )

    # After a step -------------------------------------------------------------------------------

    def report(self) -> Report:
        """Where the time of the last step went, on all ranks. All ranks call it."""
        return Report(self._engine.runner.report())

    def memory_estimate(self, microbatches: int) -> MemoryEstimate:
        """The peak memory of a step with that many microbatches, each as large as in the last step
        with ``schedule.measure_memory = True``. All ranks call it."""
        return MemoryEstimate._of(self._engine.runner.memory_estimate(microbatches))

    def __reduce__(self) -> Any:
        raise TypeError(
            "a schedule object cannot be pickled or copied: its stages belong to this process; "
            "stagecraft.Schedule is the value"
        )
