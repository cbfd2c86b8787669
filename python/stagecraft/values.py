"""Values that cross a boundary between stages.

Tensors, numbers, strings, None, and tuples, lists and dicts of them are values of the C++
library. Any other pytree is sent as its leaves with a text of its structure. Stages of the same
process get other objects themselves. Between processes such objects are refused, unless
`allow_pickle` was called.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import pickle
from typing import Any

import torch
import torch.utils._pytree as pytree

__all__ = ["allow_pickle"]

_TREE = "stagecraft.tree:"
_PICKLE = "stagecraft.pickle:"
_DTENSOR = "stagecraft.dtensor:"
_PLAIN = (int, float, bool, str, type(None))
_may_pickle = False


def allow_pickle(allow: bool = True) -> None:
    """Allows any Python object to be sent to a different process, by pickle.

    Reading a pickle runs code of its sender, so all processes of the world must be trusted. Call it
    in every process.
    """
    global _may_pickle
    _may_pickle = allow


def _is_native(value: Any) -> bool:
    """Whether the C++ library has this kind of value itself."""
    if isinstance(value, torch.Tensor):
        return not _is_dtensor(value)
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is tuple or kind is list:
        return all(_is_native(item) for item in value)
    if kind is dict:
        return all(type(key) is str and _is_native(item) for key, item in value.items())
    return False


def _is_dtensor(value: torch.Tensor) -> bool:
    kind = type(value)
    return kind is not torch.Tensor and kind.__name__ == "DTensor"


def _path_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class_at(path: str) -> Any:
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(type(value), "_fields")


class _Packer:
    """Takes a value apart: a JSON description, and its leaves."""

    def __init__(self, abroad: bool) -> None:
        self.abroad = abroad
        self.leaves: list[Any] = []

    def pack(self, value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            if _is_dtensor(value):
                return self._dtensor(value)
            return self._leaf(value)
        kind = type(value)
        if kind in _PLAIN:
            return self._leaf(value)
        if kind is tuple or kind is list:
            items = [self.pack(item, f"{path}[{i}]") for i, item in enumerate(value)]
            return {"t" if kind is tuple else "l": items}
        if kind is dict and all(type(key) in _PLAIN for key in value):
            items = [self.pack(item, f"{path}[{key!r}]") for key, item in value.items()]
            return {"d": list(value), "v": items}
        if _is_namedtuple(value):
            items = [self.pack(item, f"{path}.{name}") for name, item in zip(kind._fields, value)]
            return {"n": _path_of(kind), "v": items}
        if dataclasses.is_dataclass(kind) and isinstance(value, dict):
            # An ordered dictionary with fields, such as an output of a model of transformers.
            items = [self.pack(item, f"{path}.{name}") for name, item in value.items()]
            return {"o": _path_of(kind), "k": list(value), "v": items}
        if dataclasses.is_dataclass(kind):
            names = [field.name for field in dataclasses.fields(kind)]
            items = [self.pack(getattr(value, name), f"{path}.{name}") for name in names]
            return {"c": _path_of(kind), "k": names, "v": items}
        if kind in pytree.SUPPORTED_NODES:
            node = pytree.SUPPORTED_NODES[kind]
            children, context = node.flatten_fn(value)
            items = [self.pack(item, f"{path}[{i}]") for i, item in enumerate(children)]
            holder = self._object(context, path)
            return {"p": _path_of(kind), "x": holder, "v": items}
        return self._object(value, path)

    def _leaf(self, value: Any) -> int:
        self.leaves.append(value)
        return len(self.leaves) - 1

    def _dtensor(self, value: Any) -> Any:
        from stagecraft import _dtensor

        description, local, tag = _dtensor.take_apart(value)
        return {"D": description, "v": self._leaf(local), "g": self._leaf(tag)}

    def _object(self, value: Any, path: str) -> Any:
        if not self.abroad:
            return self._leaf(value)
        if not _may_pickle:
            raise TypeError(
                f"the output of a stage has a {type(value).__module__}.{type(value).__qualname__} at "
                f"{path}, which cannot be sent to a different process; call stagecraft.allow_pickle() in "
                "every process to send it by pickle"
            )
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        return {"b": self._leaf(data)}


def outgoing(value: Any, abroad: bool) -> Any:
    """A stage's output as the C++ library carries it. `abroad` says whether a part of it is sent to a
    different process."""
    if isinstance(value, torch.Tensor):
        return value if not _is_dtensor(value) else (_wrap(value, abroad),)
    kind = type(value)
    if kind is tuple or kind is list:
        return tuple(item if _is_native(item) else _wrap(item, abroad) for item in value)
    if kind in _PLAIN:
        return value
    if kind is dict and _is_native(value):
        return (value,)
    return (_wrap(value, abroad),)


def _wrap(value: Any, abroad: bool) -> tuple[Any, ...]:
    packer = _Packer(abroad)
    description = packer.pack(value, "output")
    return (_TREE + json.dumps(description, separators=(",", ":")), *packer.leaves)


def _build(node: Any, leaves: tuple[Any, ...]) -> Any:
    if isinstance(node, int):
        return leaves[node]
    if "t" in node:
        return tuple(_build(item, leaves) for item in node["t"])
    if "l" in node:
        return [_build(item, leaves) for item in node["l"]]
    if "b" in node:
        return pickle.load(io.BytesIO(leaves[node["b"]].numpy().tobytes()))
    if "D" in node:
        from stagecraft import _dtensor

        return _dtensor.put_together(node["D"], leaves[node["v"]], leaves[node["g"]])
    items = [_build(item, leaves) for item in node["v"]]
    if "d" in node:
        return dict(zip(node["d"], items))
    if "n" in node:
        return _class_at(node["n"])(*items)
    if "o" in node or "c" in node:
        return _class_at(node.get("o") or node["c"])(**dict(zip(node["k"], items)))
    kind = _class_at(node["p"])
    return pytree.SUPPORTED_NODES[kind].unflatten_fn(items, _build(node["x"], leaves))


def is_packed(value: Any) -> bool:
    return (
        type(value) is tuple and len(value) > 0 and type(value[0]) is str and value[0].startswith(_TREE)
    )


def incoming(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inverse of `outgoing`: the arguments of a stage as its module takes them."""
    for value in args:
        if is_packed(value):
            break
    else:
        return args
    return tuple(
        _build(json.loads(value[0][len(_TREE) :]), value[1:]) if is_packed(value) else value
        for value in args
    )


def detached(value: Any) -> Any:
    """The value, with tensors that have no history."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach(), value)
