"""Exports the zoo and writes what Python makes of it, for the C++ tests beside this file.

    export_zoo.py FOLDER [--all] [--only NAME ...] [--list]

For each program: FOLDER/NAME.pt2 (dynamic shapes), FOLDER/NAME.static.pt2 (the example's shape only; for feature graphs
with --all), and FOLDER/NAME.cases.pt: {"cases": [case, ...]}, plain values and tensors only. A case is a dict:

    static        whether the static archive can run it
    seed          for torch.manual_seed before the forward
    args, kwargs  the call
    outputs       output leaves, in the order of the program's output tree
    grad_outputs  seeds of the backward, None where a leaf takes none
    grads         gradients by parameter name; tied weights appear under every name
    input_grads   gradients of the input tensors that require them, in the order of the inputs
    buffers       every buffer after the run, by name
    inputs_after  only where the program changes its inputs: all input tensors after the run

Expected values come from the eager module, each case from the same initial weights. A case that the exported program
does not repeat bitwise in Python is dropped with a message. Last comes FOLDER/index.json.

Run it with MKL_CBWR=COMPATIBLE: without, the last bit may change between processes.
"""

import argparse
import gc
import json
import pathlib
import time
import warnings

import torch

import several
from cases import GRADIENTS, differences, plain_tree, run, same
from features import FEATURES
from models import MODELS
from refused import REFUSED


class Keeper:
    """Puts the weights, buffers and constants of an exported program back to what they were at first."""

    def __init__(self, program):
        tensors = [*program.state_dict.values(), *program.constants.values()]
        self.first = [(tensor, tensor.detach().clone()) for tensor in tensors if isinstance(tensor, torch.Tensor)]

    def restore(self):
        with torch.no_grad():
            for tensor, value in self.first:
                tensor.copy_(value)
                tensor.grad = None


def make_case(entry, number, programs, keepers, dropped):
    """The case of one shape, or None where the exported programs disagree with the module."""
    seed = 1000 + number
    static = entry.is_static(number)
    args, kwargs = entry.example(number)
    before = plain_tree((args, kwargs))
    result = run(entry.module(), args, kwargs, seed)
    for label, program in programs.items():
        if label == "static" and not static:
            continue
        keepers[label].restore()
        args, kwargs = entry.example(number)
        backward = entry.grads != "eager"
        with torch.set_grad_enabled(backward):
            repeated = run(program.module(), args, kwargs, seed, result["grad_outputs"] if backward else [])
        if entry.grads == "export":
            result |= {part: repeated[part] for part in GRADIENTS}
        wrong = differences(result, repeated, entry.grads)
        keepers[label].restore()
        if wrong:
            dropped.append(f"{entry.name} at {entry.shapes[number]} ({label}): " + "; ".join(wrong[:4]))
            return None
    inputs = [leaf for leaf in torch.utils._pytree.tree_leaves(before) if isinstance(leaf, torch.Tensor)]
    if all(same(left, right) for left, right in zip(inputs, result["inputs_after"])):
        del result["inputs_after"]
    return {"static": static, "seed": seed, "args": before[0], "kwargs": before[1], **result}


def write_program(entry, folder, static, dropped):
    """Writes the archives and cases of one program; returns whether there is anything to compare."""
    programs = {"dynamic": entry.export(dynamic=True)}
    torch.export.save(programs["dynamic"], folder / f"{entry.name}.pt2")
    if static:
        programs["static"] = entry.export(dynamic=False)
        torch.export.save(programs["static"], folder / f"{entry.name}.static.pt2")
    keepers = {label: Keeper(program) for label, program in programs.items()}
    cases = [make_case(entry, number, programs, keepers, dropped) for number in range(len(entry.shapes))]
    cases = [case for case in cases if case is not None]
    torch.save({"cases": cases}, folder / f"{entry.name}.cases.pt")
    return bool(cases)


def write(kind, entry, options, dropped):
    """Writes the files of one program; returns its line of the index, or None where there is nothing to compare."""
    line = {"name": entry.name, "kind": kind, "ci": entry.ci, "trainable_loss": entry.loss, "note": entry.note}
    if kind == "refused":
        torch.export.save(entry.export(dynamic=True), options.folder / f"{entry.name}.pt2")
        return line | {"names": entry.names}
    static = entry.dynamic is not None and (kind == "model" or options.all)
    if not write_program(entry, options.folder, static, dropped):
        return None
    return line | {"static": static}


def chosen(options):
    """(kind, entry) of what the command line asks for."""
    everything = [(kind, entry) for kind, registry in (("model", MODELS), ("feature", FEATURES), ("refused", REFUSED))
                  for entry in registry.values()]
    if options.only:
        unknown = set(options.only) - {entry.name for _, entry in everything}
        if unknown:
            raise SystemExit(f"not in the zoo: {', '.join(sorted(unknown))}")
        return [(kind, entry) for kind, entry in everything if entry.name in options.only]
    return [(kind, entry) for kind, entry in everything if options.all or entry.ci]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--all", action="store_true", help="every model, not only the quick set")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the names, write nothing")
    options = parser.parse_args()
    entries = chosen(options)
    if options.list:
        print("\n".join(f"{kind} {entry.name}" for kind, entry in entries))
        return
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    gc.disable()  # collecting takes long here and frees little
    options.folder.mkdir(parents=True, exist_ok=True)
    index, dropped, failed = [], [], []
    for kind, entry in entries:
        start = time.monotonic()
        try:
            index.append(write(kind, entry, options, dropped))
        except Exception as error:
            failed.append(f"{entry.name}: {type(error).__name__}: {error}")
        print(f"{kind} {entry.name}: {time.monotonic() - start:.2f} s", flush=True)
    index = [line for line in index if line is not None]
    several.write(options.folder / "several.pt2")
    (options.folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    print(f"torch {torch.__version__}: {len(index)} programs")
    for text in dropped:
        print("dropped", text)
    for text in failed:
        print("failed", text)
    if failed or dropped:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
