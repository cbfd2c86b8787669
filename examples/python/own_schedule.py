"""A schedule as a CSV file: builds one, prints it, changes it, runs it.

    python examples/python/own_schedule.py
"""

import tempfile
from pathlib import Path

import stagecraft as sc
import torch


def main() -> None:
    schedule = sc.Schedule.build("1F1B", ranks=2, microbatches=4)
    print(schedule)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.csv"
        schedule.to_csv(path)
        # Each line has the compute actions of a rank in order. Rank 1 splits its first backward in
        # two.
        text = path.read_text().replace("1B0", "1I0,1W0", 1)
        path.write_text(text)
        mine = sc.Schedule.read(path)
    mine.check()

    blocks = [torch.nn.Linear(8, 8) for _ in range(2)]
    pipe = sc.Pipeline(blocks, schedule=mine, loss_fn=torch.nn.functional.mse_loss)
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    sc.verify_against_reference(pipe, x, target=y, microbatches=4)
    print(f"loss {pipe.step(x, target=y, microbatches=4).loss:.4f}")
    print(pipe.report())


if __name__ == "__main__":
    main()
