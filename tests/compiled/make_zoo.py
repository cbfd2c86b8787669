#!/usr/bin/env python3
"""Exports models of the zoo without dropout, compiles them, and writes what Python's eager models make of inputs.

    make_zoo.py STAGECRAFT FOLDER STAGES NAME...

NAME is a model of tests/zoo_pt2/models.py; `all` are all of them. FOLDER gets NAME.pt2, NAME.scp, NAME.cases.pt and
index.json, as tests/zoo_pt2/export_zoo.py writes them. Dropout is off, since compiled stages draw other numbers.
"""

import dataclasses
import json
import pathlib
import sys
import time
import warnings

from quick_compile import prepare_to_compile  # before torch

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "zoo_pt2"))
from cases import plain_tree, run  # noqa: E402
from models import MODELS  # noqa: E402


def cases_of(entry):
    made = []
    for number in range(len(entry.shapes)):
        args, kwargs = entry.example(number)
        before = plain_tree((args, kwargs))
        result = run(entry.module(), args, kwargs, seed=1000 + number)
        made.append({"seed": 1000 + number, "args": before[0], "kwargs": before[1], **result})
    return made


def main():
    tool, folder, stages = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    names = list(MODELS) if sys.argv[4:] == ["all"] else sys.argv[4:]
    folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    prepare_to_compile(tool, folder)
    from stagecraft.compile.__main__ import main as compile_here
    from stagecraft.compile.workers import Workers

    index, failed = [], []
    with Workers() as workers:
        for name in names:
            start = time.monotonic()
            entry = dataclasses.replace(MODELS[name], train=False)
            torch.export.save(entry.export(dynamic=True), folder / f"{name}.pt2")
            torch.save({"cases": cases_of(entry)}, folder / f"{name}.cases.pt")
            words = [folder / f"{name}.pt2", "-o", folder / f"{name}.scp", "--stages", stages]
            if compile_here([str(word) for word in words], workers) != 0:
                failed.append(name)
                continue
            index.append({"name": name, "kind": "model", "trainable_loss": entry.loss})
            print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    if failed:
        raise SystemExit(f"not compiled: {', '.join(failed)}")


if __name__ == "__main__":
    main()
