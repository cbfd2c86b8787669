"""A process of `Workers`: python -m stagecraft.compile.worker. Requests and answers are lines."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from .build import compile_program, options_from_json
from .errors import CompileError
from .pipe_file import PipeFile
from .programs import StagePrograms
from .stages import inputs_from_json, stage_key, trace_stage
from .trial import run_once
from .workers import ANSWER, REACHED

# Traced stages, by their pipe file and key.
Traced = dict[tuple[str, str], StagePrograms]


def _compile(request: dict[str, Any], traced: Traced) -> dict[str, Any]:
    number, place = request["stage"], (request["pipe"], request["key"])
    try:
        for module in request["imports"]:
            importlib.import_module(module)
        options = options_from_json(request["options"])
        if place not in traced:
            pipe = PipeFile(request["pipe"])
            programs = trace_stage(pipe, number, options, inputs_from_json(request["inputs"]))
            if stage_key(programs, options) != request["key"]:
                return {"error": f"stage {number} was traced twice with different results"}
            traced[place] = programs
        return {"files": compile_program(number, request["program"], traced[place], options)}
    except (CompileError, ImportError) as error:
        return {"error": str(error)}


def _try(request: dict[str, Any]) -> dict[str, Any]:
    try:
        for task in request["tasks"]:
            run_once(Path(task["package"]), task["stage"], request["device"], lambda where: print(REACHED + where, flush=True))
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return {"error": f"{type(error).__name__}: {lines[-1] if lines else ''}"}
    return {}


def main() -> int:
    traced: Traced = {}
    for line in sys.stdin:
        request = json.loads(line)
        made = _try(request) if request["do"] == "try" else _compile(request, traced)
        print(ANSWER + json.dumps(made), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
