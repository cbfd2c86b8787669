"""A context around each forward of a stage."""

import contextlib

import pytest
import torch

from stagecraft import PipelineStage, PipelineStageInfo, ScheduleGPipe, StageError


def _stage(module=None):
    return PipelineStage(module or torch.nn.Linear(2, 2), 0, 1, torch.device("cpu"))


def test_every_forward_has_its_context():
    seen = []

    @contextlib.contextmanager
    def context(info):
        seen.append(("enter", info))
        yield
        seen.append(("exit", info))

    stage = _stage()
    schedule = ScheduleGPipe(stage, 2)
    handle = stage.register_forward_context(context)
    with pytest.raises(RuntimeError, match="already"):
        stage.register_forward_context(context)
    schedule.step(torch.ones(4, 2))
    infos = [PipelineStageInfo(stage_index=0, microbatch_index=m) for m in range(2)]
    assert seen == [(what, info) for info in infos for what in ("enter", "exit")]
    handle.remove()
    handle.remove()
    schedule.step(torch.ones(4, 2))
    assert len(seen) == 4


def test_a_context_that_swallows_is_told():
    class Failing(torch.nn.Module):
        def forward(self, x):
            raise ValueError("no")

    stage = _stage(Failing())
    stage.register_forward_context(lambda info: contextlib.suppress(ValueError))
    with pytest.raises(StageError, match="swallowed"):
        ScheduleGPipe(stage, 2).step(torch.ones(4, 2))
