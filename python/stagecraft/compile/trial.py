"""A process that runs the programs of new packages once: python -m stagecraft.compile.trial REQUEST."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from . import private
from .runner import StageRunner, example_tensor


def main() -> int:
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.manual_seed(0)
    for task in request["tasks"]:
        stage: dict[str, Any] = task["stage"]
        sizes = {name: size["example"] for name, size in stage["symbols"].items()}

        def load(name: str, task: dict[str, Any] = task, stage: dict[str, Any] = stage) -> Any:
            # The last line says how far it came.
            print(f"stage {stage['number']}, program {name}", flush=True)
            return private.load_program(Path(task["package"]), name)

        with torch.no_grad():
            runner = StageRunner(stage, load, request["device"])
            made = {
                kind: {
                    slot["index"]: example_tensor(slot, sizes, request["device"])
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
