#!/usr/bin/env python3
"""Compares every #include of the project with the dependency table below and fails on a wrong one.

    scripts/check_includes.py [ROOT]

The table names the folders of stagecraft/ from which a folder may include. The folder may also include
from all folders that these may use. Folders in TORCH_FREE, and folders below them, may include neither
the tensor library nor folders of ours that do. Headers that include the whole of libtorch are only for
examples, benchmarks and end-to-end tests.
"""

import pathlib
import re
import sys

ALLOWED = {
    "base": [],
    "schedule": ["base"],
    "sim": ["schedule"],
    "plan": ["sim"],
    "viz": ["schedule", "sim"],
    "tree": ["base"],
    "attention": ["tree"],
    "microbatch": ["tree"],
    "graph": ["tree"],
    "exported": ["graph"],
    "stage": ["tree"],
    "partition": ["graph", "stage"],
    "compiled": ["exported", "partition"],
    "transport": ["base"],
    "shard": ["stage", "transport"],
    "runtime": ["schedule", "plan", "microbatch", "stage", "partition", "shard", "transport"],
    "report": ["runtime", "viz"],
    "train": ["runtime"],
}
# The same table for the folders in stagecraft/transport. "" is the folder itself.
TRANSPORT = {
    "core": [],
    "": ["core"],
    "device": ["core"],
    "local": ["", "device"],
    "wire": ["", "device"],
    "gloo": ["wire"],
    "mpi": ["wire"],
    "nccl": ["gloo"],
    "world": ["local", "gloo", "mpi", "nccl"],
}
# The top folders from which a top folder may include with quotes.
QUOTED = {
    "stagecraft": ["stagecraft"],
    "cli": ["stagecraft", "cli"],
    "tests": ["stagecraft", "cli", "tests", "benchmarks"],
    "examples": ["stagecraft", "examples"],
    "benchmarks": ["stagecraft", "cli", "benchmarks"],
    "python": ["stagecraft", "python"],
}
TORCH_FREE = {"stagecraft/base", "stagecraft/schedule", "stagecraft/sim", "stagecraft/plan", "stagecraft/viz", "stagecraft/transport/core",
              "stagecraft/runtime/record", "cli"}
# The bindings of the Python module that uses no torch. Those of the other module may include
# everything.
TORCH_FREE_FILES = {f"python/bindings/{name}" for name in (
    "actions.cpp", "actions.h", "errors.cpp", "errors.h", "schedule.cpp", "schedule_module.cpp", "sim.cpp",
    "simulated.h", "viz.cpp")}
# Folders below one of TORCH_FREE that may use torch: programs that the tool starts.
TORCH_ALLOWED = {"cli/model", "cli/train"}
TORCH = re.compile(r"^(ATen|c10|torch|caffe2)/")
UMBRELLAS = {"torch/torch.h", "torch/script.h", "torch/all.h", "torch/extension.h", "ATen/ATen.h", "ATen/Functions.h"}
UMBRELLA_FREE = ("stagecraft/", "cli/", "python/")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<([^>]+)>|"([^"]+)")')


def reachable(folder, table=None):
    """All folders that `folder` may include from, itself included."""
    found, todo = set(), [folder]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo.extend((table or ALLOWED)[name])
    return found


def inner_folder(path):
    """The folder inside stagecraft/transport that `path` is in, "" for the folder itself; None elsewhere."""
    parts = pathlib.PurePosixPath(path).parts
    if parts[:2] != ("stagecraft", "transport"):
        return None
    return parts[2] if len(parts) > 3 else ""


def torch_free(path):
    """The folder of TORCH_FREE that `path` is in, or `path` itself if it is one of its files, or None."""
    if path in TORCH_FREE_FILES:
        return path
    if any(str(folder) in TORCH_ALLOWED for folder in pathlib.PurePosixPath(path).parents):
        return None
    return next((str(folder) for folder in pathlib.PurePosixPath(path).parents if str(folder) in TORCH_FREE), None)


def check_file(path, text):
    """Yields (line number, message) for each wrong include of one file; `path` is relative."""
    parts = pathlib.PurePosixPath(path).parts
    top = parts[0]
    library = parts[1] if top == "stagecraft" and len(parts) > 2 else None
    if library is not None and library not in ALLOWED:
        yield 1, f"folder stagecraft/{library} is not in the dependency table"
        return
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        angled, quoted = match.groups()
        name = angled or quoted
        if quoted and quoted.split("/")[0] not in QUOTED[top]:
            yield number, f'"{quoted}": {top} includes, by the path from the root, from {QUOTED[top]} only'
        if TORCH.match(name) and torch_free(path):
            yield number, f"<{name}>: {torch_free(path)} must build without torch"
        if name in UMBRELLAS and path.startswith(UMBRELLA_FREE):
            yield number, f"<{name}>: includes all of libtorch (20 s a file); include what is used"
        if not name.startswith("stagecraft/"):
            continue
        target = name.split("/")[1]
        if target.endswith(".h"):
            if top == "stagecraft" and library:
                yield number, f'"{name}": the header for users; the library includes its own parts'
            continue
        if target not in ALLOWED:
            yield number, f'"{name}": there is no folder stagecraft/{target} in the dependency table'
        elif library and target not in reachable(library):
            yield number, f'"{name}": {library} may use {sorted(reachable(library) - {library})} only'
        elif inner_folder(path) is not None and inner_folder(name) is not None and (
                inner_folder(name) not in reachable(inner_folder(path), TRANSPORT)):
            yield number, f'"{name}": transport/{inner_folder(path)} may use {sorted(reachable(inner_folder(path), TRANSPORT))} only'
        elif torch_free(path) and not torch_free(name):
            yield number, f'"{name}": {torch_free(path)} must build without torch, and that may include it'


def check_tree(root):
    """Returns the list of findings, each "file:line: message"."""
    findings, files = [], 0
    for top in QUOTED:
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in (".h", ".cpp"):
                continue
            files += 1
            relative = path.relative_to(root).as_posix()
            for line, message in check_file(relative, path.read_text()):
                findings.append(f"{relative}:{line}: {message}")
    if files == 0:
        findings.append(f"{root}: no sources found")
    return findings


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    findings = check_tree(root)
    print("\n".join(findings) if findings else "includes obey the dependency table")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
