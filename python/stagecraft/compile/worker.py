"""A process that compiles programs: python -m stagecraft.compile.worker. Requests come in as lines, answers go out so."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from .build import ANSWER, compile_program, options_from_json
from .errors import CompileError
from .pipe_file import PipeFile
from .programs import StagePrograms
from .stages import inputs_from_json, stage_key, trace_stage


def answer(request: dict[str, Any], traced: dict[int, StagePrograms]) -> dict[str, Any]:
    """`traced`: stages that were traced before."""
    number = request["stage"]
    try:
        for module in request["imports"]:
            importlib.import_module(module)
        options = options_from_json(request["options"])
        if number not in traced:
            pipe = PipeFile(request["pipe"])
            traced[number] = trace_stage(pipe, number, options, inputs_from_json(request["inputs"]))
            if stage_key(traced[number], options) != request["key"]:
                return {"error": f"stage {number} was traced twice with different results"}
        return {"files": compile_program(number, request["program"], traced[number], options)}
    except (CompileError, ImportError) as error:
        return {"error": str(error)}


def main() -> int:
    traced: dict[int, StagePrograms] = {}
    for line in sys.stdin:
        print(ANSWER + json.dumps(answer(json.loads(line), traced)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
