"""Packages of compiled stages: Inductor's programs against autograd, dropout, cache, the command line, what is refused."""

from __future__ import annotations

import os
import signal
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn

from compile_models import VOCABULARY, assert_close, make_pipe, run_tool
from stagecraft.compile import compiler, private, stages, workers
from stagecraft.compile.__main__ import main
from stagecraft.compile.cache import Cache
from stagecraft.compile.chain import load_chain
from stagecraft.compile.compiler import compile_pipe
from stagecraft.compile.errors import CompileError
from stagecraft.compile.instructions import instructions_here, instructions_of
from stagecraft.compile.joint import StageOptions
from stagecraft.compile.package import read_description
from stagecraft.compile.trial import try_packages


# Where tests/compiled/make_packages.py has written its packages and their models: nothing is compiled here.
PACKAGES = Path(os.environ.get("SC_COMPILED_FOLDER", ""))
needs_packages = pytest.mark.skipif("SC_COMPILED_FOLDER" not in os.environ, reason="SC_COMPILED_FOLDER is not set")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("package")


@pytest.fixture(scope="module")
def pipe(folder: Path) -> Path:
    """One stage; rows may change."""
    rows = torch.export.Dim("rows", max=64)
    return make_pipe(nn.Linear(3, 2), (torch.rand(4, 3),), folder, [], ({0: rows},))


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length))


def sizes_of(package: Path, *sizes: int) -> dict[str, int]:
    return dict(zip(read_description(package)["symbols"], sizes, strict=True))


@needs_packages
def test_compiled_gradients_are_those_of_autograd() -> None:
    package = PACKAGES / "gpt.scp"
    gpt = torch.export.load(package.with_suffix(".pt2")).module()
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


@needs_packages
def test_weights_are_read_at_every_call() -> None:
    package = PACKAGES / "mlp.scp"
    chain = load_chain(package, "cpu")
    args, sizes = (torch.randn(2, 6),), sizes_of(package, 2)
    before = chain.step(args, False, sizes)[0]
    chain.tensors[1]["b.weight"].mul_(2)
    chain.tensors[1]["b.bias"].mul_(2)
    assert torch.equal(before * 2, chain.step(args, False, sizes)[0])


@needs_packages
def test_what_was_compiled_is_not_compiled_again(folder: Path) -> None:
    """The tool as a user runs it, with a compiler that cannot work."""
    again, cache = folder / "again.scp", PACKAGES / "cache"
    os.environ["STAGECRAFT_PYTHON"] = sys.executable
    words = ["compile", str(PACKAGES / "mlp.pt2"), "-o", str(again), "--split", "b", "--cache", str(cache)]
    done = run_tool(words, CXX="false")
    assert done.returncode == 0, done.stderr
    assert "stage 0: in the cache" in done.stderr and "[1/" not in done.stderr
    first, second = read_description(PACKAGES / "mlp.scp"), read_description(again)
    assert first["stages"] == second["stages"]
    code = {stage["code"] for stage in first["stages"]}
    assert len(code) == 2 and all(first["members"][name] == second["members"][name] for name in code)


@needs_packages
def test_dropout_follows_its_seeds() -> None:
    """Same seeds, same bits; other seeds, other numbers; forward and backward drop the same elements."""
    package = PACKAGES / "drop1.scp"
    inputs, sizes = {0: ids(4, 8), 1: ids(4, 8)}, sizes_of(package, 4, 8)
    chain = load_chain(package, "cpu")
    runner, weights = chain.runners[0], chain.tensors[0]
    count = len(chain.stages[0]["draws"])
    assert count == 2

    def run(seed: int) -> torch.Tensor:
        return runner.forward(inputs, sizes, torch.arange(count) + seed)[0]

    with torch.no_grad():
        first = run(5)
        assert torch.equal(first, run(5)) and not torch.equal(first, run(6))
        run(5)
        runner.backward({0: torch.ones_like(first)})
        grads = chain.grads()
        # The slope of the loss with these elements dropped.
        name, step = "blocks.0.up.weight", 1e-2
        direction = grads[name] / grads[name].norm()
        weights[name].add_(direction, alpha=step)
        above = run(5)
        weights[name].sub_(direction, alpha=2 * step)
        slope = (above - run(5)) / (2 * step)
        assert abs(slope / grads[name].norm() - 1) < 0.02


