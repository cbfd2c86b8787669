"""A pipeline in one process: ranks are threads, so no launcher is needed.

    python examples/python/one_process.py
"""

import stagecraft as sc
import torch


class Bottom(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.embed(x)
        return h.tanh(), h


class Top(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(8, 8)

    def forward(self, h: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return self.head(h + skip)


def main() -> None:
    torch.manual_seed(0)
    stages = [Bottom(), torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()), Top()]
    pipe = sc.Pipeline(stages, schedule="1F1B", ranks=3, loss_fn=torch.nn.functional.mse_loss,
                       # The second output of stage 0 skips stage 1.
                       ports=sc.Ports(3).connect(output=(0, 1), input=(2, 1)), recompute=[1])
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    sc.verify_against_reference(pipe, x, target=y)
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        result = pipe.step(x, target=y, microbatches=3)  # of 3, 3 and 2 rows
        optimizer.step()
        print(f"step {step}: loss {result.loss:.4f}")
    print(pipe.report())


if __name__ == "__main__":
    main()
