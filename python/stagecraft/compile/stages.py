"""Traces the stages of a pipe, one after the other, with the inputs that each gets from earlier
stages."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import private
from .build import Job, inductor_options, options_to_json
from .errors import CompileError
from .graph_text import Graph, ValueRef
from .instructions import instructions_here
from .joint import InputInfo, StageOptions, make_programs
from .pipe_file import PipeFile
from .programs import StagePrograms, fingerprint

__all__ = ["capability", "inputs_from_json", "stage_key", "trace_stage", "trace_stages"]


def capability(device: str) -> str:
    """The instruction set or the kind of GPU that code is compiled for."""
    if device == "cpu":
        return private.cpu_capability()
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def torch_version() -> str:
    return str(torch.__version__).split("+")[0]


def stage_key(programs: StagePrograms, options: StageOptions) -> str:
    """A key that is the same for stages with the same code."""
    more = [
        torch_version(),
        platform.machine(),
        options.device,
        capability(options.device),
        " ".join(instructions_here() if options.device == "cpu" else []),
        str(sorted(inductor_options(options).items())),
    ]
    return fingerprint(programs, "\n".join(more))


def inputs_from_json(entries: Sequence[Sequence[Any]]) -> list[InputInfo]:
    return [InputInfo(needs, None if dtype is None else getattr(torch, dtype)) for needs, dtype in entries]


def trace_stage(pipe: PipeFile, stage: int, options: StageOptions, inputs: Sequence[InputInfo]) -> StagePrograms:
    """The programs of a stage. CompileError, which names the stage."""
    try:
        return make_programs(pipe.stage_graph(stage), pipe.stage_states(stage), options, inputs)
    except CompileError as error:
        raise CompileError(f"stage {stage}: {error}") from None
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise CompileError(f"stage {stage}: torch cannot trace it: {type(error).__name__}: {first}") from error


def trace_stages(
    pipe: PipeFile, options: StageOptions, report: Callable[[int], None] = lambda stage: None
) -> list[Job]:
    """Traces all stages. An input needs a gradient if the output that it reads does."""
    jobs: list[Job] = []
    outputs: list[dict[int, InputInfo]] = []
    for stage in range(pipe.num_stages):
        report(stage)
        graph = pipe.stage_graph(stage)
        inputs = _inputs_of(graph, pipe.sources[stage], outputs)
        programs = trace_stage(pipe, stage, options, inputs)
        jobs.append(Job(stage, stage_key(programs, options), programs, tuple(inputs)))
        forward = programs.programs["forward"]
        outputs.append(
            {
                slot.index: InputInfo(slot.index in programs.output_grads, node.meta["val"].dtype)
                for slot, node in zip(forward.outputs, forward.output_nodes(), strict=True)
                if slot.kind == "output" and slot.index is not None
            }
        )
    return jobs


def _inputs_of(
    graph: Graph, sources: Sequence[tuple[Any, ...]], outputs: Sequence[dict[int, InputInfo]]
) -> list[InputInfo]:
    leaves: list[InputInfo] = []
    for source, count in zip(sources, graph.num_args, strict=True):
        found = InputInfo(False)
        if source[0] == "output":
            found = outputs[source[1]].get(source[2], found)
        leaves.extend([found] * count)
    leaves.extend([InputInfo(False)] * (len(graph.inputs) - len(leaves)))
    return [info for info, leaf in zip(leaves, graph.inputs, strict=True) if isinstance(leaf, ValueRef)]
