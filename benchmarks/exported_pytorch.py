"""Exports the models of exported.cpp into FOLDER and runs them in eager mode: `exported_pytorch.py FOLDER MODEL...`.

Cases: `ready` (all archives are there), `MODEL:forward`, `MODEL:both`, `MODEL:load` (torch.export.load).
"""

import pathlib
import sys

import torch
import transformers

import pytorch_cases

ROWS, LENGTH = 2, 16


def gpt2(layers, width, heads, tokens):
    config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=heads, vocab_size=tokens, n_positions=128,
                                     use_cache=False, bos_token_id=0, eos_token_id=0, attn_pdrop=0.0, embd_pdrop=0.0,
                                     resid_pdrop=0.0)
    return transformers.GPT2LMHeadModel(config)


def llama(layers, width, heads, tokens):
    config = transformers.LlamaConfig(num_hidden_layers=layers, hidden_size=width, intermediate_size=2 * width,
                                      num_attention_heads=heads, num_key_value_heads=heads // 2, vocab_size=tokens,
                                      max_position_embeddings=128, use_cache=False, bos_token_id=0, eos_token_id=0)
    return transformers.LlamaForCausalLM(config)


MODELS = {
    "gpt2_tiny": lambda: gpt2(2, 32, 2, 97),
    "llama_tiny": lambda: llama(2, 32, 4, 97),
    "llama_plan": lambda: llama(8, 256, 4, 8192),
    "gpt2_small": lambda: gpt2(12, 768, 12, 50257),
}


def export(name, folder):
    torch.manual_seed(1)
    model = MODELS[name]().train()
    ids = torch.randint(0, 97, (ROWS, LENGTH))
    path = folder / f"{name}.pt2"
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=128)
    program = torch.export.export(model, (), {"input_ids": ids}, strict=False,
                                  dynamic_shapes={"input_ids": {0: batch, 1: length}})
    torch.export.save(program, path)

    def forward():
        with torch.no_grad():
            model(input_ids=ids)

    return {f"{name}:forward": forward,
            f"{name}:both": lambda: model(input_ids=ids).logits.sum().backward(),
            f"{name}:load": lambda: torch.export.load(path)}


def main():
    torch.set_num_threads(1)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    cases = {"ready": lambda: None}
    for name in sys.argv[2:]:
        cases.update(export(name, folder))
    pytorch_cases.serve(cases)


if __name__ == "__main__":
    main()
