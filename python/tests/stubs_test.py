"""The stubs are those of the extension modules (mypy's stubtest)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stagecraft

CONFIG = Path(__file__).resolve().parents[2] / "pyproject.toml"


@pytest.mark.parametrize("module", ["_schedule", "_C"])
def test_stubtest(module, tmp_path):
    pytest.importorskip("mypy")
    # What pybind11 gives every class: a metaclass, and a constructor that takes anything and refuses.
    allowed = tmp_path / "allowed"
    allowed.write_text(f"stagecraft\\.{module}\\.[A-Z]\\w+\nstagecraft\\.{module}\\..*\\.__init__\n")
    env = {**os.environ, "MYPYPATH": str(Path(stagecraft.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", "import torch, sys; from mypy.stubtest import main; sys.exit(main())",
                           f"stagecraft.{module}", "--mypy-config-file", str(CONFIG), "--allowlist", str(allowed),
                           "--ignore-unused-allowlist"],
                          capture_output=True, text=True, timeout=600, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
