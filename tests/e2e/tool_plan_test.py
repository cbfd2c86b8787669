#!/usr/bin/env python3
"""stagecraft plan: what it prints, the files that it writes, and what it says when nothing fits.

    tests/e2e/tool_plan_test.py PROGRAM
"""

import json
import re
import signal
import subprocess
import time

import tool_support
from tool_support import ToolTest

SMALL = ["gpt48.json", "--ranks", "4", "--microbatches", "8", "--rounds", "2"]


class PlanTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("gpt48.json", self.good("plan", "--example"))


class Plan(PlanTest):
    def test_prints_the_table_the_stages_and_the_bound(self):
        text = self.good("plan", *SMALL, "--memory", "9000")
        self.assertIn("50 layers (embedding, 48 alike, head), 4 ranks, 8 microbatches. All work shared out evenly: 2776.", text)
        header = next(line for line in text.splitlines() if "vs best" in line)
        self.assertEqual(header.split(), "stages placement schedule recompute time vs best bound gap bubble peak memory".split())
        chosen = [line for line in text.splitlines() if line.startswith("*")]
        self.assertEqual(len(chosen), 1)
        self.assertIn("+0.00 %", chosen[0])
        self.assertIn(" of 9000, rank ", chosen[0])
        self.assertIn("embedding (0)", text)
        self.assertRegex(text, r"\nrank 3  [FIWfiwBb.]+")
        self.assertRegex(text, r"\nBound: .* No order of these stages can take less than \d+; no split of this model for 4 ranks less than \d+\.")
        self.assertRegex(text, r"Least memory: \d+ a rank\.")

    def test_depends_on_the_seed_alone(self):
        first, second = (self.good("plan", *SMALL, "--json", "--memory", "8000") for _ in range(2))
        strip = lambda text: {k: v for k, v in json.loads(text).items() if k != "seconds"}
        self.assertEqual(strip(first), strip(second))

    def test_json_has_everything(self):
        report = json.loads(self.good("plan", *SMALL, "--json", "--memory", "9000"))
        plan = report["plan"]
        self.assertGreaterEqual(plan["time"], plan["bound"])
        self.assertGreaterEqual(plan["bound"], 0.9 * report["bound_any_split"])
        self.assertEqual(len(plan["begins"]), plan["stages"])
        self.assertLessEqual(max(plan["peaks"]), 9000)
        self.assertEqual(len(report["stages"]), plan["stages"])
        self.assertIn(plan["schedule"], [row["schedule"] for row in report["rows"]])

    def test_curve_falls(self):
        report = json.loads(self.good("plan", *SMALL, "--json", "--curve"))
        memory = [point["memory"] for point in report["curve"]]
        times = [point["time"] for point in report["curve"]]
        self.assertGreaterEqual(len(times), 3)
        self.assertEqual(memory, sorted(memory))
        self.assertEqual(times, sorted(times, reverse=True))
        self.assertIn("memory a rank", self.good("plan", *SMALL, "--curve"))

    def test_a_plan_file_is_a_schedule(self):
        report = json.loads(self.good("plan", *SMALL, "--json", "-o", "gpt.plan", "--report", "plan.html"))
        self.assertIn("good: training schedule at level compute, 4 ranks", self.good("verify", "gpt.plan"))
        simulated = json.loads(self.good("simulate", "gpt.plan", "--json"))
        self.assertAlmostEqual(simulated["makespan"], report["plan"]["time"], delta=1e-6 * simulated["makespan"])
        self.assertIn("rank 0", self.good("draw", "gpt.plan"))
        self.assertIn("SEND_F", self.good("lower", "gpt.plan"))
        page = (self.folder / "plan.html").read_text()
        for part in ["Ways to run the model", "Stages", "Bounds", "critical path", "Memory"]:
            self.assertIn(part, page)
        self.assertNotIn("{{", page)

    def test_schedule_only(self):
        (self.folder / "stages.json").write_text(json.dumps(
            {"F": 18522, "B": 18086, "W": 9337, "C": 601, "MF": 201216, "MI": 127488, "MW": 73728, "CAP": 8 * 201216}))
        report = json.loads(self.good("plan", "stages.json", "--schedule-only", "--ranks", "8", "--microbatches", "24",
                                      "--objective", "span", "--rounds", "30", "--json"))
        self.assertEqual(round(report["plan"]["bound"]), 1310405)
        self.assertLessEqual(report["plan"]["time"], 1310405 * 1.01)

    def test_ctrl_c_gives_the_best_so_far(self):
        command = [tool_support.tool, "plan", str(self.folder / "gpt48.json"), "--ranks", "8", "--microbatches", "64", "--memory", "6000",
                   "--time-limit", "300s"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            time.sleep(2)
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=120)
        self.assertEqual((running.returncode, err), (0, ""))
        self.assertIn("The search was interrupted: this is the best plan so far.", out)
        self.assertIn("\n*", out)


