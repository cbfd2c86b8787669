"""The three backwards that programs call themselves, against plain autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn

from models import batch, block, same, take_grads
from stagecraft._backward import stage_backward, stage_backward_input, stage_backward_weight


def plain(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    x = x.detach().requires_grad_()
    nn.functional.mse_loss(module(x), y).backward()
    return x.grad, take_grads(module)


def test_full_backward_returns_and_resets_input_gradients() -> None:
    module = block(0)
    x, y = batch(4)
    dx, grads = plain(module, x, y)
    x = x.detach().requires_grad_()
    found = stage_backward(nn.functional.mse_loss(module(x), y), None, [x, "text"])
    assert torch.equal(found[0], dx) and found[1] is None and x.grad is None
    assert same(take_grads(module), grads)


def test_outputs_with_gradients_can_be_chosen() -> None:
    x = torch.ones(3, requires_grad=True)
    found = stage_backward([x * 2, x * 3], [torch.ones(3), torch.ones(3)], [x], outputs_with_grads_idxs=[1])
    assert torch.equal(found[0], torch.full((3,), 3.0))


def test_input_half_leaves_parameters_alone() -> None:
    module = block(1)
    x, y = batch(4)
    dx, _ = plain(module, x, y)
    x = x.detach().requires_grad_()
    loss = nn.functional.mse_loss(module(x), y)
    found, groups = stage_backward_input([loss], None, [x], module.parameters())
    assert torch.equal(found[0], dx) and torch.equal(x.grad, dx)
    assert all(p.grad is None for p in module.parameters())
    assert all(set(g) >= {"params", "intermediates", "grads"} and len(g["intermediates"]) == 1 for g in groups)


def test_halves_are_the_whole_and_the_graph_can_be_kept() -> None:
    module = block(2)
    x, y = batch(4)
    _, grads = plain(module, x, y)
    x = x.detach().requires_grad_()
    loss = nn.functional.mse_loss(module(x), y)
    _, groups = stage_backward_input([loss], None, [x], module.parameters())
    found = stage_backward_weight(module.parameters(), groups, retain_graph=True)
    assert same(list(found), grads) and same(take_grads(module), grads)
    stage_backward_weight(module.parameters(), groups)
    assert same(take_grads(module), grads)


def test_several_microbatches_accumulate() -> None:
    module = block(3)
    x, y = batch(6)
    pieces = list(zip(x.split(2), y.split(2)))
    for xs, ys in pieces:
        nn.functional.mse_loss(module(xs.detach().requires_grad_()), ys).backward()
    expected = take_grads(module)
    for xs, ys in pieces:
        xs = xs.detach().requires_grad_()
        _, groups = stage_backward_input([nn.functional.mse_loss(module(xs), ys)], None, [xs], module.parameters())
        stage_backward_weight(module.parameters(), groups)
    assert same(take_grads(module), expected)


@pytest.mark.parametrize("replaced", [[None], [(None,)], [(None, None)]])
def test_weight_half_starts_from_what_is_in_the_groups(replaced: list[object]) -> None:
    module = nn.Linear(6, 6)
    x, y = batch(4)
    x = x.detach().requires_grad_()
    _, groups = stage_backward_input([nn.functional.mse_loss(module(x), y)], None, [x], module.parameters())
    for group in groups:
        group["grads"] = [tuple([None] * len(group["grads"][0]))] if replaced == [(None,)] else [None]
    stage_backward_weight(module.parameters(), groups)
    assert all(p.grad is None for p in module.parameters())


def test_inputs_in_the_middle_of_a_graph() -> None:
    module = block(4)
    x, y = batch(4)
    leaf = x.detach().requires_grad_()
    middle = leaf * 2
    found, _ = stage_backward_input([nn.functional.mse_loss(module(middle), y)], None, [middle], module.parameters())
    again = (x * 2).detach().requires_grad_()
    nn.functional.mse_loss(module(again), y).backward()
    assert torch.equal(found[0], again.grad)


def test_outputs_that_are_gone_are_edges_of_the_graph() -> None:
    from torch.autograd.graph import get_gradient_edge

    lin = torch.nn.Linear(3, 3)
    x = torch.randn(2, 3, requires_grad=True)
    out = lin(x)
    start = torch.randn(2, 3)
    expected = torch.autograd.grad(out, [x, lin.weight], start, retain_graph=True)
    edge = get_gradient_edge(out)
    del out
    (grad,) = stage_backward([edge, None], [start, None], [x])
    assert torch.equal(grad, expected[0]) and torch.equal(lin.weight.grad, expected[1])
    with pytest.raises(AssertionError, match="edge"):
        stage_backward([get_gradient_edge(lin(x))], [None], [x])
    with pytest.raises(TypeError, match="edge"):
        stage_backward_input([get_gradient_edge(lin(x))], [start], [x], iter(lin.parameters()))
