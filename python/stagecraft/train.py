"""Training of a pipeline in one process: step, clip, optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn as nn

from stagecraft.pipelines import Pipeline, StepResult

__all__ = ["Trainer"]


class Trainer:
    """Trains a split model, modules or a Pipeline. Ranks are threads of this process.

    Args:
        model: a `Pipe`, the modules of the stages, or a `Pipeline`.
        loss_fn: a function of output and target.
        schedule, ranks: as for `Pipeline`.
        microbatches: the number of microbatches of a batch; by default twice the number of stages.
        optimizer: makes the optimizer from the parameters; by default AdamW with a rate of 1e-3.
        clip: the greatest norm of all gradients together; None: not clipped.
        options: further options of the `Pipeline`.
    """

    def __init__(
        self,
        model: Any,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        schedule: Any = "1F1B",
        ranks: int | None = None,
        *,
        microbatches: int | None = None,
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
        clip: float | None = None,
        **options: Any,
    ) -> None:
        self.pipeline = model if isinstance(model, Pipeline) else Pipeline(
            model, schedule, ranks, loss_fn=loss_fn, **options)
        self.microbatches = microbatches or 2 * self.pipeline.num_stages
        parameters = [p for p in self.pipeline.parameters() if p.requires_grad]
        self.optimizer = optimizer(parameters) if optimizer else torch.optim.AdamW(parameters, lr=1e-3)
        self.clip = clip
        self.steps = 0

    def step(self, *args: Any, target: Any = None, **kwargs: Any) -> StepResult:
        """One step of the optimizer on a batch. A batch with fewer rows than microbatches is split into its
        rows."""
        rows = [a.shape[0] for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor) and a.dim() > 0]
        count = min([self.microbatches, *rows])
        self.optimizer.zero_grad()
        result = self.pipeline.step(*args, target=target, microbatches=count, **kwargs)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.pipeline.parameters(), self.clip)
        self.optimizer.step()
        self.steps += 1
        return result

    def eval(self, *args: Any, target: Any = None, **kwargs: Any) -> StepResult:
        """The forwards of a batch, without gradients."""
        return self.pipeline.eval(*args, target=target, microbatches=1, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer and number of steps."""
        return {
            "stages": [module.state_dict() for module in self.pipeline.modules],
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state that `state_dict` returned."""
        for module, values in zip(self.pipeline.modules, state["stages"], strict=True):
            module.load_state_dict(values)
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]

    def __repr__(self) -> str:
        return f"<Trainer of {self.pipeline!r}, {self.steps} steps>"
