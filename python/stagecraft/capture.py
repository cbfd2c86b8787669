"""Turns a module into a graph of operators that C++ runs: torch.export, then a graph over the
module's own tensors."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn as nn
import torch.utils._pytree as pytree
from torch import fx
from torch.fx.experimental import _config as _sizes_config

from stagecraft import _C
from stagecraft.errors import Error

__all__: list[str] = []


def _is_marker(node: fx.Node) -> bool:
    return node.op == "call_function" and str(node.target) in (
        "stagecraft.pipe_split.default",
        "pippy._pipe_split.default",
    )


def export(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    """Exports a module for any number of rows, or for the example's sizes if that is not possible.

    torch.export assumes that a size which may vary is at least 2. It does not assume this if it treats the example's
    sizes as unknown, but some modules cannot be traced in that way.
    """
    torch.fx.node.has_side_effect(torch.ops.stagecraft.pipe_split.default)
    shapes = torch.export.ShapesCollection()
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
            shapes[leaf] = {0: torch.export.Dim.AUTO}
    settings: Any = _sizes_config
    with_one = settings.patch(backed_size_oblivious=True) if hasattr(settings, "backed_size_oblivious") else nullcontext()
    for scope in (with_one, nullcontext()):
        try:
            free = shapes.dynamic_shapes(module, args, kwargs)
            with scope:
                return torch.export.export(module, args, kwargs, dynamic_shapes=free, strict=False)
        except Exception:
            continue
    try:
        return torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:
        raise RuntimeError(
            f"torch.export cannot trace {type(module).__name__}, so it cannot be split; make stages of its parts "
            f"by hand (PipelineStage), or change what it names: {error}"
        ) from error


def _text_of(program: torch.export.ExportedProgram) -> str:
    """The program as JSON, without its tensors."""
    from torch._export.serde import serialize

    # Only the graph is written. The weights are not copied.
    light = copy.copy(program)
    light._state_dict = {}
    light._constants = dict(program.constants)
    light._example_inputs = None
    try:
        made = serialize.ExportedProgramSerializer().serialize(light)
    except Exception:
        made = serialize.ExportedProgramSerializer().serialize(program)
    fields = serialize._dataclass_to_dict(made.exported_program)
    return json.dumps(fields, cls=serialize.EnumEncoder)


def _tensors_of(module: nn.Module, program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """The live tensors by name: those of the module, and constants of the trace."""
    tensors: dict[str, torch.Tensor] = {
        name: value for name, value in program.constants.items() if isinstance(value, torch.Tensor)
    }
    tensors.update(program.state_dict)
    tensors.update(module.named_parameters(remove_duplicate=False))
    tensors.update(module.named_buffers(remove_duplicate=False))
    return tensors


def _no_graph(module: nn.Module, error: Error) -> RuntimeError:
    return RuntimeError(f"{type(module).__name__} cannot run as a graph: {error}")


def _read(module: nn.Module, program: torch.export.ExportedProgram) -> _C.Graph:
    graph, notes = _C.read_program(_text_of(program), _tensors_of(module, program))
    for note in notes:
        warnings.warn(note, stacklevel=5)
    return graph


def graph_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _C.Graph:
    """The module as a C++ graph over its tensors."""
    program = export(module, args, kwargs)
    try:
        return _read(module, program)
    except Error as error:
        raise _no_graph(module, error) from error


def cut(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    points: list[tuple[str, bool]] | None,
    policy: Callable[[fx.GraphModule], fx.GraphModule] | None,
) -> Any:
    """The module as a C++ pipe, split at modules, by a policy, or at its own markers."""
    program = export(module, args, kwargs)
    try:
        graph = _read(module, program)
        if policy is not None:
            return _C.Pipe.before(graph, _marked(policy(program.module())))
        return _C.Pipe.at_points(graph, points or [])
    except Error as error:
        if isinstance(error, ValueError):
            raise
        raise _no_graph(module, error) from error


def _marked(module: fx.GraphModule) -> list[str]:
    """The nodes that follow the markers which a policy has inserted."""
    names = []
    nodes = list(module.graph.nodes)
    for index, node in enumerate(nodes):
        if not _is_marker(node):
            continue
        following = next(
            (n for n in nodes[index + 1 :] if n.op == "call_function" and not _is_marker(n)), None
        )
        if following is not None and following.name not in names:
            names.append(following.name)
    return names


class GraphModule(nn.Module):
    """A module that runs a graph in C++. Its parameters and buffers have their names in the model,
    and are nested like them. Tensors that are replaced (`.to`, `load_state_dict(assign=True)`) are
    used from the next call on."""

    def __init__(self, graph: Any, live: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._names: list[tuple[str, str]] = []
        for number, (kind, name, tensor, others, persistent) in enumerate(graph.states()):
            if kind == "constant":
                place = f"_constants.{number}"
                _put(self, place, tensor, False)
            else:
                place = name
                # If several stages read a weight, they share one tensor.
                tensor = live.get(name, tensor)
                if kind == "parameter" and not isinstance(tensor, nn.Parameter):
                    tensor = nn.Parameter(tensor, requires_grad=tensor.requires_grad)
                for each in (name, *others):
                    _put(self, each, tensor, persistent)
            self._names.append((name, place))
        self.__dict__["_graph"] = graph
        self._bind()

    def _bind(self) -> None:
        """Makes the program for the current tensors."""
        bound = []
        tensors: dict[str, torch.Tensor] = {}
        for name, place in self._names:
            found = self._tensor_at(place)
            bound.append(found)
            tensors[name] = found[2]
        self.__dict__["_graph"] = self.__dict__["_graph"].with_tensors(tensors)
        self.__dict__["_program"] = _C.GraphProgram(self.__dict__["_graph"])
        self.__dict__["_bound"] = bound

    def _tensor_at(self, place: str) -> tuple[dict[str, Any], str, Any]:
        """The table that holds a tensor, its name there, and the tensor."""
        holder, _, last = place.rpartition(".")
        module = self.get_submodule(holder)
        table: dict[str, Any] = module._parameters if last in module._parameters else module._buffers
        return table, last, table[last]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        for table, name, tensor in self.__dict__["_bound"]:
            if table[name] is not tensor:
                self._bind()
                break
        return self.__dict__["_program"].run(args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphModule:
        made = GraphModule.__new__(GraphModule)
        nn.Module.__init__(made)
        memo[id(self)] = made
        for key, value in self.__dict__.items():
            if key in ("_graph", "_program", "_bound"):
                continue
            made.__dict__[key] = copy.deepcopy(value, memo)
        made.__dict__["_graph"] = self.__dict__["_graph"]
        made._bind()
        return made

    def __getstate__(self) -> dict[str, Any]:
        # The graph as text; its tensors are the module's own.
        state = {key: value for key, value in self.__dict__.items() if key not in ("_graph", "_program", "_bound")}
        return {**state, "_text": str(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        text = state.pop("_text")
        restore: Any = super().__setstate__
        restore(state)
        self.__dict__["_graph"] = _C.Graph.parse(text, {name: self._tensor_at(place)[2] for name, place in self._names})
        self._bind()

    def __str__(self) -> str:
        return str(self.__dict__["_graph"])


def _put(root: nn.Module, name: str, tensor: torch.Tensor, persistent: bool) -> None:
    *path, last = name.split(".")
    module = root
    for part in path:
        child = module._modules.get(part)
        if child is None:
            child = nn.Module()
            module.add_module(part, child)
        module = child
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(last, tensor)
    else:
        module.register_buffer(last, tensor, persistent=persistent)
