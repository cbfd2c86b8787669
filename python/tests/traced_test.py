"""Models that are traced and cut."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import stagecraft as sc
from models import WIDTH, batch, block, same, take_grads
from ranks import results, run_ranks
from stagecraft import Pipe, SplitPoint, pipe_split, pipeline
from stagecraft._IR import _move_placeholders_to_front, annotate_split_points, get_submod_name


def mse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output, target)


class Marked(nn.Module):
    """Two cuts, a skip edge, and a weight that two stages read."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([block(i) for i in range(3)])
        self.scale = nn.Parameter(torch.full((WIDTH,), 1.5))
        self.register_buffer("shift", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        a = self.layers[0](x) * self.scale
        pipe_split()
        b = self.layers[1](a) + self.shift
        pipe_split()
        out = self.layers[2](b + a) * self.scale
        return out if y is None else out + y


def test_a_pipe_is_its_model() -> None:
    torch.manual_seed(0)
    model = Marked()
    x, _ = batch(4)
    pipe = pipeline(model, (x,))
    assert pipe.num_stages == 3
    with torch.no_grad():
        assert torch.equal(pipe(x)[0], model(x))
        # The number of rows is free.
        many = batch(16)[0]
        assert torch.equal(pipe(many)[0], model(many))
    names: dict[str, Any] = {}
    for stage in range(3):
        module = pipe.get_stage_module(stage)
        assert isinstance(module, nn.Module)
        names.update(module.state_dict())
    assert set(names) == set(model.state_dict())
    assert [name for name, _ in pipe.get_stage_module(1).layers.named_children()] == ["1"]
    assert pipe.get_stage_module(0).scale is model.scale
    assert {"submod_pp_0": "scale", "submod_pp_2": "scale"} in pipe.replicated_params
    with pytest.raises(ValueError, match="0 to 2"):
        pipe.get_stage_module(3)
    with pytest.raises(RuntimeError, match="Pipe"):
        pipe.split_gm(x)
    info = pipe.info()
    assert info.num_stages == 3 and not info.has_loss_and_backward
    assert get_submod_name(1) == "submod_pp_1"


def test_gradients_of_a_pipe_are_those_of_its_model() -> None:
    model = Marked()
    x, y = batch(4)
    pipe = pipeline(model, (x,))
    mse(model(x), y).backward()
    expected = take_grads(model)
    mse(pipe(x)[0], y).backward()
    for found, each in zip(take_grads(model), expected):
        assert found is not None and torch.allclose(found, each, rtol=1e-5)


def test_cut_by_names_and_by_policy() -> None:
    model = nn.Sequential(*[block(i) for i in range(4)])
    x, _ = batch(4)
    pipe = pipeline(model, (x,), split_spec={"1": SplitPoint.BEGINNING, "2": SplitPoint.END})
    assert pipe.num_stages == 3
    assert sorted(pipe.get_stage_module(1).state_dict())[0].startswith("1.")
    with torch.no_grad():
        assert torch.equal(pipe(x)[0], model(x))
    with pytest.raises(AttributeError, match="nowhere"):
        pipeline(model, (x,), split_spec={"nowhere": SplitPoint.END})
    with pytest.raises(ValueError, match="both"):
        pipeline(model, (x,), split_spec={}, split_policy=lambda gm: gm)

    def policy(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
        linears = [n for n in gm.graph.nodes if "linear" in str(n.target)]
        with gm.graph.inserting_before(linears[4]):
            gm.graph.call_function(torch.ops.stagecraft.pipe_split.default)
        return gm

    halves = pipeline(model, (x,), split_policy=policy)
    assert halves.num_stages == 2 and len(list(halves.get_stage_module(0).parameters())) == 8


def test_tensors_that_are_replaced_are_used() -> None:
    model = Marked()
    x, _ = batch(4)
    pipe = pipeline(model, (x,))
    pipe.to(torch.float32)
    pipe.get_stage_module(1).shift = torch.zeros(WIDTH)
    with torch.no_grad():
        model.shift.zero_()
        assert torch.equal(pipe(x)[0], model(x))
    again = copy.deepcopy(pipe.get_stage_module(0))
    assert again.scale is not model.scale
    assert torch.equal(again(x)[0] if isinstance(again(x), tuple) else again(x),
                       pipe.get_stage_module(0)(x)[0] if isinstance(pipe.get_stage_module(0)(x), tuple)
                       else pipe.get_stage_module(0)(x))


def _saved(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value)), _saved],
                         ids=["deepcopy", "pickle", "torch.save"])
