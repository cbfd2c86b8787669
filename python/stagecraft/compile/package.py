"""Writes and reads a package of compiled stages (NAME.scp)."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .cache import sha256_of
from .errors import CompileError
from .graph_text import ValueRef
from .joint import StageOptions
from .build import Job
from .instructions import instructions_here
from .pipe_file import PipeFile
from .stages import capability, torch_version

__all__ = ["FORMAT", "describe_stage", "read_description", "write_package"]

FORMAT = 1
_FOLDER = "package"
_NO_LIMIT = 2**63 - 1


def code_member(key: str) -> str:
    return f"code/{key}.pt2"


def describe_stage(pipe: PipeFile, job: Job) -> dict[str, Any]:
    """A stage of the description."""
    graph = pipe.stage_graph(job.stage)
    states = pipe.stage_states(job.stage)
    programs = job.programs
    parameters = [state.name for state in graph.states if state.kind == "parameter"]
    return {
        "code": code_member(job.key),
        "parameters": parameters,
        "trained": [i for i, name in enumerate(parameters) if states[name].requires_grad],
        "buffers": [state.name for state in graph.states if state.kind != "parameter"],
        "inputs": [leaf.name for leaf in graph.inputs if isinstance(leaf, ValueRef)],
        "outputs": [leaf.name if isinstance(leaf, ValueRef) else None for leaf in graph.outputs],
        "input_grads": programs.input_grads,
        "output_grads": programs.output_grads,
        "draws": programs.draws,
        "bytes": {
            "saved": programs.bytes_after_forward(),
            "kept": programs.bytes_after_input_backward(),
            "prepared": programs.prepared_bytes(),
        },
        "programs": {name: programs.slots(name) for name in programs.programs},
    }


def describe_sizes(pipe: PipeFile, jobs: Sequence[Job]) -> dict[str, dict[str, int]]:
    """The sizes that may change, of all stages."""
    symbols: dict[str, dict[str, int]] = {}
    for job in jobs:
        graph = pipe.stage_graph(job.stage)
        for name in job.programs.symbols:
            size = graph.size(name)
            least, greatest = job.programs.ranges[name]
            known = symbols.get(name, {"min": 1, "max": _NO_LIMIT})
            limits = [known["max"], size.greatest, greatest]
            symbols[name] = {
                "min": max(known["min"], size.least, least),
                "max": min(limit for limit in limits if limit is not None),
                "example": size.example,
            }
    return symbols


def describe(pipe: PipeFile, jobs: Sequence[Job], options: StageOptions) -> dict[str, Any]:
    """The description, without the members and the checksum."""
    described: dict[str, Any] = {
        "format": FORMAT,
        "torch": torch_version(),
        "device": options.device,
        "processor": platform.machine(),
        "capability": capability(options.device),
        "symbols": describe_sizes(pipe, jobs),
        "fixed": dict(options.fixed),
        "stages": [describe_stage(pipe, job) for job in jobs],
    }
    if options.device == "cpu" and (instructions := instructions_here()):
        described["instructions"] = instructions
    if options.autocast is not None:
        described["autocast"] = str(options.autocast).removeprefix("torch.")
    return described


def _canonical(description: Mapping[str, Any]) -> bytes:
    plain = {key: value for key, value in description.items() if key != "checksum"}
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def write_package(path: Path, pipe: Path, description: Mapping[str, Any], code: Mapping[str, Path]) -> None:
    """`code`: packages by the names of their members. The file appears under its name only when it is complete."""
    members = {"pipe": pipe, **code}
    whole = dict(description)
    whole["members"] = {
        name: {"bytes": source.stat().st_size, "sha256": sha256_of(source)} for name, source in members.items()
    }
    whole["checksum"] = hashlib.sha256(_canonical(whole)).hexdigest()
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            archive.writestr(f"{_FOLDER}/stagecraft.json", json.dumps(whole, indent=1, ensure_ascii=False))
            for name, source in members.items():
                archive.write(source, f"{_FOLDER}/{name}")
        unfinished.replace(path)
    except OSError as error:
        raise CompileError(f"{path}: it cannot be written: {error.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def read_description(path: Path) -> dict[str, Any]:
    """The description of a package. CompileError if the file is not a package, or is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            found: dict[str, Any] = json.loads(archive.read(f"{_FOLDER}/stagecraft.json"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        raise CompileError(f"{path}: it is not a package of compiled stages") from None
    if hashlib.sha256(_canonical(found)).hexdigest() != found.get("checksum"):
        raise CompileError(f"{path}: its description is damaged")
    return found


def extract_member(path: Path, name: str, target: Path) -> Path:
    """Writes a member of a package into a file."""
    with zipfile.ZipFile(path) as archive, archive.open(f"{_FOLDER}/{name}") as source, target.open("wb") as file:
        shutil.copyfileobj(source, file)
    return target
