"""A stage's graph as a module of ATen calls, which torch can trace, run and differentiate."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .draws import Draw, find_draw, numbers_of
from .errors import CompileError
from .graph_text import Autocast, Graph, Node, Value, ValueRef
from .operators import find_operator
from .sizes import SizeExpr, resolve

__all__ = ["StageModule"]

_MEMORY_FORMATS = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]
_LAYOUTS = {0: torch.strided, 1: torch.sparse_coo}


class StageModule(nn.Module):
    """Runs the nodes of a graph, one after the other.

    Parameters are `p0`, `p1`, ..., buffers and constants `b0`, `b1`, ... in the order of the graph. A call takes the
    tensors among the graph's inputs, then the seeds if the stage draws random numbers, then a tensor whose sizes are
    the symbols `symbols` if there are any. It returns the tensors among the graph's outputs, laid out row by row. No
    output shares memory with a different output or with an input.

    `fixed` has the sizes with one value.
    """

    def __init__(
        self,
        graph: Graph,
        states: Mapping[str, torch.Tensor],
        device: torch.device,
        symbols: Sequence[str] = (),
        fixed: Mapping[str, int] | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.graph = graph
        self.device = device
        self.symbols = list(symbols)
        self.fixed = dict(fixed or {})
        self.autocast = autocast
        self.parameter_names: list[str] = []
        self.buffer_names: list[str] = []
        self._states: dict[str, str] = {}
        for state in graph.states:
            tensor = states[state.name]
            if state.kind == "parameter":
                place = f"p{len(self.parameter_names)}"
                self.parameter_names.append(state.name)
                parameter = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, tensor.requires_grad)
                self.register_parameter(place, parameter)
            else:
                place = f"b{len(self.buffer_names)}"
                self.buffer_names.append(state.name)
                self.register_buffer(place, tensor)
            self._states[state.name] = place
        self.tensor_inputs = [i for i, leaf in enumerate(graph.inputs) if isinstance(leaf, ValueRef)]
        self.tensor_outputs = [i for i, leaf in enumerate(graph.outputs) if isinstance(leaf, ValueRef)]
        self._written = _written_memory(graph)
        self._copied_outputs = _outputs_to_copy(graph)
        for state in graph.states:
            if state.kind == "parameter" and state.value.memory in self._written:
                raise CompileError(f"parameter {state.name} is changed in place by the model, which compiled stages cannot do")
        self._calls = [_Call(node, device) for node in graph.nodes if node.op != "stagecraft::pipe_split"]
        self.draws = [call.node.name for call in self._calls if call.draw is not None]
        for number, call in enumerate(call for call in self._calls if call.draw is not None):
            call.seed = number

    def forward(self, *args: Any) -> tuple[torch.Tensor, ...]:
        left = list(args)
        values: dict[str, Any] = {name: getattr(self, place) for name, place in self._states.items()}
        for i in self.tensor_inputs:
            value = self.graph.values[self.graph.inputs[i].name]
            tensor = left.pop(0)
            values[value.name] = tensor.clone() if value.memory in self._written else tensor
        seeds = left.pop(0) if self.draws else None
        given: dict[str, Any] = dict(self.fixed)
        if self.symbols:
            given |= dict(zip(self.symbols, left.pop(0).shape, strict=True))
        sizes = resolve(self.graph.sizes, given)
        with self._autocast_region():
            for call in self._calls:
                call.run(values, sizes, seeds)
        outputs = []
        for number, i in enumerate(self.tensor_outputs):
            result = values[self.graph.outputs[i].name]
            result = result.clone(memory_format=torch.contiguous_format) if number in self._copied_outputs else result
            outputs.append(result.contiguous())
        return tuple(outputs)

    def _autocast_region(self) -> Any:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.autocast, cache_enabled=False)


class _Call:
    """One node, prepared for runs."""

    def __init__(self, node: Node, device: torch.device) -> None:
        if node.has_branches:
            raise CompileError(f"node {node.name}: a branch that depends on elements (cond) cannot be compiled")
        self.node = node
        self.device = device
        self.op = _overload(node)
        own = find_operator(node.op)
        self.call = self.op if own is None else own[1]
        self.seed = -1
        formals = {formal.name: formal for formal in self.op._schema.arguments}
        has_tensors = any(_has_value(argument) for _, argument in node.arguments)
        self.arguments: list[tuple[str, bool, Any]] = []
        for name, argument in node.arguments:
            formal = formals.get(name)
            if formal is None:
                raise CompileError(f"node {node.name}: {node.op} of this torch has no argument {name}")
            # An operator without tensors would use the default device.
            if isinstance(argument, torch.device) or (argument is None and name == "device" and not has_tensors):
                argument = device
            self.arguments.append((name, bool(formal.kwarg_only), _fixed(argument, str(formal.real_type))))
        draw = {name: argument for name, _, argument in self.arguments}
        self.draw: Draw | None = find_draw(node.op, self.op, draw, node.name)

    def run(self, values: dict[str, Any], sizes: Mapping[str, Any], seeds: torch.Tensor | None) -> None:
        args, kwargs = [], {}
        for name, is_keyword, argument in self.arguments:
            given = self._given(argument, values, sizes)
            if self.draw is not None or is_keyword:
                kwargs[name] = given
            else:
                args.append(given)
        with self._mode():
            if self.draw is not None:
                assert seeds is not None
                returned = self.draw(kwargs, numbers_of(seeds, self.seed))
            else:
                returned = self.call(*args, **kwargs)
        returned = list(returned) if isinstance(returned, (tuple, list)) and len(self.node.results) != 1 else [returned]
        for result, tensor in zip(self.node.results, returned):
            self._take(result, tensor, values)

    def _take(self, result: Any, tensor: Any, values: dict[str, Any]) -> None:
        if isinstance(result, str):
            values[result] = tensor
        elif isinstance(result, list):
            for each, element in zip(result, tensor):
                self._take(each, element, values)

    def _given(self, argument: Any, values: Mapping[str, Any], sizes: Mapping[str, Any]) -> Any:
        if isinstance(argument, ValueRef):
            return values[argument.name]
        if isinstance(argument, SizeExpr):
            missing = argument.names - sizes.keys()
            if missing:
                raise CompileError(
                    f"node {self.node.name} needs the size {sorted(missing)[0]}, which depends on elements; "
                    f"such models cannot be compiled"
                )
            return argument.at(sizes)
        if isinstance(argument, list):
            return [self._given(each, values, sizes) for each in argument]
        return argument

    def _mode(self) -> Any:
        stack = contextlib.ExitStack()
        if self.node.is_no_grad:
            stack.enter_context(torch.no_grad())
        region: Autocast | None = self.node.autocast
        if region is not None:
            stack.enter_context(
                torch.autocast(self.device.type, region.dtype, enabled=region.is_enabled, cache_enabled=False)
            )
        return stack


def _overload(node: Node) -> Any:
    if (own := find_operator(node.op)) is not None:
        return own[0]
    space, _, rest = node.op.partition("::")
    name, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), name), overload or "default")
    except (AttributeError, RuntimeError):
        raise CompileError(
            f"node {node.name}: this Python has no operator {node.op}; import the package that registers it (--import)"
        ) from None


def _fixed(argument: Any, formal: str) -> Any:
    """Converts numbers that torch's Python functions take as objects."""
    if isinstance(argument, int) and not isinstance(argument, bool):
        if "MemoryFormat" in formal:
            return _MEMORY_FORMATS[argument]
        if "Layout" in formal:
            return _LAYOUTS[argument]
    return argument


