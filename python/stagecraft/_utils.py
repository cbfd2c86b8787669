"""Metadata of tensors at the boundaries of stages, and small helpers."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Optional, Protocol, Union, cast

import torch
from torch.utils import _pytree as pytree

from stagecraft._optional import is_dtensor
from stagecraft.errors import PipeliningMetadataError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = [
    "InferenceMode",
    "PipeInfo",
    "PipeliningMetadataError",
    "extract_tensor_meta",
    "extract_tensor_metas",
    "flatten_args",
    "flatten_args_detach",
    "generate_rank_to_stage_mapping",
    "generate_stage_to_rank_mapping",
    "to_local_if_dtensor",
    "validate_and_normalize_to_tuple",
    "validate_metadata",
    "validate_static_arg_grad_correspondence",
    "validate_tensors_metadata",
]

MeshCacheKey = tuple[tuple[str, ...], Any]


class GetMeshCallback(Protocol):
    """Finds the mesh of a DTensor of a different rank, by the names of its dimensions and its layout."""

    def __call__(self, mesh_dim_names: tuple[str, ...], mesh_layout: Any) -> Any: ...


def _is_differentiable(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _empty(meta: _TensorMeta, device: torch.device | str) -> torch.Tensor:
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=device)


def _differences(pairs: Sequence[tuple[str, Any, Any]]) -> list[str]:
    return [f"{name} mismatch: {expected} vs {actual}" for name, expected, actual in pairs if expected != actual]


@dataclass(frozen=True, slots=True)
class _TensorMeta:
    """Shape, strides and type of a tensor, and whether it requires grad."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @staticmethod
    def from_tensor(tensor: torch.Tensor) -> _TensorMeta:
        """The metadata of a plain tensor. PipeliningMetadataError for a DTensor."""
        if is_dtensor(tensor):
            raise PipeliningMetadataError("expected a plain tensor, got a DTensor: use _DTensorMeta.from_dtensor")
        return _TensorMeta(tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad)

    def to_tensor(self, device: torch.device | str) -> torch.Tensor:
        """A new tensor with this metadata and undefined contents."""
        return _empty(self, device).requires_grad_(self.requires_grad and _is_differentiable(self.dtype))

    def get_diff(self, other: _TensorMeta) -> list[str]:
        """The differences as texts. requires_grad is not compared."""
        return _differences([("shape", self.shape, other.shape), ("stride", self.stride, other.stride),
                             ("dtype", self.dtype, other.dtype)])


@dataclass(frozen=True, slots=True)
class _DTensorMeta(_TensorMeta):
    """The metadata of a DTensor. Shape, stride and dtype are those of the local shard."""

    global_shape: torch.Size = field(default_factory=torch.Size)
    global_stride: tuple[int, ...] = ()
    placements: tuple[Any, ...] = ()
    mesh_dim_names: tuple[str, ...] = ()
    mesh_layout: Any = None

    @staticmethod
    def from_dtensor(dtensor: DTensor) -> _DTensorMeta:
        """The metadata of a DTensor."""
        local = dtensor.to_local().detach()
        mesh = dtensor.device_mesh
        return _DTensorMeta(
            shape=local.shape, stride=local.stride(), dtype=dtensor.dtype, requires_grad=dtensor.requires_grad,
            global_shape=dtensor.shape, global_stride=dtensor.stride(), placements=tuple(dtensor.placements),
            mesh_dim_names=tuple(mesh.mesh_dim_names or ()), mesh_layout=getattr(mesh, "_layout", None))

    @property
    def mesh_cache_key(self) -> MeshCacheKey:
        """The key of the mesh in a _MeshCache."""
        return self.mesh_dim_names, self.mesh_layout

    def to_dtensor(self, device: torch.device | str, mesh: Any) -> DTensor:
        """A new DTensor on the mesh, with this metadata and undefined contents."""
        from torch.distributed.tensor import DTensor

        made: DTensor = DTensor.from_local(_empty(self, device), device_mesh=mesh, placements=self.placements,
                                  shape=self.global_shape, stride=self.global_stride, run_check=False)
        made.requires_grad_(self.requires_grad and _is_differentiable(self.dtype))
        return made

    def get_diff(self, other: _TensorMeta) -> list[str]:
        """The differences as texts. requires_grad is not compared."""
        differences = _differences([("shape", self.shape, other.shape), ("stride", self.stride, other.stride),
                                    ("dtype", self.dtype, other.dtype)])
        if isinstance(other, _DTensorMeta):
            differences += _differences([
                ("global_shape", self.global_shape, other.global_shape),
                ("global_stride", self.global_stride, other.global_stride),
                ("placements", self.placements, other.placements),
                ("mesh_dim_names", self.mesh_dim_names, other.mesh_dim_names),
                ("mesh_layout", self.mesh_layout, other.mesh_layout)])
        return differences


