"""What the zoo knows of one program: how to build it, what to feed it, and how to export it."""

import dataclasses
from collections.abc import Callable

import torch
import torch._dynamo.config
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

WEIGHTS_SEED = 20

BATCH = Dim("batch", min=1, max=64)
LENGTH = Dim("length", min=3, max=64)

# How the gradients of the exported program in Python must compare with the module's.
GRADS = {
    "same": "bitwise",
    "close": "up to rounding, none as zeros: cond has a backward of its own",
    "export": "not at all: export changes them, and the case takes those of the exported program",
    "eager": "not at all: the exported program has no backward in Python",
}


@dataclasses.dataclass
class Entry:
    """One program of the zoo.

    `inputs(*shape)` gives (args, kwargs). The first of `shapes` is the example that is exported; every one of them
    becomes a case. Without `dynamic`, all shapes must give tensors of the example's sizes.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[..., tuple]
    shapes: list
    dynamic: object = None
    ci: bool = True
    train: bool = True
    loss: int | None = None  # index of the loss among the output leaves
    decompose: bool = False  # export, then run_decompositions({})
    grads: str = "same"  # one of GRADS
    note: str = ""
    names: str = ""  # refused programs: what the error must name

    def __post_init__(self):
        assert self.grads in GRADS, self.grads

    def module(self):
        """A fresh module: the same weights at every call."""
        torch.manual_seed(WEIGHTS_SEED)
        return self.build().train(self.train)

    def example(self, number=0):
        """Fresh arguments of a case: the same at every call."""
        torch.manual_seed(WEIGHTS_SEED + 1 + number)
        return self.inputs(*self.shapes[number])

    def export(self, dynamic):
        args, kwargs = self.example()
        shapes = self.dynamic if dynamic else None
        # With symbolic sizes the tracer's cache costs more time than it saves; the graph is the same without it.
        with torch._dynamo.config.patch(fake_tensor_cache_enabled=shapes is None):
            program = torch.export.export(self.module(), args, kwargs, strict=False, dynamic_shapes=shapes)
        return program.run_decompositions({}) if self.decompose else program

    def is_static(self, number):
        """Whether the case fits an archive exported without dynamic shapes."""
        return fixed_parts(self.example(number)) == fixed_parts(self.example())


def fixed_parts(tree):
    """What an archive without dynamic shapes fixes: the sizes of tensors and all other values."""
    leaves, spec = pytree.tree_flatten(tree)
    return [tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec


class Registry(dict):
    """Entries by name, in the order of their definition."""

    def add(self, name, inputs, shapes, **options):
        """Decorates the function or module class that builds the program."""
        def register(build):
            assert name not in self, name
            note = options.pop("note", None) or (build.__doc__ or "").strip()
            self[name] = Entry(name, build, inputs, shapes, note=note, **options)
            return build
        return register
