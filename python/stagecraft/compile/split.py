"""Makes the pipe file of a model. `stagecraft model`, a C++ program, splits the model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from .errors import CompileError

__all__ = ["is_package", "is_pipe_file", "split_model"]


def _has_members(path: Path, *wanted: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False
    folder = names[0].split("/", 1)[0] if names else ""
    return all(f"{folder}/{name}" in names for name in wanted)


def is_pipe_file(path: Path) -> bool:
    """Whether save_pipe has written the file."""
    return _has_members(path, "format", "pipe")


def is_package(path: Path) -> bool:
    """Whether the file is a package of compiled stages."""
    return _has_members(path, "stagecraft.json", "pipe")


def find_program() -> list[str]:
    """The program `stagecraft`: the one that started this, the package's own, or one in PATH."""
    named = os.environ.get("STAGECRAFT_PROGRAM")
    for candidate in (named, str(Path(__file__).parents[1] / "bin" / "stagecraft"), shutil.which("stagecraft")):
        if candidate and os.access(candidate, os.X_OK):
            return [candidate]
    raise CompileError("expected the program stagecraft, which splits models: put it into PATH, or name it in STAGECRAFT_PROGRAM")


def split_model(model: Path, pipe: Path, how: list[str]) -> str:
    """Writes the pipe file of a model. `how` has options of `stagecraft model`. Returns the table of the
    stages."""
    environment = {**os.environ}
    environment["STAGECRAFT_PYTHON"] = environment.get("STAGECRAFT_PYTHON") or sys.executable
    done = subprocess.run(
        [*find_program(), "model", str(model), *how, "--pipe", str(pipe)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        message = done.stderr.strip().removeprefix("stagecraft: ") or f"stagecraft model ended with {done.returncode}"
        raise CompileError(message)
    return done.stdout
