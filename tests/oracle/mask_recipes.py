"""Masks that both sides can build: a recipe is a dict that says which mask function, over which sizes.

mask_recipe.cpp is the other side.
"""

import torch
from torch.nn.attention.flex_attention import and_masks, create_block_mask, create_mask, or_masks


def random_function(rng, batch, heads, q_len, kv_len, depth=1):
    """A recipe of a mask function. With batch (or heads) 1 it does not depend on the member (head), since a mask of
    size 1 stands for any number of them."""
    kinds = ["causal", "window", "table"]
    if q_len == kv_len:
        kinds += ["document"]
    if heads > 1:
        kinds += ["diagonals"]
    if batch > 1:
        kinds += ["shifted"] + (["batch_document"] if q_len == kv_len else [])
    if depth > 0:
        kinds += ["and", "or"]
    kind = rng.choice(kinds)
    recipe = {"kind": kind}
    if kind == "window":
        recipe["window"] = rng.randint(0, max(q_len, kv_len))
    elif kind == "table":
        density = rng.choice([0.02, 0.3, 0.9])
        recipe["table"] = torch.rand(batch, heads, q_len, kv_len) < density
    elif kind == "document":
        recipe["ids"] = torch.sort(torch.randint(0, 4, (q_len,))).values
    elif kind == "batch_document":
        recipe["ids"] = torch.sort(torch.randint(0, 4, (batch, q_len)), dim=1).values
    elif kind in ("and", "or"):
        recipe["parts"] = [random_function(rng, batch, heads, q_len, kv_len, depth - 1) for _ in range(2)]
    return recipe


def function(recipe):
    kind = recipe["kind"]
    if kind == "causal":
        return lambda b, h, q, kv: q >= kv
    if kind == "window":
        window = recipe["window"]
        return lambda b, h, q, kv: (q >= kv) & (q - kv <= window)
    if kind == "table":
        table = recipe["table"]
        batch, heads = table.shape[:2]
        return lambda b, h, q, kv: table[b % batch, h % heads, q, kv]
    if kind == "diagonals":
        return lambda b, h, q, kv: (q + kv) % (h + 2) == 0
    if kind == "shifted":
        return lambda b, h, q, kv: q + 3 * b >= kv
    if kind == "document":
        ids = recipe["ids"]
        return lambda b, h, q, kv: ids[q] == ids[kv]
    if kind == "batch_document":
        ids = recipe["ids"]
        return lambda b, h, q, kv: ids[b, q] == ids[b, kv]
    parts = [function(part) for part in recipe["parts"]]
    return and_masks(*parts) if kind == "and" else or_masks(*parts)


def random_recipe(rng, batch=None, heads=None, q_len=None, kv_len=None):
    q_len = q_len or rng.randint(1, 70)
    kv_len = kv_len or rng.choice([q_len, rng.randint(1, 70)])
    recipe = {
        "batch": batch or rng.randint(1, 6),
        "heads": heads or rng.randint(1, 3),
        "q_len": q_len,
        "kv_len": kv_len,
        "block": rng.choice([(8, 8), (16, 16), (16, 8), (4, 16), (128, 128)]),
    }
    recipe["function"] = random_function(rng, recipe["batch"], recipe["heads"], q_len, kv_len)
    return recipe


def build(recipe):
    return create_block_mask(function(recipe["function"]), recipe["batch"], recipe["heads"], recipe["q_len"],
                             recipe["kv_len"], device="cpu", BLOCK_SIZE=tuple(recipe["block"]))


def tensors(mask):
    """What torch holds of a block mask, with the dense mask that its function gives."""
    names = ["kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices",
             "full_q_num_blocks", "full_q_indices"]
    out = {name: getattr(mask, name) for name in names}
    batch, heads = mask.kv_num_blocks.shape[:2]
    q_len, kv_len = mask.seq_lengths
    out["mask"] = create_mask(mask.mask_mod, batch, heads, q_len, kv_len, device="cpu")
    out["to_dense"] = mask.to_dense()
    # Older versions count elements and not blocks, which differs where a block reaches beyond the lengths.
    counts_blocks = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
    share = 1 - out["to_dense"].sum().item() / max(out["to_dense"].numel(), 1)
    out["sparsity"] = float(mask.sparsity()) if counts_blocks else 100 * share
    out["lengths"] = [q_len, kv_len]
    return out