class Sharded(ToolTest):
    """Eight layers alike: 4 of weights, 4 of gradients, 8 of optimizer state, a gather of 1."""

    def setUp(self):
        super().setUp()
        self.layer = {"F": 4, "I": 4, "W": 4, "MF": 1, "WEIGHTS": 8, "GRADS": 4, "STATE": 8, "G": 1}
        self.write("small.json", json.dumps({"layers": [{"repeat": 8, **self.layer}]}))

    def plan(self, kind, *more, replicas=4):
        return self.run_tool("plan", "small.json", "--ranks", "2", "--microbatches", "4", "--rounds", "4", "--replicas", replicas,
                             "--shard", kind, "--width", "80", *more)

    def test_prints_what_is_unsharded_and_what_gathers_cost(self):
        done = self.plan("parameters", "--memory", "50")
        self.assertEqual((done.code, done.err), (0, ""))
        lines = done.text.splitlines()
        self.assertEqual(lines[:4], [
            "8 layers (8 alike), 2 ranks, 4 microbatches, 4 replicas that shard parameters. All work shared out evenly: 192.",
            "",
            "   stages  placement  schedule               recompute  unsharded  time   vs best  bound      gap  bubble  peak memory",
            "*       4  loop       Interleaved1F1B        -                  1   218   +0.00 %    200   9.00 %  11.9 %  50 of 50, rank 0"])
        first = lines.index("stage  rank  begins at  layers  F  I  W  weights  gathered  gradients  G  activations  sends")
        self.assertEqual(lines[first + 1], "    0     0    layer 0       2  8  8  8        8         8          8  2            2      0")
        self.assertIn("Weights: at most 1 stage of a rank unsharded at a time, lookahead 1,1. All ranks together wait 26 for weights; "
                      "the bounds do not count gathers.", lines)
        self.assertIn("  DualPipeV, 2 stages a rank: rank 0 needs 58 of 50", lines)

    def test_memory_forbids_whole_replicas(self):
        self.assertEqual(self.plan("none", "--memory", "50").err.splitlines()[0],
                         "stagecraft: does not fit: rank 0 lacks 14 for its weights alone (stage 0: 64 with gradients and the "
                         "optimizer's state, 50 given, 4 needed for one microbatch)")
        times = {kind: json.loads(self.plan(kind, "--memory", "50", "--json").text)["plan"]["time"]
                 for kind in ["optimizer", "gradients", "parameters"]}
        # Gathers cost time, and the pieces of gradients memory.
        self.assertEqual(times["optimizer"], 196)
        self.assertGreater(times["gradients"], times["optimizer"])
        self.assertEqual(times["parameters"], 218)

    def test_the_plan_file_says_what_the_table_says(self):
        for more in [[], ["--max-active-stages", "1"], ["--unshard-lookahead", "2,1"], ["--unshard-lookahead", "full"]]:
            report = json.loads(self.plan("parameters", "--stages-per-rank", "2", "--json", "-o", "small.plan", *more).text)
            plan = report["plan"]
            self.assertEqual((report["replicas"], report["shard"]), (4, "parameters"))
            simulated = json.loads(self.good("simulate", "small.plan", "--json"))
            self.assertEqual(simulated["makespan"], plan["time"], more)
            self.assertEqual(simulated["exposed_gather"], plan["exposed_gather"], more)
            self.assertEqual([rank["peak_memory"] for rank in simulated["per_rank"]], plan["peaks"], more)
            self.assertIn("good: training schedule", self.good("verify", "small.plan"))
            saved = json.loads((self.folder / "small.plan").read_text())
            self.assertEqual(saved["sharding"], {"replicas": 4, "shard": "parameters", "max_active_stages": plan["max_active_stages"],
                                                 "unshard_lookahead": plan["unshard_lookahead"]})
            self.assertIn("UNSHARD", self.good("lower", "small.plan"))
        self.assertEqual(plan["unshard_lookahead"], [2, 2])

    def test_compare_gives_the_same_time(self):
        # One stage a rank, and costs of a rank's part: four layers.
        report = json.loads(self.plan("parameters", "--stages-per-rank", "1", "--json").text)
        compared = json.loads(self.good("compare", "--ranks", "2", "--microbatches", "4", "--costs",
                                        "F=16,B=16,W=16,MF=4,MW=4,WEIGHTS=32,G=4,MG=16", "--stages-per-rank", "1", "--json"))
        times = {(row["schedule"], row["stages_per_rank"]): row for row in compared["schedules"]}
        zero_bubble = next(row for row in report["rows"] if row["schedule"] == "InterleavedZeroBubble")
        same = times[("InterleavedZeroBubble", 1)]
        self.assertEqual((zero_bubble["time"], max(zero_bubble["peaks"])), (same["makespan"], same["peak_memory"]))

    def test_says_what_is_missing(self):
        def message(kind, *more, replicas=4, **layer):
            self.write("small.json", json.dumps({"layers": [{}, {"name": "mlp", "repeat": 3, **layer}]}))
            done = self.plan(kind, *more, replicas=replicas)
            self.assertEqual((done.code, done.text), (2, ""), done.err)
            return done.err

        self.assertIn('small.json: layer 1 ("mlp"): sharding gradients needs GRADS, the part of WEIGHTS that is gradients',
                      message("gradients", WEIGHTS=8))
        self.assertIn('layer 1 ("mlp"): sharding parameters needs G, the time to gather', message("parameters", WEIGHTS=8, GRADS=4))
        self.assertIn("sharding the optimizer's state needs STATE, and no layer has it", message("optimizer", WEIGHTS=8))
        self.assertIn("GRADS is 9, but it is a part of WEIGHTS, which is 8", message("gradients", WEIGHTS=8, GRADS=9))
        self.assertIn("--shard is none or optimizer or gradients or parameters", message("all"))
        self.assertIn("--shard parameters divides among replicas: pass --replicas, too", message("parameters", replicas=1))
        self.assertIn("--max-active-stages is for --shard parameters", message("gradients", "--max-active-stages", "2"))
        self.assertIn("--unshard-lookahead is for --shard parameters", message("none", "--unshard-lookahead", "full"))
        self.assertIn("--unshard-lookahead: the lookahead has 3 numbers, expected one for each of 2 ranks",
                      message("parameters", "--unshard-lookahead", "1,1,1"))
        self.assertIn("--shard parameters needs costs of layers, and --schedule-only takes those of stages",
                      message("parameters", "--schedule-only"))


