"""Types of torch that take long to import. A value can have such a type only if the module of the type
is loaded already."""

from __future__ import annotations

import sys
from typing import Any


def is_dtensor(value: Any) -> bool:
    """Whether it is a DTensor."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def is_block_mask(value: Any) -> bool:
    """Whether it is a block mask of flex attention."""
    module: Any = sys.modules.get("torch.nn.attention.flex_attention")
    return module is not None and isinstance(value, module.BlockMask)
