"""DTensors at a border: the local shard travels, with what is needed to make the DTensor again.

The other side is on another mesh of the same names and layout, which it knows from its own tensors
or from the ``get_mesh`` of its stages. Gradients come back as local shards, too.
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

    def add(self, mesh: Any) -> None:
        self._known.setdefault(_key_of(mesh.mesh_dim_names, _layout_of(mesh)), mesh)

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
    raise PipeliningMetadataError(f"a DTensor placed as {placement} cannot cross a border")


def _placement_of(text: list[Any]) -> Any:
    kind, *rest = text
    return {"R": Replicate, "P": Partial, "S": Shard}[kind](*rest)


def take_apart(value: DTensor) -> tuple[dict[str, Any], torch.Tensor]:
    """What describes a DTensor, as JSON has it, and its local shard, with history."""
    mesh = value.device_mesh
    meshes.add(mesh)
    layout = _layout_of(mesh)
    description = {
        "names": list(mesh.mesh_dim_names or ()),
        "layout": None if layout is None else [[_plain(a.shape), _plain(a.stride)] for a in layout],
        "placements": [_text_of(placement) for placement in value.placements],
        "shape": list(value.shape),
        "stride": list(value.stride()),
    }
    return description, value.to_local()


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, (tuple, list)) else value


def _tuple(value: Any) -> Any:
    return tuple(_tuple(each) for each in value) if isinstance(value, list) else value


def put_together(description: dict[str, Any], local: torch.Tensor) -> DTensor:
    """The DTensor of a description on this process's mesh; gradients flow to `local`."""
    layout = None
    if description["layout"] is not None:
        from torch.distributed._mesh_layout import _FlatLayout, _MeshLayout

        layout = _MeshLayout([_FlatLayout(_tuple(shape), _tuple(stride)) for shape, stride in description["layout"]])
    mesh = meshes.find(tuple(description["names"]), layout)
    return DTensor.from_local(
        local,
        mesh,
        [_placement_of(text) for text in description["placements"]],
        run_check=False,
        shape=torch.Size(description["shape"]),
        stride=tuple(description["stride"]),
    )
