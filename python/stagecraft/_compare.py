"""Comparisons before a step: for stages that Stagecraft does not run, and for
`_runtime_validate`."""

from __future__ import annotations

from typing import Any

import torch

from stagecraft._stage_call import tensor_metas
from stagecraft.errors import PipeliningMetadataError

__all__: list[str] = []


def run_stand_ins(schedule: Any, stages: Any, arg_mbs: Any, kwarg_mbs: Any) -> None:
    """Makes the checks that torch makes before a step of stages of a different class. Runs
    nothing."""
    args = arg_mbs[0] if arg_mbs else ()
    kwargs = kwarg_mbs[0] if kwarg_mbs else {}
    for stage in stages:
        stage._prepare_forward_infra(schedule._n_microbatches, args, kwargs, has_backward=schedule._has_backward)
    check_adjacent(schedule)
    order = schedule.pipeline_order
    if any(action is not None for actions in order.values() for action in actions):
        names = ", ".join(sorted({type(stage).__name__ for stage in stages}))
        raise TypeError(
            f"stages of {names} cannot be run: they override _prepare_forward_infra and have no module "
            "that Stagecraft could call; use PipelineStage"
        )


def check_adjacent(schedule: Any) -> None:
    """RuntimeError if the transfers of a stand-in name a stage that is not its neighbour."""
    for stage in schedule._local_stages():
        index = stage.stage_index
        sources = {
            info.source
            for info in getattr(stage, "args_recv_info", {}).get(0, ())
            if getattr(info, "source", None) is not None and not getattr(info, "is_root_arg", False)
        }
        targets = {
            to for group in getattr(stage, "act_send_info", {}).values() for to in group if to is not None
        }
        for what, found, allowed in (("reads", sources, index - 1), ("sends to", targets, index + 1)):
            if found - {allowed}:
                raise RuntimeError(
                    f"stage {index} {what} stages {sorted(found)}, but stages of this class have "
                    f"adjacent-stage communication only: stage {allowed} was expected. Stages that are "
                    "PipelineStages may have skip edges"
                )


# For `_runtime_validate`. The rank of stage 0 compares before it communicates with other ranks.


def _output_metas(stage: Any, args: Any, kwargs: Any) -> Any:
    """The metadata of the module's output for a microbatch. The module and all random numbers are
    unchanged afterwards."""
    module = stage.submod
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    with torch.no_grad(), torch.random.fork_rng():
        output = module(*args, **kwargs)
        for buffer, before in buffers:
            buffer.copy_(before)
    return tensor_metas(output)


def _compare(what: str, expected: Any, actual: Any) -> None:
    if len(expected) != len(actual):
        raise PipeliningMetadataError(f"{what}: expected {len(expected)} tensors, got {len(actual)}")
    for index, (before, now) in enumerate(zip(expected, actual)):
        if type(before) is not type(now):
            raise PipeliningMetadataError(f"{what} {index}: expected {before}, got {now}")
        difference = before.get_diff(now)
        if difference:
            raise PipeliningMetadataError(f"{what} {index}: " + "; ".join(difference))


def validate_first(stage: Any, arg_mbs: Any, kwarg_mbs: Any) -> None:
    """Compares inputs and outputs of stage 0 with those of the first step, or with the examples."""
    inputs, outputs = stage._stage_meta.inputs, stage._stage_meta.outputs
    if inputs is None:
        return
    for args in arg_mbs or ():
        _compare(f"input of stage {stage.stage_index}", inputs, tensor_metas(args))
    if outputs is not None and arg_mbs:
        kwargs = kwarg_mbs[0] if kwarg_mbs else {}
        actual = _output_metas(stage, arg_mbs[0], kwargs)
        _compare(f"output of stage {stage.stage_index}", outputs, actual)
