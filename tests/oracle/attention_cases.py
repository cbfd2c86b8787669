"""Cases of torch.nn.attention.flex_attention: block masks, and attention with its gradients."""

import math

import torch
from torch.nn.attention.flex_attention import flex_attention

import mask_recipes

BLOCK_MASK_CASES = 80
ATTENTION_CASES = 80
SCORES = ["none", "bias", "alibi", "softcap"]


def block_mask_cases(rng):
    for _ in range(BLOCK_MASK_CASES):
        recipe = mask_recipes.random_recipe(rng)
        yield {"recipe": recipe, "tensors": mask_recipes.tensors(mask_recipes.build(recipe))}


def score_function(name, table):
    if name == "none":
        return None
    if name == "bias":
        return lambda score, b, h, q, kv: score + table[h, q, kv]
    if name == "alibi":
        return lambda score, b, h, q, kv: score - 0.125 * (h + 1) * (q - kv).abs()
    return lambda score, b, h, q, kv: 5.0 * torch.tanh(score / 5.0)


def attention_cases(rng):
    for number in range(ATTENTION_CASES):
        batch, kv_heads, group = rng.randint(1, 3), rng.randint(1, 2), rng.choice([1, 1, 2, 3])
        heads = kv_heads * group
        q_len, kv_len = rng.randint(1, 70), rng.randint(1, 70)
        if rng.random() < 0.5:
            kv_len = q_len
        dim, value_dim = rng.choice([4, 8, 16]), rng.choice([4, 8, 16])
        q, k = torch.randn(batch, heads, q_len, dim), torch.randn(batch, kv_heads, kv_len, dim)
        v = torch.randn(batch, kv_heads, kv_len, value_dim)
        recipe = None
        if number % 8 != 0:
            recipe = mask_recipes.random_recipe(rng, rng.choice([1, batch]), rng.choice([1, heads]), q_len, kv_len)
        table = torch.randn(heads, q_len, kv_len)
        score = rng.choice(SCORES)
        scale = rng.choice([None, 0.5])
        case = {"q": q, "k": k, "v": v, "gqa": group > 1, "recipe": recipe, "score": score, "table": table, "scale": scale}
        with torch.no_grad():
            case["out"] = flex_attention(q, k, v, score_mod=score_function(score, table), scale=scale,
                                         block_mask=mask_recipes.build(recipe) if recipe else None, enable_gqa=group > 1)
        case["out_grad"] = torch.randn_like(case["out"])
        case.update(dense_gradients(case))
        yield case


def dense_gradients(case):
    """Gradients through a dense masked softmax: eager flex_attention has no backward on the CPU."""
    q, k, v, table = (case[name].double().requires_grad_() for name in ("q", "k", "v", "table"))
    group = q.shape[1] // k.shape[1]
    scale = case["scale"] or 1 / math.sqrt(q.shape[-1])
    scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * scale
    score = score_function(case["score"], table)
    if score is not None:
        index = [torch.arange(n) for n in scores.shape]
        b, h, i, j = torch.meshgrid(*index, indexing="ij")
        scores = score(scores, b, h, i, j)
    if case["recipe"] is not None:
        recipe = case["recipe"]
        mask = mask_recipes.create_mask(mask_recipes.function(recipe["function"]), recipe["batch"], recipe["heads"],
                                        recipe["q_len"], recipe["kv_len"], device="cpu")
        scores = scores.masked_fill(~mask, -math.inf)
    empty = torch.isneginf(scores).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    out = weights @ v.repeat_interleave(group, 1)
    out.backward(case["out_grad"].double())
    grads = {f"{name}_grad": tensor.grad.float() for name, tensor in (("q", q), ("k", k), ("v", v))}
    grads["table_grad"] = table.grad.float() if case["score"] == "bias" else None
    return grads
