"""Feature graphs of single operators and families of operators."""

import torch
from torch import nn
from torch.nn import functional as F

from entry import BATCH, Registry
from feature_inputs import ROWS, ROWS_AND_LENGTH, SHAPES, WIDTH, images, rows, sequences

FEATURES = Registry()

SAME_LENGTH = [(3, 4), (2, 4)]  # recurrent layers export with a fixed length only
SIDE = 4 * torch.export.Dim("_side", min=2, max=16)


def on_sequences(name, **options):
    return FEATURES.add(name, sequences, SHAPES, dynamic={"x": ROWS_AND_LENGTH}, **options)


def on_rows(name, **options):
    return FEATURES.add(name, rows, SHAPES, dynamic={"x": ROWS}, **options)


@on_sequences("dropout")
class Dropout(nn.Module):
    """Random masks must come from the seed alone."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = F.dropout(self.linear(x), 0.3)
        x = F.dropout1d(x, 0.2) + F.alpha_dropout(x, 0.1, training=True)
        return x + torch.rand_like(x) + torch.randn(x.shape[1], WIDTH)


@FEATURES.add("lstm", sequences, SAME_LENGTH, dynamic={"x": ROWS})
class Lstm(nn.Module):
    """A list of weights as one argument, and three results."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 6, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        return y, h, c


@FEATURES.add("gru", sequences, SAME_LENGTH, dynamic={"x": ROWS})
class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(WIDTH, 6, batch_first=True)

    def forward(self, x):
        y, h = self.gru(x)
        return {"y": y, "h": h}


@on_sequences("complex_rotary")
class ComplexRotary(nn.Module):
    """Rotary embedding through view_as_complex and polar."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = torch.view_as_complex(self.linear(x).unflatten(-1, (-1, 2)).contiguous())
        angles = torch.outer(torch.arange(x.shape[1]).float(), 10.0 ** -torch.arange(WIDTH // 2).float())
        turned = y * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(-2), turned


@on_sequences("complex_numbers")
class ComplexNumbers(nn.Module):
    """A complex parameter, a complex constant, conj and an FFT."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.complex64))

    def forward(self, x):
        y = torch.fft.rfft(x) * self.weight.conj() + (0.5 + 2.0j)
        return torch.fft.irfft(y, n=WIDTH), y * (1.0 - 1.0j), y.real, y.imag.neg()


@on_sequences("einsum")
class Einsum(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, WIDTH, 2))

    def forward(self, x):
        y = torch.einsum("bsw,hwd->bhsd", x, self.weight)
        return torch.einsum("bhsd,bhtd->bhst", y, y)


@on_sequences("lists_of_tensors")
class ListsOfTensors(nn.Module):
    """cat and stack; an index list with None in front."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("order", torch.tensor([3, 1, 1, 0]))

    def forward(self, x):
        y = self.linear(x)
        picked = y[:, :, self.order]
        both = y[torch.tensor([0, 1]), :, self.order[:2]]
        return torch.cat([y, picked, x], -1), torch.stack([y, x]), both


@on_sequences("several_results")
class SeveralResults(nn.Module):
    """unbind, chunk, split, topk, sort, max, aminmax, var_mean: results with names of their own, some unused."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 12)

    def forward(self, x):
        y = self.linear(x)
        a, b, c = y.unflatten(-1, (3, 4)).unbind(2)
        d, _ = y.chunk(2, -1)
        e, f, g = y.split([2, 4, 6], -1)
        top, where = y.topk(3, -1)
        ordered, _ = torch.sort(y, 1, descending=True)
        largest, _ = y.max(1)
        low, high = torch.aminmax(y, dim=-1)
        var, mean = torch.var_mean(y, -1, correction=0)
        parts = torch.tensor_split(y, 5, -1)
        total = a * b + c + f
        return total, d, e, g, top, where, ordered, largest, high - low, var, mean, parts[4]


@on_sequences("scatter_gather")
class ScatterGather(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.linear(x)
        index = y.detach().argsort(-1)
        gathered = y.gather(-1, index)
        scattered = torch.zeros_like(y).scatter(-1, index, gathered * 2)
        added = y.scatter_add(-1, index, x).scatter_reduce(-1, index, x, "amax")
        put = torch.zeros(x.shape[0], WIDTH)
        put[:, torch.tensor([0, 2, 2])] = gathered[:, 0, :3]
        put.index_put_((torch.tensor([0]),), y[0, 0], accumulate=True)
        return scattered, added, put.index_add(1, torch.tensor([1, 3]), y[:, 0, :2])


@on_sequences("views")
class Views(nn.Module):
    """unfold, as_strided, expand, diagonal, movedim, flip, roll: views with strides."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        y = x * self.weight
        windows = y.unfold(1, 2, 1)
        strided = torch.as_strided(y.contiguous(), (2, 3), (1, 2), 1)
        wide = self.weight.expand(x.shape[0], 2, WIDTH).clone()
        diagonal = torch.diagonal(y, 0, 1, 2)
        moved = y.movedim(0, -1).flip(0).roll(1, 1)
        return windows, strided, wide, diagonal, moved, y[..., ::2], y[:, -1], y.mT


@FEATURES.add("convolution", images, [(2, 8), (3, 8), (1, 12)], dynamic={"x": {0: BATCH, 2: SIDE, 3: SIDE}})
class Convolution(nn.Module):
    """conv2d, pooling and interpolation."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding="same", groups=2, padding_mode="reflect")
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)

    def forward(self, x):
        y = F.max_pool2d(self.first(x).relu(), 2)
        y = F.avg_pool2d(self.second(y), 2, ceil_mode=True)
        z = F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.up(z), F.interpolate(y, size=(5, 5), mode="nearest"), F.adaptive_avg_pool2d(y, 1)


