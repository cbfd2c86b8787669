"""The programs of compiled stages, as graphs: gradients against autograd, halves, sizes, buffers, what is refused.

Nothing is compiled here: the graphs are those that Inductor gets.
"""

from __future__ import annotations

import copy
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from compile_models import VOCABULARY, Gpt, Net, Stages, Tied, assert_close, gpt_pipe, make_pipe, run_tool
from stagecraft.compile import private
from stagecraft.compile.errors import CompileError
from stagecraft.compile.graph_text import parse_graph
from stagecraft.compile.joint import StageOptions
from stagecraft.compile.pipe_file import PipeFile
from stagecraft.compile.ranges import ranges_of
from stagecraft.compile.see_through import see_through
from stagecraft.compile.sizes import Rule, SizeExpr
from stagecraft.compile.split import split_model
from stagecraft.compile.stages import stage_key, trace_stage, trace_stages


def check_grads(stages: Stages, model: nn.Module, args: tuple[torch.Tensor, ...], sizes: dict[str, int], halves: bool) -> None:
    """Against eager autograd of the whole model; all outputs get the gradient 1."""
    outputs = stages.chain.step(args, halves, sizes)
    grads = stages.chain.grads()
    model.zero_grad()
    expected = model(*args)
    leaves = list(expected) if isinstance(expected, tuple) else [expected]
    sum(leaf.sum() for leaf in leaves).backward()
    for index, leaf in enumerate(leaves):
        assert_close(outputs[index], leaf.detach(), f"output {index}")
    trained = {name: p.grad for name, p in model.named_parameters() if p.requires_grad and p.grad is not None}
    assert set(grads) == set(trained)
    for name, grad in trained.items():
        assert_close(grads[name], grad, name)


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Gpt, Path]:
    torch.manual_seed(0)
    model = Gpt()
    return model, gpt_pipe(tmp_path_factory.mktemp("gpt"), model, ["--split", "blocks.0,blocks.1,norm"])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Gpt, Path]:
    """One block, in two stages: tracing takes seconds."""
    torch.manual_seed(0)
    model = Gpt(layers=1)
    return model, gpt_pipe(tmp_path_factory.mktemp("small"), model, ["--split", "blocks.0"])


@pytest.fixture(scope="module")
def stages(gpt: tuple[Gpt, Path]) -> Stages:
    return Stages(gpt[1])


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length))


@pytest.mark.parametrize("halves", [False, True])
def test_gradients_are_those_of_autograd_at_any_size(gpt: tuple[Gpt, Path], stages: Stages, halves: bool) -> None:
    model = gpt[0]
    names = stages.symbols
    assert len(names) == 2
    for rows, length in [(3, 8), (5, 13), (1, 2), (2, 1)]:
        sizes = dict(zip(names, (rows, length), strict=True))
        check_grads(stages, model, (ids(rows, length), ids(rows, length)), sizes, halves)


def test_the_embedding_stage_has_no_halves_and_others_have(stages: Stages) -> None:
    assert set(stages.descriptions[0]["programs"]) == {"forward", "backward"}
    for described in stages.descriptions[1:]:
        assert {"forward", "backward", "input_backward", "weight_backward"} <= set(described["programs"])


def test_identical_stages_have_the_same_key(gpt: tuple[Gpt, Path], stages: Stages) -> None:
    keys = [job.key for job in stages.jobs]
    assert keys[1] == keys[2]
    assert len(set(keys)) == 3
    again = trace_stage(PipeFile(gpt[1]), 2, StageOptions(), stages.jobs[2].inputs)
    assert stage_key(again, StageOptions()) == keys[2]


def test_programs_take_tensors_only(stages: Stages) -> None:
    for job in stages.jobs:
        for name, program in job.programs.programs.items():
            for node in program.module.graph.nodes:
                assert node.op != "get_attr", (job.stage, name, "weights are inputs, never constants")
                if node.op == "placeholder":
                    assert isinstance(node.meta["val"], torch.Tensor), (job.stage, name, node)


def test_weight_gradients_are_made_by_the_weight_half(stages: Stages) -> None:
    described = stages.descriptions[1]
    made = {kind: [s["index"] for s in described["programs"][kind]["outputs"] if s["kind"] == "parameter_grad"]
            for kind in ("backward", "input_backward", "weight_backward")}
    assert sorted(made["input_backward"] + made["weight_backward"]) == sorted(made["backward"])
    large = [i for i, name in enumerate(described["parameters"]) if name.endswith("weight") and "before" not in name and "after" not in name]
    assert set(large) <= set(made["weight_backward"])
    assert described["bytes"]["kept"] < described["bytes"]["saved"]


