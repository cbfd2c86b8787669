"""Splits a batch into microbatches and merges results.

Batches are any pytrees. Differences from torch: specs of keyword arguments are matched by key.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils import _pytree as pytree

from stagecraft._optional import is_block_mask, is_dtensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["TensorChunkSpec", "merge_chunks", "split_args_kwargs_into_chunks"]

logger = logging.getLogger("stagecraft.microbatch")

DEFAULT_CHUNK_DIM = 0

# If True, chunks have the full size and are zero outside their own part, to find the rows that a result
# depends on. Read at each call.
_debug_mask_minibatches = False


class TensorChunkSpec:
    """The dim along which a tensor is split."""

    def __init__(self, split_dim: int) -> None:
        self.split_dim = split_dim

    def __repr__(self) -> str:
        return f"{type(self).__module__}.{type(self).__name__}({self.split_dim})"

    def __str__(self) -> str:
        return f"TensorChunkSpec({self.split_dim})"

    @staticmethod
    def from_tuple(chunk_dims: Any) -> Any:
        """Specs for a tuple of dims, nested or not."""
        return pytree.tree_map(TensorChunkSpec, chunk_dims)

    @staticmethod
    def from_dict(chunk_dims: Any) -> Any:
        """Specs for a dict of dims, nested or not."""
        return pytree.tree_map(TensorChunkSpec, chunk_dims)


class _Replicate:
    """The spec of an object that every microbatch gets. The class itself may be used instead of an
    instance."""

    def __repr__(self) -> str:
        return "_Replicate()"


class _CustomReducer:
    """The spec of results that are folded: reduce_fn(reduce_fn(init_value, result 0), result 1) and so
    on."""

    def __init__(self, init_value: Any, reduce_fn: Callable[[Any, Any], Any]) -> None:
        self.init_value = init_value
        self.reduce_fn = reduce_fn


class _LossReducer(_CustomReducer):
    """A reducer of losses."""


sum_reducer = _LossReducer(torch.tensor(0.0), operator.add)


def _is_replicate(spec: Any) -> bool:
    return spec is _Replicate or isinstance(spec, _Replicate)


def _flatten(tree: Any) -> tuple[list[Any], pytree.TreeSpec]:
    return pytree.tree_flatten(tree, is_leaf=is_block_mask)


def _chunk_sizes(size: int, num_chunks: int) -> list[int]:
    """The sizes of torch.tensor_split: the first chunks have one element more."""
    quotient, rest = divmod(size, num_chunks)
    return [quotient + 1] * rest + [quotient] * (num_chunks - rest)


def _split_dtensor(tensor: DTensor, dim: int, num_chunks: int) -> list[torch.Tensor]:
    """Splits the local shard. A chunk has the mesh and placements of the whole DTensor."""
    from torch.distributed.tensor import DTensor

    locals_ = torch.tensor_split(tensor.to_local(), num_chunks, dim)
    sizes = _chunk_sizes(tensor.size(dim), num_chunks)
    chunks: list[torch.Tensor] = []
    for local, size in zip(locals_, sizes):
        shape = list(tensor.shape)
        shape[dim] = size
        stride = torch.empty(shape, device="meta").stride()
        chunks.append(DTensor.from_local(local, device_mesh=tensor.device_mesh, placements=tensor.placements,
                                         shape=torch.Size(shape), stride=stride, run_check=False))
    return chunks


def _split_tensor(tensor: torch.Tensor, spec: TensorChunkSpec, num_chunks: int) -> Sequence[torch.Tensor]:
    """Splits a tensor into chunks whose sizes differ by at most one. AssertionError for fewer rows than
    chunks."""
    dim = spec.split_dim
    if tensor.size(dim) < num_chunks:
        raise AssertionError(f"expected at least {num_chunks} rows along dim {dim} for {num_chunks} chunks, "
                             f"got {tensor.size(dim)}")
    if is_dtensor(tensor):
        chunks: Sequence[torch.Tensor] = _split_dtensor(cast("DTensor", tensor), dim, num_chunks)
    else:
        chunks = torch.tensor_split(tensor, num_chunks, dim)
    if _debug_mask_minibatches:
        chunks = _masked_chunks(tensor, dim, chunks)
    if tensor.requires_grad and tensor.is_leaf:
        for chunk in chunks:
            if chunk.requires_grad:
                chunk.retain_grad()
    return chunks


def _masked_chunks(tensor: torch.Tensor, dim: int, chunks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    masked, start = [], 0
    for chunk in chunks:
        full = torch.zeros_like(tensor)
        full.narrow(dim, start, chunk.size(dim)).copy_(chunk)
        masked.append(full)
        start += chunk.size(dim)
    return masked


def _split_block_mask(block_mask: BlockMask, num_chunks: int) -> list[BlockMask]:
    """Splits a block mask along its batch. A mask with a batch of 1 is used unchanged for all
    chunks."""
    batch = block_mask.kv_num_blocks.size(0)
    if batch == 1:
        return [block_mask] * num_chunks
    if batch < num_chunks:
        raise AssertionError(f"expected a block mask with a batch of 1 or at least {num_chunks}, got {batch}")
    sizes = _chunk_sizes(batch, num_chunks)
    names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    tensors = [getattr(block_mask, name) for name in names]
    pieces = [[None] * num_chunks if tensor is None else tensor.split(sizes) for tensor in tensors]

    def moved(first: int) -> Callable[..., torch.Tensor]:
        return lambda b, h, q, kv: block_mask.mask_mod(b + first, h, q, kv)

    from torch.nn.attention.flex_attention import BlockMask

    masks: list[BlockMask] = []
    for first, parts in zip(accumulate([0, *sizes]), zip(*pieces)):
        masks.append(BlockMask.from_kv_blocks(
            parts[0], parts[1], parts[2], parts[3], BLOCK_SIZE=block_mask.BLOCK_SIZE, mask_mod=moved(first),
            seq_lengths=block_mask.seq_lengths))
    return masks


def _possible_chunks(value: Any, spec: Any, num_chunks: int) -> int:
    """The most chunks that a leaf can give. Checks that the spec fits the leaf."""
    if _is_replicate(spec):
        return num_chunks
    if not isinstance(value, torch.Tensor) and not is_block_mask(value):
        raise ValueError(f"a {type(value).__name__} cannot be split: expected _Replicate as its spec, got {spec}")
    if not isinstance(spec, TensorChunkSpec):
        raise AssertionError(f"a {type(value).__name__}: expected a TensorChunkSpec or _Replicate as its spec, got {spec}")
    if isinstance(value, torch.Tensor):
        return value.size(spec.split_dim)
    if spec.split_dim != 0:
        raise AssertionError(f"a block mask is split along dim 0, got {spec}")
    batch: int = value.kv_num_blocks.size(0)
    return num_chunks if batch == 1 else batch


def _split_leaf(value: Any, spec: Any, num_chunks: int) -> Sequence[Any]:
    if _is_replicate(spec):
        return [value] * num_chunks
    if is_block_mask(value):
        return _split_block_mask(value, num_chunks)
    return _split_tensor(value, spec, num_chunks)


def _in_order_of(reference: dict[Any, Any], specs: dict[Any, Any]) -> dict[Any, Any]:
    """The specs in the order of the values' keys."""
    if reference.keys() == specs.keys():
        return {key: specs[key] for key in reference}
    raise AssertionError(f"expected a spec for each of {list(reference)}, got specs for {list(specs)}")