TensorMeta = Union[_TensorMeta, _DTensorMeta]
Metas = Optional[tuple[Optional[TensorMeta], ...]]


@dataclass
class _StageMeta:
    """The known metadata of a stage's inputs and outputs and of their gradients. None if it is not
    known."""

    inputs: tuple[TensorMeta, ...] | None = None
    outputs: tuple[TensorMeta, ...] | None = None
    input_grads: Metas = None
    output_grads: Metas = None

    def has_any(self) -> bool:
        """Whether anything is known."""
        return any(metas is not None for metas in (self.inputs, self.outputs, self.input_grads, self.output_grads))

    def has_dtensors(self) -> bool:
        """Whether an input or output is a DTensor."""
        return any(isinstance(meta, _DTensorMeta) for metas in (self.inputs, self.outputs) for meta in metas or ())

    def is_complete_for_forward(self) -> bool:
        """Whether inputs and outputs are known."""
        return self.inputs is not None and self.outputs is not None


@dataclass(frozen=True, slots=True)
class _StageForwardMeta:
    """Metadata of values that go to the next stage."""

    forward_metas: tuple[TensorMeta, ...]


@dataclass(frozen=True, slots=True)
class _StageBackwardMeta:
    """Metadata of gradients that go to the previous stage."""

    backward_metas: tuple[TensorMeta | None, ...]


class InferenceMode(Enum):
    """Whether metadata of a stage is given, or found by running the stage."""

    STATIC = "static"
    DYNAMIC = "dynamic"

    @classmethod
    def needs_dynamic(cls, meta: _StageMeta, stage_has_backward: bool) -> bool:
        """Whether more metadata is needed: that of DTensors' gradients cannot be derived from the values."""
        if not meta.is_complete_for_forward():
            return True
        if not stage_has_backward or not meta.has_dtensors():
            return False
        return meta.input_grads is None or meta.output_grads is None


class _MeshCache:
    """The meshes of DTensors that were seen, and a callback that finds others."""

    def __init__(self, get_mesh_cb: GetMeshCallback | None = None) -> None:
        self._get_mesh_cb = get_mesh_cb
        self._meshes: dict[Hashable, Any] = {}

    def get_mesh(self, key: MeshCacheKey) -> Any:
        """The mesh of a key. PipeliningMetadataError for an unknown one without a callback."""
        if key not in self._meshes:
            if self._get_mesh_cb is None:
                raise PipeliningMetadataError(
                    f"no mesh is known with dimensions {key[0]} and layout {key[1]}: pass get_mesh to the stage, or "
                    f"DTensors on that mesh as its examples")
            self._meshes[key] = self._get_mesh_cb(*key)
        return self._meshes[key]

    def put(self, key: MeshCacheKey, mesh: Any) -> None:
        """Remembers a mesh."""
        self._meshes[key] = mesh

    def update_from_tensors(self, tensors: tuple[torch.Tensor | None, ...]) -> None:
        """Remembers the meshes of the DTensors among the tensors."""
        for tensor in tensors:
            if is_dtensor(tensor):
                dtensor = cast("DTensor", tensor)
                self.put(_DTensorMeta.from_dtensor(dtensor).mesh_cache_key, dtensor.device_mesh)

    def __contains__(self, key: MeshCacheKey) -> bool:
        return key in self._meshes

    def __len__(self) -> int:
        return len(self._meshes)


@dataclass
class PipeInfo:
    """The part of a pipe that its stages need."""

    graph: Any
    num_stages: int
    has_loss_and_backward: bool


