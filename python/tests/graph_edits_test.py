"""Placeholders go to the front of a graph."""

import pytest
import torch
from torch import fx

from stagecraft._IR import _move_placeholders_to_front
from stagecraft._unflatten import _outline_submodules


def _graph(kinds):
    """A graph with nodes of these kinds: p placeholder, g get_attr."""
    graph = fx.Graph()
    nodes = [graph.placeholder(f"p{i}") if kind == "p" else graph.get_attr(f"g{i}") for i, kind in enumerate(kinds)]
    graph.output(tuple(nodes))
    return graph


@pytest.mark.parametrize("kinds, expected", [
    ("pp", ["p0", "p1"]),
    ("gp", ["p1", "g0"]),
    ("pgp", ["p0", "p2", "g1"]),
    ("gpgp", ["p1", "p3", "g0", "g2"]),
    ("gg", ["g0", "g1"]),
])
def test_order(kinds, expected):
    graph = _graph(kinds)
    _move_placeholders_to_front(graph)
    names = [node.name for node in graph.nodes]
    assert names == [*expected, "output"]


def test_values_stay():
    class Root(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor(3.0))

    graph = fx.Graph()
    w = graph.get_attr("w")
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.mul, (w, x)))
    _move_placeholders_to_front(graph)
    graph.lint()
    assert fx.GraphModule(Root(), graph)(torch.tensor(2.0)) == 6.0


def test_submodules_come_back():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.lin(x).relu()

    program = torch.export.export(Model(), (torch.ones(1, 2),))
    module = _outline_submodules(program.graph)
    assert "lin" in dict(module.named_children())
