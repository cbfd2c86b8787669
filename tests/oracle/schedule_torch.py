"""What torch makes of a schedule: its order, its lowering, its simulation. The stages are stand-ins."""

import functools
import types

from torch.distributed.pipelining import schedules

# The names of ours and the classes of torch's.
MULTI = {
    "LoopedBFS": schedules.ScheduleLoopedBFS,
    "Interleaved1F1B": schedules.ScheduleInterleaved1F1B,
    "InterleavedZeroBubble": schedules.ScheduleInterleavedZeroBubble,
    "ZBVZeroBubble": schedules.ScheduleZBVZeroBubble,
    "DualPipeV": schedules.ScheduleDualPipeV,
}
SINGLE = {
    "GPipe": schedules.ScheduleGPipe,
    "1F1B": schedules.Schedule1F1B,
    "ForwardOnly": schedules._ScheduleForwardOnly,
}
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
# The target of ours whose lists this torch makes. From 2.15 on it has waits.
HAS_WAITS = hasattr(schedules, "_add_wait_send")
TARGET = "torch-2.15" if HAS_WAITS else "torch-2.13"


class Refused(Exception):
    """Torch does not build this shape."""


def _stages(ranks, per_rank):
    stage = types.SimpleNamespace(group_rank=0, group_size=ranks, num_stages=ranks * per_rank, submod=None,
                                  stage_index=0, device=None, p2p_per_edge=False)
    return [stage] * per_rank


class _RecordingStage:
    """Writes down what the step loop of a single-stage schedule asks of its stage."""

    def __init__(self, rank, ranks):
        self.stage_index = rank
        self.num_stages = ranks
        self.group_size = ranks
        self.group_rank = rank
        self.is_first = rank == 0
        self.is_last = rank == ranks - 1
        self.has_backward = True
        self.p2p_per_edge = False
        self.recorded = []

    def forward_one_chunk(self, microbatch, *_, **__):
        self.recorded.append(f"{self.stage_index}F{microbatch}")

    def backward_one_chunk(self, microbatch, *_, **__):
        self.recorded.append(f"{self.stage_index}B{microbatch}")

    def _no_transfers(self, _):
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = _no_transfers

    def perform_reduce_grad(self, _):
        pass

    def release_fwd_send_outputs(self, _):
        pass


def _executed(name, ranks, microbatches):
    """The order in which a single-stage schedule really runs, which its printed order is not."""
    order = []
    for rank in range(ranks):
        stage = _RecordingStage(rank, ranks)
        schedule = SINGLE[name](stage, microbatches)
        schedule._initialize_stage = lambda *_: None
        schedule._step_microbatches()
        order.append(stage.recorded)
    return order


def compute(name, ranks, per_rank, microbatches):
    """A list of texts a rank; "" is idle. Refused if torch says so."""
    try:
        if name in SINGLE:
            return _executed(name, ranks, microbatches)
        built = MULTI[name](_stages(ranks, per_rank), microbatches).pipeline_order
    except ValueError as error:
        raise Refused(str(error)) from None
    return [["" if action is None else str(action) for action in built[rank]] for rank in range(ranks)]


_action = functools.lru_cache(maxsize=None)(schedules._Action.from_str)


def _parse(order):
    return {rank: [_action(text) for text in row] for rank, row in enumerate(order)}


def _print(actions):
    return [[str(action) for action in actions[rank]] for rank in sorted(actions)]


def _rank_of(name, ranks):
    if name in V_SHAPED:
        return lambda stage: stage if stage < ranks else 2 * ranks - 1 - stage
    return lambda stage: stage % ranks


def lowered(name, ranks, per_rank, microbatches, order, lookahead=None, defer=False, limit=None):
    """The last three are for a torch that has waits: stages to unshard ahead by rank, deferred waits for reductions, the
    most outstanding sends."""
    actions = {}
    for rank, row in _parse(order).items():
        row = schedules._add_unshard_reshard(row, **({"unshard_lookahead": lookahead[rank]} if lookahead else {}))
        actions[rank] = schedules._add_reduce_grad(row, microbatches, **({"defer_reduce_grad_wait": True} if defer else {}))
    actions = schedules._add_send_recv(actions, _rank_of(name, ranks), ranks * per_rank)
    if HAS_WAITS:
        actions = schedules._add_wait_send(actions)
    if limit is not None:
        actions = schedules._add_wait_send_budget(actions, _rank_of(name, ranks), limit)
    return _print(actions)


def steps(name, ranks, per_rank, order):
    """The length of the simulation, or None where torch cannot simulate: it knows no overlaps."""
    if name == "DualPipeV":
        return None
    known = ("UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD")
    actions = {
        rank: [action for action in row if action.computation_type.value not in known]
        for rank, row in _parse(order).items()
    }
    simulated = schedules._simulate_comms_compute(actions, _rank_of(name, ranks), ranks * per_rank)
    return max(len(row) for row in simulated.values())


def load(path, kind, ranks, per_rank, microbatches):
    """What torch reads from a file, lowered by torch if kind is "compute_only"."""
    runtime = schedules._PipelineScheduleRuntime(_stages(ranks, per_rank), microbatches)
    runtime._load_csv(path, kind)
    return _print(runtime.pipeline_order_with_comms)
