#!/usr/bin/env python3
"""`stagecraft train --plan`: measured and planned on threads and on processes, from a file, and what is refused; and
`stagecraft model --plan`.

    train_plan_test.py STAGECRAFT [ZOO] [unittest options]
"""

import json
import pathlib
import signal
import sys
import time

import tool_support
from train_processes_test import ProcessesTest, steps_of
from train_test import TrainTest, small

ZOO = pathlib.Path(sys.argv.pop(2)) if len(sys.argv) > 2 and pathlib.Path(sys.argv[2]).is_dir() else None
FAST = ["--plan-steps", "1", "--plan-time", "500ms"]


class Plans(TrainTest):
    def plan(self, *arguments):
        return self.good("train", "--data", "text.txt", *small("--steps", "4", "--plan", "auto", *FAST, *arguments))

    def test_measures_plans_and_trains(self):
        text = self.plan("--plan-out", "gpt.plan", "--report-json", "report.json")
        self.assertIn("All work shared out evenly", text)
        self.assertRegex(text, r"plan: predicted [\d.]+ ms a step, measured [\d.]+ ms \([+-][\d.]+ %\)")
        self.assertRegex(text, r"step +4")
        self.assertIn("predicted", (self.folder / "report.json").read_text())
        plan = json.loads((self.folder / "gpt.plan").read_text())
        self.assertEqual((plan["ranks"], plan["microbatches"]), (2, 4))
        self.assertIn("good: training schedule", self.good("verify", "gpt.plan"))

    def test_losses_are_those_of_1F1B(self):
        expected = self.curve("--steps", "4")
        self.good("train", "--data", "text.txt", *small("--steps", "1", "--plan", "auto", *FAST, "--plan-out", "gpt.plan"))
        planned = {line["step"]: (line["loss"], line["grad_norm"])
                   for line in self.lines("--data", "text.txt", *small("--steps", "4", "--plan", "gpt.plan")) if "loss" in line}
        self.assertEqual(planned, expected)

    def test_plans_sharded_replicas(self):
        shape = ["--replicas", "2", "--shard", "parameters"]
        text = self.plan("--plan-out", "gpt.plan", "--ranks", "1", *shape)
        self.assertIn("2 replicas that shard parameters", text)
        self.assertRegex(text, r"Weights: at most \d stages? of a rank unsharded at a time")
        self.assertRegex(text, r"step +4")
        plan = json.loads((self.folder / "gpt.plan").read_text())
        self.assertEqual((plan["ranks"], plan["sharding"]["replicas"], plan["sharding"]["shard"]), (1, 2, "parameters"))
        self.assertIn("UNSHARD", self.good("lower", "gpt.plan"))
        # The file says replicas and kind; losses are those of whole replicas with any schedule.
        losses = lambda *more: [line["loss"] for line in self.lines("--data", "text.txt", *small("--steps", "2", *more)) if "loss" in line]
        self.assertEqual(losses("--plan", "gpt.plan"), losses("--ranks", "1", "--replicas", "2"))
        bad = lambda says, *arguments: self.bad(2, "train", "--data", "text.txt", *small("--steps", "1", *arguments), says=says)
        bad("--replicas 4 does not fit gpt.plan, which is a plan for 2", "--plan", "gpt.plan", "--replicas", "4", "--batch", "16")
        bad("--shard optimizer does not fit gpt.plan, which is a plan for parameters", "--plan", "gpt.plan", "--shard", "optimizer",
            "--replicas", "2")

    def test_refuses_by_name(self):
        self.good("train", "--data", "text.txt", *small("--steps", "1", "--plan", "auto", *FAST, "--plan-out", "gpt.plan"))
        bad = lambda says, *arguments: self.bad(2, "train", "--data", "text.txt", *small("--steps", "1", *arguments), says=says)
        bad("--ranks 3 does not fit gpt.plan, which is a plan for 2", "--plan", "gpt.plan", "--ranks", "3")
        bad("--microbatches 2 does not fit gpt.plan", "--plan", "gpt.plan", "--microbatches", "2")
        bad("made for a different model", "--plan", "gpt.plan", "--positions", "learned")
        bad("excludes", "--plan", "gpt.plan", "--schedule", "1F1B")
        bad("does not fit", "--plan", "auto", *FAST, "--memory", "10kB")
        bad("--memory", "--plan", "auto", *FAST, "--memory", "much")
        text = (self.folder / "gpt.plan").read_text()
        self.write("old.plan", text.replace('"stagecraft_plan":1', '"stagecraft_plan":9'))
        bad("this reads version 1, got 9", "--plan", "old.plan")
        self.write("cut.plan", text[:100])
        bad("cut.plan", "--plan", "cut.plan")

    def test_ctrl_c_while_planning_takes_the_plan_so_far(self):
        running = self.start("--data", "text.txt", *small("--steps", "100000", "--plan", "auto", "--plan-steps", "1",
                                                          "--plan-time", "300s", "--memory", "200MB"))
        time.sleep(6)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=120)
        self.assertEqual(running.returncode, 130, err)


class Processes(ProcessesTest):
    def test_all_ranks_get_the_plan_of_rank_0(self):
        process = self.torchrun(2, "--data", "text.txt", "--json", *small("--steps", "4", "--plan", "auto", *FAST,
                                                                          "--plan-out", "gpt.plan"))
        out, err = process.communicate(timeout=tool_support.SECONDS * 2)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(steps_of(out), self.curve("--steps", "4"))
        self.assertEqual(json.loads((self.folder / "gpt.plan").read_text())["ranks"], 2)


    def test_replicas_get_the_plan_of_rank_0(self):
        process = self.torchrun(2, "--data", "text.txt", "--json", *small("--steps", "2", "--plan", "auto", *FAST, "--plan-out", "gpt.plan",
                                                                          "--replicas", "2", "--shard", "gradients"))
        out, err = process.communicate(timeout=tool_support.SECONDS * 2)
        self.assertEqual(process.returncode, 0, err)
        plan = json.loads((self.folder / "gpt.plan").read_text())
        self.assertEqual((plan["ranks"], plan["sharding"]), (1, {"replicas": 2, "shard": "gradients"}))
        self.assertEqual(len(steps_of(out)), 2)


class Models(tool_support.ToolTest):
    def test_plans_exported_models(self):
        planned = 0
        for archive in sorted(ZOO.glob("*.pt2"))[:12] if ZOO else []:
            result = self.run_tool("model", archive, "--plan", "--ranks", "2", "--time-limit", "200ms")
            if result.code != 0:
                self.assertRegex(result.err, r"layers|program|split", archive)
                continue
            self.assertIn("nothing was run", result.text)
            self.assertIn("All work shared out evenly", result.text)
            planned += 1
        if ZOO:
            self.assertGreaterEqual(planned, 3)


if __name__ == "__main__":
    tool_support.main()
