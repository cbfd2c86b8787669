"""Stages of a pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn

from stagecraft._optional import is_dtensor
from stagecraft._stage_base import _EngineStage
from stagecraft._stage_base import _normalize_model_output_as_tuple as _normalize_model_output_as_tuple
from stagecraft._stage_base import _PipelineStageBase as _PipelineStageBase
from stagecraft._stage_call import PipelineStageInfo as PipelineStageInfo
from stagecraft._stage_call import _StageCall as _StageCall
from stagecraft._stage_transfers import _RecvInfo as _RecvInfo
from stagecraft._stage_transfers import _RootArgPlaceholder as _RootArgPlaceholder
from stagecraft._utils import (
    PipeInfo,
    _MeshCache,
    extract_tensor_meta,
    extract_tensor_metas,
    validate_and_normalize_to_tuple,
    validate_static_arg_grad_correspondence,
)
from stagecraft.errors import PipeliningMetadataError
from stagecraft.world import World

__all__ = ["PipelineStage", "PipelineStageInfo", "build_stage"]


class PipelineStage(_EngineStage):
    """A stage that runs a module.

    Args:
        submodule: the module. ``stage.submod`` may be assigned at any time.
        stage_index: the number of the stage, from 0.
        num_stages: the number of stages of the pipeline.
        device: the device on which the stage computes.
        input_args, output_args, output_grads, input_grads: examples, which are only compared with
            the values of a step if ``_runtime_validate`` is set. Shapes need not be known: they are
            sent with the values, and may differ from microbatch to microbatch.
        group: the process group of the pipeline's ranks, or a World; None: the default group.
        dw_builder: returns the function that computes weight gradients outside autograd.
        get_mesh: returns the device mesh of that name and layout, for DTensors.
    """

    def __init__(
        self,
        submodule: nn.Module,
        stage_index: int,
        num_stages: int,
        device: torch.device,
        input_args: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
        output_args: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
        output_grads: torch.Tensor | tuple[torch.Tensor | None, ...] | None = None,
        input_grads: torch.Tensor | tuple[torch.Tensor | None, ...] | None = None,
        group: dist.ProcessGroup | World | None = None,
        dw_builder: Callable[[], Callable[..., None]] | None = None,
        get_mesh: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(submodule, stage_index, num_stages, device, group, dw_builder)
        self.get_mesh = get_mesh
        self.inputs: list[torch.Tensor] | None = None
        self.inputs_meta: Any = None
        self._outputs_meta: Any = None
        arguments = _examples("input_args", input_args, stage_index)
        outputs = _examples("output_args", output_args, stage_index)
        gradients = _examples("output_grads", output_grads, stage_index, allow_none=True)
        given = _examples("input_grads", input_grads, stage_index, allow_none=True)
        known = self._user_meta
        examples = [*(arguments or ()), *(outputs or ()), *(gradients or ()), *(given or ())]
        has_dtensors = any(is_dtensor(each) for each in examples if each is not None)
        if arguments is not None:
            if given is not None and has_dtensors:
                validate_static_arg_grad_correspondence(stage_index, arguments, given, is_input=True)
            known.inputs = self.inputs_meta = tuple(map(extract_tensor_meta, arguments))
        if outputs is not None:
            if gradients is not None and has_dtensors:
                validate_static_arg_grad_correspondence(stage_index, outputs, gradients, is_input=False)
            known.outputs = self._outputs_meta = tuple(map(extract_tensor_meta, outputs))
        if gradients is not None:
            known.output_grads = extract_tensor_metas(gradients, allow_none=True)
        if given is not None:
            known.input_grads = extract_tensor_metas(given, allow_none=True)
        self._stage_meta = dataclasses.replace(known)
        self._mesh_cache = _MeshCache(get_mesh)
        if has_dtensors or get_mesh is not None:
            from stagecraft import _dtensor

            self._mesh_cache.update_from_tensors(tuple(each for each in examples if each is not None))
            for each in examples:
                if each is not None and is_dtensor(each):
                    _dtensor.meshes.add(each.device_mesh)
            if get_mesh is not None:
                _dtensor.meshes.add_source(get_mesh)


def _examples(name: str, given: Any, stage_index: int, allow_none: bool = False) -> Any:
    if given is None:
        return None
    items = given if isinstance(given, (tuple, list)) else (given,)
    for item in items:
        if isinstance(item, torch.Tensor) or (item is None and allow_none):
            continue
        raise PipeliningMetadataError(
            f"stage {stage_index}: {name} must be tensors, got {type(item).__name__}"
        )
    return validate_and_normalize_to_tuple(given, allow_none=allow_none)


class _PipelineStage(_EngineStage):
    """A stage of a traced model (`Pipe.build_stage`)."""

    def __init__(
        self,
        stage_module: nn.Module,
        stage_index: int,
        pipe_info: PipeInfo,
        device: torch.device,
        group: dist.ProcessGroup | World | None = None,
    ) -> None:
        super().__init__(stage_module, stage_index, pipe_info.num_stages, device, group)
        self.pipe_info = pipe_info
        if self.device.type != "meta":
            stage_module.to(self.device)


def build_stage(
    stage_module: nn.Module,
    stage_index: int,
    pipe_info: PipeInfo,
    device: torch.device,
    group: dist.ProcessGroup | World | None = None,
) -> _PipelineStage:
    """A stage of a traced model, from its module and `Pipe.info()`."""
    return _PipelineStage(stage_module, stage_index, pipe_info, device, group)
