"""Pipeline parallelism on a C++ library: the API of torch.distributed.pipelining, and more.

A program that says ``from torch.distributed.pipelining import ...`` runs on this library when the
line says ``from stagecraft import ...``. Schedules are also values that can be built, verified,
simulated and drawn, which needs no torch: ``stagecraft.Schedule``, ``stagecraft.compare``.

Names are found when they are first used, so that ``import stagecraft`` loads neither torch nor the
C++ library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stagecraft import _check

__version__ = _check.VERSION

# The names of each module.
_MODULES = {
    "_IR": ["Exported", "Pipe", "SplitPoint", "load_exported", "pipe_split", "pipeline"],
    "pipelines": [
        "Pipeline",
        "Ports",
        "StagePlace",
        "StepResult",
        "add_loss",
        "current_stage",
        "verify_against_reference",
    ],
    "planning": ["Plan", "plan"],
    "reports": ["MemoryEstimate", "RankMemory", "RankReport", "Report", "StageTimes"],
    "train": ["Trainer"],
    "values": ["allow_pickle"],
    "world": ["World"],
    "stage": ["PipelineStage", "PipelineStageInfo", "build_stage"],
    "schedules": [
        "PipelineActivationLiveness",
        "Schedule1F1B",
        "ScheduleDualPipeV",
        "ScheduleGPipe",
        "ScheduleInterleaved1F1B",
        "ScheduleInterleavedZeroBubble",
        "ScheduleLoopedBFS",
        "ScheduleZBVZeroBubble",
        "analyze_pipeline_activation_liveness",
        "get_schedule_class",
    ],
    "data": ["Comparison", "Costs", "Schedule", "Simulation", "compare", "schedule_names"],
    "errors": [
        "ArgumentError",
        "Error",
        "FileError",
        "GraphError",
        "MetadataError",
        "ParseError",
        "PeerError",
        "ScheduleError",
        "StageError",
        "TimeoutError",
    ],
    "replace": ["replace_upstream"],
}
# Names of the root that `import *` leaves out.
_HIDDEN = {"_ScheduleForwardOnly": "schedules"}
_SUBMODULES = {"microbatch", "schedules", "stage", "data", "errors"}

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names} | _HIDDEN
__all__ = sorted(name for names in _MODULES.values() for name in names)


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})


if TYPE_CHECKING:
    from stagecraft._IR import Exported as Exported
    from stagecraft._IR import Pipe as Pipe
    from stagecraft._IR import SplitPoint as SplitPoint
    from stagecraft._IR import load_exported as load_exported
    from stagecraft._IR import pipe_split as pipe_split
    from stagecraft._IR import pipeline as pipeline
    from stagecraft.data import Comparison as Comparison
    from stagecraft.data import Costs as Costs
    from stagecraft.data import Schedule as Schedule
    from stagecraft.data import Simulation as Simulation
    from stagecraft.data import compare as compare
    from stagecraft.data import schedule_names as schedule_names
    from stagecraft.errors import ArgumentError as ArgumentError
    from stagecraft.errors import Error as Error
    from stagecraft.errors import FileError as FileError
    from stagecraft.errors import GraphError as GraphError
    from stagecraft.errors import MetadataError as MetadataError
    from stagecraft.errors import ParseError as ParseError
    from stagecraft.errors import PeerError as PeerError
    from stagecraft.errors import ScheduleError as ScheduleError
    from stagecraft.errors import StageError as StageError
    from stagecraft.errors import TimeoutError as TimeoutError
    from stagecraft.pipelines import Pipeline as Pipeline
    from stagecraft.pipelines import Ports as Ports
    from stagecraft.pipelines import StagePlace as StagePlace
    from stagecraft.pipelines import StepResult as StepResult
    from stagecraft.pipelines import add_loss as add_loss
    from stagecraft.pipelines import current_stage as current_stage
    from stagecraft.pipelines import verify_against_reference as verify_against_reference
    from stagecraft.planning import Plan as Plan
    from stagecraft.planning import plan as plan
    from stagecraft.replace import replace_upstream as replace_upstream
    from stagecraft.reports import MemoryEstimate as MemoryEstimate
    from stagecraft.reports import RankMemory as RankMemory
    from stagecraft.reports import RankReport as RankReport
    from stagecraft.reports import Report as Report
    from stagecraft.reports import StageTimes as StageTimes
    from stagecraft.schedules import PipelineActivationLiveness as PipelineActivationLiveness
    from stagecraft.schedules import Schedule1F1B as Schedule1F1B
    from stagecraft.schedules import ScheduleDualPipeV as ScheduleDualPipeV
    from stagecraft.schedules import ScheduleGPipe as ScheduleGPipe
    from stagecraft.schedules import ScheduleInterleaved1F1B as ScheduleInterleaved1F1B
    from stagecraft.schedules import ScheduleInterleavedZeroBubble as ScheduleInterleavedZeroBubble
    from stagecraft.schedules import ScheduleLoopedBFS as ScheduleLoopedBFS
    from stagecraft.schedules import ScheduleZBVZeroBubble as ScheduleZBVZeroBubble
    from stagecraft.schedules import _ScheduleForwardOnly as _ScheduleForwardOnly
    from stagecraft.schedules import (
        analyze_pipeline_activation_liveness as analyze_pipeline_activation_liveness,
    )
    from stagecraft.schedules import get_schedule_class as get_schedule_class
    from stagecraft.stage import PipelineStage as PipelineStage
    from stagecraft.stage import PipelineStageInfo as PipelineStageInfo
    from stagecraft.stage import build_stage as build_stage
    from stagecraft.train import Trainer as Trainer
    from stagecraft.values import allow_pickle as allow_pickle
    from stagecraft.world import World as World
