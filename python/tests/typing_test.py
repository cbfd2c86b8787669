"""The package's types hold (mypy --strict), its stubs are those of the modules, and every public name is described."""

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stagecraft

PACKAGE = Path(stagecraft.__file__).parent
CONFIG = Path(__file__).resolve().parents[2] / "pyproject.toml"
PUBLIC = ["data", "errors", "microbatch", "schedules", "stage"]


def _run(*command, **options):
    env = {**os.environ, "MYPYPATH": str(PACKAGE.parent)}
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=280, env=env,
                          **options)


def test_types_hold(tmp_path):
    pytest.importorskip("mypy")
    # A build folder keeps what was found out about torch, which takes a minute.
    cache = os.environ.get("STAGECRAFT_MYPY_CACHE", str(tmp_path))
    done = _run("mypy", "--config-file", str(CONFIG), "--cache-dir", cache, "-p", "stagecraft", cwd=tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", ["_schedule", "_C"])
def test_stubs_have_the_modules_names(module):
    """Every name of an extension module is in its stub, and the other way round."""
    import ast

    import torch  # noqa: F401

    stub = ast.parse((PACKAGE / f"{module}.pyi").read_text())
    real = importlib.import_module(f"stagecraft.{module}")

    def public(names):
        return {name for name in names if not name.startswith("_")}

    listed = {node.name: node for node in stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert public(listed) == public(vars(real))
    for name, node in listed.items():
        if not isinstance(node, ast.ClassDef):
            continue
        members = {item.name for item in node.body if isinstance(item, ast.FunctionDef)} | {
            item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}
        assert public(members) == public(vars(getattr(real, name))), name


def test_every_public_name_is_described():
    missing = []
    for name in stagecraft.__all__:
        value = getattr(stagecraft, name)
        if not inspect.getdoc(value):
            missing.append(name)
        elif inspect.isclass(value) and value.__module__.startswith("stagecraft"):
            for method, function in vars(value).items():
                function = getattr(function, "fget", None) or getattr(function, "__func__", function)
                if not method.startswith("_") and inspect.isfunction(function) and not inspect.getdoc(
                        getattr(value, method)):
                    missing.append(f"{name}.{method}")
    for name in PUBLIC:
        module = importlib.import_module(f"stagecraft.{name}")
        assert module.__doc__, name
        missing += [f"{name}.{each}" for each in getattr(module, "__all__", [])
                    if not inspect.getdoc(getattr(module, each)) and not isinstance(getattr(module, each), int)]
    assert missing == []


def test_names_of_torch_are_here():
    """What torch's package exports, in the modules that people import from."""
    import torch.distributed.pipelining as theirs
    assert set(theirs.__all__) <= set(stagecraft.__all__)
    for name in ("microbatch", "schedules", "stage"):
        module = importlib.import_module(f"torch.distributed.pipelining.{name}")
        ours = importlib.import_module(f"stagecraft.{name}")
        assert [each for each in module.__all__ if not hasattr(ours, each)] == []


def test_import_loads_neither_torch_nor_the_engine():
    done = subprocess.run([sys.executable, "-c", "import stagecraft, sys; print('torch' in sys.modules, "
                           "'stagecraft._C' in sys.modules, 'numpy' in sys.modules)"],
                          capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.stdout.split() == ["False"] * 3, done.stderr
