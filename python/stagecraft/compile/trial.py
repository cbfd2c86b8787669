"""Loads every program of new packages in a worker and runs it once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from . import private
from .errors import CompileError
from .runner import StageRunner, example_tensor
from .workers import Workers

__all__ = ["run_once", "try_packages"]


def try_packages(packages: Mapping[Path, Mapping[str, Any]], device: str, workers: Workers) -> None:
    """`packages` has files, with the description of their stage. CompileError if a program does not
    run.

    A package that was linked wrongly ends the process that loads it, so a worker loads it first.
    """
    if not packages:
        return
    tasks = [{"package": str(path), "stage": stage} for path, stage in packages.items()]
    answer = workers.ask({"do": "try", "device": device, "tasks": tasks})
    reached = answer.reached or "the first program"
    if answer.by_signal and answer.died is not None:
        compiler = os.environ.get("CXX", "g++")
        raise CompileError(
            f"{reached} was compiled, but loading it {answer.died.removeprefix('its process ')}. "
            f"A compiler or wrapper that links libstdc++ statically makes such programs (CXX is {compiler}): "
            f"try again with CXX=/usr/bin/g++ CC=/usr/bin/gcc"
        )
    failed = answer.error or (answer.died and (answer.last_error or answer.died))
    if failed:
        raise CompileError(f"{reached} was compiled, but does not run: {failed}")


def run_once(package: Path, stage: Mapping[str, Any], device: str, reach: Callable[[str], None]) -> None:
    """Runs all programs of a stage. `reach` is called with the name of each program before it is loaded."""
    torch.manual_seed(0)
    sizes = {name: size["example"] for name, size in stage["symbols"].items()}

    def load(name: str) -> Any:
        reach(f"stage {stage['number']}, program {name}")
        return private.load_program(package, name)

    with torch.no_grad():
        runner = StageRunner(stage, load, device)
        made = {
            kind: {
                slot["index"]: example_tensor(slot, sizes, device)
                for program in stage["programs"].values()
                for slot in program["inputs"]
                if slot["kind"] == kind
            }
            for kind in ("parameter", "buffer", "input", "output_grad")
        }
        runner.set_states(made["parameter"], made["buffer"])
        for halves in (False, True):
            if halves and "input_backward" not in stage["programs"]:
                continue
            runner.forward(made["input"], sizes)
            if "backward" in stage["programs"]:
                (runner.input_then_weight_backward if halves else runner.backward)(made["output_grad"])
        if "eval" in stage["programs"]:
            runner.evaluate(made["input"], sizes)
