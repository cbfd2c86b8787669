"""The Python snippets of the pages run in order and print what the pages say."""

import contextlib
import io
import os
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


@pytest.mark.parametrize("name", ["python.md", "python_running.md"])
def test_snippets(name, tmp_path, monkeypatch):
    page = DOCS / name
    if not page.exists():
        pytest.skip("the sources are not there")
    monkeypatch.chdir(tmp_path)
    assert os.environ.get("PYTHONPATH")
    names: dict[str, object] = {}
    blocks = BLOCK.findall(page.read_text())
    ran = 0
    for index, (language, text) in enumerate(blocks):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, f"{page.name}, block {index}", "exec"), names)  # noqa: S102
        ran += 1
        if index + 1 < len(blocks) and blocks[index + 1][0] == "text":
            assert printed.getvalue().strip() == blocks[index + 1][1].strip(), text
    assert ran >= 4


def test_no_line_of_the_specification_is_left_out():
    """What the package has beyond torch is shown on the page."""
    text = (DOCS / "python.md").read_text()
    for part in ("Schedule.build", ".verify()", ".check()", ".simulate(", "sc.Costs(", ".lower(prefetch=1)", "Schedule.read",
                 "run.draw", "sc.compare(", "n_microbatches = 2", "arg_mbs=", "target_mbs=", "schedule.report()",
                 "report.save", "memory_estimate(64).peak", "sc.Pipeline(", "sc.Ports(3)", "ties=", "recompute=",
                 'random="per_microbatch"', "microbatches=3", "verify_against_reference", "sc.add_loss(",
                 "sc.current_stage()", "sc.World.from_environment()", "sc.load_exported(", ".cut([", "sc.Trainer(",
                 "sc.plan(", "plan.cuts", "plan.schedule", "plan.bound", "plan.why", "sc.StageError", "e.__cause__"):
        assert part in text, part
