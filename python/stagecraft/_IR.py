"""Traces models and splits them into stages."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.nn as nn
from torch import fx

from stagecraft import _C, capture
from stagecraft._utils import PipeInfo
from stagecraft.stage import _PipelineStage

__all__ = ["Pipe", "SplitPoint", "pipe_split", "pipeline"]

PP_SUBMOD_PREFIX = "submod_pp"


def get_submod_name(stage_idx: int) -> str:
    """The name of a stage's module in ``Pipe.split_gm``."""
    return f"{PP_SUBMOD_PREFIX}_{stage_idx}"


def pipe_split() -> None:
    """Marks a split point in a model's forward. Several calls in a row are one split point. Does
    nothing when the model runs."""
    torch.ops.stagecraft.pipe_split()


class SplitPoint(Enum):
    """The side of a module on which the model is split."""

    BEGINNING = 1
    END = 2


class PipeSplitWrapper:
    """The split points under an older name."""

    SplitPoint = SplitPoint


class PipeSequential(nn.Sequential):
    """Modules that run one after the other, with a split point between each two."""

    @staticmethod
    def from_sequential(sequential: nn.Sequential) -> PipeSequential:
        return PipeSequential(*[module for module in sequential])

    def forward(self, input: Any) -> Any:
        for index, module in enumerate(self):
            if index > 0:
                pipe_split()
            input = module(input)
        return input


