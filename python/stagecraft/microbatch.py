"""How a batch is cut into microbatches and how results are put together."""

from __future__ import annotations
