"""An MLP in two stages, one on each of two processes.

    torchrun --nproc-per-node 2 examples/python/two_ranks.py

A program of torch.distributed.pipelining differs only in the first import.
"""

import torch
import torch.distributed as dist
from stagecraft import PipelineStage, Schedule1F1B


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    block = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
    stage = PipelineStage(block, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)

    torch.manual_seed(7)
    x, y = torch.randn(32, 16), torch.randn(32, 16)
    for step in range(5):
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
            print(f"step {step}: loss {torch.stack(losses).mean():.4f}")
        optimizer.step()
    report = schedule.report()
    if rank == 0:
        print(report)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