def _matching_specs(value: Any, spec: Any) -> list[Any]:
    """The specs of the leaves of a value; dicts are matched by key."""
    if isinstance(value, dict) and isinstance(spec, dict) and type(value) is type(spec):
        if value.keys() != spec.keys():
            raise ValueError(f"expected a spec for each of {list(value)}, got specs for {list(spec)}")
        return [leaf for key in value for leaf in _matching_specs(value[key], spec[key])]
    if type(value) in (list, tuple) and type(spec) in (list, tuple):
        if len(value) != len(spec):
            raise ValueError(f"expected {len(value)} specs, got {len(spec)}")
        return [leaf for part, part_spec in zip(value, spec) for leaf in _matching_specs(part, part_spec)]
    leaves, specs = _flatten(value)[0], _flatten(spec)[0]
    if len(leaves) != len(specs):
        raise ValueError(f"expected {len(leaves)} specs, one for each leaf, got {len(specs)}")
    return specs


def _shard_dict_of_args(args_dict: dict[Any, Any], args_chunk_spec: dict[Any, Any],
                        num_chunks: int) -> list[dict[Any, Any]]:
    """A dict for each chunk. There are fewer chunks if a leaf has fewer rows."""
    if not args_dict:
        return [{} for _ in range(num_chunks)]
    if len(args_dict) != len(args_chunk_spec):
        raise AssertionError(f"expected a spec for each of {list(args_dict)}, got specs for {list(args_chunk_spec)}")
    specs = _matching_specs(args_dict, _in_order_of(args_dict, args_chunk_spec))
    leaves, tree = _flatten(args_dict)
    number = min([num_chunks, *(_possible_chunks(leaf, spec, num_chunks) for leaf, spec in zip(leaves, specs))])
    if leaves and number < 1:
        raise AssertionError("expected a batch with at least one row, got one without")
    split = [_split_leaf(leaf, spec, number) for leaf, spec in zip(leaves, specs)]
    if len(leaves) == len(args_dict) and all(leaf is value for leaf, value in zip(leaves, args_dict.values())):
        # No argument is a tree, so no tree must be rebuilt.
        return [dict(zip(args_dict, chunks)) for chunks in zip(*split)]
    return [pytree.tree_unflatten([chunks[index] for chunks in split], tree) for index in range(number)]


