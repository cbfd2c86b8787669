"""DTensors at a boundary: the local shard is sent, with a description from which the DTensor is
made again.

The receiver uses a different mesh with the same names and layout. It knows this mesh from its own
tensors or from the ``get_mesh`` of its stages. Gradients come back as local shards, too, with
placements of their own: a Partial gradient is not reduced before it is sent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from stagecraft.errors import PipeliningMetadataError

__all__: list[str] = []


def _layout_of(mesh: Any) -> Any:
    return getattr(mesh, "_layout", None)


def _key_of(names: Any, layout: Any) -> tuple[tuple[str, ...], str]:
    return tuple(names or ()), str(layout)


class _Meshes:
    """The meshes that this process knows, by names and layout."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._sources: list[Any] = []
        self._last: Any = None

    def add(self, mesh: Any) -> None:
        # If a group was made again, its mesh replaces the old one.
        if mesh is not self._last:
            self._known[_key_of(mesh.mesh_dim_names, _layout_of(mesh))] = self._last = mesh

    def add_module(self, module: torch.nn.Module) -> None:
        for tensor in module.parameters():
            if isinstance(tensor, DTensor):
                self.add(tensor.device_mesh)

    def add_source(self, get_mesh: Any) -> None:
        if get_mesh not in self._sources:
            self._sources.append(get_mesh)

    def find(self, names: tuple[str, ...], layout: Any) -> Any:
        key = _key_of(names, layout)
        if key in self._known:
            return self._known[key]
        for source in self._sources:
            mesh = source(names, layout)
            if mesh is not None:
                self._known[key] = mesh
                return mesh
        raise PipeliningMetadataError(
            f"a DTensor came on a mesh with dimensions {names} and layout {layout}, which this process does "
            "not know: pass get_mesh to the stage"
        )


meshes = _Meshes()


def _text_of(placement: Any) -> list[Any]:
    if isinstance(placement, Replicate):
        return ["R"]
    if isinstance(placement, Partial):
        return ["P", placement.reduce_op]
    if isinstance(placement, Shard):
        return ["S", placement.dim]
    raise PipeliningMetadataError(f"a DTensor placed as {placement} cannot cross a boundary")


def _placement_of(text: list[Any]) -> Any:
    kind, *rest = text
    return {"R": Replicate, "P": Partial, "S": Shard}[kind](*rest)


# The placements of a gradient are sent back as the gradient of a small tensor that goes with the
# shard: the number of gradients that were added up, then a number for each dimension of the mesh.
_KINDS = ("R", "sum", "avg", "product", "max", "min")


def _number_of(placement: Any) -> float:
    text = _text_of(placement)
    if text[0] == "S":
        return float(len(_KINDS) + text[1])
    return float(_KINDS.index(text[-1]))


def _placement_at(number: float) -> Any:
    index = round(number)
    if index >= len(_KINDS):
        return Shard(index - len(_KINDS))
    return Replicate() if index == 0 else Partial(_KINDS[index])


class _TakeApart(torch.autograd.Function):
    """A DTensor's shard, and the tensor whose gradient says how the shard's gradient is placed."""

    @staticmethod
    def forward(ctx: Any, value: DTensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.spec = value._spec
        local = value._local_tensor
        tag = torch.zeros(1 + len(value.placements), dtype=torch.float64, device=local.device)
        return local.view_as(local), tag

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad, tag = grads
        if grad is None:
            return None
        spec = ctx.spec
        numbers = tag.tolist()
        placements = spec.placements
        if numbers[0] == 1:
            placements = tuple(_placement_at(number) for number in numbers[1:])
        elif numbers[0] != 0:
            raise PipeliningMetadataError(
                f"{round(numbers[0])} stages read a DTensor, and gradients of different placements cannot be added up: "
                "send it to one stage, or as a plain tensor"
            )
        return DTensor.from_local(grad, spec.mesh, placements, run_check=False, shape=spec.tensor_meta.shape,
                                  stride=spec.tensor_meta.stride)


class _PutTogether(torch.autograd.Function):
    """The DTensor of a shard that came from a different process."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, tag: torch.Tensor, mesh: Any, placements: Any, shape: Any,
                stride: Any) -> DTensor:
        # The DTensor must have the history of this function.
        return DTensor.from_local(local.detach(), mesh, placements, run_check=False, shape=shape, stride=stride)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if grad is None:
            return (None,) * 6
        numbers = [1.0, *(_number_of(placement) for placement in grad.placements)]
        local = grad._local_tensor
        tag = torch.tensor(numbers, dtype=torch.float64, device=local.device)
        return local, tag, None, None, None, None


def _description_of(value: DTensor) -> dict[str, Any]:
    mesh = value.device_mesh
    meshes.add(mesh)
    layout = _layout_of(mesh)
    return {
        "names": list(mesh.mesh_dim_names or ()),
        "layout": None if layout is None else [[_plain(a.shape), _plain(a.stride)] for a in layout],
        "placements": [_text_of(placement) for placement in value.placements],
        "shape": list(value.shape),
        "stride": list(value.stride()),
    }


def take_apart(value: DTensor) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    """The description of a DTensor for JSON, its local shard with its history, and the tensor for its gradient."""
    local, tag = _TakeApart.apply(value)
    return _description_of(value), local, tag


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value


def _tuple(value: Any) -> Any:
    return tuple(_tuple(each) for each in value) if isinstance(value, list) else value


def put_together(description: dict[str, Any], local: torch.Tensor, tag: torch.Tensor) -> DTensor:
    """The DTensor of a description on this process's mesh; gradients flow to `local` and `tag`."""
    layout = None
    if description["layout"] is not None:
        from torch.distributed._mesh_layout import _FlatLayout, _MeshLayout

        layout = _MeshLayout([_FlatLayout(_tuple(shape), _tuple(stride)) for shape, stride in description["layout"]])
    mesh = meshes.find(tuple(description["names"]), layout)
    placements = [_placement_of(text) for text in description["placements"]]
    made: DTensor = _PutTogether.apply(local, tag, mesh, placements, torch.Size(description["shape"]),
                                       tuple(description["stride"]))
    return made
