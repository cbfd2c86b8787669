"""The examples run, and say what they promise; two of them run on torch's own package, too."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "python"
OUR_IMPORT, THEIR_IMPORT = "from stagecraft import", "from torch.distributed.pipelining import"
needs_transformers = pytest.mark.skipif(importlib.util.find_spec("transformers") is None,
                                        reason="transformers is not installed")


def run(file: Path, ranks: int = 1) -> str:
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", "0",
                    "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, timeout=150,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def with_import(name: str, package: str, folder: Path) -> Path:
    """The example with the one line that differs: a copy for torch's package, itself for ours."""
    file = FOLDER / f"{name}.py"
    if package == "stagecraft":
        return file
    text = file.read_text()
    assert text.count(OUR_IMPORT) == 1 and "stagecraft" not in text.replace(OUR_IMPORT, "")
    copy = folder / file.name
    copy.write_text(text.replace(OUR_IMPORT, THEIR_IMPORT))
    return copy


def module_of(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def losses_of(text: str) -> list[float]:
    return [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("step")]


@pytest.mark.parametrize("name", ["own_schedule", "overlap", "one_process"])
def test_in_one_process(name: str) -> None:
    assert "loss" in run(FOLDER / f"{name}.py")


@pytest.mark.parametrize("package", ["stagecraft", "torch"])
def test_on_two_ranks(package: str, tmp_path: Path) -> None:
    file = FOLDER / "two_ranks.py"
    if package == "torch":
        # Its schedules have no report.
        text = file.read_text().replace(OUR_IMPORT, THEIR_IMPORT)
        head, tail = text.split("    report = ")
        file = tmp_path / file.name
        file.write_text(head + tail[tail.index("    dist.destroy"):])
    losses = losses_of(run(file, 2))
    assert len(losses) == 5 and losses[-1] < losses[0]


@needs_transformers
@pytest.mark.parametrize("package", ["stagecraft", "torch"])
def test_a_gpt2_of_hugging_face_trains_as_uncut(package: str, tmp_path: Path) -> None:
    example = module_of("hugging_face")
    model, tokens = example.make_model(), example.batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    expected = []
    for _ in range(example.STEPS):
        optimizer.zero_grad()
        loss = example.loss(model(input_ids=tokens), tokens)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert losses_of(run(with_import("hugging_face", package, tmp_path), 2)) == pytest.approx(expected, abs=2e-5)
    assert expected[-1] < expected[0]


@pytest.mark.parametrize("package", ["stagecraft", "torch"])
def test_stages_beside_data_parallel_replicas_train_as_uncut(package: str, tmp_path: Path) -> None:
    example = module_of("data_parallel")
    torch.manual_seed(0)
    model = example.Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    expected = []
    for step in range(example.STEPS):
        tokens, target = example.batch(step)
        optimizer.zero_grad()
        loss = example.loss(model(tokens), target)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    # Adam divides by small numbers, so the last digits grow.
    assert losses_of(run(with_import("data_parallel", package, tmp_path), 4)) == pytest.approx(expected, abs=5e-4)
    assert expected[-1] < expected[0]


def test_all_examples_are_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {
        "own_schedule", "overlap", "one_process", "two_ranks", "hugging_face", "data_parallel"}
