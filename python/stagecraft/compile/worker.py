"""A process that compiles one program of a stage: python -m stagecraft.compile.worker REQUEST ANSWER."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main() -> int:
    request = json.loads(Path(sys.argv[1]).read_text())
    from .build import compile_program, options_from_json
    from .errors import CompileError
    from .pipe_file import PipeFile
    from .stages import inputs_from_json, stage_key, trace_stage

    for module in request["imports"]:
        importlib.import_module(module)
    try:
        options = options_from_json(request["options"])
        pipe = PipeFile(request["pipe"])
        stage = trace_stage(pipe, request["stage"], options, inputs_from_json(request["inputs"]))
        if stage_key(stage, options) != request["key"]:
            raise CompileError(f"stage {request['stage']} was traced twice with different results")
        files = compile_program(request["stage"], request["program"], stage, options)
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    Path(sys.argv[2]).write_text(json.dumps({"files": files}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
