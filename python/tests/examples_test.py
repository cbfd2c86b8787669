"""The examples run, and say what they promise."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "python"


def run(name: str, ranks: int = 1) -> str:
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", "0",
                    "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    done = subprocess.run([*command, str(FOLDER / f"{name}.py")], capture_output=True, text=True, timeout=150,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["own_schedule", "overlap", "one_process"])
def test_in_one_process(name: str) -> None:
    assert "loss" in run(name)


def test_on_two_ranks() -> None:
    text = run("two_ranks", 2)
    losses = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("step")]
    assert len(losses) == 5 and losses[-1] < losses[0]


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_hugging_face() -> None:
    assert "step 2: loss" in run("hugging_face", 2)


def test_all_examples_are_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {
        "own_schedule", "overlap", "one_process", "two_ranks", "hugging_face"}
