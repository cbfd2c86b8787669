"""Programs that export but that C++ must refuse, with an error that names the operator."""

import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.strict_mode import strict_mode
from torch._higher_order_ops.while_loop import while_loop

from entry import Registry
from feature_inputs import SHAPES, WIDTH, rows

REFUSED = Registry()


def on_rows(name, names):
    return REFUSED.add(name, rows, SHAPES[:1], names=names)


@on_rows("refused_scan", names="higher_order.scan")
class Scan(nn.Module):
    """A running sum by torch's scan."""

    def forward(self, x):
        return scan(lambda carry, row: (carry + row, carry * row), torch.zeros(WIDTH), x)


@on_rows("refused_while_loop", names="higher_order.while_loop")
class WhileLoop(nn.Module):
    """Doubles until the sum is large."""

    def forward(self, x):
        return while_loop(lambda x: x.abs().sum() < 100, lambda x: (x * 2,), (x,))


@on_rows("refused_map", names="higher_order.map_impl")
class Map(nn.Module):
    """One function over all rows."""

    def forward(self, x):
        return map_rows(lambda row, scale: row * scale, x, torch.ones(WIDTH))


@on_rows("refused_associative_scan", names="_functorch.predispatch")
class AssociativeScan(nn.Module):
    """Exports as functions of vmap, which only Python has."""

    def forward(self, x):
        return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")


@torch.library.custom_op("stagecraft_zoo::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


@on_rows("refused_custom_operator", names="twice")
class CustomOperator(nn.Module):
    """An operator that only Python knows."""

    def forward(self, x):
        return twice(x) + 1


@on_rows("refused_strict_mode", names="higher_order.strict_mode")
class StrictMode(nn.Module):
    """A higher-order operator that is rare."""

    def forward(self, x):
        return strict_mode(lambda x: x * 2, (x,))