class Unfit(PlanTest):
    def lines(self, *arguments):
        done = self.run_tool("plan", *SMALL, *arguments)
        self.assertEqual(done.code, 1, done.err)
        self.assertEqual(done.text, "")
        return done.err.splitlines()

    def test_names_the_rank_the_least_memory_and_the_ranks_that_would_do(self):
        lines = self.lines("--memory", "3000", "--stages-per-rank", "1")
        self.assertRegex(lines[0], r"^stagecraft: does not fit: rank \d lacks \d+ for its weights alone \(stages? .*: \d+ with "
                                   r"gradients and the optimizer's state, 3000 given, \d+ needed for one microbatch\)$")
        least = re.fullmatch(r"stagecraft: does not fit even with recompute; the smallest memory that fits 4 ranks is (\d+) a rank "
                             r"\(plan with --memory (\d+)\)", lines[1])
        self.assertTrue(least, lines[1])
        self.assertRegex(lines[2], r"^stagecraft: does not fit: \d ranks of 3000 would do$")
        self.good("plan", *SMALL, "--memory", least.group(2), "--stages-per-rank", "1")
        self.lines("--memory", str(int(least.group(2)) - 1), "--stages-per-rank", "1")

    def test_names_a_layer_that_fits_nowhere(self):
        self.assertEqual(self.lines("--memory", "700")[0],
                         'stagecraft: does not fit: layer 49 ("head") alone needs 820, and no rank has more than 700')

    def test_without_recompute_says_so(self):
        self.assertRegex("\n".join(self.lines("--memory", "3000", "--recompute", "none")), r"does not fit; the smallest memory")