def _derive_grad_metas(tensor_metas: tuple[TensorMeta, ...]) -> tuple[TensorMeta | None, ...]:
    """Metadata of gradients, like that of the values; None for DTensors and for values without a gradient."""
    return tuple(
        None if isinstance(meta, _DTensorMeta) or not meta.requires_grad
        else _TensorMeta(meta.shape, meta.stride, meta.dtype, False)
        for meta in tensor_metas)


def _make_tensor_from_meta(meta: _TensorMeta, device: torch.device | str) -> torch.Tensor:
    """A new tensor of that shape, strides and type, with undefined contents."""
    return _empty(meta, device)


def extract_tensor_meta(tensor: torch.Tensor) -> TensorMeta:
    """The metadata of a tensor or DTensor."""
    return _DTensorMeta.from_dtensor(cast("DTensor", tensor)) if is_dtensor(tensor) else _TensorMeta.from_tensor(tensor)


def extract_tensor_metas(tensors: Sequence[torch.Tensor | None] | None, *,
                         allow_none: bool = False) -> Metas:
    """The metadata of several tensors. An entry may be None only with `allow_none`. None for
    None."""
    if tensors is None:
        return None
    if not allow_none and any(tensor is None for tensor in tensors):
        raise PipeliningMetadataError("expected tensors, got None among them (allow_none=True would take it)")
    return tuple(None if tensor is None else extract_tensor_meta(tensor) for tensor in tensors)


def to_local_if_dtensor(tensor: torch.Tensor, detach: bool = False) -> torch.Tensor:
    """The local shard of a DTensor, or any other tensor itself. With `detach`, without its
    history."""
    given = tensor.detach() if detach else tensor
    return cast("DTensor", given).to_local() if is_dtensor(given) else given


def validate_and_normalize_to_tuple(args: Any, allow_none: bool = False) -> tuple[torch.Tensor | None, ...] | None:
    """A tensor, or a list or tuple of tensors, as a tuple. PipeliningMetadataError for anything else; None for None."""
    if args is None:
        return None
    if isinstance(args, torch.Tensor):
        return (args,)
    if not isinstance(args, (tuple, list)):
        raise PipeliningMetadataError(
            f"expected a tensor, or a tuple or list of tensors, as a stage's examples, got {type(args).__name__}")
    for index, arg in enumerate(args):
        if isinstance(arg, torch.Tensor) or (arg is None and allow_none):
            continue
        raise PipeliningMetadataError(f"a stage's example {index}: expected a tensor, got {type(arg).__name__}; "
                                      f"what is no tensor can be passed by keyword")
    return tuple(args)


def validate_metadata(desc: str, expected: TensorMeta, actual: torch.Tensor | TensorMeta, *,
                      raise_on_mismatch: bool = False, warn_on_mismatch: bool = False) -> list[str]:
    """The differences between a tensor and the expected metadata, as texts. Raises or warns if the
    caller asks for it."""
    meta = extract_tensor_meta(actual) if isinstance(actual, torch.Tensor) else actual
    if type(meta) is not type(expected):
        differences = [f"type: expected {type(expected).__name__}, got {type(meta).__name__}"]
    else:
        differences = expected.get_diff(meta)
    if differences and raise_on_mismatch:
        raise PipeliningMetadataError(f"{desc}: {'; '.join(differences)}")
    if differences and warn_on_mismatch:
        warnings.warn(f"{desc}: Metadata mismatch: {'; '.join(differences)}", stacklevel=2)
    return differences


def validate_tensors_metadata(desc: str, expected: Sequence[TensorMeta | None],
                              actual: Sequence[torch.Tensor | TensorMeta | None], *, raise_on_mismatch: bool = True,
                              warn_on_mismatch: bool = False) -> list[str]:
    """The same for several tensors, one by one. A different number of tensors is a difference,
    too."""
    differences: list[str] = []

    def report(difference: str) -> None:
        if raise_on_mismatch:
            raise PipeliningMetadataError(difference)
        if warn_on_mismatch:
            warnings.warn(f"Metadata mismatch: {difference}", stacklevel=3)
        differences.append(difference)

    if len(expected) != len(actual):
        report(f"{desc}: expected {len(expected)} values, got {len(actual)}")
    for index, (wanted, got) in enumerate(zip(expected, actual)):
        if wanted is None or got is None:
            if wanted is not got:
                kinds = ["None" if value is None else "a tensor" for value in (wanted, got)]
                report(f"{desc}[{index}]: type: expected {kinds[0]}, got {kinds[1]}")
            continue
        differences += validate_metadata(f"{desc}[{index}]", wanted, got, raise_on_mismatch=raise_on_mismatch,
                                         warn_on_mismatch=warn_on_mismatch)
    return differences


