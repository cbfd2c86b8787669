"""Every interface of torch that is not public. Only this file may depend on the differences between torch 2.11, 2.13
and 2.15.

A test calls each of them with the installed torch.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

__all__ = [
    "aot_compile",
    "cpu_capability",
    "guards",
    "input_kind",
    "is_composite",
    "is_known",
    "joint_graph",
    "joint_passes",
    "load_program",
    "make_sizes",
    "memory_budget",
    "output_kind",
    "pack",
    "partition",
    "random_numbers",
    "replacement",
    "seed_at",
    "sympy_nodes",
    "trace",
    "tracing_mode",
]


def tracing_mode() -> Any:
    """A mode in which tensors have sizes and no elements. Every size is a symbol of its own."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv(duck_shape=False), allow_non_fake_inputs=True)


def make_sizes(mode: Any, hints: Sequence[int], limits: Sequence[int]) -> tuple[Any, ...]:
    """New symbolic ints. A hint must be at least 2. No int is ever greater than its limit."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext, StrictMinMaxConstraint
    from torch.utils._sympy.value_ranges import ValueRanges

    example = torch.empty(list(hints), device="meta")
    ranges: Any = [StrictMinMaxConstraint(vr=ValueRanges(0, limit), warn_only=False) for limit in limits]
    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(hints), constraint_sizes=ranges)
    return tuple(mode.from_tensor(example, symbolic_context=context).shape)


def replacement(mode: Any, symbol: Any) -> Any:
    """The expression that torch found to be equal to a symbol, or the symbol itself."""
    return mode.shape_env.replace(symbol)


def guards(mode: Any) -> list[Any]:
    """The conditions on symbols, as sympy expressions, that a trace relies on."""
    return [guard.expr for guard in mode.shape_env.guards]


def is_known(condition: Any) -> bool:
    """Whether a condition holds for all sizes."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(condition))


def is_composite(overload: Any) -> bool:
    """Whether the operator is composed of other operators, also for gradients."""
    return bool(overload.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))


def trace(function: Any, values: Sequence[Any]) -> fx.GraphModule:
    """The operators of torch that a function calls, as a graph. `values` have no elements."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        made: fx.GraphModule = make_fx(function)(*values)
    return made


def joint_graph(
    module: nn.Module, args: tuple[torch.Tensor, ...], decompositions: dict[Any, Any] | None = None
) -> fx.GraphModule:
    """Forward and backward in one graph; its inputs and outputs carry descriptors.

    `decompositions` are used in addition to those of Inductor.
    """
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
    from torch._inductor.decomposition import select_decomp_table

    with contextlib.ExitStack() as stack:
        joint = aot_export_joint_with_descriptors(stack, module, args, decompositions={**select_decomp_table(), **(decompositions or {})})
        made: fx.GraphModule = joint.graph_module
    return made


def input_kind(desc: Any) -> tuple[str, Any]:
    """parameter NAME, buffer NAME, input NUMBER, output_grad NUMBER."""
    kind = type(desc).__name__
    if kind == "ParamAOTInput":
        return "parameter", desc.target
    if kind == "BufferAOTInput":
        return "buffer", desc.target
    if kind == "PlainAOTInput":
        return "input", desc.idx
    if kind == "TangentAOTInput":
        of = output_kind(desc.output)
        return ("output_grad", of[1]) if of[0] == "output" else ("update_grad", of[1])
    return kind, None


def output_kind(desc: Any) -> tuple[str, Any]:
    """output NUMBER, parameter_grad NAME, input_grad NUMBER, buffer_update NAME."""
    kind = type(desc).__name__
    if kind == "PlainAOTOutput":
        return "output", desc.idx
    if kind == "GradAOTOutput":
        of, which = input_kind(desc.grad_of)
        return of + "_grad", which
    if kind == "InputMutationAOTOutput":
        of, which = input_kind(desc.mutated_input)
        return of + "_update", which
    return kind, None


def joint_passes(joint: fx.GraphModule, mode: Any, device: torch.device) -> fx.GraphModule:
    """Inductor's passes over a joint graph."""
    from torch._dynamo.utils import preserve_rng_state
    from torch._inductor import compile_fx
    from torch._inductor.virtualized import V

    passes: Any = compile_fx._recursive_joint_graph_passes
    more = {"input_device": device} if "input_device" in inspect.signature(passes).parameters else {}
    with V.set_fake_mode(mode), preserve_rng_state():
        made: fx.GraphModule = passes(joint, **more)
    return made


