"""Feature graphs with regions: no_grad, autocast and cond, each a graph inside the graph."""

import contextlib

import torch
from torch import nn

from entry import Registry
from feature_inputs import ROWS, ROWS_AND_LENGTH, SHAPES, WIDTH, rows, sequences

FEATURES = Registry()


def on_sequences(name, **options):
    return FEATURES.add(name, sequences, SHAPES, dynamic={"x": ROWS_AND_LENGTH}, **options)


def cond(predicate, if_true, if_false, operands):
    """torch.cond in export; in eager mode the branch alone, since torch.cond would compile it."""
    if torch.compiler.is_exporting():
        return torch.cond(predicate, if_true, if_false, operands)
    return (if_true if predicate else if_false)(*operands)


class TwoLinears(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)


@on_sequences("no_grad")
class NoGrad(TwoLinears):
    """A region without gradients, with enable_grad inside it, and one that writes into a value from outside."""

    def forward(self, x):
        y = self.first(x)
        with torch.no_grad():
            scale = self.second(y).abs().amax(-1, keepdim=True)
            with torch.enable_grad():
                inner = self.second(y)
            shift = inner.mean()
        z = y / scale + shift
        with torch.no_grad():
            z[:, 0].clamp_(max=0.5)
        return z + inner, scale


@on_sequences("detach_region", note="torch.set_grad_enabled from some point on, and a decorated method")
class DetachRegion(TwoLinears):
    @torch.no_grad()
    def targets(self, y):
        return self.second(y).softmax(-1), y.shape[0]

    def forward(self, x):
        y = self.first(x)
        target, count = self.targets(y)
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        z = self.second(y) * count
        torch.set_grad_enabled(before)
        return -(target * y.log_softmax(-1)).sum() / count, z


@on_sequences("autocast")
class Autocast(TwoLinears):
    """A bfloat16 region with a float32 region in it."""

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.first(x)
            with torch.autocast("cpu", enabled=False):
                exact = self.second(y.float())
            z = self.second(y) @ y.mT
        return y, exact, z, self.first(x)


@on_sequences("autocast_off")
class AutocastOff(TwoLinears):
    """The region that rotary embeddings have: autocast switched off."""

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            y = self.first(x.float())
        return self.second(y)


@on_sequences("autocast_elsewhere")
class AutocastElsewhere(TwoLinears):
    """A region for a device that the model is not on changes nothing."""

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.first(x)
            with torch.autocast("cuda", enabled=False):
                return self.second(y)


@on_sequences("no_grad_in_autocast", grads="export")
class NoGradInAutocast(TwoLinears):
    """Export loses the no_grad inside autocast, and keeps the autocast inside no_grad."""

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                scale = self.first(x)
            y = self.second(x) * scale
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            shift = self.first(x)
        return y, y + shift


def signed(batch, length, sign):
    """Sequences whose sum has the given sign."""
    return (torch.rand(batch, length, WIDTH) * sign,), {}


SIGNED_SHAPES = [(3, 6, 1), (3, 6, -1), (2, 9, 1), (5, 4, -1)]


def on_signed(name, **options):
    return FEATURES.add(name, signed, SIGNED_SHAPES, dynamic={"x": ROWS_AND_LENGTH}, grads="close", **options)


@on_signed("cond")
class Cond(TwoLinears):
    """A tensor as predicate; each branch uses parameters of its own."""

    def forward(self, x):
        def positive(x):
            return self.first(x).relu()

        def negative(x):
            return self.second(x) * 2

        return cond(x.sum() > 0, positive, negative, (x,)) + x


@on_signed("cond_nested")
class CondNested(TwoLinears):
    """cond in a branch of cond, two results, and a predicate that is an input of the branch."""

    def forward(self, x):
        def small(x, y):
            return x + y, y.sum()

        def large(x, y):
            return self.second(x) - y, x.mean() * y.amax()

        def positive(x, y):
            return cond(x.sum() > 100, large, small, (x, y))

        def negative(x, y):
            return x * 2, y.sum() - 1

        z, total = cond(x.sum() > 0, positive, negative, (x, self.first(x)))
        return z * 2, total


@on_sequences("cond_on_size", grads="close")
class CondOnSize(TwoLinears):
    """A predicate that depends on a size."""

    def forward(self, x):
        def long(x):
            return self.first(x)

        def short(x):
            return self.second(x).tanh()

        return cond(x.shape[1] > 5, long, short, (x,))


@FEATURES.add("cond_in_no_grad", rows, SHAPES, dynamic={"x": ROWS}, grads="close")
class CondInNoGrad(TwoLinears):
    """Export loses a no_grad around cond, so eager mode goes without it too, and keeps one inside a branch."""

    def forward(self, x):
        def kept(y):
            with torch.no_grad():
                scale = y.exp()
            return y * scale

        def plain(y):
            return y * y.exp()

        def dropped(y):
            return y - 1

        y = self.first(x)
        with torch.no_grad() if torch.compiler.is_exporting() else contextlib.nullcontext():
            z = cond(y.mean() > 0, plain, dropped, (y,))
        return cond(y.mean() < 0, dropped, kept, (self.second(y),)) + z


@on_sequences("checkpoint")
class Checkpoint(TwoLinears):
    """torch.utils.checkpoint leaves its operators in the graph."""

    def forward(self, x):
        y = torch.utils.checkpoint.checkpoint(lambda x: self.first(x).tanh(), x,
                                              use_reentrant=False)
        return self.second(y)
