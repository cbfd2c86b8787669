"""Cutting and merging of batches. Torch's own split and merge are the oracle where they are right."""

import pytest
import torch
import torch.distributed.pipelining.microbatch as theirs
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from stagecraft import microbatch
from stagecraft.microbatch import (
    TensorChunkSpec, _CustomReducer, _Replicate, _split_tensor, merge_chunks, split_args_kwargs_into_chunks, sum_reducer)


def test_split_and_merge():
    args = (torch.randn(128, 3), [torch.randn(256, 2)])
    kwargs = {"a": torch.randn(512, 1), "b": "same"}
    split_args, split_kwargs = split_args_kwargs_into_chunks(args, kwargs, 2)
    assert [a[0].shape[0] for a in split_args] == [64, 64]
    assert [k["b"] for k in split_kwargs] == ["same", "same"]
    merged = merge_chunks(split_args, (TensorChunkSpec(0), [TensorChunkSpec(0)]))
    assert torch.equal(merged[0], args[0]) and torch.equal(merged[1][0], args[1][0])
    merged = merge_chunks(split_kwargs, {"a": TensorChunkSpec(0), "b": None})
    assert torch.equal(merged["a"], kwargs["a"]) and merged["b"] == "same"
    assert torch.equal(merge_chunks([a[0] for a in split_args], None), args[0])


def test_sizes_are_those_of_tensor_split():
    for rows in range(4, 11):
        chunks = _split_tensor(torch.arange(rows), TensorChunkSpec(0), 4)
        assert [len(c) for c in chunks] == [len(c) for c in torch.arange(rows).tensor_split(4)]
    with pytest.raises(AssertionError):
        _split_tensor(torch.ones(3), TensorChunkSpec(0), 4)
    assert len(split_args_kwargs_into_chunks((torch.ones(3),), {"k": torch.ones(2)}, 4)[0]) == 2


def test_specs():
    assert str(TensorChunkSpec(0)) == "TensorChunkSpec(0)"
    assert repr(TensorChunkSpec(0)) == "stagecraft.microbatch.TensorChunkSpec(0)"
    specs = TensorChunkSpec.from_tuple((0, (1, 2)))
    assert (specs[0].split_dim, specs[1][1].split_dim) == (0, 2)
    assert TensorChunkSpec.from_dict({"id": 0, "mask": 1})["mask"].split_dim == 1


def test_specs_of_kwargs_are_matched_by_key():
    kwargs = {"a": torch.ones(2, 4), "b": torch.ones(4, 2)}
    split = split_args_kwargs_into_chunks((), kwargs, 2, None, {"b": TensorChunkSpec(0), "a": TensorChunkSpec(1)})[1]
    assert split[0]["a"].shape == (2, 2) and split[0]["b"].shape == (2, 2)
    with pytest.raises(AssertionError, match="'c'"):
        split_args_kwargs_into_chunks((), kwargs, 2, None, {"a": TensorChunkSpec(1), "c": TensorChunkSpec(0)})


def test_chunks_of_a_leaf_keep_their_gradient():
    x = torch.ones(4, 1, requires_grad=True)
    chunks = _split_tensor(x, TensorChunkSpec(0), 2)
    (chunks[0].sum() * 2).backward()
    assert torch.equal(chunks[0].grad, torch.full((2, 1), 2.0)) and chunks[1].grad is None


def test_replicated_values_and_bad_specs():
    x = torch.ones(4)
    for spec in (_Replicate, _Replicate()):
        assert split_args_kwargs_into_chunks((x,), None, 2, (spec,))[0] == [(x,), (x,)]
    with pytest.raises(AssertionError):
        split_args_kwargs_into_chunks((x,), None, 2, (None,))
    with pytest.raises(ValueError):
        split_args_kwargs_into_chunks((3,), None, 2, (TensorChunkSpec(0),))
    with pytest.raises(AssertionError):
        split_args_kwargs_into_chunks((x, x), None, 2, (TensorChunkSpec(0),))


def test_reducers():
    assert merge_chunks([torch.tensor(1.0), torch.tensor(2.0)], sum_reducer) == 3
    assert merge_chunks([1, 2, 3], _CustomReducer("", lambda text, value: f"{text}{value}")) == "123"
    with pytest.raises(AssertionError):
        merge_chunks([1, 2], _Replicate())
    with pytest.raises(ValueError):
        merge_chunks([(1, 2), (1, 2)], (None,))


def test_none_in_arguments():
    split_args, split_kwargs = split_args_kwargs_into_chunks((torch.ones(8, 1), None), {"mask": None}, 4)
    assert len(split_args) == 4
    assert all(a[1] is None for a in split_args) and all(k == {"mask": None} for k in split_kwargs)


def _mask(batch):
    return create_block_mask(lambda b, h, q, kv: (q >= kv) & (kv >= b), B=batch, H=None, Q_LEN=256, KV_LEN=256,
                             device="cpu")


def test_block_mask_of_batch_one_is_given_to_all():
    mask = _mask(1)
    split = split_args_kwargs_into_chunks(({"x": torch.ones(4, 1), "mask": mask},), None, 4)[0]
    assert all(a[0]["mask"] is mask for a in split)


def test_block_mask_is_cut_along_its_batch():
    q, mask = torch.randn(6, 1, 256, 16), _mask(6)
    whole = flex_attention(q, q, q, block_mask=mask)
    split = split_args_kwargs_into_chunks(({"q": q, "mask": mask},), None, 4)[0]
    assert [a[0]["q"].shape[0] for a in split] == [2, 2, 1, 1]
    parts = [flex_attention(a["q"], a["q"], a["q"], block_mask=a["mask"]) for (a,) in split]
    torch.testing.assert_close(torch.cat(parts), whole)
    with pytest.raises(AssertionError):
        microbatch._split_block_mask(mask, 7)


def test_debug_masks(monkeypatch):
    monkeypatch.setattr(microbatch, "_debug_mask_minibatches", True)
    x = torch.arange(5.0)
    chunks = _split_tensor(x, TensorChunkSpec(0), 2)
    assert [c.tolist() for c in chunks] == [[0, 1, 2, 0, 0], [0, 0, 0, 3, 4]]
    assert torch.equal(merge_chunks(chunks, None), x)


def _random_tree(rng, depth=0):
    kind = rng.randrange(6 if depth < 2 else 3)
    if kind == 0:
        return torch.arange(rng.randint(1, 9) * 3).reshape(-1, 3)
    if kind == 1:
        return rng.choice([None, 3, "text"])
    if kind == 2:
        return torch.ones(rng.randint(2, 7))
    if kind == 3:
        return [_random_tree(rng, depth + 1) for _ in range(rng.randint(1, 3))]
    if kind == 4:
        return tuple(_random_tree(rng, depth + 1) for _ in range(rng.randint(1, 3)))
    return {f"k{i}": _random_tree(rng, depth + 1) for i in range(rng.randint(1, 3))}


def _plain(tree):
    return torch.utils._pytree.tree_map(lambda v: v.tolist() if isinstance(v, torch.Tensor) else v, tree)


def test_random_trees_are_cut_as_torch_does(rng):
    for _ in range(200):
        args = tuple(_random_tree(rng) for _ in range(rng.randint(1, 3)))
        kwargs = {f"k{i}": _random_tree(rng) for i in range(rng.randint(0, 2))}
        chunks = rng.randint(1, 5)
        expected = theirs.split_args_kwargs_into_chunks(args, kwargs, chunks)
        got = split_args_kwargs_into_chunks(args, kwargs, chunks)
        assert _plain(got) == _plain(expected)
