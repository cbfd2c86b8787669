"""Feature graphs of parameters and constants: tied, shared, frozen, unused, of several types."""

import torch
from torch import nn
from torch.nn import functional as F

from entry import Registry
from feature_inputs import ROWS, ROWS_AND_LENGTH, SHAPES, WIDTH, rows, sequences

FEATURES = Registry()


def on_rows(name, **options):
    return FEATURES.add(name, rows, SHAPES, dynamic={"x": ROWS}, **options)


@on_rows("tied_weights")
class TiedWeights(nn.Module):
    """One parameter under three names, used by two layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.third_name = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).relu()) @ self.third_name


@on_rows("shared_module")
class SharedModule(nn.Module):
    """One module called twice, and reached under two names."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.again = self.blocks[0]

    def forward(self, x):
        for block in [*self.blocks, self.blocks[0], self.again]:
            x = block(x).tanh()
        return x


@on_rows("module_paths")
class ModulePaths(nn.Module):
    """Modules reached through slices, dicts, lists of parameters and nested sequences."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.named = nn.ModuleDict({"gate": nn.Linear(WIDTH, WIDTH), "deep": nn.Sequential(nn.Linear(WIDTH, WIDTH))})
        self.listed = nn.ParameterList([torch.randn(WIDTH), torch.randn(WIDTH)])
        self.outer = nn.Sequential(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), nn.Identity())

    def forward(self, x):
        for layer in self.layers[:2]:
            x = layer(x)
        x = self.layers[2:](x)
        for gate in self.named.values():
            x = x + gate(x).sigmoid()
        for weight in self.listed:
            x = x * weight
        return self.outer(x) + self.layers[0].weight.sum()


@on_rows("frozen_weights")
class FrozenWeights(nn.Module):
    """Parameters without gradient."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.free = nn.Linear(WIDTH, WIDTH)
        self.free.bias.requires_grad_(False)

    def forward(self, x):
        return self.free(self.frozen(x).relu()), self.frozen(x)


@on_rows("odd_weights")
class OddWeights(nn.Module):
    """A scalar parameter, an empty one, an unused one, one that is not contiguous, and two that share a storage."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.empty(0, WIDTH))
        self.unused = nn.Parameter(torch.randn(3))
        self.turned = nn.Parameter(torch.randn(WIDTH, 4).t())
        table = torch.randn(2, WIDTH)
        self.upper, self.lower = nn.Parameter(table[0]), nn.Parameter(table[1])

    def forward(self, x):
        y = torch.cat([x * self.scale, self.empty])
        return F.linear(y, self.turned), y * self.upper + self.lower


@on_rows("half_weights")
class HalfWeights(nn.Module):
    """Weights of several types in one model."""

    def __init__(self):
        super().__init__()
        self.brain = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
        self.scale = nn.Parameter(torch.randn(WIDTH, dtype=torch.half))
        self.wide = nn.Linear(WIDTH, WIDTH, dtype=torch.double)
        self.register_buffer("octets", torch.arange(WIDTH, dtype=torch.uint8))
        self.register_buffer("flags", torch.arange(WIDTH) % 2 == 0)
        self.small = torch.randn(WIDTH).to(torch.float8_e5m2)

    def forward(self, x):
        y = self.brain(x.bfloat16())
        return y, y.float() * self.scale, self.wide(x.double()) * self.octets * self.flags + self.small.double()


@on_rows("constants")
class Constants(nn.Module):
    """Tensors made in forward from Python values, and a tensor that is a plain attribute."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 2)
        self.plain = torch.randn(2)

    def forward(self, x):
        y = self.linear(x) * torch.tensor([1.0, 2.0]) + self.plain
        unused = torch.tensor([[True, False]]), torch.tensor([], dtype=torch.long)
        return y, y + torch.tensor(3), *unused, torch.tensor(2.5) * y


class Clipped(torch.autograd.Function):
    """A gradient that differs from the operators' own."""

    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.1, 0.1)


@on_rows("custom_function", grads="export")
class CustomFunction(nn.Module):
    """A custom autograd function: export loses its backward, so the gradients expected are those of the export."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return Clipped.apply(self.linear(x)) + 1


@FEATURES.add("parametrized", sequences, SHAPES, dynamic={"x": ROWS_AND_LENGTH})
class Parametrized(nn.Module):
    """Weights computed from others by a parametrization."""

    def __init__(self):
        super().__init__()
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return self.linear(x)
