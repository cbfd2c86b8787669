"""Transfers of a stage as operations of torch.distributed, for programs that call them. Stagecraft
itself uses its own transport."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from stagecraft.errors import PipeliningMetadataError

__all__: list[str] = []


class _RootArgPlaceholder:
    """Stands for an input of the model in ``args_recv_info``."""

    def __init__(self, meta: Any = None) -> None:
        self.meta = meta


class _RecvInfo:
    """The source of an input of a stage."""

    def __init__(
        self,
        input_name: str,
        source: int | None,
        buffer: Any = None,
        tensor_meta: Any = None,
        *,
        is_root_arg: bool = False,
    ) -> None:
        # From torch 2.15 on, the third argument is the metadata, and buffers are made when they are
        # needed.
        if tensor_meta is None and buffer is not None and not isinstance(buffer, torch.Tensor):
            buffer, tensor_meta = None, buffer
        self.input_name = input_name
        self.source = source
        self.buffer: torch.Tensor | None = buffer
        self.tensor_meta = tensor_meta
        self.is_root_arg = is_root_arg

    def allocate_buffer(self, device: torch.device) -> torch.Tensor:
        """Makes the buffer that a value is received into."""
        if self.tensor_meta is None:
            raise PipeliningMetadataError(f"{self.input_name}: expected metadata of a value that is received, got None")
        self.set_buffer(self.tensor_meta.to_tensor(device))
        assert self.buffer is not None
        return self.buffer

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Stores a value. PipeliningMetadataError if the previous value was not taken."""
        if self.buffer is not None:
            raise PipeliningMetadataError(
                f"{self.input_name}: a value is left that no stage has taken, because a step failed: make the "
                "group, the stages and the schedule again")
        self.buffer = buffer

    def take_buffer(self) -> torch.Tensor:
        """Returns the value and releases it here."""
        buffer, self.buffer = self.buffer, None
        if buffer is None:
            raise PipeliningMetadataError(f"{self.input_name}: expected a value, got none")
        return buffer

    def __repr__(self) -> str:
        shape = None if self.buffer is None else tuple(self.buffer.shape)
        return f"_RecvInfo(input={self.input_name}, source={self.source}, shape={shape})"


class TransferOps:
    """A stage's place, and transfers of its values from and to the buffers and caches that a program has filled."""

    stage_index: int
    num_stages: int
    device: torch.device
    group: Any
    stage_index_to_group_rank: dict[int, int]
    args_recv_info: dict[int, tuple[Any, ...]]
    grad_recv_info: dict[int, tuple[Any, ...]]
    act_send_info: dict[int, list[int]]
    grad_send_info: list[Any] | None
    fwd_cache: dict[int, tuple[Any, list[torch.Tensor]]]
    bwd_cache: dict[int, tuple[Any, ...]]
    _stage_meta: Any
    _has_backward: bool

    @property
    def has_backward(self) -> bool:
        """Whether the stage trains in the current step."""
        return self._has_backward

    @has_backward.setter
    def has_backward(self, value: bool) -> None:
        self._has_backward = value

    @property
    def is_first(self) -> bool:
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        return self.stage_index == self.num_stages - 1

    def _peer(self, stage_index: int | None) -> int:
        if stage_index is None:
            raise AssertionError("expected a value of a different stage, got an argument of the model")
        peer = self.stage_index_to_group_rank[stage_index]
        return peer if self.group is None else dist.get_global_rank(self.group, peer)

    def _recv_ops(self, infos: Iterable[Any]) -> list[dist.P2POp]:
        return [
            dist.P2POp(dist.irecv, info.buffer, self._peer(info.source), self.group)
            for info in infos
            if isinstance(info, _RecvInfo) and info.buffer is not None and not info.is_root_arg
        ]

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Receives of a microbatch's inputs, into the buffers of ``args_recv_info``."""
        return self._recv_ops(self.args_recv_info.get(fwd_chunk_id, ()))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Receives of the gradients of a microbatch's outputs, into those of ``grad_recv_info``."""
        if not self.has_backward or self.is_last:
            return []
        return self._recv_ops(self.grad_recv_info.get(bwd_chunk_id, ()))

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Sends of a microbatch's outputs, from ``fwd_cache``."""
        outputs = self.fwd_cache[fwd_chunk_id][0]
        ops = []
        for index, output in enumerate(outputs):
            for stage in self.act_send_info.get(index, []):
                if stage is not None:
                    ops.append(dist.P2POp(dist.isend, output, self._peer(stage), self.group))
        return ops

    def release_fwd_send_outputs(self, fwd_chunk_id: int) -> None:
        """Releases the outputs of a microbatch that were sent. Its backward needs only the graph."""
        if not self.is_last and fwd_chunk_id in self.fwd_cache:
            self.fwd_cache[fwd_chunk_id] = ((), self.fwd_cache[fwd_chunk_id][1])

    def _grad_meta(self, index: int) -> Any:
        metas = self._stage_meta.input_grads
        if metas is None or index >= len(metas):
            return None
        return metas[index]

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Sends of the gradients of a microbatch's inputs, from ``bwd_cache``."""
        if not self.has_backward or self.is_first:
            return []
        grads = self.bwd_cache.pop(bwd_chunk_id)
        infos = self.grad_send_info
        if infos is None:
            infos = [self.stage_index - 1] * len(grads)
        ops = []
        for index, (grad, stage) in enumerate(zip(grads, infos, strict=True)):
            if stage is None:
                if isinstance(grad, torch.Tensor):
                    raise RuntimeError(
                        f"stage {self.stage_index} has a gradient for input {index}, which no stage gave"
                    )
                continue
            meta = self._grad_meta(index)
            if meta is None:
                if isinstance(grad, torch.Tensor):
                    raise PipeliningMetadataError(
                        f"stage {self.stage_index}: input {index} has a gradient but no metadata for it: "
                        "DTensor grad metadata cannot be derived from the forward's; pass input_grads"
                    )
                continue
            if grad is None:
                grad = torch.zeros(meta.shape, dtype=meta.dtype, device=self.device)
            ops.append(dist.P2POp(dist.isend, grad, self._peer(stage), self.group))
        return ops
