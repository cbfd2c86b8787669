"""Feature graphs with trees as inputs and outputs, and inputs that are not tensors."""

import collections

import torch
from torch import nn
from torch.utils import _pytree as pytree

from entry import Registry
from feature_inputs import ROWS, SHAPES, WIDTH, rows

FEATURES = Registry()


def nested(batch, length):
    a, b, c, d = (torch.randn(batch, WIDTH) for _ in range(4))
    tree = {"pair": (a, b), "list": [c, {"deep": d}], "none": None}
    return (tree,), {"scale": 3, "rate": 0.5, "mode": "sum", "flag": True}


@FEATURES.add("nested_inputs", nested, SHAPES[:2], dynamic={
    "tree": {"pair": (ROWS, ROWS), "list": [ROWS, {"deep": ROWS}], "none": None},
    "scale": None, "rate": None, "mode": None, "flag": None})
class NestedInputs(nn.Module):
    """A dict of tuples and lists, None, and an int, a float, a string and a bool that are constants of the graph."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, tree, *, scale, rate, mode, flag):
        a, b = tree["pair"]
        c, d = tree["list"]
        y = self.linear(a) * scale + b * rate
        y = y + c if mode == "sum" else y * c
        return y - d["deep"] if flag else y


@FEATURES.add("nested_outputs", rows, SHAPES, dynamic={"x": ROWS})
class NestedOutputs(nn.Module):
    """A dict with None, constants, sizes, an input given back, a parameter given back, and one tensor twice."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.linear(x)
        return {"y": y, "none": None, "rows": x.shape[0], "width": x.shape[1], "text": "a text", "rate": 0.25,
                "flag": True, "list": [y, (x, self.linear.weight)], "more_rows": x.shape[0] + 3, "empty": ()}


Point = collections.namedtuple("Point", ["left", "right"])
pytree._register_namedtuple(Point, serialized_type_name="zoo.Point")


@FEATURES.add("tuple_outputs", rows, SHAPES[:2], dynamic={"x": ROWS})
class TupleOutputs(nn.Module):
    """A named tuple and an ordered dict as outputs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.linear(x)
        return Point(y, collections.OrderedDict(b=y + 1, a=y * 2))


def with_options(batch, length):
    return (torch.randn(batch, WIDTH), None, [torch.randn(batch, WIDTH)] * 2), {"other": torch.randn(batch, WIDTH)}


@FEATURES.add("optional_inputs", with_options, SHAPES[:2],
              dynamic={"x": ROWS, "mask": None, "more": [ROWS, ROWS], "other": ROWS})
class OptionalInputs(nn.Module):
    """Defaults that the call leaves out, None given, one tensor twice among the inputs, kwargs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask=None, more=(), *, other=None, unused=None, scale=2.0):
        y = self.linear(x) * scale
        if mask is not None:
            y = y * mask
        for tensor in more:
            y = y + tensor
        return y if other is None else y - other


def loose(batch, length):
    tensors = [torch.randn(batch, WIDTH) for _ in range(4)]
    return tuple(tensors[:2]), {"second": tensors[2], "first": tensors[3]}


@FEATURES.add("variadic_inputs", loose, SHAPES[:1])
class VariadicInputs(nn.Module):
    """*args and **kwargs; torch takes no dynamic shapes for these."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, *tensors, **named):
        return self.linear(tensors[0]) + tensors[1] - named["first"] * named["second"]


def with_gradients(batch, length):
    return (torch.randn(batch, WIDTH, requires_grad=True), torch.randn(batch, WIDTH)), {
        "z": torch.randn(batch, WIDTH, requires_grad=True), "unused": torch.randn(2, requires_grad=True)}


@FEATURES.add("input_gradients", with_gradients, SHAPES, dynamic={"x": ROWS, "y": ROWS, "z": ROWS, "unused": None})
class InputGradients(nn.Module):
    """Inputs that require gradients, one of them unused."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, y, z, unused):
        return self.linear(x) * y + z.tanh(), (x * z).sum()


def numbers(batch, length, factor):
    return (torch.randn(batch, WIDTH), factor), {}


@FEATURES.add("number_input", numbers, [(3, 6, 5), (2, 4, 9), (3, 6, 7)],
              dynamic={"x": ROWS, "factor": torch.export.Dim.DYNAMIC})
class NumberInput(nn.Module):
    """A Python int that stays an input of the graph."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, factor):
        return self.linear(x) * factor, torch.arange(factor), factor + 1


def of_all_types(batch, length):
    return (torch.randint(-5, 5, (batch, WIDTH)), torch.rand(batch, WIDTH) > 0.5,
            torch.randint(0, 255, (batch, WIDTH), dtype=torch.uint8), torch.randn(batch, WIDTH).half(),
            torch.randn(batch, WIDTH).double(), torch.randn(batch, WIDTH).bfloat16(),
            torch.randint(-5, 5, (batch, WIDTH), dtype=torch.int32)), {}


@FEATURES.add("types", of_all_types, SHAPES, dynamic={name: ROWS for name in "abcdefg"})
class Types(nn.Module):
    """Integers, booleans, bytes, halves and doubles, and conversions between them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, a, b, c, d, e, f, g):
        y = self.linear(a.float()) * b + c.to(torch.float32) - d.float() + e.to(torch.float)
        same_type = a * 2 + g, b & (a > 0), c >> 1, d * 2, b.sum(), a / 2
        converted = e.to(torch.bfloat16) + f, y.to(torch.half), a.to(torch.int16), g.type_as(e)
        small = y.to(torch.float8_e4m3fn).float().detach()
        edges = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.double)
        return y, *same_type, *converted, small, torch.bucketize(e, edges)


@FEATURES.add("only_constants", lambda batch, length: ((), {}), [(0, 0)])
class OnlyConstants(nn.Module):
    """No inputs at all."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self):
        return self.weight * 2 + torch.linspace(0, 1, WIDTH)
