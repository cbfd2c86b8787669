"""Loads weights that C++ trained into the Python models, and compares what they give with C++'s own outputs.

    check_trained.py FOLDER

For each FOLDER/NAME.trained.pt, a state dict: the model of that name, in the mode in which it was exported, runs on the
inputs and with the seed of its first case (NAME.cases.pt), and must give bitwise the leaves of
FOLDER/NAME.trained_outputs.pt: {"0": ..., "1": ...}. Run it with MKL_CBWR=COMPATIBLE.
"""

import argparse
import pathlib

import torch
from torch.utils import _pytree as pytree

from cases import largest_difference, same
from features import FEATURES
from models import MODELS

SUFFIX = ".trained.pt"


def check(name, folder):
    """Texts that say where Python and C++ differ."""
    entry = MODELS.get(name) or FEATURES.get(name)
    if entry is None:
        return [f"{name}: not in the zoo"]
    module = entry.module()
    try:
        module.load_state_dict(torch.load(folder / (name + SUFFIX), weights_only=True), strict=True)
    except RuntimeError as error:
        return [f"{name}: {error}"]
    written = torch.load(folder / f"{name}.trained_outputs.pt", weights_only=True)
    expected = [written[key] for key in sorted(written, key=int)]
    case = torch.load(folder / f"{name}.cases.pt", weights_only=True)["cases"][0]
    torch.manual_seed(case["seed"])
    outputs = pytree.tree_leaves(module(*case["args"], **case["kwargs"]))
    if len(outputs) != len(expected):
        return [f"{name}: {len(expected)} outputs from C++, {len(outputs)} from Python"]
    return [f"{name}: output {leaf}: {largest_difference(left, right)}"
            for leaf, (left, right) in enumerate(zip(expected, outputs)) if not same(left, right)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    names = sorted(path.name.removesuffix(SUFFIX) for path in folder.glob("*" + SUFFIX))
    if not names:
        raise SystemExit(f"no *{SUFFIX} in {folder}")
    wrong = [text for name in names for text in check(name, folder)]
    print("\n".join(wrong) or f"{len(names)} models give the same outputs: {', '.join(names)}")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