def test_a_damaged_entry_of_the_cache_is_not_used(folder: Path) -> None:
    cache = Cache(folder / "small")
    source = folder / "some.pt2"
    source.write_bytes(b"abc")
    path = cache.put("key", source)
    assert cache.find("key") == path
    path.write_bytes(b"abd")
    assert cache.find("key") is None
    assert cache.find("other") is None


@needs_packages
def test_the_package_describes_itself(tmp_path: Path) -> None:
    package = PACKAGES / "gpt.scp"
    described = read_description(package)
    assert described["format"] == 1
    assert described["torch"] == torch.__version__.split("+")[0]
    assert described["device"] == "cpu"
    assert described.get("instructions", []) == instructions_here()
    assert all(entry["min"] <= entry["example"] <= entry["max"] for entry in described["symbols"].values())
    with zipfile.ZipFile(package) as archive:
        members = {name.removeprefix("package/") for name in archive.namelist()}
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
    assert members == {"stagecraft.json", *described["members"]}
    damaged = tmp_path / "damaged.scp"
    data = package.read_bytes().replace(b'"device": "cpu"', b'"device": "cqu"')
    damaged.write_bytes(data)
    with pytest.raises(CompileError, match="description is damaged|not a package"):
        read_description(damaged)


def test_instructions_are_read_from_the_text_of_the_kernel() -> None:
    # tests/compiled/instructions_test.cpp has the same texts and results.
    aarch64 = (
        "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd sve crc32  asimddp\nCPU part\t: 0xd0c\n\n"
        "processor\t: 1\nFeatures\t: fp\n"
    )
    assert instructions_of(aarch64) == ["asimd", "asimddp", "crc32", "fp", "sve"]
    x86_64 = (
        "processor\t: 0\nmodel name\t: flags of avx\nvmx flags\t: avx512_invented ept\n"
        "flags\t\t: fpu vme sse sse2 ht pni ssse3 fma cx16 sse4_1 sse4_2 avx hypervisor avx2 bmi1 bmi2 avx512f sha_ni "
        "amx_tile abm nopl\nbugs\t\t: spectre_v1\n"
    )
    sse = ["sse", "sse2", "sse4_1", "sse4_2", "ssse3"]
    avx = ["avx", "avx2", "avx512f"]
    assert instructions_of(x86_64) == ["abm", "amx_tile", *avx, "bmi1", "bmi2", "cx16", "fma", "pni", "sha_ni", *sse]
    for text in ("", "processor : 0\nflags", "isa\t: rv64imafdc\n", "Features\t:"):
        assert instructions_of(text) == []


def test_programs_for_other_instructions_have_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "fingerprint", lambda programs, more: more)
    programs: Any = None
    keys = set()
    for instructions in (["avx"], ["avx", "avx2"]):
        monkeypatch.setattr(stages, "instructions_here", lambda found=instructions: found)
        keys.add(stages.stage_key(programs, StageOptions()))
    assert len(keys) == 2


def test_a_program_that_crashes_when_it_is_loaded_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    crashing = tmp_path / "python"
    crashing.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crashing.chmod(0o755)
    monkeypatch.setattr(workers.sys, "executable", str(crashing))
    with pytest.raises(CompileError, match=r"SIGSEGV.*libstdc\+\+ statically.*CXX=/usr/bin/g\+\+"):
        try_packages({tmp_path / "x.pt2": {}}, "cpu", workers.Workers())


