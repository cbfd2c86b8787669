#!/usr/bin/env python3
"""`stagecraft train --model NAME.scp` as a user runs it.

    train_compiled_test.py STAGECRAFT PACKAGES [unittest options]

PACKAGES is the folder that make_packages.py has written.
"""

import json
import pathlib
import sys

import torch

import tool_support
from tool_support import ToolTest

packages = None

LOOPED = ["--schedule", "Interleaved1F1B", "--ranks"]
SMALL = ["--batch", "8", "--microbatches", "4", "--eval-every", "0", "--sample", "0", "--data", "examples.pt"]


class CompiledTest(ToolTest):
    def setUp(self):
        super().setUp()
        torch.manual_seed(5)
        ids = torch.randint(0, 17, (64, 8))
        torch.save({"ids": ids, "targets": ids.roll(-1, 1)}, self.folder / "examples.pt")

    def curve(self, model, *arguments, steps=4):
        lines = self.good("train", "--json", "--model", packages / model, *SMALL, "--steps", steps, *arguments).splitlines()
        return [(line["loss"], line["grad_norm"]) for line in map(json.loads, lines) if "grad_norm" in line]

    def test_trains_like_the_exported_model(self):
        compiled = self.curve("gpt.scp", *LOOPED, "2")
        exported = self.curve("gpt.pt2", *LOOPED, "2", "--split", "blocks.0,blocks.1,norm")
        self.assertEqual(len(compiled), 4)
        for own, expected in zip(compiled, exported):
            self.assertAlmostEqual(own[0], expected[0], places=4)
            self.assertAlmostEqual(own[1], expected[1], places=3)

    def test_has_the_same_bits_on_any_number_of_ranks(self):
        curves = [self.curve("gpt.scp", "--ranks", "4")]
        curves += [self.curve("gpt.scp", *LOOPED, ranks) for ranks in ("1", "2")]
        self.assertEqual(curves[0], curves[1])
        self.assertEqual(curves[0], curves[2])

    def test_resumes_with_the_same_bits(self):
        whole = self.curve("gpt.scp", "--ranks", "2", "--schedule", "ZBVZeroBubble")
        first = self.curve("gpt.scp", "--ranks", "2", "--schedule", "ZBVZeroBubble", "--checkpoint", "run",
                           "--save-every", "2", "--keep", "0")
        self.assertEqual(first, whole)
        steps = sorted(path for path in (self.folder / "run").iterdir() if path.is_dir())
        lines = self.good("train", "--json", "--resume", steps[0], "--checkpoint", "again").splitlines()
        rest = [(line["loss"], line["grad_norm"]) for line in map(json.loads, lines) if "grad_norm" in line]
        self.assertEqual(rest, whole[2:])

    def test_evaluates(self):
        lines = self.good("train", "--json", "--model", packages / "gpt.scp", *SMALL[:4], "--data", "examples.pt", "--sample", "0",
                          "--steps", "4", "--eval-every", "2", *LOOPED, "2").splitlines()
        self.assertTrue(any("eval_loss" in line for line in lines), lines)

    def test_refuses_what_contradicts_the_package(self):
        run = ["train", "--model", packages / "gpt.scp", *SMALL]
        self.bad(2, *run, "--split", "blocks.1", says="--split")
        self.bad(2, *run, "--stages", "2", says="4 stages")
        self.bad(2, *run, "--ranks", "3", says="the package has 4 stages, which do not fit --ranks 3 with --schedule 1F1B; pass --ranks 4")
        self.bad(2, *run, says="the package has 4 stages, which do not fit --ranks 2 with --schedule 1F1B; "
                               "pass --ranks 4 or --schedule LoopedBFS, ")
        self.bad(2, *run[:3], "--batch", "400", *SMALL[2:], "--ranks", "4",
                 says="100 rows each, but the package was compiled for 1 to 64; for other sizes, export the model")
        self.bad(2, *run, "--bf16", says="--bf16")
        self.bad(2, *run, "--plan", "auto", says="--plan auto")
        self.bad(2, "train", "--model", packages / "half.scp", *SMALL, "--ranks", "1", says="half.scp")
        whole = (packages / "gpt.scp").read_bytes()
        self.write("damaged.scp", whole[: len(whole) // 2])
        self.bad(2, "train", "--model", "damaged.scp", *SMALL, says="cut off")


if __name__ == "__main__":
    packages = pathlib.Path(sys.argv.pop(2)).resolve()
    tool_support.main()
