"""Tiny Hugging Face models with random weights: four layers at most, a vocabulary of 97, no cache.

Most of them take labels, so that the loss is their first output; dropout is on where the architecture has it.
"""

import torch
import transformers

from entry import BATCH, LENGTH, Registry

transformers.logging.set_verbosity_error()
MODELS = Registry()

VOCABULARY = 97
POSITIONS = 64
EXAMPLE = (3, 12)
OTHERS = [(2, 16), (5, 7)]
ANSWER = torch.export.Dim("answer", min=3, max=64)


def words(batch, length):
    return torch.randint(0, VOCABULARY, (batch, length))


def text(batch, length):
    return (), {"input_ids": words(batch, length)}


def labelled_text(batch, length):
    ids = words(batch, length)
    return (), {"input_ids": ids, "labels": ids.clone()}


def padded_text(batch, length):
    """Labelled text whose rows end in 0, 1, 2, ... masked positions."""
    _, kwargs = labelled_text(batch, length)
    ends = length - torch.arange(batch) % 3
    kwargs["attention_mask"] = (torch.arange(length) < ends[:, None]).long()
    kwargs["labels"] = kwargs["labels"].masked_fill(kwargs["attention_mask"] == 0, -100)
    return (), kwargs


def batch_and_length(*names):
    return {name: {0: BATCH, 1: LENGTH} for name in names}


def model(name, inputs=labelled_text, dynamic=None, ci=False, loss=0, shapes=None):
    if dynamic is None:
        dynamic = batch_and_length(*inputs(1, 2)[1])
    return MODELS.add(name, inputs, shapes or [EXAMPLE, *OTHERS], dynamic=dynamic, ci=ci, loss=loss,
                      note="Hugging Face " + name)


def decoder_sizes(**more):
    """Configuration that the LLaMA family shares."""
    return dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=POSITIONS, attention_dropout=0.1, use_cache=False,
                pad_token_id=None, bos_token_id=None, eos_token_id=None) | more


@model("gpt2", ci=True)
def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=32, n_layer=4, n_head=4, use_cache=False,
        bos_token_id=None, eos_token_id=None))


@model("llama", inputs=text, ci=True, loss=None)
def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **decoder_sizes(num_hidden_layers=2), tie_word_embeddings=False))


@model("llama_tied", ci=True)
def llama_tied():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**decoder_sizes(), tie_word_embeddings=True))


@model("qwen2", inputs=padded_text)
def qwen2():
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**decoder_sizes()))


@model("qwen3")
def qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**decoder_sizes(), head_dim=8))


@model("mistral")
def mistral():
    """The window is smaller than every length used."""
    return transformers.MistralForCausalLM(transformers.MistralConfig(**decoder_sizes(), sliding_window=4))


@model("phi")
def phi():
    return transformers.PhiForCausalLM(transformers.PhiConfig(
        **decoder_sizes(), resid_pdrop=0.1, embd_pdrop=0.1, partial_rotary_factor=0.5))


@model("phi3")
def phi3():
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(
        **decoder_sizes(), resid_pdrop=0.1, embd_pdrop=0.1, original_max_position_embeddings=POSITIONS))


@model("gemma2")
def gemma2():
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **decoder_sizes(), head_dim=8, query_pre_attn_scalar=8, sliding_window=4))


@model("gpt_neox")
def gpt_neox():
    sizes = decoder_sizes(hidden_dropout=0.1)
    del sizes["num_key_value_heads"]
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**sizes))


def expert_sizes(**more):
    """Of a mixture of experts. Without dropout, so that pipelined steps can be compared with Python. Attention then runs a
    kernel whose gradients differ in the last bits between a mask and `is_causal`, which eager models choose where nothing is
    padded, and exported ones do not: their text is padded."""
    return decoder_sizes(**dict(num_hidden_layers=2, attention_dropout=0.0, num_experts_per_tok=2) | more)


@model("mixtral", inputs=padded_text, ci=True)
def mixtral():
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**expert_sizes(num_local_experts=4)))


@model("qwen3_moe", inputs=padded_text, ci=True)
def qwen3_moe():
    """Many small experts, a dense layer, and the loss that balances the experts."""
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        **expert_sizes(num_experts=8, num_hidden_layers=3), head_dim=8, moe_intermediate_size=16, mlp_only_layers=[1],
        norm_topk_prob=True, output_router_logits=True, router_aux_loss_coef=0.1))


@model("gpt_oss", ci=True)
def gpt_oss():
    """Experts with biases and interleaved weights, attention with sinks, every other layer with a window."""
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(
        **expert_sizes(num_local_experts=4), head_dim=8, sliding_window=4))


def sentence_pairs(batch, length):
    _, kwargs = padded_text(batch, length)
    kwargs["token_type_ids"] = (torch.arange(length) >= length // 2).long().repeat(batch, 1)
    kwargs["next_sentence_label"] = torch.randint(0, 2, (batch,))
    return (), kwargs


@model("bert", inputs=sentence_pairs,
       dynamic={**batch_and_length("input_ids", "labels", "attention_mask", "token_type_ids"),
                "next_sentence_label": {0: BATCH}})
def bert():
    return transformers.BertForPreTraining(transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        max_position_embeddings=POSITIONS))


def text_to_text(batch, length):
    return (), {"input_ids": words(batch, length), "labels": words(batch, length - 3)}


@model("t5", inputs=text_to_text, ci=True,
       dynamic={"input_ids": {0: BATCH, 1: LENGTH}, "labels": {0: BATCH, 1: ANSWER}})
def t5():
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=2, num_heads=4,
        relative_attention_num_buckets=8, relative_attention_max_distance=16, dropout_rate=0.1, use_cache=False,
        pad_token_id=0, decoder_start_token_id=0, eos_token_id=1))


def images(batch):
    return (), {"pixel_values": torch.randn(batch, 3, 16, 16), "labels": torch.randint(0, 5, (batch,))}


@model("vit", inputs=images, shapes=[(3,), (2,), (5,)], dynamic={"pixel_values": {0: BATCH}, "labels": {0: BATCH}})
def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, image_size=16, patch_size=4,
        num_labels=5, problem_type="single_label_classification", hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1))