def validate_static_arg_grad_correspondence(stage_index: int, args: Sequence[torch.Tensor],
                                            grads: Sequence[torch.Tensor | None], is_input: bool) -> None:
    """PipeliningMetadataError unless examples of gradients fit the examples of values: one for each, or None."""
    name = "input" if is_input else "output"
    if len(args) != len(grads):
        raise PipeliningMetadataError(
            f"stage {stage_index}: length mismatch: expected one of {name}_grads for each of {len(args)} {name}_args "
            f"(None for one without a gradient), got {len(grads)}")
    for index, (arg, grad) in enumerate(zip(args, grads)):
        place = f"stage {stage_index}: {name}_args[{index}]"
        if not arg.requires_grad:
            if grad is not None:
                raise PipeliningMetadataError(
                    f"{place} has requires_grad=False: expected {name}_grads[{index}] to be None, got a tensor")
            continue
        if grad is None:
            warnings.warn(f"{place} has requires_grad=True, and {name}_grads[{index}] is None; it gets no gradient",
                          stacklevel=2)
        elif is_dtensor(arg) != is_dtensor(grad):
            raise PipeliningMetadataError(
                f"{place} is {_kind(arg)}: expected {name}_grads[{index}] to be one too, got {_kind(grad)}")
        elif is_dtensor(arg):
            _check_grad_of_dtensor(place, cast("DTensor", arg), cast("DTensor", grad))


def _kind(tensor: torch.Tensor) -> str:
    return "a DTensor" if is_dtensor(tensor) else "a plain tensor"


def _check_grad_of_dtensor(place: str, arg: DTensor, grad: DTensor) -> None:
    if arg.device_mesh != grad.device_mesh:
        raise PipeliningMetadataError(f"{place} and its gradient are on different meshes (mesh mismatch): "
                                      f"{arg.device_mesh} vs {grad.device_mesh}")
    if arg.shape != grad.shape:
        raise PipeliningMetadataError(f"{place} and its gradient: shape mismatch: {arg.shape} vs {grad.shape}")


def flatten_args(args: Any, *, detach: bool = False) -> Any:
    """The leaves of nested lists, tuples and dicts.

    With `detach`: the same structure with tensors that have no history but require grad as before, and its leaves.
    """
    if detach:
        return flatten_args_detach(args)
    return pytree.tree_leaves(args)


def _detached(leaf: Any) -> Any:
    return leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf


def flatten_args_detach(args: Any) -> tuple[Any, list[Any]]:
    """The structure with its tensors detached, and its leaves."""
    leaves, spec = pytree.tree_flatten(args)
    detached = [_detached(leaf) for leaf in leaves]
    return pytree.tree_unflatten(detached, spec), detached


def generate_stage_to_rank_mapping(pp_size: int, num_stages: int, style: str = "loop") -> dict[int, int]:
    """The rank of each stage: "loop" places stages round the ranks, "v" up and down through
    them."""
    if style == "loop":
        return {stage: stage % pp_size for stage in range(num_stages)}
    if style != "v":
        raise ValueError(f"style: expected loop or v, got {style}")
    if num_stages % pp_size != 0:
        raise ValueError(f"num_stages: expected a multiple of the {pp_size} ranks for style v, got {num_stages}")
    mapping = {}
    for stage in range(num_stages):
        turn, place = divmod(stage, pp_size)
        mapping[stage] = place if turn % 2 == 0 else pp_size - 1 - place
    return mapping


def generate_rank_to_stage_mapping(pp_size: int, num_stages: int, style: str = "loop") -> dict[int, list[int]]:
    """The stages of each rank, ascending."""
    mapping: defaultdict[int, list[int]] = defaultdict(list)
    for stage, rank in generate_stage_to_rank_mapping(pp_size, num_stages, style).items():
        mapping[rank].append(stage)
    return dict(mapping)


