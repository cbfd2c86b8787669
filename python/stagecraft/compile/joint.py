"""Makes the programs of a stage from its graph: trace, Inductor's passes, hoisting, forward and backward,
halves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from . import private
from .errors import CompileError
from .fx_tools import drop_unused, extract, output, placeholders
from .graph_text import Graph, ValueRef
from .halves import carrier_slots, divide, finish, split_backward
from .hoist import hoist
from .operators import decompositions
from .pipe_file import TensorInfo
from .programs import Program, Slot, StagePrograms
from .ranges import ranges_of
from .sizes import GraphSize, SizeExpr, resolve
from .stage_module import StageModule
from .tensors_only import read_sizes_off_tensors

__all__ = ["InputInfo", "StageOptions", "make_programs", "size_names"]


@dataclasses.dataclass(frozen=True)
class StageOptions:
    """Options of the compilation of stages. `fixed` has the sizes that get one value. All other sizes of
    the graph may change."""

    device: str = "cpu"
    autocast: torch.dtype | None = None
    fixed: tuple[tuple[str, int], ...] = ()
    with_eval: bool = False
    hoisting: bool = True
    memory_budget: float | None = None


@dataclasses.dataclass(frozen=True)
class InputInfo:
    """Properties of an input that are not in the graph of the stage. `dtype` is None if it is that
    of the graph.

    Under autocast, a value between two stages may have a different dtype than in the graph.
    """

    needs_grad: bool
    dtype: torch.dtype | None = None


def size_names(graph: Graph) -> list[str]:
    """The sizes that the inputs determine and that the stage uses."""
    used: set[str] = set()

    def note(argument: Any) -> None:
        if isinstance(argument, SizeExpr):
            used.update(argument.names)
        elif isinstance(argument, list):
            for each in argument:
                note(each)

    for leaf in graph.inputs:
        if isinstance(leaf, ValueRef):
            note(list(graph.values[leaf.name].shape))
    for node in graph.nodes:
        for _, argument in node.arguments:
            note(argument)
    for size in reversed(graph.sizes):
        if size.rule is not None and size.name in used:
            used |= size.rule.left.names | size.rule.right.names
    return [size.name for size in graph.sizes if size.name in used and size.rule is None and size.measured is None]


def _hints(sizes: Sequence[GraphSize], attempt: int) -> list[int]:
    """Numbers for sizes that may change: the example's, except 0 and 1, which torch treats as constants."""
    hints: list[int] = []
    for size in sizes:
        wish = max(size.example, 2) + attempt
        if size.greatest is not None and wish > size.greatest:
            wish = max(2, size.greatest - attempt)
        hints.append(wish)
    return hints


