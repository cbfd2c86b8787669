"""Lists of actions: text, passes, classes. Compared with the installed torch where it is right."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from upstream_names import MULTI, SHAPES, SINGLE, build, ours, parse, stage, texts, theirs

import stagecraft
from stagecraft import ScheduleGPipe, ScheduleInterleaved1F1B, errors
from stagecraft._utils import generate_rank_to_stage_mapping, generate_stage_to_rank_mapping
from stagecraft.schedules import B, F, I, W, _Action, _ComputationType


# Text of actions


@pytest.mark.parametrize("text", ["1F0", "2I1", "0W3", "0B3", "1UNSHARD", "3RESHARD", "2SEND_B2", "1RECV_F1",
                                  "0WAIT_SEND_F3", "1WAIT_REDUCE_GRAD", "(0F7;7B3)OVERLAP_F_B"])
def test_action_text_goes_round(text):
    action = _Action.from_str(text)
    assert str(action) == repr(action) == text
    assert _Action.from_str(str(action)) == action


def test_action_fields():
    assert _Action.from_str("2F0") == _Action(2, F, 0)
    assert _Action.from_str("(0F7;7B3)OVERLAP_F_B") == (-1, ours.OVERLAP_F_B, None, (_Action(0, F, 7), _Action(7, B, 3)))
    assert _Action.from_str("") is None and _Action.from_str("  ") is None
    assert [_Action(0, kind, 0).is_compute_op for kind in (F, I, W, B, ours.SEND_F)] == [True] * 4 + [False]
    assert len({_Action(0, F, 1), _Action(0, F, 1)}) == 1


@pytest.mark.parametrize("text", ["x", "F0", "2X0", "2F0x", "1WAIT_SEND_X0", "0OVERLAP_F_B", "(0F0"])
def test_text_that_is_no_action_is_refused(text):
    with pytest.raises(RuntimeError, match="expected an action"):
        _Action.from_str(text)


def test_unknown_word_is_refused():
    assert _ComputationType.from_str("SEND_B") is ours.SEND_B
    with pytest.raises(RuntimeError, match="ZZ"):
        _ComputationType.from_str("ZZ")


def test_words_are_torchs():
    for kind in theirs._ComputationType:
        assert _ComputationType[kind.name].value == kind.value
        assert getattr(ours, kind.name).value == kind.value


# Classes by name, and what they refuse


def test_class_by_name():
    for name in [*SINGLE, *MULTI, "PipelineScheduleSingle", "PipelineScheduleMulti"]:
        expected = theirs.get_schedule_class(name).__name__
        assert {ours.get_schedule_class(each).__name__ for each in (name, name.lower(), name.upper())} == {expected}
    with pytest.raises(ValueError, match="ScheduleThatDoesNotExist"):
        ours.get_schedule_class("ScheduleThatDoesNotExist")


@pytest.mark.parametrize("name", ["InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"])
def test_compiled_stage_cannot_split_its_backward(name):
    # One stage where two are needed: the compiled module is what is told.
    compiled = stage(1, 1)
    compiled.submod = torch.compile(torch.nn.Linear(2, 2), backend="eager")
    with pytest.raises(RuntimeError, match="compile"):
        ours.get_schedule_class(name)([compiled], 2)


@pytest.mark.parametrize("name", MULTI)
@pytest.mark.parametrize("shape", SHAPES)
def test_order_is_torchs(name, shape):
    per_rank, microbatches, ranks = shape
    if ranks * per_rank * microbatches > 1100:
        # Torch takes too long for a test.
        if per_rank == 2 or name in ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble"):
            assert len(build(ours, name, ranks, per_rank, microbatches).pipeline_order) == ranks
        return
    try:
        expected = build(theirs, name, ranks, per_rank, microbatches)
    except ValueError:
        with pytest.raises(ValueError):
            build(ours, name, ranks, per_rank, microbatches)
        return
    schedule = build(ours, name, ranks, per_rank, microbatches)
    assert texts(schedule.pipeline_order) == texts(expected.pipeline_order)
    assert schedule.stage_index_to_group_rank == expected.stage_index_to_group_rank
    assert schedule._stages[0].stage_index_to_group_rank == expected.stage_index_to_group_rank
    if ranks * per_rank * microbatches > 300:
        return
    assert texts(schedule.pipeline_order_with_comms) == texts(expected.pipeline_order_with_comms)
    num_stages, mapping = ranks * per_rank, schedule.stage_index_to_group_rank
    ours._format_pipeline_order(schedule.pipeline_order)
    if name == "DualPipeV":
        return
    lowered = ours._add_send_recv(schedule.pipeline_order, mapping.__getitem__, num_stages)
    steps = ours._simulate_comms_compute(lowered, mapping.__getitem__, num_stages)
    their_lowered = theirs._add_send_recv(
        {rank: list(actions) for rank, actions in expected.pipeline_order.items()}, mapping.__getitem__, num_stages)
    assert texts(lowered) == texts(their_lowered)
    assert texts(steps) == texts(theirs._simulate_comms_compute(their_lowered, mapping.__getitem__, num_stages))


def test_gpipe_order_is_torchs_and_1f1b_is_right():
    for ranks, microbatches in [(1, 1), (2, 2), (4, 3), (3, 8)]:
        assert texts(build(ours, "GPipe", ranks, 1, microbatches).pipeline_order) == texts(
            build(theirs, "GPipe", ranks, 1, microbatches).pipeline_order)
    # Torch's list of the last rank begins with 1F1.
    order = texts(build(ours, "1F1B", 2, 1, 3).pipeline_order)
    assert order[1][:6] == ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]
    # Torch refuses fewer microbatches than stages.
    assert texts(build(ours, "1F1B", 4, 1, 2).pipeline_order)[3][:4] == ["3F0", "3B0", "3F1", "3B1"]


def test_number_of_microbatches_can_change():
    schedule = build(ours, "Interleaved1F1B", 2, 2, 4)
    assert len(schedule.pipeline_order[0]) and schedule.n_microbatches == 4
    schedule.n_microbatches = 2
    assert texts(schedule.pipeline_order) == texts(build(ours, "Interleaved1F1B", 2, 2, 2).pipeline_order)
    assert texts(schedule.pipeline_order_with_comms) == texts(
        build(ours, "Interleaved1F1B", 2, 2, 2).pipeline_order_with_comms)


def test_constructors_read_shape_alone_and_touch_no_network():
    assert not dist.is_initialized()
    schedule = ScheduleInterleaved1F1B([stage(64, 4, 64 * i) for i in range(4)], 128)
    assert len(schedule.pipeline_order) == 64
    assert "256" in repr(schedule) and "128 microbatches" in repr(schedule)


def test_schedules_are_not_pickled():
    import pickle
    with pytest.raises(TypeError, match="pipeline_order"):
        pickle.dumps(ScheduleGPipe(stage(2, 1), 2))


@pytest.mark.parametrize("options", [
    {"max_active_stages": 2},
    pytest.param({"unshard_lookahead": "auto"}, marks=pytest.mark.skipif(not ours.HAS_WAITS, reason="torch 2.15")),
    pytest.param({"defer_reduce_grad_wait": True}, marks=pytest.mark.skipif(not ours.HAS_WAITS, reason="torch 2.15")),
    pytest.param({"max_outstanding_sends": 1}, marks=pytest.mark.skipif(not ours.HAS_WAITS, reason="torch 2.15")),
    {"defer_pp_recv": True},
], ids=str)
@pytest.mark.parametrize("name", MULTI)
def test_options_of_lowering_are_torchs(name, options):
    if "max_active_stages" in options and not ours.HAS_WAITS:
        pytest.skip("torch 2.15 has this argument")
    made = build(ours, name, 4, 2, 8, **options)
    assert texts(made.pipeline_order_with_comms) == texts(
        build(theirs, name, 4, 2, 8, **options).pipeline_order_with_comms)


# Passes


def test_unshard_and_reshard():
    def sharded(text, **options):
        return ",".join(map(str, ours._add_unshard_reshard(parse(ours, text)[0], **options)))

    assert sharded("0F0,0F1,,1F0,0B0") == "0UNSHARD,1UNSHARD,0F0,0F1,1F0,1RESHARD,0B0,0RESHARD"
    assert sharded("0F0,1F0,2F0,3F0", max_active_stages=1) == (
        "0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1RESHARD,2UNSHARD,2F0,2RESHARD,3UNSHARD,3F0,3RESHARD")


def test_reduce_grad_comes_after_the_last_backward():
    actions = parse(ours, "0F0,0F1,0B0,0I1,,0W1,1F0,1B0,1B1")[0]
    expected = ["0F0", "0F1", "0B0", "0I1", "0W1", "0REDUCE_GRAD", "1F0", "1B0", "1B1", "1REDUCE_GRAD"]
    if ours.HAS_WAITS:
        expected[6:6] = ["0WAIT_REDUCE_GRAD"]
        expected.append("1WAIT_REDUCE_GRAD")
    assert list(map(str, ours._add_reduce_grad(actions, 2))) == expected
    their_actions = parse(theirs, "0F0,0F1,0B0,0I1,,0W1,1F0,1B0,1B1")[0]
    assert list(map(str, theirs._add_reduce_grad(their_actions, 2))) == expected
    assert ours._add_reduce_grad(actions[:3], 2) == actions[:3]


def test_merge_bw():
    actions = parse(ours, "0F0,0I0,,0W0,0I1,0F2,0W1")[0]
    assert list(map(str, ours._merge_bw(actions))) == ["0F0", "0B0", "0I1", "0F2", "0W1"]
    assert len(actions) == 7  # not consumed


def test_send_and_recv_of_two_ranks():
    lists = parse(ours, "0F0,0F1,,0B0,,0B1", ",1F0,1B0,1F1,1B1")
    lowered = ours._add_send_recv(lists, lambda s: s, 2)
    assert texts(lowered) == {
        0: ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
        1: ["1RECV_F0", "1RECV_F1", "1F0", "1B0", "1SEND_B0", "1F1", "1B1", "1SEND_B1"]}
    assert lists == parse(ours, "0F0,0F1,,0B0,,0B1", ",1F0,1B0,1F1,1B1")  # not consumed
    steps = ours._simulate_comms_compute(lowered, lambda s: s, 2)
    assert texts(steps) == texts(theirs._simulate_comms_compute(
        {r: [theirs._Action.from_str(t) for t in line] for r, line in texts(lowered).items()}, lambda s: s, 2))


def test_lists_with_b_beside_w_are_taken():
    # Torch takes lists in which 3B0 and 3W0 both occur; `verify` does not.
    rank = {0: 0, 1: 1, 2: 1, 3: 0}.__getitem__
    lines = ("0F0,0F1,3F0,3B0,3W0,3F1,3I1,3W1,0I0,0W0,0I1,0W1", "1F0,2F0,1F1,2F1,2I0,2W0,1I0,1W0,2I1,2W1,1I1,1W1")
    lowered = ours._add_send_recv(parse(ours, *lines), rank, 4)
    expected = theirs._add_send_recv(parse(theirs, *lines), rank, 4)
    assert texts(lowered) == texts(expected)
    assert texts(ours._simulate_comms_compute(lowered, rank, 4)) == texts(
        theirs._simulate_comms_compute(expected, rank, 4))


def test_lists_that_wait_for_each_other_are_refused():
    with pytest.raises(AssertionError, match="wait for each other"):
        ours._add_send_recv(parse(ours, "0F0,0B0,0F1,0B1", "1F1,1F0,1B0,1B1"), lambda s: s, 2)
    with pytest.raises(ValueError):
        ours._simulate_comms_compute(parse(ours, "0RECV_B0,0F0,0SEND_F0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0"),
                                     lambda s: s, 2)


class TestDeferredReceives:
    """A receive comes right before the action that reads it, or before a send to that rank if it is a higher one."""

    def deferred(self, *lines, rank=lambda s: s):
        ours_ = texts(ours._defer_recv_ops(parse(ours, *lines), rank))
        assert ours_ == texts(theirs._defer_recv_ops(parse(theirs, *lines), rank))
        return [",".join(line) for line in ours_.values()]

    def test_forward(self):
        assert self.deferred("0F0", "1RECV_F0,1RECV_F1,1F0,1F1")[1] == "1RECV_F0,1F0,1RECV_F1,1F1"

    def test_backward(self):
        line = "0F0,0F1,0RECV_B0,0RECV_B1,0B0,0I1,0W1"
        assert self.deferred(line)[0] == "0F0,0F1,0RECV_B0,0B0,0RECV_B1,0I1,0W1"

    def test_send_to_a_higher_rank_lets_go(self):
        assert self.deferred("0RECV_B0,0F1,0SEND_F1,0B0")[0] == "0F1,0RECV_B0,0SEND_F1,0B0"

    def test_overlap(self):
        line = "1RECV_F1,1RECV_B0,(1F1;1B0)OVERLAP_F_B"
        assert self.deferred("0F0", line)[1] == line

    def test_left_over(self):
        with pytest.raises(AssertionError, match="1RECV_F0"):
            ours._defer_recv_ops(parse(ours, "0F0", "1RECV_F0,1F1"), lambda s: s)


class TestValidate:
    """`_validate_schedule`."""

    def test_good_lists_give_the_placement(self):
        assert ours._validate_schedule(parse(ours, "0F0,0B0", "1F0,1B0"), 2, 2, 1) == {0: 0, 1: 1}
        assert ours._validate_schedule(parse(ours, "0F0,0I0,0W0", "1F0,1I0,1W0"), 2, 2, 1) == {0: 0, 1: 1}

    def test_missing_rank(self):
        with pytest.raises(AssertionError, match="rank"):
            ours._validate_schedule(parse(ours, "0F0,0B0"), 2, 2, 1)
        with pytest.raises(AssertionError, match="rank 1"):
            ours._validate_schedule({0: parse(ours, "0F0,0B0")[0], 2: []}, 2, 2, 1)

    def test_missing_backward(self):
        with pytest.raises(AssertionError, match="1B0"):
            ours._validate_schedule(parse(ours, "0F0,0B0", "1F0"), 2, 2, 1)

    @pytest.mark.parametrize("lines", [("0F0,0B0", "0F0,1F0,1B0"), ("0F0,0B0,0B0", "1F0,1B0"), ("0B0,0F0", "1F0,1B0"),
                                       ("0F0,0B0,5F0", "1F0,1B0")])
    def test_other_faults(self, lines):
        with pytest.raises(AssertionError):
            ours._validate_schedule(parse(ours, *lines), 2, 2, 1)


def test_random_lists_are_treated_as_torch_does(rng):
    """Shuffled schedules: the passes of a rank, and refusals."""
    for _ in range(60):
        name = rng.choice(MULTI)
        ranks, microbatches = rng.randint(1, 4), rng.randint(1, 8)
        try:
            order = build(theirs, name, ranks, 2, microbatches).pipeline_order
        except ValueError:
            continue
        for rank, actions in order.items():
            line = [a for a in actions if rng.random() > 0.1]
            if rng.random() < 0.5:
                i = rng.randrange(len(line) + 1)
                line.insert(i, None)
            mine = parse(ours, ",".join("" if a is None else str(a) for a in line))[0]
            limit = rng.randint(2, 4)
            assert texts({0: ours._add_unshard_reshard(mine, limit)}) == texts(
                {0: theirs._add_unshard_reshard(list(line), limit)})
            assert texts({0: ours._add_reduce_grad(mine, microbatches)}) == texts(
                {0: theirs._add_reduce_grad(list(line), microbatches)})
            if name != "DualPipeV":
                assert texts({0: ours._merge_bw(mine)}) == texts({0: theirs._merge_bw(list(line))})


# Tables, files, other helpers


def test_table_is_torchs():
    for name in ("Interleaved1F1B", "ZBVZeroBubble"):
        mine, other = build(ours, name, 4, 2, 8), build(theirs, name, 4, 2, 8)
        assert ours._format_pipeline_order(mine.pipeline_order, 3).split() == (
            theirs._format_pipeline_order(other.pipeline_order, 3).split())
    # Torch raises for fewer steps than ranks.
    text = ours._format_pipeline_order(parse(ours, "0F0", ",1F0", ",,2F0", ",,,3F0"), 1)
    assert text.splitlines()[2].rstrip() == "Step 01:        1F0                  <-- ERROR HERE"


@pytest.mark.parametrize("name", MULTI)
def test_files_go_to_torch_and_back(name, tmp_path):
    mine, other = build(ours, name, 2, 2, 4), build(theirs, name, 2, 2, 4)
    for form in ("compute_only", "compute_comms"):
        path = str(tmp_path / form)
        mine._dump_csv(path, form)
        other._load_csv(path, form)
        again = build(ours, name, 2, 2, 4)
        other._dump_csv(path, form)
        again._load_csv(path, form)
        if form == "compute_only":
            assert texts(again.pipeline_order) == texts(mine.pipeline_order)
        assert texts(again.pipeline_order_with_comms) == texts(other.pipeline_order_with_comms)


def test_files_of_another_form_are_refused(tmp_path):
    schedule = build(ours, "Interleaved1F1B", 2, 2, 4)
    schedule._dump_csv(str(tmp_path / "x.csv"))
    with pytest.raises(ValueError, match="compute schedule"):
        schedule._load_csv(str(tmp_path / "x.csv"), "compute_only")
    with pytest.raises(NotImplementedError, match="other"):
        schedule._load_csv(str(tmp_path / "x.csv"), "other")


def test_mapping_of_stages():
    assert generate_stage_to_rank_mapping(4, 4) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert generate_stage_to_rank_mapping(2, 4) == {0: 0, 1: 1, 2: 0, 3: 1}
    assert generate_stage_to_rank_mapping(2, 4, style="v") == {0: 0, 1: 1, 2: 1, 3: 0}
    assert list(generate_stage_to_rank_mapping(4, 12, style="v").values()) == [0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3]
    assert generate_rank_to_stage_mapping(2, 4, style="v") == {0: [0, 3], 1: [1, 2]}
    with pytest.raises(ValueError):
        generate_stage_to_rank_mapping(2, 3, style="v")
    with pytest.raises(ValueError, match="zigzag"):
        generate_stage_to_rank_mapping(2, 4, style="zigzag")


class TestBatchP2P:
    """Sends alone and receives alone are started one by one; a mixture goes through torch's batch."""

    class Op:
        def __init__(self, op, peer=1):
            self.op, self.tensor, self.group, self.tag, self.group_peer, self.peer = op, "tensor", "group", 7, peer, peer

    def record(self, monkeypatch):
        calls = []
        for name in ("isend", "irecv"):
            monkeypatch.setattr(f"stagecraft.schedules.dist.{name}",
                                lambda *args, name=name, **kwargs: calls.append((name, args, kwargs)) or name)
        monkeypatch.setattr("stagecraft.schedules.dist.batch_isend_irecv",
                            lambda ops: calls.append(("batch", ops)) or ["batch"])
        return calls

    def test_none(self):
        assert ours._batch_p2p([]) == [] and ours._sorted_batch_p2p([]) == {}

    def test_sends(self, monkeypatch):
        calls = self.record(monkeypatch)
        assert ours._batch_p2p([self.Op(dist.isend), self.Op(dist.isend)], desc="x") == ["isend", "isend"]
        assert calls[0] == ("isend", ("tensor",), {"group": "group", "tag": 7, "group_dst": 1})

    def test_receives(self, monkeypatch):
        calls = self.record(monkeypatch)
        assert ours._batch_p2p([self.Op(dist.irecv)]) == ["irecv"]
        assert calls[0] == ("irecv", ("tensor",), {"group": "group", "tag": 7, "group_src": 1})

    def test_mixed(self, monkeypatch):
        calls = self.record(monkeypatch)
        ops = [self.Op(dist.isend), self.Op(dist.irecv)]
        assert ours._batch_p2p(ops) == ["batch"]
        assert calls == [("batch", ops)]

    def test_by_peer(self, monkeypatch):
        self.record(monkeypatch)
        works = ours._sorted_batch_p2p([self.Op(dist.isend, 2), self.Op(dist.irecv, 0), self.Op(dist.isend, 2)])
        assert list(works.items()) == [(0, ["irecv"]), (2, ["isend", "isend"])]

    def test_wait(self):
        waited = []
        ours._wait_batch_p2p([type("Work", (), {"wait": lambda self: waited.append(1)})()] * 2)
        assert waited == [1, 1]


