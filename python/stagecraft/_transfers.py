"""Transfers of torch.distributed, for programs that call them. Stagecraft itself uses its own transport."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist

__all__: list[str] = []

logger = logging.getLogger("stagecraft.schedules")


def _batch_p2p(p2p_ops: list[dist.P2POp], desc: str | None = None) -> list[Any]:
    """Starts the transfers and returns their works. If all are sends, or all are receives, they are started one
    by one."""
    if not p2p_ops:
        return []
    logger.debug("%s%d transfers", f"{desc}: " if desc else "", len(p2p_ops))
    kinds = {op.op for op in p2p_ops}
    if kinds == {dist.isend}:
        return [op.op(op.tensor, group=op.group, tag=op.tag, group_dst=op.group_peer) for op in p2p_ops]
    if kinds == {dist.irecv}:
        return [op.op(op.tensor, group=op.group, tag=op.tag, group_src=op.group_peer) for op in p2p_ops]
    works: list[Any] = dist.batch_isend_irecv(p2p_ops)
    return works


def _sorted_batch_p2p(p2p_ops: list[dist.P2POp], desc: str | None = None) -> dict[int, list[Any]]:
    """Starts the transfers peer by peer, ascending, and returns the works of each peer."""
    by_peer: defaultdict[int, list[dist.P2POp]] = defaultdict(list)
    for op in p2p_ops:
        by_peer[op.peer].append(op)
    return {peer: _batch_p2p(by_peer[peer], desc) for peer in sorted(by_peer)}


def _wait_batch_p2p(work: Iterable[Any]) -> None:
    """Waits for each of the works."""
    for each in work:
        each.wait()
