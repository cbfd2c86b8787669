"""Runs programs in Python and turns what they give into plain values that C++ can read."""

import torch
from torch.utils import _pytree as pytree

GRADIENTS = ("grads", "input_grads")


def plain(value):
    """A detached copy of a leaf, with nothing pending on it that C++ would not read from a pickle."""
    if isinstance(value, torch.Tensor):
        return value.detach().resolve_conj().resolve_neg().clone()
    return value


def plain_tree(tree):
    """Inputs as plain containers; a tensor keeps whether it requires a gradient."""
    def copy(leaf):
        result = plain(leaf)
        return result.requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else result
    return pytree.tree_map(copy, tree)


def takes_seed(leaf):
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def run(module, args, kwargs, seed, grad_outputs=None):
    """One forward and backward. Random seeds of the backward are drawn where none are given."""
    torch.manual_seed(seed)
    outputs = pytree.tree_leaves(module(*args, **kwargs))
    kept = [plain(leaf) for leaf in outputs]
    if grad_outputs is None:
        torch.manual_seed(seed + 1)
        grad_outputs = [torch.randn_like(leaf) if takes_seed(leaf) else None for leaf in outputs]
    pairs = [(leaf, grad) for leaf, grad in zip(outputs, grad_outputs) if grad is not None]
    if pairs:
        torch.autograd.backward(*zip(*pairs))
    inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    return {
        "outputs": kept,
        "grad_outputs": grad_outputs,
        "grads": {name: plain(weight.grad) for name, weight in module.named_parameters(remove_duplicate=False)},
        "input_grads": [plain(leaf.grad) for leaf in inputs if leaf.requires_grad],
        "buffers": {name: plain(buffer) for name, buffer in module.named_buffers(remove_duplicate=False)},
        "inputs_after": [plain(leaf) for leaf in inputs],
    }


def same(left, right):
    """Bitwise equality of two leaves; NaN equals NaN."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return type(left) is type(right) and left == right
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(raw_bytes(left), raw_bytes(right))


def raw_bytes(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def largest_difference(left, right):
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        names = ["a tensor" if isinstance(value, torch.Tensor) else repr(value) for value in (left, right)]
        return " against ".join(names)
    if left.shape != right.shape or left.dtype != right.dtype:
        return f"{left.dtype} {list(left.shape)} against {right.dtype} {list(right.shape)}"
    wide = torch.complex128 if left.is_complex() else torch.float64
    return f"largest difference {(left.to(wide) - right.to(wide)).abs().max().item():.3g}"


def close(left, right):
    """Equality of gradients up to rounding, none as zeros."""
    left, right = (torch.zeros(()) if value is None else value for value in (left, right))
    return torch.allclose(*torch.broadcast_tensors(left, right), rtol=1e-5, atol=1e-6)


def differences(expected, got, grads="same"):
    """Texts that say where two results of run() differ; `grads` is one of entry.GRADS."""
    texts = []
    for part in expected.keys() - {"grad_outputs"}:
        if part in GRADIENTS and grads == "eager":
            continue
        equal = close if part in GRADIENTS and grads == "close" else same
        left, right = keyed(expected[part]), keyed(got[part])
        for key in left.keys() | right.keys():
            if key not in left or key not in right:
                texts.append(f"{part} {key} is on one side only")
            elif not equal(left[key], right[key]):
                texts.append(f"{part} {key}: {largest_difference(left[key], right[key])}")
    return sorted(texts)


def keyed(values):
    return values if isinstance(values, dict) else dict(enumerate(values))
