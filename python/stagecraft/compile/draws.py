"""Random operators as functions of a seed.

Each random node of a stage has a seed of its own, which the caller derives from the step, the microbatch and the name
of the node. So the numbers do not depend on the split, and forward and backward use the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .errors import CompileError
from .private import random_numbers, seed_at

__all__ = ["Draw", "find_draw"]

# A function that makes numbers of a given size: rand or randn.
Numbers = Callable[[Any, str], torch.Tensor]
# Draws the numbers of a node. Takes the arguments of the operator by name, and a function for numbers.
Draw = Callable[[dict[str, Any], Numbers], Any]


def _keep(like: torch.Tensor, p: float, numbers: Numbers, size: Any = None) -> torch.Tensor:
    """1 with probability 1 - p, in the type of `like`."""
    return (numbers(like.shape if size is None else size, "rand") >= p).to(like.dtype)


def _dropout(x: torch.Tensor, p: float, numbers: Numbers, size: Any = None) -> torch.Tensor:
    if p == 0:
        return x
    if p == 1:
        return x * 0
    return x * _keep(x, p, numbers, size) * (1 / (1 - p))


def _plain_dropout(args: dict[str, Any], numbers: Numbers) -> Any:
    return _dropout(args["input"], args["p"], numbers) if args["train"] else args["input"]


def _dropout_in_place(args: dict[str, Any], numbers: Numbers) -> Any:
    x = args["self"]
    return x.copy_(_dropout(x, args["p"], numbers)) if args["train"] else x


def _feature_dropout(args: dict[str, Any], numbers: Numbers) -> Any:
    x = args["input"]
    if not args["train"]:
        return x
    return _dropout(x, args["p"], numbers, list(x.shape[:2]) + [1] * (x.dim() - 2))


def _native_dropout(args: dict[str, Any], numbers: Numbers) -> Any:
    x, p = args["input"], args["p"]
    if args["train"] is False:
        return x, torch.ones_like(x, dtype=torch.bool)
    mask = numbers(x.shape, "rand") >= p
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return x * mask.to(x.dtype) * scale, mask


def _alpha_dropout(args: dict[str, Any], numbers: Numbers) -> Any:
    x, p = args["input"], args["p"]
    if not args["train"] or p == 0:
        return x
    alpha = -1.7580993408473766
    a = 1 / math.sqrt((1 - p) * (1 + p * alpha * alpha))
    keep = _keep(x, p, numbers)
    return a * (x * keep + alpha * (1 - keep)) - a * alpha * (1 - p)


def _bernoulli(args: dict[str, Any], numbers: Numbers) -> Any:
    x = args["self"]
    return (numbers(x.shape, "rand") < x).to(x.dtype)


def _bernoulli_p(args: dict[str, Any], numbers: Numbers) -> Any:
    x = args["self"]
    return (numbers(x.shape, "rand") < args["p"]).to(x.dtype)


def _bernoulli_in_place(args: dict[str, Any], numbers: Numbers) -> Any:
    return args["self"].copy_(_bernoulli_p(args, numbers))


def _like(kind: str) -> Draw:
    def draw(args: dict[str, Any], numbers: Numbers) -> Any:
        x = args["self"]
        return numbers(x.shape, kind).to(args.get("dtype") or x.dtype)

    return draw


def _sized(kind: str) -> Draw:
    def draw(args: dict[str, Any], numbers: Numbers) -> Any:
        return numbers(args["size"], kind).to(args.get("dtype") or torch.get_default_dtype())

    return draw


def _uniform_in_place(args: dict[str, Any], numbers: Numbers) -> Any:
    x, low, high = args["self"], args.get("from", 0.0), args.get("to", 1.0)
    return x.copy_(numbers(x.shape, "rand") * (high - low) + low)


def _normal_in_place(args: dict[str, Any], numbers: Numbers) -> Any:
    x = args["self"]
    return x.copy_(numbers(x.shape, "randn") * args.get("std", 1.0) + args.get("mean", 0.0))


def _attention(args: dict[str, Any], numbers: Numbers) -> Any:
    """Attention with dropout. It is two products and a softmax, because fused attention would draw from the
    process's generator."""
    q, k, v = args["query"], args["key"], args["value"]
    mask = args.get("attn_mask")
    scale = args.get("scale")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if args.get("enable_gqa"):
        groups = q.shape[-3] // k.shape[-3]
        k, v = k.repeat_interleave(groups, -3), v.repeat_interleave(groups, -3)
    scores = (q @ k.transpose(-2, -1)) * scale
    if args.get("is_causal"):
        allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return _dropout(torch.softmax(scores, -1), args["dropout_p"], numbers).to(v.dtype) @ v


_DRAWS: dict[str, Draw] = {
    "aten::dropout": _plain_dropout,
    "aten::dropout_": _dropout_in_place,
    "aten::native_dropout": _native_dropout,
    "aten::feature_dropout": _feature_dropout,
    "aten::alpha_dropout": _alpha_dropout,
    "aten::bernoulli": _bernoulli,
    "aten::bernoulli.p": _bernoulli_p,
    "aten::bernoulli_.float": _bernoulli_in_place,
    "aten::rand": _sized("rand"),
    "aten::randn": _sized("randn"),
    "aten::rand_like": _like("rand"),
    "aten::randn_like": _like("randn"),
    "aten::uniform_": _uniform_in_place,
    "aten::normal_": _normal_in_place,
    "aten::scaled_dot_product_attention": _attention,
}


def _is_off(args: dict[str, Any]) -> bool:
    """Whether the operator draws nothing with these arguments."""
    if args.get("train") is False or args.get("training") is False:
        return True
    return any(name in args and args[name] == 0 for name in ("dropout_p", "dropout"))


def find_draw(op: str, overload: Any, args: dict[str, Any], node: str) -> Draw | None:
    """The function that draws for a node; None for a node that draws nothing. `overload` is the
    operator of torch."""
    if torch.Tag.nondeterministic_seeded not in overload.tags or _is_off(args):
        return None
    if op not in _DRAWS:
        known = ", ".join(sorted({name.split("::")[1].split(".")[0] for name in _DRAWS}))
        raise CompileError(
            f"node {node}: {op} draws random numbers, and compiled stages cannot give it a seed; expected one of {known}"
        )
    return _DRAWS[op]


def numbers_of(seeds: torch.Tensor, index: int) -> Numbers:
    """The numbers of one node."""
    seed = seed_at(seeds, index)

    def make(size: Any, kind: str) -> torch.Tensor:
        return random_numbers(size, seed, kind)

    return make