def test_fixed_sizes_are_constants(small: tuple[Gpt, Path], stages: Stages) -> None:
    model, path = small
    fixed = Stages(path, StageOptions(fixed=tuple(zip(stages.symbols, (3, 8), strict=True))))
    assert not fixed.jobs[0].programs.symbols
    check_grads(fixed, model, (ids(3, 8), ids(3, 8)), {}, True)


def test_buffers_skip_edges_several_outputs_and_frozen_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net()
    x = torch.randn(4, 3, 6, 6)
    path = make_pipe(copy.deepcopy(model), (x,), tmp_path, ["--split", "norm,second,last"])
    stages = Stages(path)
    check_grads(stages, model, (x,), {}, True)
    found = {name: tensor for tensors in stages.chain.tensors for name, tensor in tensors.items()}
    changed = 0
    for name, buffer in model.named_buffers():
        assert_close(found[name].float(), buffer.float(), name)
        changed += name.endswith("num_batches_tracked") and int(buffer) == 1
    assert changed == 2
    names = [name for described in stages.descriptions for name in described["parameters"]]
    assert "last.bias" in names
    check_grads(stages, model, (x,), {}, False)


def test_tied_weights_have_a_gradient_in_each_stage(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tied()
    path = make_pipe(copy.deepcopy(model), (ids(2, 5),), tmp_path, ["--split", "middle,head"])
    stages = Stages(path)
    args = (ids(2, 5),)
    outputs = stages.chain.step(args, True, {})
    expected = model(*args)
    expected.sum().backward()
    assert_close(outputs[0], expected.detach(), "output")
    copies = [grad for runner, described in zip(stages.chain.runners, stages.descriptions, strict=True)
              for index, grad in runner.grads.items() if tuple(grad.shape) == (VOCABULARY, 8)]
    if len(copies) == 2:  # replicated
        assert_close(copies[0] + copies[1], model.tokens.weight.grad, "tied")


def test_autocast_casts_weights_once(small: tuple[Gpt, Path]) -> None:
    model, path = small
    stages = Stages(path, StageOptions(autocast=torch.bfloat16))
    for described in stages.descriptions[1:]:
        made = [slot["dtype"] for slot in described["programs"]["prepare"]["outputs"]]
        assert made and set(made) == {"bfloat16"}
        read = {slot["index"] for name in ("forward", "backward") for slot in described["programs"][name]["inputs"]
                if slot["kind"] == "parameter"}
        large = {i for i, name in enumerate(described["parameters"]) if "qkv.weight" in name}
        assert not read & large
    args = (ids(3, 8), ids(3, 8))
    outputs = stages.chain.step(args, True, dict(zip(stages.symbols, (3, 8), strict=True)))
    grads = stages.chain.grads()
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(*args)
    loss.backward()
    assert_close(outputs[0], loss.detach(), "loss", 2e-2)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert grads[name].dtype == torch.float32
        assert_close(grads[name], parameter.grad, name, 6e-2)


def test_each_random_node_has_a_seed_by_its_name(tmp_path: Path) -> None:
    model = Gpt(dropout=0.1)
    pipe = gpt_pipe(tmp_path, model, [])
    whole = [job.programs.draws for job in trace_stages(PipeFile(pipe), StageOptions())]
    cut = tmp_path / "cut.pipe"
    split_model(pipe.with_suffix(".pt2"), cut, ["--split", "blocks.1"])
    parts = [job.programs.draws for job in trace_stages(PipeFile(cut), StageOptions())]
    assert len(whole[0]) == 4
    assert parts[0] + parts[1] == whole[0]
    assert len(parts[0]) == len(parts[1]) == 2


def test_plans_and_saved_models_are_split(gpt: tuple[Gpt, Path], tmp_path: Path) -> None:
    """A pipe contains the graph of the whole model, as save_graph writes it."""
    archive, plan = gpt[1].with_suffix(".pt2"), tmp_path / "gpt.plan"
    done = run_tool(["model", str(archive), "--plan", "--ranks", "2", "--time-limit", "1s", "-o", str(plan)])
    assert done.returncode == 0, done.stderr
    split_model(archive, tmp_path / "planned.pipe", ["--split-of", str(plan)])
    assert PipeFile(tmp_path / "planned.pipe").num_stages >= 2
    split_model(gpt[1], tmp_path / "again.pipe", ["--stages", "3"])
    assert PipeFile(tmp_path / "again.pipe").num_stages == 3
    with pytest.raises(CompileError, match="nowhere"):
        split_model(archive, tmp_path / "bad.pipe", ["--split", "nowhere"])


_LIBRARY = torch.library.Library("stagecraft_tests", "DEF")
_LIBRARY.define("swish(Tensor x) -> Tensor")
_LIBRARY.impl("swish", lambda x: x * torch.sigmoid(x), "CompositeImplicitAutograd")
_LIBRARY.define("two(Tensor x, int n) -> (Tensor, Tensor)")
_LIBRARY.impl("two", lambda x, n: (torch.ops.stagecraft_tests.swish(x) * n, x + n), "CompositeImplicitAutograd")


class OwnOperators(nn.Module):
    """With operators that exist in Python only. One makes an output of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = torch.ops.stagecraft_tests.two(self.a(x), 3)
        made: torch.Tensor = torch.ops.stagecraft_tests.swish(self.b(first + second))
        return made


def test_operators_that_are_made_of_others_are_seen_through(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = OwnOperators(), torch.randn(3, 4)
    dims = ({0: torch.export.Dim("rows", max=64)},)
    torch.export.save(torch.export.export(model, (x,), strict=False, dynamic_shapes=dims), tmp_path / "own.pt2")
    with pytest.raises(CompileError, match="no operator stagecraft_tests::two"):
        split_model(tmp_path / "own.pt2", tmp_path / "own.pipe", ["--split", "b"])
    found = see_through(tmp_path / "own.pt2", tmp_path / "plain.pt2")
    assert found == ["stagecraft_tests.two.default", "stagecraft_tests.swish.default"]
    split_model(tmp_path / "plain.pt2", tmp_path / "own.pipe", ["--split", "b"])
    for halves in (False, True):
        check_grads(Stages(tmp_path / "own.pipe"), model, (torch.randn(5, 4),), {"x_dim0": 5}, halves)
    assert see_through(tmp_path / "plain.pt2", tmp_path / "again.pt2") == []
    assert not (tmp_path / "again.pt2").exists()


class Experts(nn.Module):
    """A product for each group of rows: as one call of the operator that C++ replaces, or dense."""

    def __init__(self, dense: bool) -> None:
        super().__init__()
        self.dense = dense
        self.weight = nn.Parameter(torch.randn(3, 4, 5))

    def forward(self, x: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        if not self.dense:
            return torch.ops.transformers.grouped_mm_fallback(x, self.weight, offs)
        row, begins = torch.arange(x.shape[0])[:, None], F.pad(offs[:-1], (1, 0))
        chosen = (row >= begins) & (row < offs)
        return torch.einsum("ri,gio,rg->ro", x, self.weight, chosen.to(x.dtype))


class Mixture(nn.Module):
    def __init__(self, dense: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.experts = Experts(dense)

    def forward(self, x: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.experts(torch.tanh(self.first(x)), offs))


@torch.library.custom_op("transformers::grouped_mm_fallback", mutates_args=())
def grouped_mm_fallback(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError


@grouped_mm_fallback.register_fake
def _(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return input.new_empty(input.shape[0], weight.shape[2])


def test_experts_are_one_call_in_each_half(tmp_path: Path) -> None:
    rows, offs = torch.randn(7, 4), torch.tensor([3, 3, 6], dtype=torch.int32)
    dynamic = ({0: torch.export.Dim("rows", max=64)}, None)
    path = make_pipe(Mixture(dense=False), (rows, offs), tmp_path, ["--split", "experts"], dynamic)
    stages = Stages(path)
    programs = {name: str(program.module.graph) for name, program in stages.jobs[1].programs.programs.items()}
    assert {name: text.count("grouped_mm.default") for name, text in programs.items()} == {
        "forward": 1, "backward": 1, "input_backward": 1, "weight_backward": 0}
    assert [name for name, text in programs.items() if "grouped_mm_weights.default" in text] == ["backward", "weight_backward"]
    for halves in (False, True):
        check_grads(stages, Mixture(dense=True), (rows, offs), dict.fromkeys(stages.symbols, 7), halves)
    # Under autocast the products are those of bfloat16, as autocast makes them for other operators.
    half = Stages(path, StageOptions(autocast=torch.bfloat16))
    assert "bfloat16" in {slot["dtype"] for slot in half.descriptions[1]["programs"]["prepare"]["outputs"]}


class Strange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * torch.multinomial(torch.ones(4), 4)


def test_an_operator_that_cannot_be_seeded_is_refused(tmp_path: Path) -> None:
    path = make_pipe(Strange(), (torch.randn(2, 4),), tmp_path, [])
    with pytest.raises(CompileError, match=r"stage 0: node multinomial: aten::multinomial draws random numbers"):
        trace_stages(PipeFile(path), StageOptions())


def test_a_stage_without_gradients_is_a_forward(tmp_path: Path) -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(x) + 1

    x = torch.randn(2, 3)
    stages = Stages(make_pipe(Fixed(), (x,), tmp_path, []))
    assert set(stages.descriptions[0]["programs"]) == {"forward"}
    outputs = stages.chain.step((x,), False, {})
    assert torch.equal(outputs[0], F.relu(x) + 1) and not stages.chain.grads()


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="there is no such file"):
        PipeFile(tmp_path / "none.pipe")
    (tmp_path / "text").write_text("graph")
    with pytest.raises(CompileError, match="damaged or not an archive"):
        PipeFile(tmp_path / "text")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a/b", "c")
    with pytest.raises(CompileError, match="not written by Stagecraft"):
        PipeFile(tmp_path / "other.zip")


def test_a_damaged_graph_is_found(gpt: tuple[Gpt, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.pipe"
    with zipfile.ZipFile(gpt[1]) as source, zipfile.ZipFile(broken, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            target.writestr(name, data.replace(b"layer_norm", b"layer_nurm") if name.endswith("stages/1/graph") else data)
    with pytest.raises(CompileError, match="stages/1/graph is damaged"):
        PipeFile(broken).stage_graph(1)


def test_text_that_is_no_graph_is_refused_with_its_place() -> None:
    with pytest.raises(CompileError, match="x, line 2, column 1: expected 'args '"):
        parse_graph("graph\nnonsense\n", "x")
    with pytest.raises(CompileError, match="%y is read before it is made"):
        parse_graph("graph\nargs ()\nkwargs {}\n%z = aten::relu(self=%y): float32[2]\nreturn %z\n", "x")


def test_sizes_are_sums_of_products() -> None:
    expr = SizeExpr.parse("16*B*S + 4*B - 1")
    assert expr is not None and expr.at({"B": 2, "S": 3}) == 103
    assert SizeExpr.parse("7").number() == 7  # type: ignore[union-attr]
    rule = Rule.parse("floor_div(S + 1, 2)")
    assert rule is not None and rule.at({"S": 4}) == 2
    assert SizeExpr.parse("B/2") is None


def test_comparisons_with_numbers_limit_sizes() -> None:
    import sympy

    rows = sympy.Symbol("s0", integer=True, positive=True)
    other = sympy.Symbol("s1", integer=True, positive=True)
    guards = [16 * rows <= 1000, rows >= 2, rows > 5, rows * other < 3, sympy.Ne(rows, 7)]
    assert ranges_of(guards, {"rows": rows, "other": other}, {"rows": 9, "other": 2}) == {
        "rows": (6, 62), "other": (1, None)}


def test_private_interfaces_of_the_installed_torch() -> None:
    """One small trace through each of them."""
    mode = private.tracing_mode()
    (rows,) = private.make_sizes(mode, [5], [64])
    assert private.is_known(rows <= 64) and not private.is_known(rows <= 63)
    module = nn.Linear(3, 2)
    with mode:
        fake = nn.Linear(3, 2)
        x = torch.empty((rows, 3)).requires_grad_()
    joint = private.joint_graph(fake, (x,))
    ins = [node for node in joint.graph.nodes if node.op == "placeholder"]
    kinds = [private.input_kind(node.meta["desc"]) for node in ins]
    assert kinds == [("parameter", "weight"), ("parameter", "bias"), ("input", 0), ("output_grad", 0)]
    out: Any = next(node for node in joint.graph.nodes if node.op == "output")
    assert [private.output_kind(desc) for desc in out.meta["desc"]] == [
        ("output", 0), ("parameter_grad", "weight"), ("parameter_grad", "bias"), ("input_grad", 0)]
    joint = private.joint_passes(joint, mode, torch.device("cpu"))
    forward, backward = private.partition(joint, mode, 1, [0, 1])
    given = torch.randn(4, 3)
    result = forward(module.weight, module.bias, given)
    assert_close(result[0].detach(), module(given).detach(), "forward")
    assert any(node.op == "placeholder" for node in backward.graph.nodes)
    assert private.replacement(mode, rows.node.expr) == rows.node.expr
    assert private.is_known(rows >= 2) and not private.is_known(rows >= 7)
    assert private.cpu_capability()
