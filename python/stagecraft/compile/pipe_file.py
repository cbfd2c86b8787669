"""Reads a pipe file (stagecraft/partition/pipe_file.h): the graphs of its stages, their connections, and its
tensors."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

import torch

from .errors import CompileError
from .graph_text import Graph, dtype_of, parse_graph

__all__ = ["PipeFile", "TensorInfo"]

_FORMAT = "stagecraft archive 1"


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """A tensor of the file, without its elements."""

    number: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool


class PipeFile:
    """An open pipe file. `sources[stage][argument]`: ("argument", i) or ("output", stage, output)."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.exists():
            raise CompileError(f"{path}: there is no such file")
        try:
            self._zip = zipfile.ZipFile(self.path)
            names = self._zip.namelist()
            self._folder = names[0].split("/", 1)[0]
        except (zipfile.BadZipFile, IndexError, OSError) as error:
            raise CompileError(f"{path}: it is damaged or not an archive ({error})") from None
        if f"{self._folder}/format" not in names:
            raise CompileError(f"{path}: it is an archive, but was not written by Stagecraft")
        found = self.text("format")
        if found != _FORMAT:
            raise CompileError(f"{path}: expected {_FORMAT!r}, got {found!r}")
        self.has_pipe = f"{self._folder}/pipe" in names
        if not self.has_pipe:
            raise CompileError(f"{path}: it does not contain a pipe")
        plan = self._json("pipe")
        self.sources: list[list[tuple[Any, ...]]] = [
            [
                ("argument", source["argument"]) if "argument" in source else ("output", source["stage"], source["output"])
                for source in stage["sources"]
            ]
            for stage in plan["stages"]
        ]
        self.tensors = [self._info(i, entry) for i, entry in enumerate(self._json("tensors/index"))]

    @property
    def num_stages(self) -> int:
        return len(self.sources)

    def text(self, record: str) -> str:
        try:
            data = self._zip.read(f"{self._folder}/{record}")
        except (KeyError, zipfile.BadZipFile, OSError):
            raise CompileError(f"{self.path}: {record} is missing or damaged") from None
        # The checksum comes first.
        if len(data) < 17 or data[16:17] != b"\n" or int(data[:16], 16) != checksum(data[17:]):
            raise CompileError(f"{self.path}: {record} is damaged")
        return data[17:].decode()

    def _json(self, record: str) -> Any:
        try:
            return json.loads(self.text(record))
        except ValueError:
            raise CompileError(f"{self.path}: {record} is damaged") from None

    def _info(self, number: int, entry: dict[str, Any]) -> TensorInfo:
        dtype = dtype_of(entry["dtype"])
        if dtype is None:
            raise CompileError(f"{self.path}: tensors/{number} has an unknown dtype")
        return TensorInfo(number, dtype, tuple(entry["sizes"]), tuple(entry["strides"]), entry["requires_grad"])

    def stage_text(self, stage: int) -> str:
        return self.text(f"stages/{stage}/graph")

    def stage_graph(self, stage: int) -> Graph:
        return parse_graph(self.stage_text(stage), f"{self.path}, stage {stage}")

    def stage_states(self, stage: int) -> dict[str, TensorInfo]:
        """The tensors of a stage by the names of its states."""
        return {name: self.tensors[number] for name, number in self._json(f"stages/{stage}/states").items()}

    def tensor(self, info: TensorInfo) -> torch.Tensor:
        """The tensor with its elements, on the CPU."""
        data = bytearray(self._zip.read(f"{self._folder}/tensors/{info.number}"))
        result = torch.empty_strided(info.sizes, info.strides, dtype=info.dtype)
        if data:
            flat = torch.frombuffer(data, dtype=info.dtype)
            torch.as_strided(result, (flat.numel(),), (1,)).copy_(flat)
        return result

    def close(self) -> None:
        self._zip.close()


def checksum(data: bytes) -> int:
    """The checksum of stagecraft/base/checksum.h."""
    mask = (1 << 64) - 1

    def mix(state: int, word: int) -> int:
        state = ((state ^ word) * 0x9E3779B97F4A7C15) & mask
        return state ^ (state >> 32)

    size = len(data)
    blocks = size // 32
    lanes = [0, 1, 2, 3]
    words = memoryview(data[: blocks * 32]).cast("Q") if blocks else []
    for lane in range(4):
        state = lanes[lane]
        for word in words[lane::4]:
            state ^= word
            state = (state * 0x9E3779B97F4A7C15) & mask
            state ^= state >> 32
        lanes[lane] = state
    total = mix(0, size)
    for state in lanes:
        total = mix(total, state)
    at = blocks * 32
    while size - at >= 8:
        total = mix(total, int.from_bytes(data[at : at + 8], "little"))
        at += 8
    if at < size:
        total = mix(total, int.from_bytes(data[at:], "little"))
    return total
