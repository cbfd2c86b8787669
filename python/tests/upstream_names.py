"""What the comparisons with torch's own pipelines share: torch's module, and stand-ins for stages."""

import types

import torch.distributed.pipelining.schedules as theirs

from stagecraft import schedules as ours

SINGLE = ["GPipe", "1F1B"]
MULTI = ["LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
# The shapes (stages a rank, microbatches, ranks) that torch's own suite looks at.
SHAPES = [(2, 2, 2), (2, 4, 4), (2, 8, 2), (2, 8, 4), (2, 8, 8), (4, 4, 4), (4, 8, 4), (4, 8, 8), (4, 16, 4), (4, 32, 4),
          (4, 64, 4), (4, 16, 16), (4, 32, 32), (4, 128, 64), (3, 2, 2), (3, 8, 2), (3, 12, 4), (4, 6, 3), (4, 10, 5),
          (2, 3, 4), (2, 4, 4), (2, 10, 4), (2, 15, 4)]


def stage(ranks, per_rank, index=0):
    """A stand-in for a stage: it has its place and nothing else."""
    return types.SimpleNamespace(group_rank=0, group_size=ranks, num_stages=ranks * per_rank, submod=None,
                                 stage_index=index, device=None, p2p_per_edge=False)


def build(module, name, ranks, per_rank, microbatches, **options):
    """A schedule of torch's or our module."""
    found = module.get_schedule_class(name)
    if name in SINGLE:
        return found(stage(ranks, 1), microbatches, **options)
    return found([stage(ranks, per_rank, i * ranks) for i in range(per_rank)], microbatches, **options)


def texts(lists):
    """Lists of actions as texts, to compare those of the two modules."""
    return {rank: [None if action is None else str(action) for action in actions] for rank, actions in lists.items()}


def parse(module, *lines):
    """Lists by rank, each from a text such as "0F0,,0B0"."""
    return {rank: [module._Action.from_str(text) for text in line.split(",")] for rank, line in enumerate(lines)}


__all__ = ["MULTI", "SHAPES", "SINGLE", "build", "ours", "parse", "stage", "texts", "theirs"]
