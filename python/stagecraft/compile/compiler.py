"""Compiles the stages of a pipe file and writes a package."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from .build import Job, compile_stages
from .cache import Cache
from .errors import CompileError
from .joint import StageOptions, size_names
from .package import code_member, describe, write_package
from .pipe_file import PipeFile
from .sizes import GraphSize
from .stages import trace_stages
from .trial import try_packages
from .workers import Workers

__all__ = ["Result", "compile_pipe"]


@dataclasses.dataclass(frozen=True)
class Result:
    """The counts of a compilation: programs compiled now, stages with code of their own, and those of
    them found in the cache."""

    compiled: int
    distinct: int
    cached: int
    seconds: float


def _fix_sizes(pipe: PipeFile, options: StageOptions, fix: dict[str, int | None] | None) -> StageOptions:
    """`fix` has the sizes that get one value; None means the example's value. If `fix` is None, all
    sizes are fixed."""
    sizes: dict[str, GraphSize] = {}
    for stage in range(pipe.num_stages):
        graph = pipe.stage_graph(stage)
        sizes |= {name: graph.size(name) for name in size_names(graph)}
    if fix is None:
        return dataclasses.replace(options, fixed=tuple(sorted((name, size.example) for name, size in sizes.items())))
    for name, number in fix.items():
        if name not in sizes:
            known = ", ".join(sorted(sizes)) or "none"
            raise CompileError(f"--fix {name}: the model has no such size that may change; it has {known}")
        least, greatest = max(sizes[name].least, 1), sizes[name].greatest
        if number is not None and (number < least or (greatest is not None and number > greatest)):
            most = "" if greatest is None else f" and at most {greatest}"
            raise CompileError(f"--fix {name}={number}: expected at least {least}{most}, as the model was exported")
    fixed = {name: sizes[name].example if number is None else number for name, number in fix.items()}
    return dataclasses.replace(options, fixed=tuple(sorted(fixed.items())))


def compile_pipe(
    pipe_path: Path,
    output: Path,
    options: StageOptions,
    *,
    fix: dict[str, int | None] | None | bool = False,
    cache: Cache | None = None,
    processes: int = 1,
    workers: Workers | None = None,
    imports: list[str] | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Result:
    """Compiles the stages of a pipe file and writes the package. CompileError.

    `fix`: False keeps the sizes that may change, None fixes all at the example's values. `processes`: the
    number of processes that compile; if it is 1, this process compiles. `workers`: existing workers; None:
    starts its own.
    """
    start = time.monotonic()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise CompileError("--device cuda: torch finds no GPU here, and programs for a GPU are compiled on it")
    if not output.parent.is_dir():
        raise CompileError(f"{output}: there is no folder {output.parent}")
    if output.is_dir():
        raise CompileError(f"{output}: expected the name of a file, and this is a folder")
    problem = cache.problem() if cache is not None else None
    if problem is not None:
        report(f"{problem}; what is compiled now is not kept")
        cache = None
    pipe = PipeFile(pipe_path)
    if fix is not False:
        assert not isinstance(fix, bool)
        options = _fix_sizes(pipe, options, fix)
    report(f"tracing {pipe.num_stages} stage{'s' if pipe.num_stages > 1 else ''}")
    jobs = trace_stages(pipe, options)
    first: dict[str, Job] = {}
    for job in jobs:
        if job.key in first:
            report(f"stage {job.stage}: the same as stage {first[job.key].stage}")
        first.setdefault(job.key, job)
    code: dict[str, Path] = {}
    todo: list[Job] = []
    for key, job in first.items():
        found = cache.find(key) if cache is not None else None
        if found is None:
            todo.append(job)
        else:
            code[code_member(key)] = found
            report(f"stage {job.stage}: in the cache")
    description = describe(pipe, jobs, options)
    count = sum(len(job.programs.programs) for job in todo)
    done = 0

    def progress(stage: int, program: str, seconds: float) -> None:
        nonlocal done
        done += 1
        report(f"[{done}/{count}] stage {stage}: {program} {seconds:.1f} s")

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stagecraft-compile-"))
        if workers is None:
            workers = stack.enter_context(Workers(processes))
        beside = workers if processes > 1 else None
        packages = compile_stages(pipe_path, todo, options, Path(folder), beside, progress, imports or [])
        if packages:
            report("running every new program once")
        try_packages(
            {
                packages[job.key]: {
                    **description["stages"][job.stage],
                    "number": job.stage,
                    "symbols": description["symbols"],
                }
                for job in todo
            },
            options.device,
            workers,
        )
        for key, path in packages.items():
            code[code_member(key)] = path
            if cache is None:
                continue
            try:
                cache.put(key, path)
            except OSError as error:
                report(f"{cache.folder}: cannot keep what was compiled: {error.strerror}")
                cache = None
        write_package(output, pipe_path, description, code)
    seconds = time.monotonic() - start
    size = os.path.getsize(output)
    report(f"{output}: {size / 1e6:.1f} MB, {len(jobs)} stages, {len(first)} with code of their own, {seconds:.1f} s")
    return Result(count, len(first), len(first) - len(todo), seconds)
