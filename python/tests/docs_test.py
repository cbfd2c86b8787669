"""The Python snippets of docs/python.md run in order and print what the page says."""

import contextlib
import io
import os
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def test_snippets(tmp_path, monkeypatch):
    if not PAGE.exists():
        pytest.skip("the sources are not there")
    monkeypatch.chdir(tmp_path)
    assert os.environ.get("PYTHONPATH")
    names: dict[str, object] = {}
    blocks = BLOCK.findall(PAGE.read_text())
    ran = 0
    for index, (language, text) in enumerate(blocks):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, f"{PAGE.name}, block {index}", "exec"), names)  # noqa: S102
        ran += 1
        if index + 1 < len(blocks) and blocks[index + 1][0] == "text":
            assert printed.getvalue().strip() == blocks[index + 1][1].strip(), text
    assert ran >= 4
