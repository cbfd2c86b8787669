"""Packages of compiled stages: Inductor's programs against autograd, dropout, cache, the command line, what is refused."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn

from compile_models import VOCABULARY, Gpt, assert_close, gpt_pipe, make_pipe, run_tool
from stagecraft.compile import build, private
from stagecraft.compile.__main__ import main
from stagecraft.compile.cache import Cache
from stagecraft.compile.chain import load_chain
from stagecraft.compile.compiler import compile_pipe
from stagecraft.compile.errors import CompileError
from stagecraft.compile.joint import StageOptions
from stagecraft.compile.package import read_description


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("package")


@pytest.fixture(scope="module")
def gpt(folder: Path) -> Gpt:
    torch.manual_seed(0)
    return Gpt(layers=1, dropout=0.25)


@pytest.fixture(scope="module")
def package(folder: Path, gpt: Gpt) -> Path:
    """Two stages, sizes that may change, dropout: the embedding, and a block with the loss."""
    pipe = gpt_pipe(folder, gpt, ["--split", "blocks.0"])
    result = compile_pipe(pipe, folder / "gpt.scp", StageOptions(), cache=Cache(folder / "cache"), processes=2)
    assert (result.compiled, result.distinct, result.cached) == (6, 2, 0)
    return folder / "gpt.scp"


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length))


def sizes_of(package: Path, rows: int, length: int) -> dict[str, int]:
    names = read_description(package)["symbols"]
    return dict(zip(names, (rows, length), strict=True))


def test_halves_give_the_gradients_of_the_whole_backward(package: Path) -> None:
    chain = load_chain(package, "cpu")
    for rows, length in [(3, 8), (5, 11), (1, 3)]:
        args = (ids(rows, length), ids(rows, length))
        sizes = sizes_of(package, rows, length)
        loss = chain.step(args, False, sizes)
        whole = chain.grads()
        again = chain.step(args, True, sizes)
        assert torch.equal(loss[0], again[0])
        assert set(whole) == set(chain.grads())
        for name, grad in chain.grads().items():
            assert_close(grad, whole[name], name)


def test_dropout_follows_its_seeds(package: Path) -> None:
    """Same seeds, same bits; other seeds, other numbers; the gradient is that of the function that was drawn."""
    chain = load_chain(package, "cpu")
    assert len(chain.stages[1]["draws"]) == 2
    runner = chain.runners[1]
    sizes = sizes_of(package, 3, 8)
    x, targets = torch.randn(3, 8, 16), ids(3, 8)
    places = {name: number for number, name in enumerate(chain.stages[1]["inputs"])}
    values = sorted(places.values())
    floating = next(s["index"] for s in chain.stages[1]["programs"]["forward"]["inputs"]
                    if s["kind"] == "input" and s["dtype"] == "float32")
    other = next(i for i in values if i != floating)
    seeds = torch.tensor([5, 6])

    def loss(at: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
        return runner.forward({floating: at, other: targets}, sizes, seeds)[0]

    with torch.no_grad():
        first = loss(x, seeds)
        assert torch.equal(first, loss(x, seeds))
        assert not torch.equal(first, loss(x, torch.tensor([5, 7])))
        loss(x, seeds)
        dx = runner.backward({0: torch.ones(())})[floating]
        direction = torch.randn_like(x)
        step = 1e-2
        slope = (loss(x + step * direction, seeds) - loss(x - step * direction, seeds)) / (2 * step)
        assert_close(slope, (dx * direction).sum(), "slope", 2e-2)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 8)
        self.b = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))


@pytest.fixture(scope="module")
def plain(folder: Path) -> tuple[Plain, Path]:
    torch.manual_seed(0)
    model = Plain()
    return model, make_pipe(model, (torch.randn(4, 6),), folder, ["--split", "b"], name="plain")


def test_compiled_gradients_are_those_of_autograd(plain: tuple[Plain, Path], folder: Path) -> None:
    """Through the command line; what was compiled is not compiled again."""
    model, pipe = plain
    target = folder / "plain.scp"
    cache = ["--cache", str(folder / "cache")]
    assert main([str(pipe), "-o", str(target), "--quiet", *cache]) == 0
    chain = load_chain(target, "cpu")
    x = torch.randn(4, 6)
    model(x).sum().backward()
    for halves in (False, True):
        outputs = chain.step((x,), halves, {})
        grads = chain.grads()
        assert_close(outputs[0], model(x).detach(), "output")
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            assert_close(grads[name], parameter.grad, name)
    # An update in place is seen by the next call.
    before = chain.step((x,), False, {})[0]
    chain.tensors[0]["a.bias"].add_(1)
    assert not torch.equal(before, chain.step((x,), False, {})[0])
    again = compile_pipe(pipe, folder / "again.scp", StageOptions(), cache=Cache(folder / "cache"))
    assert (again.compiled, again.cached) == (0, 2)
    assert read_description(target)["stages"] == read_description(folder / "again.scp")["stages"]


def test_a_damaged_entry_of_the_cache_is_not_used(plain: tuple[Plain, Path], folder: Path) -> None:
    cache = Cache(folder / "small")
    source = folder / "some.pt2"
    source.write_bytes(b"abc")
    path = cache.put("key", source)
    assert cache.find("key") == path
    path.write_bytes(b"abd")
    assert cache.find("key") is None
    assert cache.find("other") is None


def test_the_package_describes_itself(package: Path) -> None:
    described = read_description(package)
    assert described["format"] == 1
    assert described["torch"] == torch.__version__.split("+")[0]
    assert described["device"] == "cpu"
    assert all(entry["min"] <= entry["example"] <= entry["max"] for entry in described["symbols"].values())
    with zipfile.ZipFile(package) as archive:
        members = {name.removeprefix("package/") for name in archive.namelist()}
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
    assert members == {"stagecraft.json", *described["members"]}
    damaged = package.with_name("damaged.scp")
    data = package.read_bytes().replace(b'"device": "cpu"', b'"device": "cqu"')
    damaged.write_bytes(data)
    with pytest.raises(CompileError, match="description is damaged|not a package"):
        read_description(damaged)


def test_a_program_that_crashes_when_it_is_loaded_is_reported(
    plain: tuple[Plain, Path], folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crashing = tmp_path / "python"
    crashing.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crashing.chmod(0o755)
    monkeypatch.setattr(build.sys, "executable", str(crashing))
    with pytest.raises(CompileError, match=r"SIGSEGV.*libstdc\+\+ statically.*CXX=/usr/bin/g\+\+"):
        build.try_packages({tmp_path / "x.pt2": {}}, "cpu")


def test_a_missing_compiler_is_a_sentence(plain: tuple[Plain, Path], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class InvalidCxxCompiler(RuntimeError):
        pass

    def fail(*args: Any) -> Any:
        raise InvalidCxxCompiler("No working C++ compiler found")

    monkeypatch.setattr(private, "aot_compile", fail)
    with pytest.raises(CompileError, match=r"^stage 0, program forward: Inductor found no C\+\+ compiler: install g\+\+"):
        compile_pipe(plain[1], folder / "none.scp", StageOptions())
    assert not (folder / "none.scp").exists()


def test_bad_usage(plain: tuple[Plain, Path], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = str(plain[1])
    for words, message in [
        ([str(folder / "absent.pt2")], "there is no such file"),
        ([pipe, "--stages", "2"], "is split already"),
        ([pipe, "--fix", "=3"], "expected NAME or NAME=N"),
        ([pipe, "--jobs", "0"], "expected at least 1"),
        ([pipe, "--device", "tpu"], "invalid choice"),
    ]:
        with pytest.raises(SystemExit) as status:
            main(words)
        assert status.value.code == 2
        assert message in capsys.readouterr().err
    for words, message in [
        ([pipe, "--fix", "rows"], "the model has no such size that may change; it has none"),
        ([pipe, "-o", str(folder / "no" / "x.scp")], "there is no folder"),
        ([sys.executable, "-o", str(folder / "x.scp")], "is not an archive"),
    ]:
        assert main(["--quiet", *words]) == 1
        assert message in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main([pipe, "--device", "cuda", "--quiet"]) == 1
        assert "torch finds no GPU here" in capsys.readouterr().err


def test_the_tool_starts_it() -> None:
    os.environ.setdefault("STAGECRAFT_PYTHON", sys.executable)
    done = run_tool(["compile", "--help"])
    assert done.returncode == 0, done.stderr
    assert "stagecraft compile gpt.pt2 --stages 4" in done.stdout
