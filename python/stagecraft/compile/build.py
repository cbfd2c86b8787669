"""Compiles the programs of stages, here or in processes side by side, and tries every new package in a child process."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import private
from .errors import CompileError
from .joint import InputInfo, StageOptions
from .programs import StagePrograms

__all__ = ["Job", "compile_program", "compile_stages", "options_from_json", "options_to_json", "try_packages"]

# Called with (stage, program, seconds) when a program is compiled.
Progress = Callable[[int, str, float], None]
# What a worker's answer begins with.
ANSWER = "stagecraft answer "
# No trial of new packages takes longer.
_LIMIT_S = 3600


@dataclasses.dataclass(frozen=True)
class Job:
    """A stage whose programs are to be compiled."""

    stage: int
    key: str
    programs: StagePrograms
    inputs: tuple[InputInfo, ...]


def inductor_options(options: StageOptions) -> dict[str, Any]:
    """Settings of Inductor; part of the fingerprint."""
    # Ranks are threads: the number of threads is that of the thread that calls, not that of this machine.
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
    """The files of one program. CompileError, in one sentence, for what Inductor cannot do."""
    module = programs.programs[name].module
    try:
        return private.aot_compile(module, inductor_options(options))
    except Exception as error:
        raise CompileError(f"stage {stage}, program {name}: {explain(error)}") from error


def explain(error: BaseException) -> str:
    """What went wrong in Inductor, for a reader who does not know its inside."""
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
    processes: int,
    progress: Progress,
    imports: list[str],
) -> dict[str, Path]:
    """Packages by key. With several processes, each compiles one program at a time.

    `imports`: modules that register operators.
    """
    files: dict[str, dict[str, list[str]]] = {job.key: {} for job in jobs}
    if processes <= 1:
        for job in jobs:
            for name in job.programs.programs:
                start = time.monotonic()
                files[job.key][name] = compile_program(job.stage, name, job.programs, options)
                progress(job.stage, name, time.monotonic() - start)
    else:
        _compile_beside(pipe, jobs, options, processes, progress, files, imports)
    packages = {}
    for job in jobs:
        packages[job.key] = folder / f"{job.key}.pt2"
        private.pack(packages[job.key], files[job.key])
    return packages


def _compile_beside(
    pipe: Path,
    jobs: list[Job],
    options: StageOptions,
    processes: int,
    progress: Progress,
    files: dict[str, dict[str, list[str]]],
    imports: list[str],
) -> None:
    # Those that take longest begin first.
    order = ["forward", "backward", "eval", "input_backward", "weight_backward", "prepare"]
    todo = [(job, name) for name in order for job in jobs if name in job.programs.programs]
    workers: queue.Queue[_Worker] = queue.Queue()
    started = [_Worker() for _ in range(min(processes, len(todo)))]
    for worker in started:
        workers.put(worker)

    def compile_one(job: Job, name: str) -> tuple[list[str], float]:
        worker = workers.get()
        try:
            return worker.compile(pipe, job, name, options, imports)
        finally:
            workers.put(worker)

    with concurrent.futures.ThreadPoolExecutor(len(started) or 1) as pool:
        running = {pool.submit(compile_one, job, name): (job, name) for job, name in todo}
        try:
            for done in concurrent.futures.as_completed(running):
                job, name = running[done]
                files[job.key][name], seconds = done.result()
                progress(job.stage, name, seconds)
        except BaseException:
            for each in running:
                each.cancel()
            raise
        finally:
            for worker in started:
                worker.end()


def child_environment() -> dict[str, str]:
    """In which a child finds this package."""
    root = str(Path(__file__).parents[2])
    others = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{others}" if others else root}


class _Worker:
    """A process that compiles one program at a time. It imports torch once, and traces each of its stages once."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker"],
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def compile(
        self, pipe: Path, job: Job, name: str, options: StageOptions, imports: list[str]
    ) -> tuple[list[str], float]:
        """The files of a program, and how long it took. CompileError."""
        request = {
            "pipe": str(pipe),
            "stage": job.stage,
            "program": name,
            "key": job.key,
            "options": options_to_json(options),
            "inputs": [[each.needs_grad, None if each.dtype is None else str(each.dtype)[6:]] for each in job.inputs],
            "imports": imports,
        }
        start = time.monotonic()
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith(ANSWER):
                    answer = json.loads(line.removeprefix(ANSWER))
                    if "error" in answer:
                        raise CompileError(answer["error"])
                    return answer["files"], time.monotonic() - start
        except BrokenPipeError:
            pass
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        why = lines[-1] if lines else _ending(self._process.wait())
        raise CompileError(f"stage {job.stage}, program {name}: {why}")

    def end(self) -> None:
        """Ends the process, also in the middle of its work."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _ending(code: int) -> str:
    return f"its process was ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"


def try_packages(packages: dict[Path, dict[str, Any]], device: str) -> None:
    """Loads every program of new packages in a child process and runs it once. CompileError if that fails.

    A package that was linked wrongly ends the process that loads it.
    """
    if not packages:
        return
    with tempfile.TemporaryDirectory(prefix="stagecraft-try-") as folder:
        request = Path(folder) / "request.json"
        tasks = [{"package": str(path), "stage": stage} for path, stage in packages.items()]
        request.write_text(json.dumps({"device": device, "tasks": tasks}))
        done = subprocess.run(
            [sys.executable, "-m", f"{__package__}.trial", str(request)],
            env=child_environment(),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    if done.returncode == 0:
        return
    reached = done.stdout.splitlines()[-1] if done.stdout.strip() else "the first program"
    if done.returncode < 0:
        compiler = os.environ.get("CXX", "g++")
        raise CompileError(
            f"{reached} was compiled, but loading it {_ending(done.returncode).removeprefix('its process was ')}. "
            f"A compiler or wrapper that links libstdc++ statically makes such programs (CXX is {compiler}): "
            f"try again with CXX=/usr/bin/g++ CC=/usr/bin/gcc"
        )
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    raise CompileError(f"{reached} was compiled, but does not run: {lines[-1] if lines else done.returncode}")