def test_pipes_and_their_modules_are_copied_with_their_weights(again: Any) -> None:
    model = Marked()
    x, y = batch(4)
    pipe = pipeline(model, (x,))
    made = again(pipe)
    assert made.num_stages == 3 and str(made) == str(pipe) and repr(made) == repr(pipe)
    assert set(made.state_dict()) == set(pipe.state_dict())
    with torch.no_grad():
        assert torch.equal(made(x)[0], model(x))
        many = batch(9)[0]
        assert torch.equal(made(many)[0], model(many))
    # The weights are copies, and what two stages share they share again.
    assert made.get_stage_module(0).scale is made.get_stage_module(2).scale
    assert made.get_stage_module(0).scale is not model.scale
    mse(made(x)[0], y).backward()
    assert model.scale.grad is None and made.get_stage_module(0).scale.grad is not None
    stages = [made.build_stage(index, torch.device("cpu")) for index in range(3)]
    sc.ScheduleInterleaved1F1B(stages, 3, loss_fn=mse).step(x[:3], target=y[:3])
    module = again(pipe.get_stage_module(1))
    first = pipe.get_stage_module(0)(x)
    first = first if isinstance(first, tuple) else (first,)
    assert torch.equal(module(*first)[0], pipe.get_stage_module(1)(*first)[0])
    assert set(module.state_dict()) == set(pipe.get_stage_module(1).state_dict())
    with torch.no_grad():
        made.get_stage_module(1).shift.zero_()
        assert not torch.equal(made(x)[0], model(x))


@pytest.mark.parametrize("rows", [1, 2])
def test_microbatches_of_one_row(rows: int) -> None:
    model = Marked()
    x, y = batch(5)
    pipe = pipeline(model, (x[:rows],))
    with torch.no_grad():
        for count in (1, 2, 5):
            assert torch.equal(pipe(x[:count])[0], model(x[:count]))
    stages = [pipe.build_stage(index, torch.device("cpu")) for index in range(3)]
    schedule = sc.ScheduleInterleaved1F1B(stages, 3, loss_fn=mse)
    out = schedule.step(x, target=y)
    assert torch.allclose(out, model(x).detach(), rtol=1e-5, atol=1e-6)


class Squeezed(nn.Module):
    """What it does depends on whether there is one row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = block(0), block(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        pipe_split()
        return self.second(h if h.shape[0] == 1 else h * 2)


def test_a_trace_that_holds_for_more_rows_refuses_one() -> None:
    model = Squeezed()
    x, _ = batch(4)
    pipe = pipeline(model, (x,))
    with torch.no_grad():
        assert torch.equal(pipe(x[:2])[0], model(x[:2]))
        with pytest.raises(sc.Error):
            pipe(x[:1])
        # A trace of one row takes one row.
        assert torch.equal(pipeline(model, (x[:1],))(x[:1])[0], model(x[:1]))


class MarkedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = block(0), block(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        pipe_split()
        pipe_split()
        return self.second(x)


def test_markers_beside_each_other_are_one_cut() -> None:
    model = MarkedTwice()
    x, _ = batch(4)
    pipe = pipeline(model, (x,))
    assert pipe.num_stages == 2 and all(list(pipe.get_stage_module(s).parameters()) for s in range(2))
    with torch.no_grad():
        assert torch.equal(pipe(x)[0], model(x))


class Aliased(nn.Module):
    """One weight under two names, read by two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.eye(WIDTH) * 0.5)
        self.second = self.first
        self.layers = nn.ModuleList([block(0), block(1)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](x @ self.first)
        pipe_split()
        return self.layers[1](x @ self.second)


def test_names_of_a_weight_with_two_names() -> None:
    model = Aliased()
    x, _ = batch(4)
    pipe = pipeline(model, (x,))
    names = set()
    for stage in range(pipe.num_stages):
        names |= set(pipe.get_stage_module(stage).state_dict())
    assert names == set(model.state_dict())
    with torch.no_grad():
        assert torch.equal(pipe(x)[0], model(x))


def test_a_pipeline_and_a_trainer_run_a_pipe() -> None:
    model = Marked()
    # Two ranks add to the gradient of a weight that they share, in the order in which they come.
    model.scale.requires_grad_(False)
    x, y = batch(8)
    pipe = pipeline(model, (x,))
    run = sc.Pipeline(pipe, schedule="1F1B", loss_fn=mse)
    sc.verify_against_reference(run, x, target=y, microbatches=4)
    trainer = sc.Trainer(pipe, mse, schedule="GPipe", clip=1.0, microbatches=4)
    first = trainer.step(x, target=y).loss
    for _ in range(10):
        last = trainer.step(x, target=y).loss
    assert last < first


def test_an_exported_file(tmp_path: Any) -> None:
    model = nn.Sequential(*[block(i) for i in range(4)])
    x, y = batch(4)
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("b")},)), path)
    loaded = sc.load_exported(path)
    assert "operators" in repr(loaded)
    pipe = loaded.cut(["1", "3"])
    assert pipe.num_stages == 3 and loaded.cut(2).num_stages == 2
    with torch.no_grad():
        assert torch.equal(pipe(x)[0], model(x))
    assert sc.Trainer(pipe, mse, schedule="1F1B", microbatches=2).step(x, target=y).loss is not None