def _has_value(argument: Any) -> bool:
    if isinstance(argument, list):
        return any(_has_value(each) for each in argument)
    return isinstance(argument, ValueRef)


def _written_memory(graph: Graph) -> set[int]:
    """The numbers of memory that a node changes."""
    written = set()
    for node in graph.nodes:
        if node.has_branches or node.op == "stagecraft::pipe_split":
            continue
        formals = {formal.name: formal for formal in _overload(node)._schema.arguments}
        for name, argument in node.arguments:
            formal = formals.get(name)
            if formal is None or formal.alias_info is None or not formal.alias_info.is_write:
                continue
            for each in argument if isinstance(argument, list) else [argument]:
                if isinstance(each, ValueRef):
                    written.add(graph.values[each.name].memory)
    return written - {-1}


def _outputs_to_copy(graph: Graph) -> set[int]:
    """Positions, among the tensors, of outputs that share memory with an input, a state or an earlier
    output."""
    taken: set[Any] = {_identity(state.value) for state in graph.states}
    taken |= {_identity(graph.values[leaf.name]) for leaf in graph.inputs if isinstance(leaf, ValueRef)}
    copied = set()
    outputs = [graph.values[leaf.name] for leaf in graph.outputs if isinstance(leaf, ValueRef)]
    for number, value in enumerate(outputs):
        if _identity(value) in taken:
            copied.add(number)
        taken.add(_identity(value))
    return copied


def _identity(value: Value) -> Any:
    return value.memory if value.memory >= 0 else value.name
