"""Runs all stages of a package from Python, one after the other on one thread: for tests and benchmarks."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from . import private
from .package import extract_member, read_description
from .pipe_file import PipeFile
from .runner import StageRunner

__all__ = ["Chain", "load_chain"]


class Chain:
    """`load` returns a program by stage and name. `tensors` has the tensors of the stages by name; the caller may
    change them in place."""

    def __init__(
        self, pipe: PipeFile, stages: Sequence[Mapping[str, Any]], load: Callable[[int, str], Any], device: str
    ) -> None:
        self.sources = pipe.sources
        self.stages = stages
        self.runners: list[StageRunner] = []
        self.tensors: list[dict[str, torch.Tensor]] = []
        for number, stage in enumerate(stages):
            tensors = {name: pipe.tensor(info).to(device) for name, info in pipe.stage_states(number).items()}
            runner = StageRunner(stage, functools.partial(load, number), device)
            runner.set_states(
                {i: tensors[name] for i, name in enumerate(stage["parameters"])},
                {i: tensors[name] for i, name in enumerate(stage["buffers"])},
            )
            self.tensors.append(tensors)
            self.runners.append(runner)

    def forward(self, args: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> list[dict[int, torch.Tensor]]:
        """The outputs of every stage. `args` has the model's positional arguments, which are
        tensors."""
        made: list[dict[int, torch.Tensor]] = []
        for stage, runner in enumerate(self.runners):
            inputs = {
                number: args[source[1]] if source[0] == "argument" else made[source[1]][source[2]]
                for number, source in enumerate(self.sources[stage])
            }
            made.append(runner.forward(inputs, sizes))
        return made

    def backward(self, made: list[dict[int, torch.Tensor]], halves: bool) -> None:
        """Adds the gradients of parameters to those of the runners. The gradient of every output of the last stage is
        1."""
        last = len(self.runners) - 1
        sums = {(last, i): torch.ones_like(made[last][i]) for i in self.stages[last]["output_grads"]}
        late = []
        for stage in reversed(range(last + 1)):
            described, runner = self.stages[stage], self.runners[stage]
            if "backward" not in described["programs"]:
                continue
            given = {}
            for i in described["output_grads"]:
                found = sums.pop((stage, i), None)
                given[i] = torch.zeros_like(made[stage][i]) if found is None else found
            if halves and "input_backward" in described["programs"]:
                grads = runner.input_backward(given)
                late.append(runner)
            else:
                grads = runner.backward(given)
            for number, grad in grads.items():
                source = self.sources[stage][number]
                if source[0] == "output":
                    key = (source[1], source[2])
                    sums[key] = sums[key] + grad if key in sums else grad
        for runner in late:
            runner.weight_backward()

    def step(self, args: Sequence[torch.Tensor], halves: bool, sizes: Mapping[str, int]) -> dict[int, torch.Tensor]:
        """Runs forward and backward with new gradients. Returns the outputs of the last stage."""
        with torch.no_grad():
            for runner in self.runners:
                runner.grads.clear()
            made = self.forward(args, sizes)
            self.backward(made, halves)
        return made[-1]

    def grads(self) -> dict[str, torch.Tensor]:
        """The gradients of parameters by name. Gradients of copies of a tied weight are added."""
        result: dict[str, torch.Tensor] = {}
        for stage, runner in zip(self.stages, self.runners, strict=True):
            for index, grad in runner.grads.items():
                name = stage["parameters"][index]
                result[name] = result[name] + grad if name in result else grad
        return result


def load_chain(package: Path, device: str) -> Chain:
    """The stages of a package."""
    stages = read_description(package)["stages"]
    # The loader of a program unpacks it, so the files are not needed afterwards.
    with tempfile.TemporaryDirectory(prefix="stagecraft-chain-") as folder:
        pipe = PipeFile(extract_member(package, "pipe", Path(folder) / "pipe"))

        def load(stage: int, name: str) -> Any:
            member = stages[stage]["code"]
            path = Path(folder) / member.replace("/", "-")
            if not path.exists():
                extract_member(package, member, path)
            return private.load_program(path, name)

        chain = Chain(pipe, stages, load, device)
        pipe.close()
    return chain
