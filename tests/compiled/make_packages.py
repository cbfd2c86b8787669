#!/usr/bin/env python3
"""Exports small models and compiles them into packages, for the tests of this folder.

    make_packages.py STAGECRAFT FOLDER [cpu|cuda [NAME...]]

gpt.scp     a language model with its loss, in four stages of which two are the same; rows and length may change
drop1.scp   the same with dropout and one block, in one stage
drop2.scp   and in two stages
half.scp    one stage under autocast to bfloat16: batch normalisation, two outputs, one size, a program for evaluation
"""

import os
import pathlib
import subprocess
import sys
import warnings

import torch
from torch import nn
from torch.export import Dim

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "python" / folder) for folder in ("tests", "")]
from compile_models import Gpt  # noqa: E402  (the tests of the compiler compile the same stages)

ROWS, LENGTH = 3, 8


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 16)

    def forward(self, x):
        wide = self.norm(self.up(x))
        return self.down(nn.functional.gelu(wide)), wide


def export(folder, name, module, args, dynamic=None):
    path = folder / f"{name}.pt2"
    torch.export.save(torch.export.export(module.train(), args, strict=False, dynamic_shapes=dynamic), path)
    return path


def main():
    tool, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    device = sys.argv[3] if len(sys.argv) > 3 else "cpu"
    folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    dims = {0: Dim("rows", max=64), 1: Dim("length", max=32)}

    def tokens(name, **options):
        torch.manual_seed(1)
        ids, targets = torch.zeros(2, ROWS, LENGTH, dtype=torch.long)
        return export(folder, name, Gpt(**options), (ids, targets.clone()), (dims, dims))

    def half(name):
        torch.manual_seed(1)
        return export(folder, name, Half(), (torch.randn(4, 16),))

    environment = dict(os.environ, STAGECRAFT_PYTHON=sys.executable)
    environment.setdefault("STAGECRAFT_CACHE", str(folder / "cache"))
    # A compiler that links libstdc++ statically makes packages that crash when they are loaded.
    environment.update({"CXX": "/usr/bin/g++", "CC": "/usr/bin/gcc"} if pathlib.Path("/usr/bin/g++").exists() else {})
    builds = {
        "gpt": (lambda: tokens("gpt", layers=2), ["--split", "blocks.0,blocks.1,norm"]),
        "drop2": (lambda: tokens("drop", layers=1, dropout=0.25), ["--split", "blocks.0"]),
        "drop1": (lambda: tokens("drop", layers=1, dropout=0.25), []),
        "half": (lambda: half("half"), ["--bf16", "--eval"]),
    }
    for name in sys.argv[4:] or builds:
        make, options = builds[name]
        command = [tool, "compile", make(), "-o", folder / f"{name}.scp", "--device", device, "--jobs", "2", *options]
        subprocess.run([str(word) for word in command], check=True, env=environment)


if __name__ == "__main__":
    main()
