"""Actions whose handlers are Python code: functions of the program, and stages that override their parts."""

from __future__ import annotations

import threading
from typing import Any

from stagecraft import values

__all__: list[str] = []


class _Wait:
    """A receive that is posted: `wait` brings the values."""

    def __init__(self, driven: Driven, part: int, forward: bool) -> None:
        self._driven, self._part, self._forward = driven, part, forward

    def wait(self, timeout: Any = None) -> bool:
        if self._forward:
            self._driven.inputs(self._part)
        else:
            self._driven.output_grads(self._part)
        return True

    def is_completed(self) -> bool:
        return False


class Driven:
    """An action whose handler is Python code. While the handler runs, stages and schedule refer to
    this object, on all threads that the handler starts."""

    def __init__(self, schedule: Any, action: Any) -> None:
        self._action = action
        self._schedule = schedule
        self._stages = {stage.stage_index: stage for stage in schedule._local_stages()}
        self._parts = {part: i for i, part in enumerate(action.parts)}
        self._lock = threading.RLock()
        self._inputs: dict[int, Any] = {}
        self._grads_in: dict[int, Any] = {}
        self._outputs: dict[int, tuple[Any, int, Any]] = {}
        self._grads: dict[int, Any] = {}
        self._done: set[int] = set()

    def __enter__(self) -> Driven:
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
        """The part that runs an action, or None."""
        return self._parts.get((stage, kind, microbatch))

    def inputs(self, part: int) -> Any:
        """The arguments of a part, taken once."""
        with self._lock:
            if part not in self._inputs:
                self._inputs[part] = self._action.take_inputs(part)
            return self._inputs[part]

    def output_grads(self, part: int) -> Any:
        """The gradients of a part's outputs, taken once."""
        with self._lock:
            if part not in self._grads_in:
                self._grads_in[part] = self._action.take_output_grads(part)
            return self._grads_in[part]

    def forward(self, part: int, stage: Any, args: Any, kwargs: Any) -> Any:
        """Runs a forward; returns what the module returned."""
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
        """Gives a forward's output to the next stage, of this process. Returns False if the forward does
        not belong to this action."""
        part = self.find(stage, "F", microbatch)
        if part is None or part not in self._outputs:
            return False
        with self._lock:
            self._action.finish_forward(part, values.outgoing(outputs, False), None, False)
            self._done.add(part)
        return True

    def backward(self, part: int, stage: Any, microbatch: int, full: bool) -> None:
        """Runs a backward, or its input half."""
        grads = self.output_grads(part)
        result = self._action.backward(part, grads, full)
        stage.bwd_cache[microbatch] = result
        with self._lock:
            self._grads[part] = result

    def backward_weight(self, part: int) -> None:
        """Runs the weight half of a backward."""
        self._action.backward_weight(part)

    def hand_over_grads(self, stage: int, microbatch: int, grads: Any) -> bool:
        """Gives gradients to the previous stage, of this process. Returns False if they do not belong to
        this action."""
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
        """Hands over results that the handler has computed but not handed over."""
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


# The actions that a stage's method runs.
OVERRIDES = {
    "forward_one_chunk": ("F",),
    "backward_one_chunk": ("B", "I"),
    "backward_weight_one_chunk": ("W",),
}


def run_part(schedule: Any, action: Any, context: Any) -> None:
    """Runs an action as torch's runtime does, for stages that override a part of it."""
    kind = action.computation_type.value
    stage = next(s for s in schedule._local_stages() if s.stage_index == action.stage_index)
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