class BadUsage(ToolTest):
    def message(self, *arguments, file=None):
        if file is not None:
            (self.folder / "costs.json").write_text(file if isinstance(file, str) else json.dumps(file))
            arguments = ("costs.json", "--ranks", "2", "--microbatches", "4", *arguments)
        done = self.run_tool("plan", *arguments)
        self.assertEqual((done.code, done.text), (2, ""), done.err)
        return done.err

    def test_names_what_is_wrong_with_the_file(self):
        layers = [{"name": "a"}, {}]
        self.assertIn("plan --example", self.message("--ranks", "2"))
        self.assertIn("plan needs --microbatches", self.message("no.json", "--ranks", "2"))
        self.assertIn("no.json", self.message("no.json", "--ranks", "2", "--microbatches", "4"))
        self.assertIn("line 1", self.message(file="{"))
        self.assertIn('has no "layers"', self.message(file={"F": 1}))
        self.assertIn('layer 0 ("a"): F is -1', self.message(file={"layers": [{"name": "a", "F": -1}, {}]}))
        self.assertIn("at most 512 layers", self.message(file={"layers": [{"repeat": 600}]}))
        self.assertIn("has no cost", self.message(file={"layers": layers, "Q": 1}))
        self.assertIn("memory must be free after W", self.message(file={"layers": [{"MF": 5, "MI": 1, "MW": 1}, {}]}))
        self.assertIn("one unit of time", self.message(file={"layers": [{"F": "1ms", "W": "1us"}, {}]}))
        self.assertIn("2 sizes for 4 microbatches", self.message(file={"layers": layers, "sizes": [1, 2]}))
        self.assertIn("a rank has CAP and SPEED only", self.message(file={"layers": layers, "ranks": [{"X": 1}]}))
        self.assertIn("2 stages, but the model has 1 layers", self.message(file={"layers": [{}]}))
        self.assertIn("--ranks is 2, but the cost file has 1 ranks", self.message(file={"layers": layers, "ranks": [{}]}))

    def test_names_what_is_wrong_with_an_option(self):
        file = {"layers": [{}, {}, {}, {}]}
        self.assertIn("--memory", self.message("--memory", "8 parsecs", file=file))
        self.assertIn("--memory has 3 amounts for 2 ranks", self.message("--memory", "1,2,3", file=file))
        self.assertIn("--placement is loop, v", self.message("--placement", "w", file=file))
        self.assertIn("--stages-per-rank", self.message("--stages-per-rank", "0", file=file))
        self.assertIn("--time-limit", self.message("--time-limit", "8GB", file=file))
        self.assertIn("--recompute is auto or none or all", self.message("--recompute", "some", file=file))
        self.assertIn("6 stages, but the model has 4 layers", self.message("--stages-per-rank", "3", file=file))


if __name__ == "__main__":
    tool_support.main()