def partition(
    joint: fx.GraphModule, mode: Any, forward_outputs: int, weights: list[int]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward, with as few bytes between them as recomputing cheap operators allows.

    `weights` has the positions of inputs that exist as long as the model.
    """
    from torch._functorch import partitioners
    from torch._inductor.virtualized import V

    cut: Any = partitioners.min_cut_rematerialization_partition
    with V.set_fake_mode(mode):
        forward, backward = cut(joint, None, num_fwd_outputs=forward_outputs, static_lifetime_input_indices=weights)
    return forward, backward


def seed_at(seeds: torch.Tensor, number: int) -> torch.Tensor:
    """One seed of several."""
    from torch._inductor import inductor_prims

    made: torch.Tensor = inductor_prims.lookup_seed(seeds, number)
    return made


def random_numbers(size: Sequence[Any], seed: torch.Tensor, kind: str) -> torch.Tensor:
    """float32 numbers from a seed. `kind` is rand or randn. Number i depends on the seed and i
    alone."""
    from torch._inductor import inductor_prims

    made: torch.Tensor = inductor_prims.random(list(size), seed, kind)
    return made


def sympy_nodes(expr: Any, symbols: dict[Any, fx.Proxy]) -> Any:
    """Nodes that compute an expression of symbols."""
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    return sympy_interp(PythonReferenceAnalysis, symbols, expr)


def _check_headers_once() -> None:
    """Makes Inductor run the preprocessor once. It would run it for every program, to check whether its headers have
    changed."""
    from torch._inductor import codecache

    made: Any = codecache
    found = getattr(made, "_precompile_header", None)
    if found is not None and not hasattr(found, "cache_info"):
        made._precompile_header = functools.cache(found)


def aot_compile(module: fx.GraphModule, options: dict[str, Any]) -> list[str]:
    """The files of a compiled program."""
    from torch import _inductor
    from torch._inductor import config

    _check_headers_once()
    # Line tables make programs larger and their compilation slower.
    settings: Any = config.aot_inductor
    options = {"aot_inductor.enable_line_tables": False, **options} if hasattr(settings, "enable_line_tables") else options
    example = tuple(node.meta["val"] for node in module.graph.nodes if node.op == "placeholder")
    with torch.no_grad():
        made: Any = _inductor.aot_compile(module, example, options={"aot_inductor.package": True, **options})
    return [str(each) for each in made]


def pack(path: Path, programs: dict[str, list[str]]) -> None:
    """One package of several compiled programs."""
    from torch._inductor.package import package

    package.package_aoti(str(path), {name: list(files) for name, files in programs.items()})


def load_program(path: Path, name: str) -> Any:
    """A program of a package: called with tensors, it returns tensors."""
    from torch._inductor.package import package

    runner = package.load_package(str(path), name, run_single_threaded=True, num_runners=1)
    return runner.loader.run


def cpu_capability() -> str:
    """The instruction set that Inductor compiles for on this processor."""
    return str(torch.backends.cpu.get_cpu_capability())


@contextlib.contextmanager
def memory_budget(share: float | None) -> Iterator[None]:
    """Sets the bytes that a partition may save, as a share of those that it would save without more recomputation.
    None: torch's own setting."""
    if share is None:
        yield
        return
    from torch._functorch import config

    settings: Any = config
    with settings.patch(activation_memory_budget=share):
        yield
