"""A custom function for the overlapped forwards and backwards of DualPipeV.

    python examples/python/overlap.py
"""

import stagecraft as sc
import torch
from stagecraft.schedules import FORWARD, OVERLAP_F_B


def main() -> None:
    blocks = [torch.nn.Linear(8, 8) for _ in range(2)]
    stages = [sc.PipelineStage(block, i, 2, torch.device("cpu")) for i, block in enumerate(blocks)]
    schedule = sc.ScheduleDualPipeV(stages, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    seen = []

    def overlap(action: object, ctx: object) -> None:
        """Runs both parts one after the other. A real function would interleave their kernels, or
        use two threads."""
        seen.append(str(action))
        stage_of = {stage.stage_index: stage for stage in stages}
        for part in action.sub_actions:
            stage, m = stage_of[part.stage_index], part.microbatch_index
            if part.computation_type is FORWARD:
                output = stage.forward_one_chunk(m, ctx.arg_mbs[m], ctx.kwarg_mbs[m])
                schedule._maybe_compute_loss(stage, output, ctx.target_mbs, m)
            else:
                full = part.computation_type.value == "B"
                stage.backward_one_chunk(m, loss=schedule._maybe_get_loss(stage, m), full_backward=full)

    schedule.register_custom_function(OVERLAP_F_B, overlap)
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    losses: list[torch.Tensor] = []
    schedule.step(x, target=y, losses=losses)
    print(f"loss {torch.stack(losses).mean():.4f}, overlaps: {', '.join(seen)}")


if __name__ == "__main__":
    main()
