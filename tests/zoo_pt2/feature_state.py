"""Feature graphs that write: buffers, running statistics, in-place operators, inputs that change."""

import torch
from torch import nn
from torch.nn import functional as F

from entry import Registry
from feature_inputs import ROWS, ROWS_AND_LENGTH, SHAPES, WIDTH, rows, sequences

FEATURES = Registry()


def on_sequences(name, **options):
    return FEATURES.add(name, sequences, SHAPES, dynamic={"x": ROWS_AND_LENGTH}, **options)


def on_rows(name, **options):
    return FEATURES.add(name, rows, SHAPES, dynamic={"x": ROWS}, **options)


@on_rows("batch_norm")
@on_rows("batch_norm_functional", decompose=True, grads="eager",
         note="Batch norm whose new statistics are outputs of the graph")
class BatchNorm(nn.Module):
    """Batch norm in training: running statistics and a count of batches change."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 4)
        self.norm = nn.BatchNorm1d(4)
        self.cumulative = nn.BatchNorm1d(4, momentum=0.5, affine=False)

    def forward(self, x):
        return self.cumulative(self.norm(self.linear(x)).relu())


@on_rows("batch_norm_eval", train=False)
class BatchNormEval(BatchNorm):
    """Batch norm that reads its statistics."""


@on_rows("out_argument")
class OutArgument(nn.Module):
    """A result that is written into a buffer, from where it is copied into another; views that operators do not declare."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("total", torch.zeros(WIDTH))
        self.register_buffer("scratch", torch.zeros(WIDTH))

    def forward(self, x):
        y = self.linear(x)
        torch.add(self.total, y.detach().sum(0), out=self.scratch)
        self.total.copy_(self.scratch)
        z = y * 2
        left, _ = torch.unsafe_chunk(z, 2, 1)
        left.add_(1)
        return z + 1, self.total * 2


@on_rows("buffer_update")
@on_rows("buffer_update_functional", decompose=True, note="New values of buffers as outputs of the graph")
class BufferUpdate(nn.Module):
    """A counter, a moving average by copy_, and a buffer that is read again after it was written."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(WIDTH))
        self.register_buffer("scratch", torch.ones(WIDTH), persistent=False)

    def forward(self, x):
        self.steps += 1
        y = self.linear(x)
        self.average.copy_(0.9 * self.average + 0.1 * y.detach().mean(0))
        self.scratch.mul_(2).add_(self.average)
        return y + self.steps + self.average, self.scratch.sum() * y.detach()


@on_rows("buffer_saved", grads="eager")
class BufferSaved(nn.Module):
    """The backward needs a buffer that the graph copies onto itself at its end; this must not count as a write."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.steps += 1
        return self.linear(x) * self.steps


@on_sequences("in_place")
class InPlace(nn.Module):
    """In-place operators on intermediates and on views of them, and a residual +=."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.first(x)
        y.add_(1).mul_(x)
        y[:, 0] = 0.5
        y[:, 1:, :2] *= 3
        y[..., -1].copy_(x[..., 0])
        y += self.second(F.relu(y.clone(), inplace=True))
        z = torch.zeros_like(x)
        z.transpose(0, 1)[1].add_(y[:, 0])
        z.masked_fill_(x > 1, 2.0).clamp_(max=3)
        return y.flatten(1).t().tanh_(), z


@on_sequences("changed_input")
class ChangedInput(nn.Module):
    """The graph writes into its input."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.linear(x.clone())
        x.add_(1)
        x[:, 0].zero_()
        return y + x


@on_sequences("changed_input_functional", decompose=True, note="The new value of an input is an output of the graph")
class ChangedInputFunctional(ChangedInput):
    pass


@on_rows("buffers_of_all_kinds")
class BuffersOfAllKinds(nn.Module):
    """Persistent and not, one under two names, one that is a view of another, one never used."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(4, WIDTH))
        self.register_buffer("row", torch.randn(WIDTH), persistent=False)
        self.register_buffer("again", self.table)
        self.register_buffer("unused", torch.randn(3))
        self.register_buffer("unused_too", torch.randn(3), persistent=False)
        self.register_buffer("nothing", None)
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        return x * self.weight + self.row + self.table.sum(0) - self.again[0]
