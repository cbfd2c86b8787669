"""One archive that holds two programs, with weights of their own, and an extra file."""

import torch
from torch import nn
from torch.export.pt2_archive._package import package_pt2

from entry import BATCH, WEIGHTS_SEED


def write(path):
    torch.manual_seed(WEIGHTS_SEED)
    first = nn.Sequential(nn.Linear(8, 16), nn.GELU())
    second = nn.Sequential(nn.Linear(16, 4))
    programs = {
        "stage0": torch.export.export(first, (torch.randn(3, 8),), dynamic_shapes=({0: BATCH},), strict=False),
        "stage1": torch.export.export(second, (torch.randn(3, 16),), dynamic_shapes=({0: BATCH},), strict=False),
    }
    package_pt2(path, exported_programs=programs, extra_files={"notes.txt": "two programs"})
