"""A transformer trained by hand-made stages: two pipeline ranks, each with two data-parallel replicas.

    torchrun --nproc-per-node 4 examples/python/data_parallel.py

A program of torch.distributed.pipelining differs only in the import of the two classes.
"""

import torch
import torch.distributed as dist
from stagecraft import PipelineStage, Schedule1F1B
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, WIDTH, LENGTH, LAYERS = 64, 32, 16, 4
STAGES, REPLICAS, MICROBATCHES, ROWS, STEPS = 2, 2, 4, 16, 5


class Transformer(nn.Module):
    """A language model. Parts that are None belong to other stages."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: nn.Module | None = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({
            str(i): nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for i in range(LAYERS)})
        self.norm: nn.Module | None = nn.LayerNorm(WIDTH)
        self.head: nn.Module | None = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if self.tokens is not None:
            h = self.tokens(h)
        mask = nn.Transformer.generate_square_subsequent_mask(h.size(1))
        for layer in self.layers.values():
            h = layer(h, src_mask=mask, is_causal=True)
        if self.norm is not None and self.head is not None:
            h = self.head(self.norm(h))
        return h


def part(index: int) -> Transformer:
    """The part of the model that a stage has. Every process builds the same model first."""
    torch.manual_seed(0)
    model = Transformer()
    each = LAYERS // STAGES
    for layer in range(LAYERS):
        if layer // each != index:
            del model.layers[str(layer)]
    if index > 0:
        model.tokens = None
    if index < STAGES - 1:
        model.norm = model.head = None
    return model


def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and the tokens that follow them. Each token is 5 times the one before it, plus 1."""
    first = torch.randint(0, VOCABULARY, (ROWS, 1), generator=torch.Generator().manual_seed(step))
    tokens = [first]
    for _ in range(LENGTH):
        tokens.append((tokens[-1] * 5 + 1) % VOCABULARY)
    row = torch.cat(tokens, 1)
    return row[:, :-1], row[:, 1:]


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (STAGES, REPLICAS), mesh_dim_names=("pp", "dp"))
    index, replica = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
    module = DistributedDataParallel(part(index), process_group=mesh.get_group("dp"))
    stage = PipelineStage(module, index, STAGES, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, n_microbatches=MICROBATCHES, loss_fn=loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for step in range(STEPS):
        # A replica trains on its share of the rows.
        tokens, target = (rows.chunk(REPLICAS)[replica] for rows in batch(step))
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if index == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=target, losses=losses)
            mean = torch.stack(losses).mean().detach()
            dist.all_reduce(mean, group=mesh.get_group("dp"))
            if replica == 0:
                print(f"step {step}: loss {mean / REPLICAS:.6f}", flush=True)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
