"""One rank of the training of train_vs_pytorch.cpp: RANK RANKS STORE START.

START is a checkpoint that the benchmark wrote: initial weights, batches, sizes. Cases: "plain", the whole model in the
process of rank 0, while the others wait; "1F1B", torch.distributed.pipelining on all. Each continues from its last
update, and writes its losses, one for each update, next to START.

torch.distributed.pipelining cannot share a weight between stages. The weight of the embedding, which is also that
of the head, is a parameter of both stages. After the backward their gradients are summed, so both make the same
update.
"""

import datetime
import json
import math
import os
import pathlib
import sys
import time

import torch
import torch.distributed
from torch.distributed import pipelining
from torch.nn import functional

PATIENCE = datetime.timedelta(seconds=60)
TIED = "embed.tokens.weight"


class Start:
    def __init__(self, folder):
        self.folder = folder
        self.notes = json.loads((folder / "index.json").read_text())["notes"]
        self.weights = {}
        for file in sorted(folder.glob("stage-*.pt")):
            sections = torch.load(file, weights_only=True)
            self.weights.update(sections["model"])
            if "batches" in sections:
                self.batches = sections["batches"]

    def batch(self, update):
        place = update % len(self.batches["inputs"])
        return self.batches["inputs"][place], self.batches["targets"][place]

    def rate(self, update):
        rate = self.notes["rate"]
        if update < rate["warmup"]:
            return rate["peak"] * (update + 1) / rate["warmup"]
        if update >= rate["steps"]:
            return rate["least"]
        done = (update - rate["warmup"]) / (rate["steps"] - rate["warmup"])
        return rate["least"] + (rate["peak"] - rate["least"]) * (1 + math.cos(math.pi * done)) / 2


def rotate(x, turn):
    cosine, sine = turn[0, : x.size(2)], turn[1, : x.size(2)]
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cosine - b * sine, a * sine + b * cosine), -1).flatten(-2)


def make_turn(context, head_width):
    speeds = (torch.arange(0, head_width, 2, dtype=torch.float) / head_width * -math.log(10000.0)).exp()
    angles = torch.outer(torch.arange(context, dtype=torch.float), speeds)
    return torch.stack((angles.cos(), angles.sin()))


class Block(torch.nn.Module):
    def __init__(self, width, heads, turn):
        super().__init__()
        self.heads, self.turn = heads, turn
        self.norm1 = torch.nn.LayerNorm(width)
        self.qkv, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.norm2 = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            rotate(q, self.turn), rotate(k, self.turn), v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(torch.nn.Module):
    """The blocks first, ..., end - 1. The first part also has the embedding, the last part has the head."""

    def __init__(self, notes, first, end):
        super().__init__()
        width = notes["width"]
        turn = make_turn(notes["context"], width // notes["heads"])
        self.embed = torch.nn.Module()
        self.embed.tokens = torch.nn.Embedding(notes["vocabulary"], width)  # the head's weight too
        self.blocks = torch.nn.ModuleDict({str(i): Block(width, notes["heads"], turn) for i in range(first, end)})
        self.is_first, self.is_last = first == 0, end == notes["layers"]
        if self.is_last:
            self.head = torch.nn.Module()
            self.head.norm = torch.nn.LayerNorm(width)

    def forward(self, x):
        if self.is_first:
            x = self.embed.tokens(x)
        for block in self.blocks.values():
            x = block(x)
        return functional.linear(self.head.norm(x), self.embed.tokens.weight) if self.is_last else x


def loss_of(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def load(start, first, end):
    model = Gpt(start.notes, first, end)
    model.load_state_dict({name: start.weights[name] for name in model.state_dict()})
    return model


def make_optimizer(model, options):
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2]},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=options["betas"], eps=options["eps"],
                             weight_decay=options["weight_decay"], fused=True)


def set_rate(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate


class Plain:
    def __init__(self, start, rank):
        self.start, self.is_idle, self.losses = start, rank != 0, []
        self.model = load(start, 0, start.notes["layers"])
        self.optimizer = make_optimizer(self.model, start.notes["adamw"])

    def update(self):
        if self.is_idle:
            return
        count = self.start.notes["microbatches"]
        inputs, targets = self.start.batch(len(self.losses))
        loss = 0.0
        for x, target in zip(inputs.tensor_split(count), targets.tensor_split(count)):
            part = loss_of(self.model(x), target) / count
            part.backward()
            loss += part.item()
        self.clip()
        set_rate(self.optimizer, self.start.rate(len(self.losses)))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss)

    def clip(self):
        """Clips as the other side does, with the norm as a double. clip_grad_norm_ rounds the factor to a float,
        and this difference grows to 1e-3 of a loss in 50 updates."""
        grads = [p.grad for p in self.model.parameters()]
        factor = self.start.notes["clip"] / (torch.nn.utils.get_total_norm(grads).item() + 1e-6)
        if factor < 1:
            torch._foreach_mul_(grads, factor)


class Pipelined:
    def __init__(self, start, rank, ranks):
        notes = start.notes
        self.start, self.updates, self.losses = start, 0, []
        self.is_first, self.is_last = rank == 0, rank == ranks - 1
        borders = [0, notes["cut"], notes["layers"]]
        self.model = load(start, borders[rank], borders[rank + 1])
        self.parameters = list(self.model.parameters())
        self.tied = self.model.get_parameter(TIED)
        self.optimizer = make_optimizer(self.model, notes["adamw"])
        stage = pipelining.PipelineStage(self.model, rank, ranks, torch.device("cpu"))
        self.schedule = pipelining.Schedule1F1B(stage, notes["microbatches"], loss_fn=loss_of)

    def update(self):
        inputs, targets = self.start.batch(self.updates)
        losses = []
        if self.is_last:
            self.schedule.step(target=targets, losses=losses, return_outputs=False)
        else:
            self.schedule.step(inputs, return_outputs=False)
        torch.distributed.all_reduce(self.tied.grad)
        self.clip()
        set_rate(self.optimizer, self.start.rate(self.updates))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1
        if self.is_last:
            self.losses.append(torch.stack(losses).mean().item())

    def clip(self):
        """Clips by the norm of all stages' gradients. The gradient of the tied weight counts
        once."""
        own = [p.grad for p in self.parameters if self.is_first or p is not self.tied]
        square = torch.nn.utils.get_total_norm(own) ** 2
        torch.distributed.all_reduce(square)
        torch.nn.utils.clip_grads_with_norm_(self.parameters, self.start.notes["clip"], square.sqrt())


def main():
    rank, ranks, store, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], pathlib.Path(sys.argv[4])
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks,
                                         timeout=PATIENCE)
    start = Start(folder)
    cases = {"plain": Plain(start, rank), "1F1B": Pipelined(start, rank, ranks)}
    for line in sys.stdin:
        name, updates = line.split()
        case = cases[name]
        torch.distributed.barrier()
        begin = time.perf_counter()
        for _ in range(int(updates)):
            case.update()
        torch.distributed.barrier()
        seconds = time.perf_counter() - begin
        if case.losses:
            (folder.parent / f"losses-{name}.json").write_text(json.dumps(case.losses))
        print(seconds, flush=True)


if __name__ == "__main__":
    main()
