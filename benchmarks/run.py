#!/usr/bin/env python3
"""Runs the benchmark programs of a build: all of them, or the one that --name names."""

import argparse
import pathlib
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--name")
    options, rest = parser.parse_known_args()
    folder = options.build / "bench" / "bin"
    programs = {path.name: path for path in sorted(folder.glob("*")) if path.is_file()}
    # The benchmark for CUDA devices is a script that starts `stagecraft-train`. Without a device it
    # says so.
    scripts = {"gpu": [sys.executable, str(pathlib.Path(__file__).with_name("gpu.py")),
                       str(options.build / "bin" / "stagecraft-train")]}
    if options.name in scripts:
        return subprocess.run([*scripts[options.name], *rest]).returncode
    if not programs:
        print(f"bench: no programs in {folder}; run make bench", file=sys.stderr)
        return 1
    if options.name and options.name not in programs:
        print(f"bench: no benchmark {options.name!r}; there are: {', '.join([*programs, *scripts])}", file=sys.stderr)
        return 2
    failed = [name for name, path in programs.items()
              if options.name in (None, name) and subprocess.run([str(path), *rest]).returncode != 0]
    if failed:
        print(f"bench: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