def _limits(sizes: Sequence[GraphSize]) -> list[int]:
    """The greatest value of each size. Sizes without a limit share 2**48 elements.

    On a GPU, Inductor counts elements in 32 bits if no size in its range needs more. Without a range, it would
    decide by the example.
    """
    open_sizes = sum(size.greatest is None for size in sizes)
    share = 2 ** max(16, 48 // open_sizes) if open_sizes else 0
    return [min(share, 2**31 - 1) if size.greatest is None else max(size.greatest, 2) for size in sizes]


def make_programs(
    graph: Graph, states: Mapping[str, TensorInfo], options: StageOptions, inputs: Sequence[InputInfo]
) -> StagePrograms:
    """The programs of a stage. `inputs` has an entry for each tensor among the graph's inputs. Raises
    CompileError."""
    for leaf in graph.inputs:
        if isinstance(leaf, ValueRef) and graph.values[leaf.name].is_open:
            raise CompileError(f"input {leaf.name} has a dimension that depends on elements; such stages cannot be compiled")
    names = [name for name in size_names(graph) if name not in dict(options.fixed)]
    error = None
    # Try again with different numbers: a number of the example may be equal to a constant of the
    # model by chance.
    for attempt in (0, 1, 5):
        try:
            return _make_programs(graph, states, options, inputs, names, attempt)
        except _Specialised as failure:
            error = failure
            if not names:
                break
    raise CompileError(
        f"the model fixes the size {error}; compile with --fix {error}=N, or export the model so that it may change"
    ) from None


class _Specialised(Exception):
    """Raised if the trace makes a size that may change a constant."""


def _make_programs(
    graph: Graph,
    states: Mapping[str, TensorInfo],
    options: StageOptions,
    inputs: Sequence[InputInfo],
    names: list[str],
    attempt: int,
) -> StagePrograms:
    device = torch.device(options.device)
    mode = private.tracing_mode()
    limits = _limits([graph.size(name) for name in names])
    hints = _hints([graph.size(name) for name in names], attempt)
    sizes = private.make_sizes(mode, hints, limits) if names else ()
    symbols = {name: size.node.expr for name, size in zip(names, sizes, strict=True)}
    with mode:
        tensors = {
            state.name: _fake(states[state.name], device, state.kind == "parameter") for state in graph.states
        }
        module = StageModule(graph, tensors, device, names, dict(options.fixed), options.autocast)
        known = dict(options.fixed) | dict(zip(names, sizes, strict=True))
        args = []
        for i, info in zip(module.tensor_inputs, inputs, strict=True):
            value = graph.values[graph.inputs[i].name]
            shape = [_size_at(expr, known, graph) for expr in value.shape]
            made = torch.empty(shape, dtype=info.dtype or value.dtype, device=device)
            args.append(made.requires_grad_(info.needs_grad and made.is_floating_point()))
        if module.draws:
            args.append(torch.empty(len(module.draws), dtype=torch.int64, device=device))
        if names:
            args.append(torch.empty((), device=device).expand(sizes))
    joint = private.joint_graph(module, tuple(args), decompositions())
    programs = _from_joint(joint, module, mode, device, symbols, dict(zip(names, hints, strict=True)), options)
    if device.type == "cuda":
        for name, limit in zip(names, limits, strict=True):
            least, greatest = programs.ranges[name]
            programs.ranges[name] = (least, limit if greatest is None else min(greatest, limit))
    return programs


def _size_at(expr: SizeExpr, known: Mapping[str, Any], graph: Graph) -> Any:
    return expr.at(resolve(graph.sizes, known))


def _fake(info: TensorInfo, device: torch.device, is_parameter: bool) -> torch.Tensor:
    made = torch.empty_strided(info.sizes, info.strides, dtype=info.dtype, device=device)
    return torch.nn.Parameter(made, info.requires_grad) if is_parameter else made


def _slot_of_input(node: fx.Node, module: StageModule) -> Slot:
    kind, which = private.input_kind(node.meta["desc"])
    if kind in ("parameter", "buffer"):
        return Slot(kind, int(which[1:]))
    if kind == "input":
        if which < len(module.tensor_inputs):
            return Slot("input", which)
        return Slot("seeds") if module.draws and which == len(module.tensor_inputs) else Slot("sizes")
    if kind == "output_grad":
        return Slot("output_grad", module.tensor_outputs[which])
    raise CompileError(f"the trace of the stage has an input of an unknown kind: {node.meta['desc']}")


def _slot_of_output(desc: Any, node: Any, module: StageModule) -> Slot | None:
    if node is None or desc is None:
        return None
    kind, which = private.output_kind(desc)
    if kind == "output":
        return Slot("output", module.tensor_outputs[which])
    if kind == "input_grad":
        return Slot("input_grad", which)
    if kind in ("parameter_grad", "buffer_update"):
        return Slot(kind, int(which[1:]))
    raise CompileError(f"the trace of the stage has an output of an unknown kind: {desc}")


def _from_joint(
    joint: fx.GraphModule,
    module: StageModule,
    mode: Any,
    device: torch.device,
    symbols: dict[str, Any],
    hints: dict[str, int],
    options: StageOptions,
) -> StagePrograms:
    descs = output(joint).meta["desc"]
    results = list(output(joint).args[0])  # type: ignore[arg-type]
    outputs = [_slot_of_output(desc, node, module) for desc, node in zip(descs, results, strict=True)]
    count = sum(desc is not None and not private.output_kind(desc)[0].endswith("_grad") for desc in descs)
    slots = {node.name: _slot_of_input(node, module) for node in placeholders(joint)}
    joint = private.joint_passes(joint, mode, device)
    for name, symbol in symbols.items():
        if private.replacement(mode, symbol) != symbol:
            raise _Specialised(name)
    for node in joint.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if node.op == "call_function" and torch.Tag.nondeterministic_seeded in tags and "inductor_" in str(node.target):
            raise CompileError(
                f"an operator draws random numbers inside ({node.meta.get('stack_trace') or node.name}); "
                f"compiled stages cannot give it a seed"
            )
    programs: dict[str, Program] = {}
    prepare = hoist(joint, slots) if options.hoisting else None
    if prepare is not None:
        programs["prepare"] = prepare
    carriers = [node for node in placeholders(joint) if slots[node.name].kind == "input"]
    carriers += [node for node in placeholders(joint) if slots[node.name].kind == "sizes"]
    grads = [slot for slot in outputs if slot is not None and slot.kind.endswith("_grad")]
    if grads:
        with private.memory_budget(options.memory_budget):
            divided = divide(joint, outputs, count, slots, mode, carriers)
        programs["forward"] = divided.forward
        programs["backward"] = finish(divided.backward, divided)
        halves = split_backward(divided)
        if halves is not None:
            programs["input_backward"], programs["weight_backward"] = halves
    else:
        programs["forward"] = _forward_only(joint, outputs, slots | carrier_slots(carriers, slots), carriers)
    if options.with_eval and grads:
        programs["eval"] = _without_saved(programs["forward"])
    return StagePrograms(
        programs,
        module.draws,
        sorted({slot.index for slot in grads if slot.kind == "input_grad" and slot.index is not None}),
        sorted({slot.index for slot in slots.values() if slot.kind == "output_grad" and slot.index is not None}),
        symbols,
        ranges_of(private.guards(mode), symbols, hints),
    )


def _forward_only(
    joint: fx.GraphModule, outputs: list[Slot | None], slots: dict[str, Slot], carriers: list[fx.Node]
) -> Program:
    made = [(node, slot) for node, slot in zip(output(joint).args[0], outputs) if slot is not None]  # type: ignore[arg-type]
    module = extract(joint, placeholders(joint), [node for node, _ in made])
    read_sizes_off_tensors(module, carriers)
    drop_unused(module)
    return Program(module, [slots[node.name] for node in placeholders(module)], [slot for _, slot in made])


def _without_saved(forward: Program) -> Program:
    made = [(n, s) for n, s in zip(forward.output_nodes(), forward.outputs, strict=True) if s.kind != "saved"]
    slots = {node.name: slot for node, slot in zip(placeholders(forward.module), forward.inputs, strict=True)}
    module = extract(forward.module, placeholders(forward.module), [node for node, _ in made])
    drop_unused(module)
    return Program(module, [slots[node.name] for node in placeholders(module)], [slot for _, slot in made])
