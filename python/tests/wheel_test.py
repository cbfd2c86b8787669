"""A wheel is built, installed into a fresh environment that has no compiler, and its tools run there.

The environment sees the torch of this one, so that nothing is downloaded. Needs STAGECRAFT_BUILD, the build folder,
where only what has changed is compiled.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _run(*command, timeout=600, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The Python of a fresh environment with the wheel, and the variables it runs with."""
    build = os.environ.get("STAGECRAFT_BUILD")
    if not build:
        pytest.skip("STAGECRAFT_BUILD is not set")
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--disable-pip-version-check",
         f"-Cbuild-dir={build}", "--wheel-dir", folder, ROOT, cwd=ROOT)
    wheel, = folder.glob("torch_stagecraft-*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    site = _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-compile",
         "--disable-pip-version-check", wheel)
    (Path(site) / "torch_of_the_build.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # No compiler, no build folder, no other package of ours.
    env = {"PATH": str(python.parent), "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    return python, env, folder


def test_the_wheel_depends_on_one_torch(installed):
    python, env, _ = installed
    script = "import importlib.metadata as m; print(m.requires('torch-stagecraft'), m.version('torch'))"
    requires = _run(python, "-c", script, env=env)
    version = requires.split()[-1]
    assert f"torch=={'.'.join(version.split('.')[:2])}.*" in requires


def test_tools_run(installed):
    python, env, folder = installed
    assert "rank 0" in _run(python, "-m", "stagecraft", "draw", "1F1B", "--ranks", "2", "--microbatches", "4", env=env)
    assert "ZBVZeroBubble" in _run(python, "-m", "stagecraft", "compare", "--ranks", "4", "--microbatches", "8", env=env)
    trained = _run(python, "-m", "stagecraft", "train", "--steps", "5", "--layers", "4", "--width", "32", "--context", "32",
                   "--sample", "0", env=env, cwd=folder)
    assert "5" in trained
    # The console script.
    drawing = folder / "drawing.svg"
    _run(python.parent / "stagecraft", "draw", "ZBVZeroBubble", "--ranks", "4", "--microbatches", "8", "--output",
         drawing, env=env)
    assert drawing.read_text().lstrip().startswith("<svg")


def test_the_package_runs(installed):
    python, env, folder = installed
    script = ("import torch, stagecraft\n"
              "from stagecraft import PipelineStage, ScheduleGPipe\n"
              "m = torch.nn.Linear(2, 2)\n"
              "stage = PipelineStage(m, 0, 1, torch.device('cpu'))\n"
              "out = ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss).step(torch.ones(4, 2), "
              "target=torch.ones(4, 2))\n"
              "print(tuple(out.shape), m.weight.grad is not None)")
    assert _run(python, "-c", script, env=env, cwd=folder).strip() == "(4, 2) True"


def test_the_example_runs_on_two_ranks(installed):
    python, env, folder = installed
    example = folder / "two_ranks.py"
    example.write_text((ROOT / "examples" / "python" / "two_ranks.py").read_text())
    text = _run(python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend",
                "c10d", "--rdzv-endpoint", "localhost:0", example, env=env, cwd=folder)
    assert "step 4: loss" in text


def test_planning_runs(installed):
    python, env, folder = installed
    script = ("import torch, stagecraft\n"
              "model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(6)])\n"
              "plan = stagecraft.plan(model, torch.ones(2, 4), ranks=2, time_limit=0.2, measure=False)\n"
              "print(len(plan.cuts) > 0, plan.bound <= plan.time)")
    assert _run(python, "-c", script, env=env, cwd=folder).strip() == "True True"


def test_stages_are_compiled(installed):
    """Without a compiler there is a sentence; with one, a package."""
    python, env, folder = installed
    script = ("import torch\n"
              "program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(4, 2),))\n"
              "torch.export.save(program, 'linear.pt2')")
    _run(python, "-c", script, env=env, cwd=folder)
    compile_it = [python, "-m", "stagecraft", "compile", "linear.pt2", "-o", "linear.scp"]
    done = subprocess.run([str(part) for part in compile_it], capture_output=True, text=True, timeout=600, env=env, cwd=folder)
    assert done.returncode == 1, done.stderr
    assert "Inductor found no C++ compiler: install g++" in done.stderr
    assert not (folder / "linear.scp").exists()
    done = _run(*compile_it, env={**env, "PATH": f"{env['PATH']}:/usr/bin:/bin"}, cwd=folder)
    assert (folder / "linear.scp").stat().st_size > 10000
