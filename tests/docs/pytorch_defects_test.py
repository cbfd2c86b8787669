"""The table of torch's known defects in docs/coming_from_pytorch.md says what the installed torch does.

    pytorch_defects_test.py ROOT    with a Python that has torch 2.13 or 2.15

Every row of the table is run, most of them in two gloo processes, and the outcome must be the text in the column of this
version.
"""

import pathlib
import sys
import unittest

import pytorch_defects as defects
import torch
from pytorch_defects import schedules

ROOT = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "coming_from_pytorch.md").read_text()
VERSION = ".".join(torch.__version__.split(".")[:2])

# By the first cell of the row.
CASES = {
    "`eval` between backward and optimizer step, GPipe, 4 microbatches": lambda: defects.eval_scales(schedules.ScheduleGPipe),
    "the same, Interleaved1F1B": lambda: defects.eval_scales(schedules.ScheduleInterleaved1F1B),
    "two equal steps without `zero_grad`, 4 microbatches": defects.accumulation,
    "batch norm, the first step of 4 microbatches": defects.batch_norm,
    "`step`, `eval`, `step`, 4 microbatches each": defects.mode_switches,
    "`eval` with ZBV": defects.eval_of_zbv,
    "forward only, 10 rows in 4 microbatches": lambda: defects.forward_only(10),
    "forward only, 8 rows and then 4": lambda: defects.forward_only(8, 4),
    "forward only, 8 rows and then 16": lambda: defects.forward_only(8, 16),
    "`defer_pp_recv`, ZBV, 2 ranks, 3 microbatches": defects.deferred_receives,
    "a schedule that computes microbatch 1 before 0": defects.order_of_losses,
    "an activation that is not contiguous": defects.transposed,
    "a dict as the output of the last stage": defects.dict_output,
    "`input_args` and `output_args` that do not require grad": defects.static_examples,
    "1F1B, 1 microbatch, 2 stages": defects.too_few_microbatches,
    "a rank raises: the other rank": defects.peer_fails,
    "two ranks raise, one with a send that is not received": defects.untaken_send,
    "a rank raises and steps again with a second batch, the other rank is in its first step": defects.early_retry,
    "the word `1WAIT_SEND_X0` in a file": defects.unknown_word,
}


def table():
    """Rows of the table by their first cell: {column: text}."""
    lines = PAGE.split("\n## Known defects\n")[1].split("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]
    header, rows = rows[0], rows[2:]
    return {row[0]: dict(zip(header[1:], row[1:])) for row in rows}


class Defects(unittest.TestCase):
    def test_every_row_is_run(self):
        self.assertGreaterEqual(len(CASES), 8)
        self.assertEqual(sorted(table()), sorted(CASES))

    def test_outcomes(self):
        for name, case in CASES.items():
            with self.subTest(name):
                self.assertEqual(case(), table()[name][f"torch {VERSION}"])


if __name__ == "__main__":
    if VERSION not in ("2.13", "2.15"):
        print(f"expected torch 2.13 or 2.15, got torch {torch.__version__}: the table has no column for it")
        sys.exit(77)
    unittest.main()
