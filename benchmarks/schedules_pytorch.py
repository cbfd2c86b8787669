"""PyTorch's schedules for schedules.cpp: RANKS STAGES_PER_RANK MICROBATCHES; cases "make" and "simulate"."""

import sys
import types

from torch.distributed.pipelining import schedules

import pytorch_cases

NOT_SIMULATED = ("UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD")


def make(ranks, per_rank, microbatches):
    """Generates, validates and lowers a schedule, as PyTorch does when it constructs a schedule and
    prepares a run."""
    stage = types.SimpleNamespace(group_rank=0, group_size=ranks, num_stages=ranks * per_rank, submod=None)
    order = schedules.ScheduleInterleaved1F1B([stage] * per_rank, microbatches).pipeline_order
    schedules._validate_schedule(order, ranks, ranks * per_rank, microbatches)
    actions = {
        rank: schedules._add_reduce_grad(schedules._add_unshard_reshard(row), microbatches)
        for rank, row in order.items()
    }
    lowered = schedules._add_send_recv(actions, lambda stage: stage % ranks, ranks * per_rank)
    # From torch 2.15 on, a lowered list has waits for sends.
    return schedules._add_wait_send(lowered) if hasattr(schedules, "_add_wait_send") else lowered


def main():
    ranks, per_rank, microbatches = (int(text) for text in sys.argv[1:])
    lowered = make(ranks, per_rank, microbatches)

    def simulate():
        actions = {
            rank: [action for action in row if action.computation_type.value not in NOT_SIMULATED]
            for rank, row in lowered.items()
        }
        schedules._simulate_comms_compute(actions, lambda stage: stage % ranks, ranks * per_rank)

    pytorch_cases.serve({"make": lambda: make(ranks, per_rank, microbatches), "simulate": simulate})


if __name__ == "__main__":
    main()