def test_placeholders_come_first() -> None:
    graph = torch.fx.Graph()
    a = graph.placeholder("a")
    b = graph.call_function(torch.relu, (a,))
    c = graph.placeholder("c")
    graph.output(graph.call_function(torch.add, (b, c)))
    _move_placeholders_to_front(graph)
    assert [n.op for n in graph.nodes] == ["placeholder", "placeholder", "call_function", "call_function", "output"]
    graph.lint()


def test_annotations() -> None:
    model = nn.Sequential(block(0), block(1))
    annotate_split_points(model, {"1": SplitPoint.BEGINNING})
    assert pipeline(model, (batch(2)[0],)).num_stages == 2
    with pytest.raises(AttributeError, match="7"):
        annotate_split_points(model, {"7": SplitPoint.END})


def traced_ranks(rank: int, size: int) -> None:
    torch.manual_seed(0)
    for schedule_class in (sc.ScheduleGPipe, sc.Schedule1F1B):
        model = Marked()
        x, y = batch(8)
        pipe = pipeline(model, (x[:2],))
        stage = pipe.build_stage(rank, torch.device("cpu"))
        schedule = schedule_class(stage, 4, loss_fn=mse)
        out = schedule.step(x, target=y)
        grads = {name: p.grad for name, p in stage.submod.named_parameters()}
        for p in model.parameters():
            p.grad = None
        outputs = []
        for xs, ys in zip(x.split(2), y.split(2)):
            outputs.append(model(xs))
            (mse(outputs[-1], ys) / 4).backward()
        for name, p in model.named_parameters():
            # The gradients of a weight that two ranks read are summed at the end: another order of the sum.
            if name == "scale" and name in grads:
                assert torch.allclose(grads[name], p.grad, rtol=1e-5), name
            elif name in grads:
                assert torch.equal(grads[name], p.grad), name
        if rank == size - 1:
            assert torch.equal(out, torch.cat(outputs).detach())
        else:
            assert out is None


def test_traced_stages_on_three_processes() -> None:
    results(run_ranks(3, traced_ranks))


def gpt2(rank: int, size: int) -> list[float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(n_embd=32, n_layer=4, n_head=2, vocab_size=64, n_positions=32, use_cache=False,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False)
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(0, 64, (8, 16), generator=torch.Generator().manual_seed(3))

    def loss(output: Any, target: torch.Tensor) -> torch.Tensor:
        logits = output["logits"] if isinstance(output, dict) else output[0] if isinstance(output, tuple) else output.logits
        return F.cross_entropy(logits[:, :-1].reshape(-1, 64), target[:, 1:].reshape(-1))

    pipe = pipeline(model, (), {"input_ids": tokens[:2]}, split_spec={"transformer.h.2": SplitPoint.BEGINNING})
    assert pipe.num_stages == 2
    stage = pipe.build_stage(rank, torch.device("cpu"))
    schedule = sc.Schedule1F1B(stage, 4, loss_fn=loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.5)
    curve = []
    for _ in range(5):
        optimizer.zero_grad()
        losses: list[Any] = []
        schedule.step(input_ids=tokens, target=tokens, losses=losses)
        optimizer.step()
        if rank == 1:
            curve.append(sum(each.item() for each in losses) / 4)
    if rank == 1:
        torch.manual_seed(1)
        plain = GPT2LMHeadModel(config)
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
        for step in range(5):
            optimizer.zero_grad()
            total = 0.0
            for piece in tokens.split(2):
                each = loss(plain(input_ids=piece), piece)
                (each / 4).backward()
                total += each.item() / 4
            optimizer.step()
            assert abs(total - curve[step]) < 1e-5, (step, total, curve)
    return curve


def test_experts_of_hugging_face_are_cut() -> None:
    pytest.importorskip("transformers")
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(1)
    model = MixtralForCausalLM(MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, max_position_embeddings=32, use_cache=False, bos_token_id=None,
        eos_token_id=None))
    tokens = torch.randint(0, 64, (4, 16))
    pipe = pipeline(model, (), {"input_ids": tokens[:2]}, split_spec={"model.layers.1": SplitPoint.BEGINNING})
    assert pipe.num_stages == 2

    def loss(output: Any) -> torch.Tensor:
        found = output[0] if isinstance(output, tuple) else output
        logits = found["logits"] if isinstance(found, dict) else found
        return F.cross_entropy(logits[:, :-1].reshape(-1, 64), tokens[:, 1:].reshape(-1))

    expected = loss(model(input_ids=tokens))
    expected.backward()
    grads = take_grads(model)
    got = loss(pipe(input_ids=tokens))
    got.backward()
    torch.testing.assert_close(got, expected)
    for found, each in zip(take_grads(model), grads):
        torch.testing.assert_close(found, each)


def test_a_gpt2_of_hugging_face_trains_as_uncut() -> None:
    pytest.importorskip("transformers")
    _, curve = results(run_ranks(2, gpt2))
    assert curve[-1] < curve[0]
