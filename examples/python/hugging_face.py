"""A GPT-2 of Hugging Face, split at names of its layers, on two processes.

    torchrun --nproc-per-node 2 examples/python/hugging_face.py

A program of torch.distributed.pipelining differs only in the import of three names.
"""

import torch
import torch.distributed as dist
from stagecraft import Schedule1F1B, SplitPoint, pipeline
from transformers import GPT2Config, GPT2LMHeadModel

ROWS, LENGTH, MICROBATCHES, STEPS = 8, 32, 4, 4


def make_model() -> GPT2LMHeadModel:
    """The same model in every process. Without dropout, so that runs can be compared."""
    torch.manual_seed(0)
    config = GPT2Config(n_embd=64, n_layer=4, n_head=4, vocab_size=128, n_positions=64, use_cache=False,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False)
    return GPT2LMHeadModel(config)


def batch() -> torch.Tensor:
    return torch.randint(0, 128, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))


def loss(output: object, target: torch.Tensor) -> torch.Tensor:
    logits = output["logits"] if isinstance(output, dict) else output[0] if isinstance(output, tuple) else output
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), target[:, 1:].flatten())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tokens = batch()

    # The example is one microbatch.
    pipe = pipeline(make_model(), mb_args=(), mb_kwargs={"input_ids": tokens[:ROWS // MICROBATCHES]},
                    split_spec={"transformer.h.2": SplitPoint.BEGINNING})
    stage = pipe.build_stage(rank, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=MICROBATCHES, loss_fn=loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(input_ids=tokens)
        else:
            schedule.step(target=tokens, losses=losses)
            print(f"step {step}: loss {torch.stack(losses).mean():.6f}", flush=True)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
