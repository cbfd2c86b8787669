#!/usr/bin/env python3
"""Runs torch's own tests of pipelining, with the import swapped to stagecraft, on the CPU.

    python/tests/upstream_suite.py --suite DIR [--only test_schedule.py] [--skip-baseline]

DIR is the folder test/distributed/pipelining of a checkout of PyTorch of the installed version; it is not part of this
project and is not changed: the tests are copied to a temporary folder. First they run with torch's own package, so
that what fails there is known; then with stagecraft. Prints a table, and exits with 1 if a test fails here and not there.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

UPSTREAM, OURS = "torch.distributed.pipelining", "stagecraft"
# Lines that ask for an accelerator.
DROPPED = re.compile(r"^\s*@(requires_accelerator_dist_backend|skip_if_lt_x_gpu)\(.*$\n", re.M)
REPLACED = [
    (re.compile(r"not TEST_MULTIACCELERATOR"), "False"),
    (re.compile(r"torch\.device\(device_type, self\.rank\)"), 'torch.device("cpu")'),
    (re.compile(r"^device_type = .*$", re.M), 'device_type = "cpu"'),
    (re.compile(r"^backend = .*$", re.M), 'backend = "gloo"'),
]
# How many processes the classes of a file have on the CPU, where the file would take the number of devices.
WORLD_SIZES = {"test_stage.py": 2, "test_dtensor_pp_unit_tests.py": 4}
CLASS = re.compile(r"^class \w*Test\w*\(.*\):\n", re.M)
OWN_SIZE = re.compile(r"^    world_size(: int)? = .*\n", re.M)


def cpu_form(name: str, text: str, swap: bool) -> str:
    """A test file for the CPU and gloo, with the import swapped or not."""
    text = DROPPED.sub("", text)
    for pattern, replacement in REPLACED:
        text = pattern.sub(replacement, text)
    if name in WORLD_SIZES:
        text = OWN_SIZE.sub("", text)
        text = CLASS.sub(lambda match: f"{match.group(0)}    world_size = {WORLD_SIZES[name]}\n", text)
    return text.replace(UPSTREAM, OURS) if swap else text


def copy_suite(suite: Path, folder: Path, swap: bool) -> list[str]:
    """Copies all files; returns the names of the tests."""
    tests = []
    for path in sorted(suite.rglob("*")):
        target = folder / path.relative_to(suite)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif path.suffix == ".py":
            target.write_text(cpu_form(path.name, path.read_text(), swap))
            if path.parent == suite and path.name.startswith("test_") and "composability" not in path.name:
                tests.append(path.name)
        else:
            shutil.copy(path, target)
    return tests


def run_file(folder: Path, name: str, timeout: float) -> dict[str, str]:
    """The outcome of each case: passed, skipped or failed."""
    report = folder / f"{name}.xml"
    # Each case of torch's suite may start processes, which inherit the folder as their place to import from.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
           "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu", "OMP_NUM_THREADS": "1"}
    try:
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", name],
                       cwd=folder, env=env, timeout=timeout, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return {f"{name}::(all)": "timed out"}
    if not report.exists():
        return {f"{name}::(all)": "not run"}
    outcomes = {}
    for case in xml.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        outcomes[f"{name}::{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"] = outcome
    return outcomes


def run_suite(suite: Path, swap: bool, only: list[str], timeout: float) -> dict[str, str]:
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in copy_suite(suite, Path(folder), swap):
            if not only or name in only:
                outcomes |= run_file(Path(folder), name, timeout)
    return outcomes


def count(outcomes: dict[str, str]) -> str:
    found = list(outcomes.values())
    return ", ".join(f"{found.count(kind)} {kind}" for kind in ("passed", "skipped", "failed", "timed out", "not run")
                     if found.count(kind))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=Path, help="the folder test/distributed/pipelining of a checkout of PyTorch")
    parser.add_argument("--only", action="append", default=[], help="this file alone; may be given several times")
    parser.add_argument("--skip-baseline", action="store_true", help="do not run torch's own package")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for one file")
    options = parser.parse_args()
    if options.suite is None:
        print("The suite is part of PyTorch's sources and not of this project. Get the sources of the installed version,\n"
              "  git clone --depth 1 --branch v$(python -c 'import torch; print(torch.__version__.split(\"+\")[0])') "
              "https://github.com/pytorch/pytorch\nand give --suite pytorch/test/distributed/pipelining. Nothing was run.")
        return 2
    if not options.suite.is_dir() or not list(options.suite.glob("test_*.py")):
        parser.error(f"--suite: expected a folder with test_*.py, got {options.suite}")
    baseline = {} if options.skip_baseline else run_suite(options.suite, False, options.only, options.timeout)
    swapped = run_suite(options.suite, True, options.only, options.timeout)
    worse = 0
    for case in sorted({*baseline, *swapped}):
        there, here = baseline.get(case, "-"), swapped.get(case, "missing")
        if there == here and here in ("passed", "skipped"):
            continue
        is_worse = here not in ("passed", "skipped") and there != here
        worse += is_worse
        print(f"{'!' if is_worse else ' '} {case:<110} torch: {there:<10} stagecraft: {here}")
    print(f"torch:      {count(baseline) or 'not run'}\nstagecraft: {count(swapped)}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
