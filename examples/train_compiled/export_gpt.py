"""A small language model of bytes, exported for train_compiled: export_gpt.py GPT.pt2"""

import sys

import torch
from torch import nn
from torch.export import Dim

LENGTH = 64


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, width=64, heads=4, layers=4):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.place = nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)

    def forward(self, ids):
        x = self.embed(ids) + self.place.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


torch.manual_seed(1)
ids = torch.zeros(2, LENGTH, dtype=torch.long)
rows = Dim("rows", min=1, max=64)
torch.export.save(torch.export.export(Gpt().train(), (ids,), strict=False, dynamic_shapes=({0: rows},)), sys.argv[1])
