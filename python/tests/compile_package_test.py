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
import torch.nn.functional as F

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
def gpt() -> Gpt:
    torch.manual_seed(0)
    return Gpt(layers=1)


@pytest.fixture(scope="module")
def pipe(folder: Path, gpt: Gpt) -> Path:
    """Two stages, sizes that may change: the embedding, and a block with the loss."""
    return gpt_pipe(folder, gpt, ["--split", "blocks.0"])


@pytest.fixture(scope="module")
def package(folder: Path, pipe: Path) -> Path:
    result = compile_pipe(pipe, folder / "gpt.scp", StageOptions(), cache=Cache(folder / "cache"), processes=2)
    assert (result.compiled, result.distinct, result.cached) == (6, 2, 0)
    return folder / "gpt.scp"


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length))


def sizes_of(package: Path, rows: int, length: int) -> dict[str, int]:
    names = read_description(package)["symbols"]
    return dict(zip(names, (rows, length), strict=True))


def test_compiled_gradients_are_those_of_autograd(gpt: Gpt, package: Path) -> None:
    chain = load_chain(package, "cpu")
    for rows, length in [(3, 8), (5, 11), (1, 3)]:
        args = (ids(rows, length), ids(rows, length))
        gpt.zero_grad()
        expected = gpt(*args)
        expected.backward()
        for halves in (False, True):
            loss = chain.step(args, halves, sizes_of(package, rows, length))[0]
            assert_close(loss, expected.detach(), "loss")
            grads = chain.grads()
            for name, parameter in gpt.named_parameters():
                assert parameter.grad is not None
                assert_close(grads[name], parameter.grad, name)


def test_weights_are_read_at_every_call(package: Path) -> None:
    chain = load_chain(package, "cpu")
    args = (ids(2, 4), ids(2, 4))
    before = chain.step(args, False, sizes_of(package, 2, 4))[0]
    chain.tensors[0]["tokens.weight"].mul_(2)
    assert not torch.equal(before, chain.step(args, False, sizes_of(package, 2, 4))[0])


def test_what_was_compiled_is_not_compiled_again(pipe: Path, package: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "aot_compile", None)
    again = folder / "again.scp"
    assert main([str(pipe), "-o", str(again), "--quiet", "--cache", str(folder / "cache")]) == 0
    assert read_description(package)["stages"] == read_description(again)["stages"]


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * self.weight, 0.25)


def test_dropout_follows_its_seeds(folder: Path) -> None:
    """Same seeds, same bits; other seeds, other numbers; forward and backward drop the same elements."""
    x = torch.rand(50, 64) + 0.5
    pipe = make_pipe(Noisy(), (x,), folder, [], name="noisy")
    compile_pipe(pipe, folder / "noisy.scp", StageOptions())
    chain = load_chain(folder / "noisy.scp", "cpu")
    assert len(chain.stages[0]["draws"]) == 1
    runner = chain.runners[0]

    def run(seed: int) -> torch.Tensor:
        return runner.forward({0: x}, {}, torch.tensor([seed]))[0]

    with torch.no_grad():
        first = run(5)
        assert torch.equal(first, run(5)) and not torch.equal(first, run(6))
        kept = first != 0
        assert 0.7 < kept.float().mean() < 0.8
        assert_close(first, x * kept / 0.75, "output")
        run(5)
        runner.backward({0: torch.ones_like(x)})
        assert_close(runner.grads[0], (x * kept / 0.75).sum(0), "gradient")


def test_a_damaged_entry_of_the_cache_is_not_used(pipe: Path, folder: Path) -> None:
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
    pipe: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crashing = tmp_path / "python"
    crashing.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crashing.chmod(0o755)
    monkeypatch.setattr(build.sys, "executable", str(crashing))
    with pytest.raises(CompileError, match=r"SIGSEGV.*libstdc\+\+ statically.*CXX=/usr/bin/g\+\+"):
        build.try_packages({tmp_path / "x.pt2": {}}, "cpu")


def test_a_missing_compiler_is_a_sentence(pipe: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class InvalidCxxCompiler(RuntimeError):
        pass

    def fail(*args: Any) -> Any:
        raise InvalidCxxCompiler("No working C++ compiler found")

    monkeypatch.setattr(private, "aot_compile", fail)
    with pytest.raises(CompileError, match=r"^stage 0, program forward: Inductor found no C\+\+ compiler: install g\+\+"):
        compile_pipe(pipe, folder / "none.scp", StageOptions())
    assert not (folder / "none.scp").exists()


def test_bad_usage(pipe: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words_of = str(pipe)
    for words, message in [
        ([str(folder / "absent.pt2")], "there is no such file"),
        ([words_of, "--fix", "=3"], "expected NAME or NAME=N"),
        ([words_of, "--jobs", "0"], "expected at least 1"),
        ([words_of, "--device", "tpu"], "invalid choice"),
    ]:
        with pytest.raises(SystemExit) as status:
            main(words)
        assert status.value.code == 2
        assert message in capsys.readouterr().err
    for words, message in [
        ([words_of, "--fix", "columns"], "the model has no such size that may change; it has ids_dim0, ids_dim1"),
        ([words_of, "-o", str(folder / "no" / "x.scp")], "there is no folder"),
        ([sys.executable, "-o", str(folder / "x.scp")], "is not an archive"),
    ]:
        assert main(["--quiet", *words]) == 1
        assert message in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main([words_of, "--device", "cuda", "--quiet"]) == 1
        assert "torch finds no GPU here" in capsys.readouterr().err


def test_the_tool_starts_it() -> None:
    os.environ.setdefault("STAGECRAFT_PYTHON", sys.executable)
    done = run_tool(["compile", "--help"])
    assert done.returncode == 0, done.stderr
    assert "stagecraft compile gpt.pt2 --stages 4" in done.stdout
