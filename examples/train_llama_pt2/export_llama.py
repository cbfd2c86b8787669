"""Exports a small byte-level LLaMA with random weights, for train_llama_pt2, and checks the trained
weights.

    export_llama.py write llama.pt2
    export_llama.py check llama.pt2 trained.pt

`check` loads the trained weights into the same model in Python and prints its loss on a line of text before and after.
"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

TEXT = b"It is a truth universally acknowledged, that a single man"


def make_model():
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True, use_cache=False,
                         bos_token_id=0, eos_token_id=0)
    return LlamaForCausalLM(config).train()


def write(path):
    ids = torch.randint(0, 256, (2, 32))
    # Two tensors, because export would treat one tensor that is passed twice as one argument.
    inputs = {"input_ids": ids, "labels": ids.clone()}
    shape = {0: torch.export.Dim("rows", min=1, max=64), 1: torch.export.Dim("length", min=2, max=128)}
    program = torch.export.export(make_model(), (), inputs, dynamic_shapes={"input_ids": shape, "labels": shape})
    torch.export.save(program, path)


def check(weights):
    ids = torch.tensor([list(TEXT)])
    model = make_model()
    with torch.no_grad():
        before = model(input_ids=ids, labels=ids).loss
        model.load_state_dict(torch.load(weights, weights_only=True))
        after = model(input_ids=ids, labels=ids).loss
    print(f"loss in Python: {before:.3f} before, {after:.3f} with the trained weights")
    if not after < before - 1:
        raise SystemExit("training did not help")


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2])
    else:
        check(sys.argv[3])