class LossWrapper(nn.Module):
    """A model with its loss. A subclass defines the forward."""

    def __init__(self, module: nn.Module, loss_fn: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self.loss_fn = loss_fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a subclass of LossWrapper must define forward")


class TrivialLossWrapper(LossWrapper):
    """``loss_fn(module(x), target)``."""

    loss_spec = True

    def forward(self, x: Any, targets: Any) -> Any:
        return self.loss_fn(self.module(x), targets)


class MultiUseParameterConfig(Enum):
    """How stages share a parameter that several of them read."""

    TRANSMIT = 1
    REPLICATE = 2


class _SplitModule(nn.Module):
    """A module with a marker before or after it."""

    def __init__(self, module: nn.Module, point: SplitPoint) -> None:
        super().__init__()
        self._module = module
        self._point = point

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._point is SplitPoint.BEGINNING:
            pipe_split()
        output = self._module(*args, **kwargs)
        if self._point is SplitPoint.END:
            pipe_split()
        return output


def annotate_split_points(mod: nn.Module, spec: dict[str, SplitPoint]) -> None:
    """Puts markers around modules, by their names; changes the model. `pipeline(split_spec=...)` does not."""
    for name, point in spec.items():
        parent = _parent_of(mod, name)
        last = name.rpartition(".")[2]
        setattr(parent, last, _SplitModule(getattr(parent, last), point))


def _parent_of(module: nn.Module, name: str) -> nn.Module:
    parts = name.split(".")
    for index, part in enumerate(parts):
        if not hasattr(module, part):
            raise AttributeError(
                f"split point {name!r}: {type(module).__name__} has no module {'.'.join(parts[: index + 1])!r}"
            )
        if index + 1 < len(parts):
            module = getattr(module, part)
    return module


@dataclass(frozen=True)
class _Layout:
    """How the stages of a pipe are connected."""

    input_names: list[str]
    sources: list[list[int | tuple[int, int]]]
    kwarg_names: list[list[str]]
    ports: dict[str, Any]
    ties: list[list[tuple[int, str]]]
    table: str
    call_text: str


class Pipe(nn.Module):
    """A model that `pipeline` has split into stages. A call runs the stages one after the other.
    The result is a tuple, also for one output."""

    def __init__(self, inner: Any, input_names: list[str]) -> None:
        super().__init__()
        live: dict[str, torch.Tensor] = {}
        for kind, name, tensor, others, _ in inner.graph.states():
            if kind == "parameter" and not isinstance(tensor, nn.Parameter):
                tensor = nn.Parameter(tensor, requires_grad=tensor.requires_grad)
            live.update(dict.fromkeys((name, *others), tensor))
        stages = range(inner.num_stages)
        modules = [capture.GraphModule(inner.stage_graph(s), live) for s in stages]
        self._assemble(modules, _Layout(
            input_names, [inner.sources(s) for s in stages], [inner.stage_graph(s).kwarg_names() for s in stages],
            inner.ports(), inner.ties(), inner.table(), inner.call_text()))

    def _assemble(self, modules: Sequence[nn.Module], layout: _Layout) -> None:
        self._layout = layout
        self.num_stages: int = len(modules)
        self.has_loss_and_backward = False
        self.split_gm = _root_of(layout, modules)
        self.replicated_params = _replicated(modules)

    def __getstate__(self) -> dict[str, Any]:
        modules = [self.get_stage_module(stage) for stage in range(self.num_stages)]
        return {"modules": modules, "layout": self._layout, "training": self.training}

    def __setstate__(self, state: dict[str, Any]) -> None:
        nn.Module.__init__(self)
        self._assemble(state["modules"], state["layout"])
        self.train(state["training"])

    def get_stage_module(self, stage_idx: int) -> nn.Module:
        """The module of a stage."""
        if stage_idx < 0 or stage_idx >= self.num_stages:
            raise ValueError(f"expected a stage from 0 to {self.num_stages - 1}, got {stage_idx}")
        found: nn.Module = getattr(self.split_gm, get_submod_name(stage_idx))
        return found

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        made: list[list[Any]] = []
        output: Any = None
        for stage in range(self.num_stages):
            given = [
                args[source] if isinstance(source, int) else made[source[0]][source[1]]
                for source in self._layout.sources[stage]
            ]
            named = {name: kwargs[name] for name in self._layout.kwarg_names[stage] if name in kwargs}
            output = self.get_stage_module(stage)(*given, **named)
            made.append(list(output) if isinstance(output, (tuple, list)) else [output])
        return tuple(output) if isinstance(output, (tuple, list)) else (output,)

    def info(self) -> PipeInfo:
        """The information that `build_stage` needs in addition to a stage's module."""
        info = PipeInfo(self.split_gm.graph, self.num_stages, self.has_loss_and_backward)
        info.__dict__["ports"] = self._layout.ports
        info.__dict__["ties"] = self._layout.ties
        return info

    def build_stage(self, stage_index: int, device: torch.device, group: Any = None) -> _PipelineStage:
        """A stage that a schedule can run. Moves its module to the device."""
        return _PipelineStage(self.get_stage_module(stage_index), stage_index, self.info(), device, group)

    def print_readable(self) -> None:
        """Prints how the stages are called, and the operators of each."""
        print(self._layout.call_text)
        for stage in range(self.num_stages):
            print(f"\n{get_submod_name(stage)}:\n{self.get_stage_module(stage)}")

    def __str__(self) -> str:
        return self._layout.table

    def __repr__(self) -> str:
        return f"<Pipe of {self.num_stages} stages>"

    @staticmethod
    def from_tracing(
        mod: nn.Module,
        example_args: tuple[Any, ...],
        example_kwargs: dict[str, Any] | None = None,
        split_policy: Callable[[fx.GraphModule], fx.GraphModule] | None = None,
    ) -> Pipe:
        """The pipe of a model that is split at its markers or by a policy."""
        return pipeline(mod, example_args, example_kwargs, split_policy=split_policy)


def _no_forward(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("split_gm is not called itself: call the Pipe, or run its stages in a schedule")


def _root_of(layout: _Layout, modules: Sequence[nn.Module]) -> fx.GraphModule:
    """A graph that calls the stages and shows how values flow."""
    root = nn.Module()
    for index, module in enumerate(modules):
        root.add_module(get_submod_name(index), module)
    graph = fx.Graph()
    inputs = [graph.placeholder(name) for name in layout.input_names]
    calls: list[fx.Node] = []
    kwarg_nodes: dict[str, fx.Node] = dict(zip(layout.input_names, inputs))
    outputs = {s for sources in layout.sources for s in sources if not isinstance(s, int)}
    for index in range(len(modules)):
        given = []
        for source in layout.sources[index]:
            if isinstance(source, int):
                given.append(inputs[source] if source < len(inputs) else None)
                continue
            stage, output = source
            node = calls[stage]
            if len([s for s in outputs if s[0] == stage]) > 1 or output > 0:
                node = graph.call_function(operator.getitem, (node, output))
            given.append(node)
        named: dict[str, Any] = {
            name: kwarg_nodes[name]
            for name in layout.kwarg_names[index]
            if name in kwarg_nodes
        }
        calls.append(graph.call_module(get_submod_name(index), tuple(given), named))
    graph.output(calls[-1])
    module = fx.GraphModule(root, graph)
    module.forward = _no_forward
    return module


def _replicated(modules: Sequence[nn.Module]) -> list[dict[str, str]]:
    """Parameters that several stages have: {stage's name: parameter's name} of each."""
    found: dict[int, dict[str, str]] = {}
    for index, module in enumerate(modules):
        for name, parameter in module.named_parameters(remove_duplicate=False):
            found.setdefault(id(parameter), {})[get_submod_name(index)] = name
    return [uses for uses in found.values() if len(uses) > 1]


def pipeline(
    module: nn.Module,
    mb_args: tuple[Any, ...],
    mb_kwargs: dict[str, Any] | None = None,
    split_spec: dict[str, SplitPoint] | None = None,
    split_policy: Callable[[fx.GraphModule], fx.GraphModule] | None = None,
) -> Pipe:
    """Traces a model and splits it into stages. The model is not changed; the stages share its
    tensors.

    Args:
        module: the model.
        mb_args, mb_kwargs: an example microbatch. The number of rows may differ later.
        split_spec: the names of modules before or after which the model is split.
        split_policy: inserts `pipe_split` markers into the traced graph.

    Without either, the model is split where its forward calls `pipe_split`.
    """
    if split_spec is not None and split_policy is not None:
        raise ValueError("expected split_spec or split_policy, got both")
    points = None
    if split_spec is not None:
        points = []
        for name, point in split_spec.items():
            _parent_of(module, name)
            points.append((name, point is SplitPoint.END))
    inner = capture.cut(module, tuple(mb_args), dict(mb_kwargs or {}), points, split_policy)
    import inspect

    names = list(inspect.signature(module.forward).parameters)
    names = [f"arg{i}" if i >= len(names) else names[i] for i in range(len(mb_args))]
    names += [name for name in (mb_kwargs or {}) if name not in names]
    return Pipe(inner, names)


class Exported:
    """A program that torch.export.save wrote. `cut` splits it."""

    def __init__(self, path: str | os.PathLike[str], program: str = "") -> None:
        self.path = os.fspath(path)
        self._graph, self.warnings = _C.read_archive(self.path, program)

    def cut(self, points: list[str] | dict[str, SplitPoint] | int) -> Pipe:
        """The pipe of the program, split before these modules, or into that number of stages of about
        equal cost."""
        names = [f"arg{i}" for i in range(64)]
        if isinstance(points, int):
            return Pipe(_C.Pipe.evenly(self._graph, points), names)
        if isinstance(points, dict):
            pairs = [(name, point is SplitPoint.END) for name, point in points.items()]
        else:
            pairs = [(name, False) for name in points]
        return Pipe(_C.Pipe.at_points(self._graph, pairs), names)

    def __str__(self) -> str:
        return str(self._graph)

    def __repr__(self) -> str:
        return f"<Exported {self.path}: {len(self._graph.nodes())} operators>"


def load_exported(path: str | os.PathLike[str], program: str = "") -> Exported:
    """A program from a .pt2 file. Weights are mapped from the file, not copied."""
    return Exported(path, program)


# Small functions over torch.fx graphs that programs import from here.


def _move_placeholders_to_front(graph: fx.Graph) -> None:
    """Moves all placeholders before the other nodes. The other nodes keep their order."""
    last: fx.Node | None = None
    for node in list(graph.nodes):
        if node.op != "placeholder":
            continue
        if last is None:
            first = next(iter(graph.nodes))
            if first is not node:
                first.prepend(node)
        elif last.next is not node:
            last.append(node)
        last = node


def _modify_graph_op_device(gm: fx.GraphModule, new_device: torch.device) -> None:
    """Replaces the devices that operators of a graph name by this one."""
    changed = False
    for node in gm.graph.nodes:
        if node.op == "call_function" and "device" in node.kwargs and node.kwargs["device"] != new_device:
            node.update_kwarg("device", new_device)
            changed = True
        elif node.op == "call_module":
            inner = gm.get_submodule(node.target)
            if isinstance(inner, fx.GraphModule):
                _modify_graph_op_device(inner, new_device)
    if changed:
        gm.recompile()


def _find_loss_from_output_and_spec(output_val: Any, spec_val: Any) -> Any:
    """The entry of an output that a spec marks with True; None if there is none."""
    if spec_val is False:
        return None
    if spec_val is True:
        if not isinstance(output_val, fx.Node):
            raise RuntimeError(f"the loss must be a value of the graph, got {type(output_val).__name__}")
        return output_val
    if isinstance(spec_val, (tuple, list)):
        if not isinstance(output_val, (tuple, list)) or len(output_val) != len(spec_val):
            raise RuntimeError(f"the output {output_val} does not have the form of the spec {spec_val}")
        pairs = list(zip(output_val, spec_val))
    elif isinstance(spec_val, dict):
        if not isinstance(output_val, dict) or output_val.keys() != spec_val.keys():
            raise RuntimeError(f"the output {output_val} does not have the form of the spec {spec_val}")
        pairs = [(output_val[key], spec_val[key]) for key in spec_val]
    else:
        raise RuntimeError(f"a spec has bools, tuples, lists and dicts, got {type(spec_val).__name__}")
    for value, spec in pairs:
        found = _find_loss_from_output_and_spec(value, spec)
        if found is not None:
            return found
    return None


def _find_loss_output(mod: nn.Module, g: fx.Graph, output_loss_value_spec: Any) -> tuple[Any, Any, Any]:
    """The loss of a graph, the graph's output node, and the spec that says where the loss is."""
    output = next(node for node in reversed(g.nodes) if node.op == "output")
    value = output.args[0]
    if isinstance(mod, TrivialLossWrapper):
        return value, output, True
    if output_loss_value_spec is None:
        if isinstance(value, dict) and "loss" in value:
            return value["loss"], output, {key: key == "loss" for key in value}
        return None, output, None
    loss = _find_loss_from_output_and_spec(value, output_loss_value_spec)
    if loss is None:
        raise RuntimeError(f"the spec {output_loss_value_spec} finds no loss in the output {value}")
    return loss, output, output_loss_value_spec