def test_a_worker_that_has_died_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lives = tmp_path / "python"
    lives.write_text("#!/bin/sh\n[ -e \"$0.once\" ] || { touch \"$0.once\"; echo broken >&2; exit 3; }\n"
                     f"read line; echo '{workers.ANSWER}{{}}'; read line\n")
    lives.chmod(0o755)
    monkeypatch.setattr(workers.sys, "executable", str(lives))
    with workers.Workers(1) as processes:
        first = processes.ask({"do": "try"})
        assert (first.died, first.last_error, first.by_signal) == ("its process ended with 3", "broken", False)
        assert processes.ask({"do": "try"}) == workers.Answer()
        processes.end()
        assert processes.ask({"do": "try"}) == workers.Answer()


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
    package = folder / "some.scp"
    with zipfile.ZipFile(package, "w") as archive:
        for name in ("stagecraft.json", "pipe"):
            archive.writestr(f"package/{name}", "")
    for words, message in [
        ([str(folder / "absent.pt2")], "there is no such file"),
        ([words_of, "--fix", "=3"], "expected NAME or NAME=N"),
        ([words_of, "--jobs", "0"], "expected at least 1"),
        ([words_of, "--device", "tpu"], "invalid choice"),
        ([words_of, "-o", words_of], "would replace the model"),
        ([words_of, "-o", ""], "expected the name of a file"),
        ([str(folder)], "this is a folder"),
        ([str(package)], "it is a package of compiled stages"),
    ]:
        with pytest.raises(SystemExit) as status:
            main(words)
        assert status.value.code == 2
        assert message in capsys.readouterr().err
    for words, message in [
        ([words_of, "--fix", "columns"], "the model has no such size that may change; it has input_dim0"),
        ([words_of, "--fix", "input_dim0=0"], "--fix input_dim0=0: expected at least 1"),
        ([words_of, "-o", str(folder / "no" / "x.scp")], "there is no folder"),
        ([words_of, "-o", str(folder)], "expected the name of a file, and this is a folder"),
        ([sys.executable, "-o", str(folder / "x.scp")], "is not an archive"),
    ]:
        assert main(["--quiet", *words]) == 1
        assert message in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main([words_of, "--device", "cuda", "--quiet"]) == 1
        assert "torch finds no GPU here" in capsys.readouterr().err


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_in_a_sentence(
    pipe: Path, folder: Path, number: signal.Signals, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[Path] = []

    def wait(*unused: Any, workers: workers.Workers, **more: Any) -> None:
        monkeypatch.setattr(workers, "end", lambda: ended.append(pipe))
        os.kill(os.getpid(), number)

    monkeypatch.setattr(compiler, "compile_pipe", wait)
    before = signal.getsignal(signal.SIGTERM)
    assert main([str(pipe), "-o", str(folder / "never.scp"), "--quiet"]) == status
    assert "interrupted; nothing was written" in capsys.readouterr().err
    assert ended and signal.getsignal(signal.SIGTERM) == before


def test_a_cache_that_cannot_be_written_loses_nothing(pipe: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = folder / "blocked"
    blocked.write_text("")
    assert "the cache cannot be written" in (Cache(blocked).problem() or "")
    assert Cache(folder / "new" / "cache").problem() is None

    class Compiled(Exception):
        pass

    def stop(*unused: Any) -> None:
        raise Compiled

    lines: list[str] = []
    monkeypatch.setattr(compiler, "compile_stages", stop)
    with pytest.raises(Compiled):
        compile_pipe(pipe, folder / "none.scp", StageOptions(), cache=Cache(blocked), report=lines.append)
    assert any("what is compiled now is not kept" in line for line in lines)


def test_the_tool_starts_it() -> None:
    os.environ["STAGECRAFT_PYTHON"] = sys.executable
    done = run_tool(["compile", "--help"])
    assert done.returncode == 0, done.stderr
    assert "stagecraft compile gpt.pt2 --stages 4" in done.stdout