def test_helpers_are_torchs():
    assert ours._get_profiler_function_name(_Action(2, F, 0)) == "PP:2F0"
    for kind in (F, I, W, B):
        assert ours._requires_reduce_grad(kind) == theirs._requires_reduce_grad(theirs._ComputationType(kind.value))
    for rank in range(4):
        assert ours._get_warmup_ops(rank, 2, 4, 4, 8, 1) == theirs._get_warmup_ops(rank, 2, 4, 4, 8, 1)
        for zero_bubble in (False, True):
            warm = theirs._get_warmup_ops(rank, 2, 4, 4, 8, 1 if zero_bubble else 2)
            arguments = (2, 4, warm, 16 - warm, warm, rank, lambda op: op // 4 % 2 * 4 + rank,
                         lambda op, warm=warm: (1 - (op - warm) // 4 % 2) * 4 + rank)
            assert texts({0: ours._get_1f1b_rank_ops(*arguments, num_1f1b_microbatches=rank,
                                                      enable_zero_bubble=zero_bubble)}) == texts(
                {0: theirs._get_1f1b_rank_ops(*arguments, num_1f1b_microbatches=rank, enable_zero_bubble=zero_bubble)})


def test_functions_that_can_be_replaced(caplog):
    schedule = build(ours, "Interleaved1F1B", 2, 2, 4)
    schedule.register_custom_function(F, lambda action, ctx: None)
    schedule.register_custom_function(F, lambda action, ctx: None)
    assert "F" in caplog.text
    with pytest.raises(ValueError, match="SEND_F"):
        schedule.register_custom_function(ours.SEND_F, lambda action, ctx: None)


def test_inputs_are_checked():
    schedule = ScheduleGPipe(stage(2, 1), 2)
    x = torch.ones(4, 1)
    arg_mbs, kwarg_mbs, target_mbs = schedule._get_microbatch_inputs((x,), {}, x, None, None, None)
    assert [len(a[0]) for a in arg_mbs] == [2, 2] and kwarg_mbs == [{}, {}] and len(target_mbs) == 2
    ready = [(x,), (x,)]
    assert schedule._get_microbatch_inputs((), {}, None, ready, None, None) == (ready, [{}, {}], None)
    for bad, error in [(dict(args=(x,), arg_mbs=ready), ValueError), (dict(kwargs={"k": x}, arg_mbs=ready), ValueError),
                       (dict(target=x, target_mbs=[x, x]), ValueError), (dict(arg_mbs=tuple(ready)), TypeError),
                       (dict(arg_mbs=ready[:1]), ValueError), (dict(arg_mbs=[x, x]), TypeError),
                       (dict(kwarg_mbs=[(), ()]), TypeError)]:
        given = dict(args=(), kwargs={}, target=None, arg_mbs=None, kwarg_mbs=None, target_mbs=None) | bad
        with pytest.raises(error):
            schedule._get_microbatch_inputs(**given)
    with pytest.raises(TypeError, match="losses"):
        schedule._check_inputs(losses=())


@pytest.mark.skipif(not ours.HAS_WAITS, reason="torch 2.15")
def test_waits_for_sends_are_torchs():
    for name in MULTI:
        mine = build(ours, name, 4, 2, 8)
        lists = {rank: [a for a in actions if not a.computation_type.value.startswith("WAIT_SEND")]
                 for rank, actions in mine.pipeline_order_with_comms.items()}
        assert texts(ours._add_wait_send(lists)) == texts(mine.pipeline_order_with_comms)
        ours._validate_send_waits(mine.pipeline_order_with_comms)
        with pytest.raises(ValueError):
            ours._validate_send_waits(lists)


@pytest.mark.skipif(not ours.HAS_WAITS, reason="torch 2.15")
def test_liveness_is_torchs():
    for name in MULTI:
        for by in ("microbatch", "stage_microbatch"):
            mine, other = build(ours, name, 4, 2, 8), build(theirs, name, 4, 2, 8)
            stages = [s for s, r in mine.stage_index_to_group_rank.items() if r == 1]
            a = ours.analyze_pipeline_activation_liveness(mine, pp_rank=1, stage_indices=stages, granularity=by)
            b = theirs.analyze_pipeline_activation_liveness(other, pp_rank=1, stage_indices=stages, granularity=by)
            assert dict(a.slot_by_stage_and_microbatch) == dict(b.slot_by_stage_and_microbatch)
            assert a.num_slots == b.num_slots
            for pair in a.slot_by_stage_and_microbatch:
                assert a.get_activation_lifetime(*pair) == b.get_activation_lifetime(*pair), (name, by, pair)


def test_lists_of_the_visualizer():
    from stagecraft._schedule_visualizer import get_schedule_ops, visualize_schedule
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops as their_ops
    for name in MULTI:
        assert texts(dict(enumerate(get_schedule_ops(name, 2, 4)))) == texts(dict(enumerate(their_ops(name, 2, 4))))
        assert texts(dict(enumerate(get_schedule_ops(name, 2, 4, with_comms=True)))) == texts(
            dict(enumerate(their_ops(name, 2, 4, with_comms=True))))
    with pytest.raises(ValueError):
        get_schedule_ops("GPipe", 2, 4, add_spacing=True, with_comms=True)
    with pytest.raises(AssertionError):
        get_schedule_ops("GPipe", 2, 4, num_stages_per_rank=2)
    # Torch cannot space GPipe or 1F1B out, nor give them transfers.
    assert texts(dict(enumerate(get_schedule_ops("1F1B", 2, 2, add_spacing=True)))) == {
        0: ["0F0", "0F1", None, None, "0B0", None, "0B1"], 1: [None, "1F0", "1B0", "1F1", "1B1"]}
    assert "0SEND_F0" in map(str, get_schedule_ops(ScheduleGPipe, 2, 2, with_comms=True)[0])
    assert "<svg" in visualize_schedule(get_schedule_ops("ZBVZeroBubble", 2, 4))._repr_svg_()


def test_upstream_can_be_replaced():
    script = ("import stagecraft; stagecraft.replace_upstream(); stagecraft.replace_upstream()\n"
              "from torch.distributed.pipelining import ScheduleGPipe\n"
              "from torch.distributed.pipelining.schedules import _Action\n"
              "import torch.distributed.pipelining.microbatch as m\n"
              "print(ScheduleGPipe.__module__, _Action.__module__, m.__name__)")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.stdout.split() == ["stagecraft.schedules", "stagecraft._actions", "stagecraft.microbatch"], done.stderr
    with pytest.raises(RuntimeError, match="imported already"):
        stagecraft.replace_upstream()


def test_errors_of_lists_are_schedule_errors():
    with pytest.raises(errors.ScheduleError) as info:
        ours._validate_schedule(parse(ours, "0F0,0B0", "1B0,1F0"), 2, 2, 1)
    assert info.value.actions == ["1B0"]
