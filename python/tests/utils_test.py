"""Metadata of tensors and DTensors, and how DTensors are cut and merged."""

import os
import pickle
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.pipelining._utils as theirs
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from stagecraft import _debug
from stagecraft._utils import (
    InferenceMode, PipeliningMetadataError, _derive_grad_metas, _DTensorMeta, _MeshCache, _StageMeta, _TensorMeta,
    extract_tensor_meta, extract_tensor_metas, flatten_args, flatten_args_detach, to_local_if_dtensor,
    validate_and_normalize_to_tuple, validate_metadata, validate_static_arg_grad_correspondence,
    validate_tensors_metadata)
from stagecraft.microbatch import TensorChunkSpec, _split_tensor, merge_chunks


@pytest.fixture(scope="module")
def mesh():
    """A mesh of one process."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


X = torch.ones(2, 3)


class TestTensorMeta:
    def test_of_a_tensor(self):
        meta = _TensorMeta.from_tensor(X.t().requires_grad_())
        assert meta == _TensorMeta(torch.Size((3, 2)), (1, 3), torch.float32, True)
        made = meta.to_tensor("cpu")
        assert (made.shape, made.stride(), made.requires_grad) == (meta.shape, meta.stride, True)
        assert not _TensorMeta(torch.Size((2,)), (1,), torch.int64, True).to_tensor("cpu").requires_grad
        assert pickle.loads(pickle.dumps(meta)) == meta and hash(meta) == hash(meta)

    def test_differences_are_torchs(self):
        for other in (X, X.t(), X.int(), torch.ones(3), X.clone().requires_grad_()):
            assert _TensorMeta.from_tensor(X).get_diff(_TensorMeta.from_tensor(other)) == (
                theirs._TensorMeta.from_tensor(X).get_diff(theirs._TensorMeta.from_tensor(other)))

    def test_dtensor_is_refused(self, mesh):
        with pytest.raises(PipeliningMetadataError, match="DTensor"):
            _TensorMeta.from_tensor(distribute_tensor(X, mesh, [Shard(0)]))


class TestDTensorMeta:
    def test_goes_round(self, mesh):
        given = distribute_tensor(torch.ones(4, 6), mesh, [Shard(1)]).requires_grad_()
        meta = extract_tensor_meta(given)
        assert isinstance(meta, _DTensorMeta)
        assert (meta.global_shape, meta.placements, meta.mesh_dim_names) == ((4, 6), (Shard(1),), ("tp",))
        again = meta.to_dtensor("cpu", mesh)
        assert extract_tensor_meta(again) == meta and again.requires_grad

    def test_differences(self, mesh):
        shard = extract_tensor_meta(distribute_tensor(X, mesh, [Shard(0)]))
        replicate = extract_tensor_meta(distribute_tensor(X, mesh, [Replicate()]))
        assert any("placements" in text for text in shard.get_diff(replicate))
        assert shard.get_diff(shard) == []
        assert "type" in validate_metadata("x", shard, X)[0]


class TestMeshCache:
    def test_known_meshes(self, mesh):
        cache, key = _MeshCache(), (("tp",), "layout")
        cache.put(key, mesh)
        assert key in cache and len(cache) == 1 and cache.get_mesh(key) is mesh
        given = distribute_tensor(X, mesh, [Shard(0)])
        cache.update_from_tensors((given, X, None))
        assert extract_tensor_meta(given).mesh_cache_key in cache and len(cache) == 2

    def test_miss(self):
        with pytest.raises(PipeliningMetadataError, match="get_mesh"):
            _MeshCache().get_mesh((("tp",), None))
        asked = []
        cache = _MeshCache(lambda names, layout: asked.append((names, layout)) or "mesh")
        assert cache.get_mesh((("tp",), None)) == cache.get_mesh((("tp",), None)) == "mesh"
        assert asked == [(("tp",), None)]


def test_what_needs_a_run_to_be_known(mesh):
    plain, dtensor = extract_tensor_meta(X), extract_tensor_meta(distribute_tensor(X, mesh, [Shard(0)]))
    needs = InferenceMode.needs_dynamic
    assert needs(_StageMeta(), False) and needs(_StageMeta(inputs=(plain,)), True)
    assert not needs(_StageMeta((plain,), (plain,)), True)
    assert not needs(_StageMeta((dtensor,), (plain,)), False)
    assert needs(_StageMeta((dtensor,), (plain,)), True)
    assert needs(_StageMeta((dtensor,), (plain,), input_grads=(plain,)), True)
    assert not needs(_StageMeta((dtensor,), (plain,), (plain,), (plain,)), True)
    assert _StageMeta((dtensor,)).has_dtensors() and not _StageMeta().has_any()


def test_metadata_of_gradients(mesh):
    metas = tuple(map(extract_tensor_meta, (X.clone().requires_grad_(), X, distribute_tensor(X, mesh, [Shard(0)]))))
    assert _derive_grad_metas(metas) == (_TensorMeta(X.shape, X.stride(), X.dtype, False), None, None)


def test_extract():
    assert extract_tensor_metas(None) is None
    assert extract_tensor_metas((X, None), allow_none=True)[1] is None
    with pytest.raises(PipeliningMetadataError, match="None"):
        extract_tensor_metas((X, None))


def test_local_shard(mesh):
    given = distribute_tensor(X, mesh, [Shard(0)]).requires_grad_()
    assert not isinstance(to_local_if_dtensor(given), DTensor)
    assert to_local_if_dtensor(given).requires_grad and not to_local_if_dtensor(given, detach=True).requires_grad
    assert to_local_if_dtensor(X) is X


def test_examples_as_a_tuple():
    assert validate_and_normalize_to_tuple(None) is None
    assert validate_and_normalize_to_tuple(X)[0] is X
    assert len(validate_and_normalize_to_tuple([X, X])) == 2
    assert validate_and_normalize_to_tuple((None,), allow_none=True) == (None,)
    for bad in (3, (X, 3), (X, None)):
        with pytest.raises(PipeliningMetadataError):
            validate_and_normalize_to_tuple(bad)


def test_validate():
    meta = extract_tensor_meta(X)
    assert validate_metadata("x", meta, X) == []
    with pytest.raises(PipeliningMetadataError, match="^x: .*shape mismatch"):
        validate_metadata("x", meta, torch.ones(3), raise_on_mismatch=True)
    with pytest.warns(UserWarning, match="Metadata mismatch"):
        validate_metadata("x", meta, X.int(), warn_on_mismatch=True)
    validate_tensors_metadata("x", (meta, None), (X, None))
    with pytest.raises(PipeliningMetadataError, match="dtype mismatch"):
        validate_tensors_metadata("x", (meta,), (X.int(),))
    for expected, actual in [((meta,), (X, X)), ((meta,), (None,)), ((None,), (X,))]:
        with pytest.raises(PipeliningMetadataError):
            validate_tensors_metadata("x", expected, actual)
        assert validate_tensors_metadata("x", expected, actual, raise_on_mismatch=False)


def test_examples_of_gradients_fit_the_values(mesh):
    grad, dtensor = X.clone().requires_grad_(), distribute_tensor(X, mesh, [Shard(0)]).requires_grad_()
    check = validate_static_arg_grad_correspondence
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(0, (grad, X), (X, None), True)
        check(0, (dtensor,), (distribute_tensor(X, mesh, [Replicate()]),), True)
    with pytest.warns(UserWarning, match=r"output_args\[0\]"):
        check(0, (grad,), (None,), False)
    for args, grads in [((grad,), (X, X)), ((X,), (X,)), ((dtensor,), (X,)), ((grad,), (dtensor,))]:
        with pytest.raises(PipeliningMetadataError, match="stage 3"):
            check(3, args, grads, True)


def test_leaves():
    tree = (X.clone().requires_grad_(), [1, {"a": X}], None)
    assert [type(leaf) for leaf in flatten_args(tree)] == [type(leaf) for leaf in theirs.flatten_args(tree)]
    detached, leaves = flatten_args_detach(tree)
    assert detached[0].is_leaf and detached[0].requires_grad and detached[0] is leaves[0]
    assert detached[0].data_ptr() == tree[0].data_ptr()


def test_texts():
    assert _debug.friendly_debug_info(X) == "Tensor(torch.Size([2, 3]), grad=False, dtype=torch.float32)"
    assert _debug.map_debug_info((X, {"a": 3})) == (_debug.friendly_debug_info(X), {"a": "3"})


class TestChunksOfDTensors:
    def test_split_and_merge(self, mesh):
        given = distribute_tensor(torch.arange(20.0).reshape(5, 4), mesh, [Shard(1)])
        chunks = _split_tensor(given, TensorChunkSpec(0), 2)
        assert [c.shape for c in chunks] == [(3, 4), (2, 4)]
        assert all(isinstance(c, DTensor) and c.placements == (Shard(1),) and c.device_mesh is given.device_mesh
                   for c in chunks)
        merged = merge_chunks(list(chunks), None)
        assert merged.placements == (Shard(1),) and torch.equal(merged.full_tensor(), given.full_tensor())

    def test_mixtures_are_refused(self, mesh):
        shard, replicate = distribute_tensor(X, mesh, [Shard(0)]), distribute_tensor(X, mesh, [Replicate()])
        with pytest.raises(AssertionError, match="mix"):
            merge_chunks([shard, X], None)
        with pytest.raises(AssertionError, match="placement mismatch"):
            merge_chunks([shard, replicate], None)

    def test_gradient_of_a_chunk(self, mesh):
        given = distribute_tensor(torch.ones(4, 2), mesh, [Shard(1)]).requires_grad_()
        chunks = _split_tensor(given, TensorChunkSpec(0), 2)
        chunks[0].sum().backward()
        assert chunks[0].grad is not None
