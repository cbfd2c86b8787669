"""One rank of the training of sharding.cpp: RANK RANKS STORE SCHEDULE LAYERS WIDTH CONTEXT MICROBATCHES ROWS.

Two replicas of two ranks: the stages of a rank are sharded over the replicas by FSDP2 (fully_shard, each block and the
stage itself), and torch.distributed.pipelining runs them. Requests: "update N", whose answer is seconds; "memory 1" and
"growth 1", the most bytes of the process, and the most bytes in updates, less those that it had before the model.
"""

import datetime
import os
import sys
import time

import torch
import torch.distributed
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import schedules
from train_vs_pytorch_worker import Block, loss_of, make_turn

PATIENCE = datetime.timedelta(seconds=60)
REPLICAS = 2
HEADS = 4
VOCABULARY = 256
TINY = (4, 32, 16, 4, 1)  # layers, width, context, microbatches, rows


class Part(torch.nn.Module):
    """The blocks first, ..., end - 1. The first part also has the embedding, the last part has the head."""

    def __init__(self, width, context, layers, first, end):
        super().__init__()
        turn = make_turn(context, width // HEADS)
        self.tokens = torch.nn.Embedding(VOCABULARY, width) if first == 0 else None
        self.blocks = torch.nn.ModuleList(Block(width, HEADS, turn) for _ in range(first, end))
        self.norm = torch.nn.LayerNorm(width) if end == layers else None
        self.head = torch.nn.Linear(width, VOCABULARY, bias=False) if end == layers else None

    def forward(self, x):
        if self.tokens is not None:
            x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def status_bytes(key):
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


class Training:
    def __init__(self, name, sizes, mesh):
        layers, width, context, microbatches, rows = sizes
        rank, ranks = mesh["pp"].get_local_rank(), mesh["pp"].size()
        schedule_class = schedules.get_schedule_class(name)
        is_multi = issubclass(schedule_class, schedules.PipelineScheduleMulti)
        own = [rank, rank + ranks] if is_multi else [rank]
        count = ranks * len(own)
        stages = []
        for index in own:
            part = Part(width, context, layers, layers * index // count, layers * (index + 1) // count)
            for block in part.blocks:
                fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)
            fully_shard(part, mesh=mesh["dp"], reshard_after_forward=False)
            stages.append(pipelining.PipelineStage(part, index, count, torch.device("cpu"), group=mesh.get_group("pp")))
        parameters = [p for stage in stages for p in stage.submod.parameters()]
        groups = [{"params": [p for p in parameters if p.dim() >= 2]},
                  {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.schedule = schedule_class(stages if is_multi else stages[0], microbatches, loss_fn=loss_of)
        shape = (microbatches * rows, context)
        self.inputs = (torch.randint(0, VOCABULARY, shape),) if 0 in own else ()
        self.target = torch.randint(0, VOCABULARY, shape) if count - 1 in own else None

    def update(self):
        self.schedule.step(*self.inputs, target=self.target, losses=None if self.target is None else [],
                           return_outputs=False)
        self.optimizer.step()
        self.optimizer.zero_grad()


def main():
    rank, ranks, store, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks,
                                         timeout=PATIENCE)
    mesh = init_device_mesh("cpu", (REPLICAS, ranks // REPLICAS), mesh_dim_names=("dp", "pp"))
    # A small model first, so that the pages of libraries are loaded and do not count as memory of
    # the model.
    Training(name, TINY, mesh).update()
    before = status_bytes("VmRSS")
    training = Training(name, [int(word) for word in sys.argv[5:10]], mesh)
    made = status_bytes("VmHWM")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets VmHWM, the peak memory of the process
    for line in sys.stdin:
        request, count = line.split()
        if request != "update":
            peak = status_bytes("VmHWM")
            print(peak - before if request == "growth" else max(peak, made), flush=True)
            continue
        torch.distributed.barrier()
        begin = time.perf_counter()
        for _ in range(int(count)):
            training.update()
        torch.distributed.barrier()
        print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    main()