def _default_spec(value: Any) -> Any:
    return TensorChunkSpec(DEFAULT_CHUNK_DIM) if isinstance(value, torch.Tensor) or is_block_mask(value) else _Replicate()


def split_args_kwargs_into_chunks(
        args: tuple[Any, ...], kwargs: dict[str, Any] | None, chunks: int, args_chunk_spec: Any = None,
        kwargs_chunk_spec: Any = None) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    """Splits positional and keyword arguments into microbatches.

    Args:
        args, kwargs: any pytrees; by default tensors are split along dim 0, and every microbatch gets
            everything else.
        chunks: the number of microbatches; there are fewer if a tensor has fewer rows.
        args_chunk_spec, kwargs_chunk_spec: a spec for each leaf.

    Returns:
        The list of args and the list of kwargs of the microbatches.
    """
    kwargs = kwargs or {}
    if args_chunk_spec is None:
        args_chunk_spec = pytree.tree_map(_default_spec, args, is_leaf=is_block_mask)
    if kwargs_chunk_spec is None:
        kwargs_chunk_spec = pytree.tree_map(_default_spec, kwargs, is_leaf=is_block_mask)
    by_position = dict(enumerate(args))
    specs = dict(enumerate(args_chunk_spec))
    split_args = _shard_dict_of_args(by_position, specs, chunks)
    split_kwargs = _shard_dict_of_args(kwargs, kwargs_chunk_spec, len(split_args))
    if len(split_kwargs) < len(split_args):
        split_args = _shard_dict_of_args(by_position, specs, len(split_kwargs))
    if len(split_args) != len(split_kwargs):
        raise RuntimeError(f"args give {len(split_args)} chunks and kwargs {len(split_kwargs)}")
    return [tuple(chunk[index] for index in range(len(args))) for chunk in split_args], split_kwargs


def _merge_dtensors(values: list[DTensor], dim: int) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    first = values[0]
    for value in values:
        if value.placements != first.placements:
            raise AssertionError(f"placement mismatch among the chunks of a DTensor: {first.placements} vs {value.placements}")
    shape = list(first.shape)
    shape[dim] = sum(value.size(dim) for value in values)
    local = torch.cat([value.to_local() for value in values], dim)
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, device_mesh=first.device_mesh, placements=first.placements,
                              shape=torch.Size(shape), stride=stride, run_check=False)


def _merge_tensors(values: list[torch.Tensor], dim: int) -> torch.Tensor:
    if any(is_dtensor(value) for value in values):
        if not all(is_dtensor(value) for value in values):
            raise AssertionError("cannot mix DTensors and plain tensors in one result")
        return _merge_dtensors(cast("list[DTensor]", values), dim)
    if not _debug_mask_minibatches:
        return torch.cat(values, dim)
    if any(value.shape != values[0].shape for value in values):
        raise AssertionError(f"expected chunks of full size, got {[tuple(value.shape) for value in values]}")
    sizes = _chunk_sizes(values[0].size(dim), len(values))
    starts = accumulate([0, *sizes])
    return torch.cat([value.narrow(dim, start, size) for value, start, size in zip(values, starts, sizes)], dim)


def _merge_leaf(values: list[Any], spec: Any) -> Any:
    if isinstance(spec, TensorChunkSpec):
        return _merge_tensors(values, spec.split_dim)
    if isinstance(spec, _CustomReducer):
        result = spec.init_value
        for value in values:
            result = spec.reduce_fn(result, value)
        return result
    for value in values[1:]:
        if value is not values[0] and not bool(torch.as_tensor(value == values[0]).all()):
            raise AssertionError(f"expected the same value in every chunk, got {values[0]} and {value}")
    return values[0]


def merge_chunks(chunks: list[Any], chunk_spec: Any) -> Any:
    """Merges the results of microbatches.

    Without a spec all leaves are tensors that are concatenated along dim 0. A spec has the structure of the
    results. For each leaf, a TensorChunkSpec means concatenate, a reducer means fold, anything else means that all
    chunks have the same value.
    """
    if chunk_spec is None:
        leaves, tree = _flatten(chunks[0])
        specs: list[Any] = [TensorChunkSpec(DEFAULT_CHUNK_DIM)] * len(leaves)
    else:
        specs, tree = pytree.tree_flatten(chunk_spec)
    columns: list[list[Any]] = [[] for _ in specs]
    for index, chunk in enumerate(chunks):
        leaves = _flatten(chunk)[0]
        if len(leaves) != len(specs):
            raise ValueError(f"chunk {index}: expected {len(specs)} leaves, as in {chunk_spec}, got {len(leaves)}")
        for column, leaf in zip(columns, leaves):
            column.append(leaf)
    return pytree.tree_unflatten([_merge_leaf(column, spec) for column, spec in zip(columns, specs)], tree)
