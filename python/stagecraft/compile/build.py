"""Compiles the programs of stages, in this process or in several processes at the same time."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import private
from .errors import CompileError
from .joint import InputInfo, StageOptions
from .programs import StagePrograms
from .workers import Workers

__all__ = ["Job", "compile_program", "compile_stages", "options_from_json", "options_to_json"]

# Called with (stage, program, seconds) when a program is compiled.
Progress = Callable[[int, str, float], None]


@dataclasses.dataclass(frozen=True)
class Job:
    """A stage whose programs are to be compiled."""

    stage: int
    key: str
    programs: StagePrograms
    inputs: tuple[InputInfo, ...]


def inductor_options(options: StageOptions) -> dict[str, Any]:
    """Settings of Inductor; part of the fingerprint."""
    # Ranks may be threads, so a program must use the number of threads of the calling thread, not that of
    # this machine.
    return {"cpp.dynamic_threads": True} if options.device == "cpu" else {}


def options_to_json(options: StageOptions) -> dict[str, Any]:
    fields = dataclasses.asdict(options)
    fields["autocast"] = None if options.autocast is None else str(options.autocast).removeprefix("torch.")
    return fields


def options_from_json(fields: dict[str, Any]) -> StageOptions:
    autocast = fields["autocast"]
    fixed = tuple((name, number) for name, number in fields["fixed"])
    return StageOptions(**{**fields, "autocast": None if autocast is None else getattr(torch, autocast), "fixed": fixed})


def compile_program(stage: int, name: str, programs: StagePrograms, options: StageOptions) -> list[str]:
    """The files of one program. CompileError, in one sentence, if Inductor cannot compile it."""
    module = programs.programs[name].module
    try:
        return private.aot_compile(module, inductor_options(options))
    except Exception as error:
        raise CompileError(f"stage {stage}, program {name}: {explain(error)}") from error


def explain(error: BaseException) -> str:
    """The failure of Inductor, in words for users who do not know Inductor."""
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    kinds = {type(each).__name__ for each in _causes(error)} | set(text.split("(")[0].split())
    if "InvalidCxxCompiler" in kinds or "InvalidCxxCompiler" in text or "No working C++ compiler" in text:
        return "Inductor found no C++ compiler: install g++, or name one in CXX"
    if "nvcc" in text and "not found" in text:
        return "Inductor found no nvcc: install the CUDA toolkit, or set CUDA_HOME"
    if "CppCompileError" in kinds or "CppCompileError" in text:
        lines = [line.strip() for line in text.splitlines() if "error:" in line]
        compiler = os.environ.get("CXX", "g++")
        return f"the C++ compiler ({compiler}) failed: {lines[0] if lines else first}"
    for line in text.splitlines():
        if line.strip().startswith("target:"):
            return f"Inductor cannot compile the operator {line.split(':', 1)[1].strip()}: {first}"
    return f"Inductor failed: {type(error).__name__}: {first}"


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def compile_stages(
    pipe: Path,
    jobs: list[Job],
    options: StageOptions,
    folder: Path,
    workers: Workers | None,
    progress: Progress,
    imports: list[str],
) -> dict[str, Path]:
    """Compiles programs and returns packages by key. Each worker compiles one program at a time.
    Without workers, this process compiles.

    `imports`: modules that register operators.
    """
    files: dict[str, dict[str, list[str]]] = {job.key: {} for job in jobs}
    if workers is None:
        for job in jobs:
            for name in job.programs.programs:
                start = time.monotonic()
                files[job.key][name] = compile_program(job.stage, name, job.programs, options)
                progress(job.stage, name, time.monotonic() - start)
    else:
        _compile_beside(pipe, jobs, options, workers, progress, files, imports)
    packages = {}
    for job in jobs:
        packages[job.key] = folder / f"{job.key}.pt2"
        private.pack(packages[job.key], files[job.key])
    return packages


def _compile_beside(
    pipe: Path,
    jobs: list[Job],
    options: StageOptions,
    workers: Workers,
    progress: Progress,
    files: dict[str, dict[str, list[str]]],
    imports: list[str],
) -> None:
    # The programs that take longest are compiled first.
    order = ["forward", "backward", "eval", "input_backward", "weight_backward", "prepare"]
    todo = [(job, name) for name in order for job in jobs if name in job.programs.programs]

    def compile_one(job: Job, name: str) -> tuple[list[str], float]:
        start = time.monotonic()
        request = {
            "do": "compile",
            "pipe": str(pipe),
            "stage": job.stage,
            "program": name,
            "key": job.key,
            "options": options_to_json(options),
            "inputs": [[each.needs_grad, None if each.dtype is None else str(each.dtype)[6:]] for each in job.inputs],
            "imports": imports,
        }
        answer = workers.ask(request)
        if answer.error is not None:
            raise CompileError(answer.error)
        if answer.died is not None:
            raise CompileError(f"stage {job.stage}, program {name}: {answer.last_error or answer.died}")
        return answer.value["files"], time.monotonic() - start

    with concurrent.futures.ThreadPoolExecutor(workers.count) as pool:
        running = {pool.submit(compile_one, job, name): (job, name) for job, name in todo}
        try:
            for done in concurrent.futures.as_completed(running):
                job, name = running[done]
                files[job.key][name], seconds = done.result()
                progress(job.stage, name, seconds)
        except BaseException:
            for each in running:
                each.cancel()
            workers.end()
            raise
