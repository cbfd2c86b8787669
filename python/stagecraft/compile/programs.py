"""The programs of a stage as graphs, with descriptions of their inputs and outputs."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from .fx_tools import hint, nbytes, output, placeholders
from .sizes import expr_text

__all__ = ["Program", "Slot", "StagePrograms", "fingerprint"]

# Values that a microbatch holds after its forward. Inputs count if a later program reads them.
_AFTER_FORWARD = {"saved", "input"}


@dataclasses.dataclass(frozen=True)
class Slot:
    """An input or output: its kind, and the number of the parameter, buffer, input, output or saved value."""

    kind: str
    index: int | None = None


@dataclasses.dataclass
class Program:
    """A graph whose inputs and outputs are all tensors."""

    module: fx.GraphModule
    inputs: list[Slot]
    outputs: list[Slot]

    def output_nodes(self) -> list[fx.Node]:
        return list(output(self.module).args[0])  # type: ignore[arg-type]


@dataclasses.dataclass
class StagePrograms:
    """All programs of a stage. `symbols` has torch's symbol of each size that may change, `ranges` the range in
    which the programs are valid."""

    programs: dict[str, Program]
    draws: list[str]
    input_grads: list[int]
    output_grads: list[int]
    symbols: dict[str, Any]
    ranges: dict[str, tuple[int, int | None]]

    def slots(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """The description of a program's inputs and outputs, as the package has it."""
        program = self.programs[name]
        return {
            "inputs": [self._slot(s, n) for s, n in zip(program.inputs, placeholders(program.module), strict=True)],
            "outputs": [self._slot(s, n) for s, n in zip(program.outputs, program.output_nodes(), strict=True)],
        }

    def _slot(self, slot: Slot, node: fx.Node) -> dict[str, Any]:
        value = node.meta["val"]
        names = {symbol: name for name, symbol in self.symbols.items()}
        described: dict[str, Any] = {"kind": slot.kind}
        if slot.index is not None:
            described["index"] = slot.index
        described["dtype"] = str(value.dtype).removeprefix("torch.")
        described["sizes"] = [expr_text(size, names) for size in value.shape]
        described["strides"] = [expr_text(stride, names) for stride in value.stride()]
        return described

    def bytes_after_forward(self) -> int:
        """The bytes that a microbatch holds between its forward and its backward, at the example's
        sizes."""
        return self._bytes_read(["backward", "input_backward", "weight_backward"], _AFTER_FORWARD)

    def bytes_after_input_backward(self) -> int:
        """The bytes that a microbatch holds between the halves of its backward."""
        return self._bytes_read(["weight_backward"], _AFTER_FORWARD | {"kept"})

    def _bytes_read(self, readers: list[str], kinds: set[str]) -> int:
        seen: dict[Slot, int] = {}
        for name in readers:
            if name not in self.programs:
                continue
            program = self.programs[name]
            for slot, node in zip(program.inputs, placeholders(program.module), strict=True):
                if slot.kind in kinds:
                    seen[slot] = nbytes(node)
        return sum(seen.values())

    def prepared_bytes(self) -> int:
        return sum(nbytes(node) for node in self.programs["prepare"].output_nodes()) if "prepare" in self.programs else 0


def _value_text(value: Any, symbols: Mapping[Any, str]) -> str:
    if isinstance(value, torch.Tensor):
        sizes = [_size_text(size, symbols) for size in value.shape]
        strides = [_size_text(stride, symbols) for stride in value.stride()]
        return f"{value.dtype}{sizes}{strides}{value.device.type}"
    return _size_text(value, symbols)


def _size_text(size: Any, symbols: Mapping[Any, str]) -> str:
    if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return str(size.node.expr.xreplace(symbols))
    return repr(size)


def fingerprint(stage: StagePrograms, more: str) -> str:
    """40 hexadecimal digits that are the same for stages with the same programs. `more` has the other properties
    that the programs depend on."""
    import sympy  # type: ignore[import-untyped]

    text = [more]
    symbols: dict[Any, Any] = {}
    for number, symbol in enumerate(stage.symbols.values()):
        symbols[symbol] = sympy.Symbol(f"size{number}")
    for name, program in sorted(stage.programs.items()):
        numbers: dict[fx.Node, int] = {}
        text.append(f"{name} {program.inputs} {program.outputs}")
        for node in program.module.graph.nodes:
            numbers[node] = len(numbers)
            if node.op == "placeholder":
                value = node.meta["val"]
                text.append(f"placeholder {_value_text(value, symbols)} {[hint(size) for size in value.shape]}")
                continue
            if node.op == "get_attr":
                constant = getattr(program.module, str(node.target))
                text.append(f"constant {_constant_text(constant)}")
                continue
            text.append(f"{node.target} {_args_text((node.args, node.kwargs), symbols, numbers)}")
    return hashlib.sha1("\n".join(text).encode()).hexdigest()


def _args_text(args: Any, symbols: Mapping[Any, str], numbers: Mapping[fx.Node, int]) -> str:
    if isinstance(args, fx.Node):
        return f"%{numbers[args]}"
    if isinstance(args, (list, tuple)):
        return "[" + ", ".join(_args_text(each, symbols, numbers) for each in args) + "]"
    if isinstance(args, dict):
        return "{" + ", ".join(f"{key}: {_args_text(value, symbols, numbers)}" for key, value in args.items()) + "}"
    return _size_text(args, symbols)


def _constant_text(constant: Any) -> str:
    if not isinstance(constant, torch.Tensor):
        return repr(constant)
    data = constant.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"{constant.dtype}{list(constant.shape)}{hashlib.sha1(data).hexdigest()}"
