"""Feature graphs that compute with sizes."""

import math

import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

from entry import BATCH, LENGTH, Registry
from feature_inputs import ROWS_AND_LENGTH, SHAPES, WIDTH, sequences

FEATURES = Registry()


def on_sequences(name, **options):
    dynamic = options.pop("dynamic", {"x": ROWS_AND_LENGTH})
    return FEATURES.add(name, sequences, options.pop("shapes", SHAPES), dynamic=dynamic, **options)


class OneLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)


@on_sequences("sizes_as_numbers", dynamic={"x": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}})
class SizesAsNumbers(OneLinear):
    """Sizes as factors, ranges, bounds of slices and shapes of masks."""

    def forward(self, x):
        batch, length, _ = x.shape
        y = self.linear(x) * batch + torch.arange(length)[:, None]
        mask = torch.ones(length * length).view(length, length).tril().bool()
        scores = (y @ y.mT).masked_fill(~mask, -length)
        half = length // 2
        return y[:, :half], y[:, half:].sum(1), scores, x.sum() / length, y.reshape(batch * length, -1)


@on_sequences("sizes_as_floats")
class SizesAsFloats(OneLinear):
    """Floats made of sizes: division, powers, modulo, truncation."""

    def forward(self, x):
        batch, length, _ = x.shape
        y = self.linear(x) / length**0.5
        whole = math.trunc(length / 3)
        odd = length**-1 + length / 2 % 1.5
        return y * (batch / length), y + odd, y + (length * 0.5 + 1.25), y + whole, x * torch._sym_sqrt(length)


@on_sequences("sizes_as_integers")
class SizesAsIntegers(OneLinear):
    """Powers, shifts, masks and signs of sizes."""

    def forward(self, x):
        batch, length, _ = x.shape
        y = self.linear(x)
        bits = y + (length >> 1), y + (length & 3), y * (length | 8) + (batch << 2)
        return y * length**2, y * 2**batch, y * -length, *bits


@on_sequences("sizes_divided", dynamic={"x": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}}, shapes=[(3, 6), (2, 9), (5, 8)])
class SizesDivided(OneLinear):
    """Floor division, modulo, padding to a multiple of four; a size as output."""

    def forward(self, x):
        length = x.shape[1]
        missing = -length % 4
        padded = F.pad(self.linear(x), (0, 0, 0, missing))
        blocks = padded.reshape(x.shape[0], (length + 3) // 4, 4, WIDTH)
        return blocks.mean(2), padded + length % 3, x * (length // 2 % 2), blocks.shape[1]


@on_sequences("sizes_max_min", shapes=[(3, 6), (2, 9), (4, 7)])
class SizesMaxMin(OneLinear):
    """The larger and the smaller of two sizes."""

    def forward(self, x):
        batch, length, _ = x.shape
        large, small = torch.sym_max(batch, length), torch.sym_min(batch, length)
        corner = self.linear(x)[:small, :small].sum()
        return torch.arange(large), corner, x * torch.sym_max(length - 5, 0), torch.eye(large + 1)


@on_sequences("sizes_compared")
class SizesCompared(OneLinear):
    """Comparisons of sizes, and a number chosen by one."""

    def forward(self, x):
        batch, length, _ = x.shape
        chosen = torch.sym_ite(length > 5, length, batch)
        return self.linear(x) * chosen, torch.full((2,), torch.sym_not(batch > 2)), (batch + length + 7) * x


def two_lengths(batch, length):
    return (torch.randn(batch, length, WIDTH), torch.randn(batch, length + 1, WIDTH)), {}


@FEATURES.add("sizes_related", two_lengths, SHAPES,
              dynamic={"x": {0: BATCH, 1: LENGTH}, "y": {0: BATCH, 1: LENGTH + 1}})
class SizesRelated(OneLinear):
    """One input is longer than the other by one."""

    def forward(self, x, y):
        return self.linear(x) * (y[:, 1:] + y[:, :-1])


@on_sequences("sizes_even", shapes=[(3, 6), (2, 10), (5, 4)],
              dynamic={"x": {0: Dim.AUTO, 1: 2 * Dim("half", min=1, max=16)}})
class SizesEven(OneLinear):
    """A length that must be even, split in halves; the batch is Dim.AUTO."""

    def forward(self, x):
        first, second = self.linear(x).chunk(2, 1)
        return first * second, x.unflatten(1, (-1, 2)).sum(2)


@on_sequences("sizes_guarded", dynamic={"x": {0: Dim.AUTO, 1: Dim.DYNAMIC}}, shapes=[(3, 6), (2, 9), (5, 8)])
class SizesGuarded(OneLinear):
    """Python branches on sizes and checks written by hand, which all become guards."""

    def forward(self, x):
        batch, length, _ = x.shape
        torch._check(length <= 50, lambda: "too long")
        torch._check(batch * length < 1000)
        y = self.linear(x)
        if length > 5 and batch != 7:
            y = y * 2
        if batch * 2 + 1 < 3 * length:
            y = y + 1
        return y


def counted(batch, length):
    return (torch.randn(batch, length, WIDTH), torch.tensor(length // 2)), {}


@FEATURES.add("size_from_data", counted, SHAPES, dynamic={"x": ROWS_AND_LENGTH, "count": None})
class SizeFromData(OneLinear):
    """.item() as the length of a slice, with checks on it, and an assert on a tensor."""

    def forward(self, x, count):
        kept = count.item()
        torch._check(kept >= 0)
        torch._check(kept <= x.shape[1])
        torch._assert_async(x.isfinite().all(), "x must be finite")
        y = self.linear(x)
        return y[:, :kept], x.narrow(1, 0, kept) * kept, torch.zeros(kept + 2), kept


@on_sequences("number_from_data")
class NumberFromData(OneLinear):
    """.item() of a float, used as a number."""

    def forward(self, x):
        scale = x.abs().max().item()
        return self.linear(x) * scale, x + math.pi * scale


@on_sequences("number_of_then")
class NumberOfThen(OneLinear):
    """A float of a double tensor that changes afterwards; floats of sizes with whole numbers."""

    def forward(self, x):
        total = x.double().sum()
        scale = total.item()
        total.add_(1)
        whole = torch.arange(x.shape[1]) * (x.shape[0] ** 0.5)
        return self.linear(x) * scale, whole, total


def repeated_rows(batch):
    return (torch.randn(batch, WIDTH), torch.arange(batch) % 3 + 1), {}


@FEATURES.add("repeat_interleave", repeated_rows, [(3,), (5,)], dynamic={"x": {0: BATCH}, "times": {0: BATCH}})
class RepeatInterleave(OneLinear):
    """A size that depends on the data of an input."""

    def forward(self, x, times):
        y = self.linear(x).repeat_interleave(times, 0)
        return y * y.shape[0], torch.arange(y.shape[0] + 1)