def indices(batch, length):
    ids = torch.randint(0, 11, (batch, length))
    ids[:, -1] = 0
    return (ids,), {}


@FEATURES.add("embedding", indices, SHAPES, dynamic={"x": ROWS_AND_LENGTH})
class Embedding(nn.Module):
    """A padding row without gradient, and one_hot."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, WIDTH, padding_idx=0)
        self.scaled = nn.Embedding(11, WIDTH, scale_grad_by_freq=True)

    def forward(self, x):
        return self.words(x) + self.scaled(x), F.one_hot(x, 11)


@FEATURES.add("embedding_bag", indices, SHAPES, dynamic={"x": ROWS_AND_LENGTH})
class EmbeddingBag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(11, WIDTH, mode="mean")

    def forward(self, x):
        return self.bag(x)


@on_sequences("attention")
class Attention(nn.Module):
    """scaled_dot_product_attention: causal, with a mask, and with grouped heads."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(1)
        masked = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.25)
        grouped = F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True)
        return causal, masked, grouped


@on_sequences("multihead_attention")
class MultiheadAttention(nn.Module):
    """nn.TransformerEncoderLayer and nn.MultiheadAttention in training, with dropout."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.1, batch_first=True, norm_first=True)
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)

    def forward(self, x):
        y = self.layer(x)
        return self.attention(y, y, y)


@on_sequences("norms")
class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LayerNorm(WIDTH)
        self.bare = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.rms = nn.RMSNorm(WIDTH)
        self.group = nn.GroupNorm(2, WIDTH)
        self.instance = nn.InstanceNorm1d(WIDTH, affine=True)

    def forward(self, x):
        y = self.group(self.rms(self.layer(x)).mT)
        return self.bare(y.mT), self.instance(y), F.normalize(x, dim=-1)


@on_rows("numbers")
class Numbers(nn.Module):
    """Python numbers where the schema wants a tensor, ints for floats, infinities, NaN, pow and rsub."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.linear(x)
        y = 1 - y * 2 + 1 / (y.abs() + 1) + y**2 + 2 ** y.clamp(max=1) + y.detach() // 1 + y % 3
        low = torch.full((x.shape[0], 1), float("-inf"))
        rest = torch.where(x > 0, y, float("nan"))
        filled = y.masked_fill(y < 0, torch.finfo(y.dtype).min)
        return y, torch.maximum(low, y), rest, filled, y.nan_to_num(posinf=float("inf")), (y > 1) | ~(y < 0)


@on_sequences("losses")
class Losses(nn.Module):
    """Losses and their reductions, written as numbers of an enum in the graph."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.linear(x)
        labels = x.argmax(-1)
        weight = torch.linspace(0.5, 1.5, WIDTH)
        entropy = F.cross_entropy(y.flatten(0, 1), labels.flatten(), weight=weight, label_smoothing=0.1)
        each = F.cross_entropy(y.mT, labels, reduction="none", ignore_index=0)
        binary = F.binary_cross_entropy_with_logits(y, x.sigmoid(), reduction="sum")
        divergence = F.kl_div(y.log_softmax(-1), x.softmax(-1), reduction="batchmean")
        return entropy, each, binary, F.mse_loss(y, x), F.smooth_l1_loss(y, x, beta=0.5), divergence


@on_rows("grouped_mm")
class GroupedMm(nn.Module):
    """torch's own product of groups of rows, which exports in bfloat16 have."""

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, WIDTH, 2 * WIDTH))
        self.down = nn.Parameter(torch.randn(3, WIDTH, 2 * WIDTH))

    def forward(self, x):
        expert, order = (x.argmax(-1) % 3).sort(stable=True)
        ends = F.one_hot(expert, 3).sum(0).cumsum(0).int()
        hidden = F.grouped_mm(x[order].bfloat16(), self.up.bfloat16(), offs=ends).relu()
        return F.grouped_mm(hidden, self.down.bfloat16().mT, offs=ends), ends


def positive_counts(batch, length):
    x = torch.randn(batch, length)
    x[:, 0] = x[:, 0].abs() + 1
    return (x,), {}


@FEATURES.add("boolean_mask", positive_counts, [(3, 6), (4, 9)], dynamic={"x": ROWS_AND_LENGTH})
class BooleanMask(nn.Module):
    """Sizes that depend on the data: nonzero, masked_select and an index with booleans."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5))

    def forward(self, x):
        chosen = x[x > 0]
        where = torch.nonzero(x > 0)
        return chosen[:, None] * self.weight, where, x.masked_select(x < 0), x.unique()
