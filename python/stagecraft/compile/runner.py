"""Runs the programs of a compiled stage from Python: for the trial of new packages, tests and benchmarks.

Programs for training run from C++ (`CompiledPipe`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .graph_text import dtype_of
from .sizes import SizeExpr

__all__ = ["StageRunner", "example_tensor"]

Key = tuple[str, Any]


def slot_sizes(slot: Mapping[str, Any], sizes: Mapping[str, int], field: str = "sizes") -> list[int]:
    """The sizes, or strides, of a slot."""
    found = []
    for size in slot[field]:
        expr = SizeExpr.parse(str(size))
        if expr is None:
            raise ValueError(f"a size that cannot be computed: {size}")
        found.append(int(expr.at(sizes)))
    return found


def example_tensor(slot: Mapping[str, Any], sizes: Mapping[str, int], device: str) -> torch.Tensor:
    """A tensor of small random numbers. Integers are 0, because they might be indices."""
    dtype = dtype_of(slot["dtype"])
    assert dtype is not None
    shape, strides = slot_sizes(slot, sizes), slot_sizes(slot, sizes, "strides")
    made = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return made.normal_(0, 0.1) if dtype.is_floating_point else made.zero_()


class StageRunner:
    """One stage, one microbatch at a time. `stage` is its description in a package. `load` returns a program by
    name."""

    def __init__(self, stage: Mapping[str, Any], load: Callable[[str], Any], device: str) -> None:
        self.stage = stage
        self.device = device
        self._programs = {name: load(name) for name in stage["programs"]}
        self._states: dict[Key, torch.Tensor] = {}
        self._values: dict[Key, torch.Tensor] = {}
        self._sizes: Mapping[str, int] = {}
        self.grads: dict[int, torch.Tensor] = {}

    def set_states(self, parameters: Mapping[int, torch.Tensor], buffers: Mapping[int, torch.Tensor]) -> None:
        """Sets the tensors, by number, and runs `prepare`. Call it again when parameters have
        changed."""
        self._states = {("parameter", i): tensor for i, tensor in parameters.items()}
        self._states |= {("buffer", i): tensor for i, tensor in buffers.items()}
        self.prepare()

    def prepare(self) -> None:
        if "prepare" in self._programs:
            self._states.update(self._run("prepare"))

    def _run(self, name: str) -> dict[Key, torch.Tensor]:
        slots = self.stage["programs"][name]
        args = [self._value(slot) for slot in slots["inputs"]]
        results = self._programs[name](args)
        return {(slot["kind"], slot.get("index")): tensor for slot, tensor in zip(slots["outputs"], results, strict=True)}

    def _value(self, slot: Mapping[str, Any]) -> torch.Tensor:
        key = (slot["kind"], slot.get("index"))
        if slot["kind"] in ("sizes", "sizes_of"):
            dtype = dtype_of(slot["dtype"])
            return torch.empty((), device=self.device, dtype=dtype).expand(slot_sizes(slot, self._sizes))
        found = self._states[key] if key in self._states else self._values[key]
        if slot["kind"] in ("input", "output_grad"):
            return found.contiguous()
        return found

    def forward(
        self, inputs: Mapping[int, torch.Tensor], sizes: Mapping[str, int], seeds: torch.Tensor | None = None, name: str = "forward"
    ) -> dict[int, torch.Tensor]:
        """Runs a forward and returns outputs by number. `seeds` has one for each draw of the stage;
        the default is zeros."""
        self._sizes = sizes
        self._values = {("input", i): tensor for i, tensor in inputs.items()}
        if self.stage["draws"]:
            count = len(self.stage["draws"])
            self._values["seeds", None] = (
                torch.zeros(count, dtype=torch.int64, device=self.device) if seeds is None else seeds
            )
        made = self._run(name)
        for (kind, index), tensor in made.items():
            if kind == "buffer_update":
                self._states["buffer", index].copy_(tensor)
        self._values |= {key: tensor for key, tensor in made.items() if key[0] == "saved"}
        return {index: tensor for (kind, index), tensor in made.items() if kind == "output"}

    def evaluate(self, inputs: Mapping[int, torch.Tensor], sizes: Mapping[str, int]) -> dict[int, torch.Tensor]:
        return self.forward(inputs, sizes, name="eval")

    def _take(self, made: dict[Key, torch.Tensor]) -> dict[int, torch.Tensor]:
        for (kind, index), tensor in made.items():
            if kind == "parameter_grad":
                self.grads[index] = self.grads[index] + tensor if index in self.grads else tensor
        self._values |= {key: tensor for key, tensor in made.items() if key[0] == "kept"}
        return {index: tensor for (kind, index), tensor in made.items() if kind == "input_grad"}

    def backward(self, output_grads: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Runs a backward. Returns gradients of inputs by number, and adds those of parameters to
        `grads`."""
        self._values |= {("output_grad", i): tensor for i, tensor in output_grads.items()}
        return self._take(self._run("backward"))

    def input_backward(self, output_grads: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        self._values |= {("output_grad", i): tensor for i, tensor in output_grads.items()}
        return self._take(self._run("input_backward"))

    def weight_backward(self) -> None:
        # Values that only the first half reads are released before the second half runs.
        read = {(slot["kind"], slot.get("index")) for slot in self.stage["programs"]["weight_backward"]["inputs"]}
        self._values = {key: tensor for key, tensor in self._values.items() if key in read}
        self._take(self._run("weight_backward"))

    def input_then_weight_backward(self, output_grads: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        made = self.input_backward(output_grads)
        self.weight_backward()
        return made
