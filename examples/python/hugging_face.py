"""A GPT-2 of Hugging Face, cut by the names of its layers, on two processes.

    torchrun --nproc-per-node 2 examples/python/hugging_face.py
"""

import torch
import torch.distributed as dist
from stagecraft import Schedule1F1B, SplitPoint, pipeline
from transformers import GPT2Config, GPT2LMHeadModel


def loss(output: object, target: torch.Tensor) -> torch.Tensor:
    logits = output["logits"] if isinstance(output, dict) else output[0]
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), target[:, 1:].flatten())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    config = GPT2Config(n_embd=64, n_layer=4, n_head=4, vocab_size=128, n_positions=64, use_cache=False)
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(0, 128, (8, 32))

    # The example is one microbatch; batches may have any number of rows.
    pipe = pipeline(model, mb_args=(), mb_kwargs={"input_ids": tokens[:2]},
                    split_spec={"transformer.h.2": SplitPoint.BEGINNING})
    stage = pipe.build_stage(rank, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss)
    optimizer = torch.optim.AdamW(stage.submod.parameters(), lr=1e-3)
    for step in range(3):
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        schedule.step(input_ids=tokens, target=tokens, losses=losses)
        optimizer.step()
        if losses:
            print(f"step {step}: loss {torch.stack(losses).mean():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
