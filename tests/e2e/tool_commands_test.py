#!/usr/bin/env python3
"""Every subcommand and format of the stagecraft program.

    tests/e2e/tool_commands_test.py PROGRAM
"""

import csv
import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import termios

import tool_support
from tool_support import DOCS, GOLDEN, ToolTest

SHAPE = ["--ranks", "4", "--microbatches", "8"]
COMMANDS = ["schedule", "lower", "verify", "simulate", "draw", "slots", "compare", "plan"]


def facts(report):
    """The lines "name  value" at the head of a report."""
    return dict(re.split(r"\s{2,}", line, maxsplit=1) for line in report.split("\n\n")[0].splitlines()[1:])


class Help(ToolTest):
    def test_names_every_subcommand(self):
        text = self.good("--help")
        for command in COMMANDS:
            self.assertRegex(text, rf"\n  {command} ")

    def test_every_example_works(self):
        for command in [None, *COMMANDS]:
            text = self.good(*filter(None, [command]), "--help")
            self.assertIn("Examples:\n", text)
            examples = text.split("Examples:\n")[1].rstrip().splitlines()
            self.assertGreaterEqual(len(examples), 2)
            for example in examples:
                self.assertRegex(example, r"^  stagecraft \w")
                script = f"set -o pipefail; stagecraft() {{ {shlex.quote(tool_support.tool)} \"$@\"; }}; {example}"
                done = subprocess.run(["bash", "-c", script], cwd=self.folder, capture_output=True,
                                      timeout=tool_support.SECONDS)
                self.assertEqual((done.returncode, done.stderr), (0, b""), example)

    def test_fits_a_wide_terminal(self):
        for command in [None, *COMMANDS]:
            for line in self.good(*filter(None, [command]), "--help").splitlines():
                self.assertLessEqual(len(line), 120, line)


class Schedule(ToolTest):
    def test_equals_the_golden_files(self):
        compared = 0
        for path in sorted(GOLDEN.glob("*_l*_mb*_pp*_comms.csv")):
            name, stages, microbatches, ranks = re.fullmatch(r"(\w+)_l(\d+)_mb(\d+)_pp(\d+)_comms.csv", path.name).groups()
            shape = ["--ranks", ranks, "--microbatches", microbatches, "--stages-per-rank", stages]
            compute = path.with_name(path.name.replace("_comms", "_compute"))
            self.assertEqual(self.good("schedule", name, *shape), compute.read_text(), compute.name)
            self.assertEqual(self.good("schedule", name, *shape, "--lower"), path.read_text(), path.name)
            self.assertEqual(self.good("lower", compute), path.read_text(), path.name)
            compared += 1
        self.assertGreaterEqual(compared, 10)

    def test_finds_names_without_regard_to_case(self):
        self.assertEqual(self.good("schedule", "zbvzerobubble", *SHAPE), self.good("schedule", "ZBVZeroBubble", *SHAPE))

    def test_prints_a_table(self):
        self.assertEqual(self.good("schedule", "GPipe", "--ranks", 2, "--microbatches", 1, "--format", "text"),
                         "step  rank 0  rank 1\n   0  0F0     .\n   1  .       1F0\n   2  .       1B0\n   3  0B0\n")

    def test_a_table_shows_time_steps(self):
        table = self.good("schedule", "1F1B", "--ranks", 2, "--microbatches", 2, "--format", "text")
        self.assertEqual([line.split()[1:] for line in table.splitlines()[1:]],
                         [["0F0", "."], ["0F1", "1F0"], [".", "1B0"], ["0B0", "1F1"], [".", "1B1"], ["0B1"]])
        self.assertIn("(7F4;0B0)OVERLAP_F_B  (1F7;6B3)OVERLAP_F_B", self.good("schedule", "DualPipeV", *SHAPE, "--format", "text"))
        self.assertIn("0SEND_F0", self.good("schedule", "1F1B", *SHAPE, "--lower", "--format", "text"))

    def test_prints_json(self):
        data = json.loads(self.good("schedule", "1F1B", *SHAPE, "--format", "json"))
        self.assertEqual((data["level"], data["ranks"], data["stages"], data["microbatches"]), ("compute", 4, 4, 8))
        self.assertEqual(len(data["actions"]), 4)

    def test_writes_a_file(self):
        expected = self.good("schedule", "1F1B", *SHAPE)
        self.assertEqual(self.good("schedule", "1F1B", *SHAPE, "-o", "out.csv"), "")
        self.assertEqual((self.folder / "out.csv").read_text(), expected)
        self.assertEqual(self.good("schedule", "1F1B", *SHAPE, "-o", "-"), expected)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["out.csv"])

    def test_replaces_what_a_link_points_to_and_keeps_its_mode(self):
        self.write("real.csv", "old").chmod(0o640)
        (self.folder / "link.csv").symlink_to("real.csv")
        self.good("schedule", "1F1B", *SHAPE, "--output", "link.csv")
        self.assertTrue((self.folder / "link.csv").is_symlink())
        self.assertIn("0F0", (self.folder / "real.csv").read_text())
        self.assertEqual((self.folder / "real.csv").stat().st_mode & 0o777, 0o640)

    def test_takes_the_options_of_lowering(self):
        lowered = self.good("schedule", "Interleaved1F1B", *SHAPE, "--lower")
        for option in (["--prefetch", 0], ["--max-active-stages", 1], ["--edges", "0-2,1-7"], ["--for", "torch-2.15"],
                       ["--unshard-lookahead", "1,1,2,2"], ["--defer-reduction-waits"], ["--limit-sends", 2]):
            changed = self.good("schedule", "Interleaved1F1B", *SHAPE, "--lower", *option)
            self.assertNotEqual(changed, lowered, option)
            graph = option if option[0] == "--edges" else []
            self.good("verify", "-", *graph, stdin=changed.encode())


class RoundTrip(ToolTest):
    def test_every_schedule_is_good_lowered_and_not_in_every_format(self):
        for name in self.schedules():
            for form in ("csv", "json"):
                for lower in ([], ["--lower"], ["--lower", "--prefetch", 1]):
                    text = self.good("schedule", name, *SHAPE, *lower, "--format", form).encode()
                    said = self.good("verify", "-", stdin=text)
                    mode = "forward-only" if name == "ForwardOnly" else "training"
                    self.assertRegex(said, rf"^good: {mode} schedule at level {'lowered' if lower else 'compute'}, "
                                           r"4 ranks, \d stages, 8 microbatches, \d+ actions\n$")

    def test_lowering_later_is_lowering_at_once(self):
        for name in self.schedules():
            for form in ("csv", "json"):
                text = self.good("schedule", name, *SHAPE, "--format", form)
                for options in ([], ["--prefetch", 2], ["--edges", "0-3"]):
                    self.assertEqual(self.good("lower", "-", *options, stdin=text.encode()),
                                     self.good("schedule", name, *SHAPE, "--lower", *options))

    def test_windows_line_ends(self):
        text = self.good("schedule", "DualPipeV", *SHAPE)
        self.assertEqual(self.good("lower", "-", stdin=text.replace("\n", "\r\n").encode()),
                         self.good("lower", "-", stdin=text.encode()))


class Lower(ToolTest):
    def test_refuses_what_has_transfers(self):
        self.write("lowered.csv", self.good("schedule", "1F1B", *SHAPE, "--lower"))
        self.bad(1, "lower", "lowered.csv", says="lowered.csv: the schedule is lowered already")

    def test_takes_what_is_sharded_already(self):
        sharded = "0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD\n1UNSHARD,1F0,1B0,1RESHARD,1REDUCE_GRAD\n"
        lowered = self.good("lower", "-", stdin=sharded.encode())
        self.assertEqual(lowered, "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0RESHARD,0REDUCE_GRAD\n"
                                  "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD,1REDUCE_GRAD\n")
        # Without transfers it is a compute schedule, whatever else is in it.
        self.assertIn("at level compute", self.good("verify", "-", stdin=sharded.encode()))
        self.good("simulate", "-", stdin=sharded.encode())
        self.assertIn("lowered level", self.good("simulate", "-", "--lower", stdin=sharded.encode()))
        ahead = b"0UNSHARD,1UNSHARD,0F0,1F0,1B0,1RESHARD,0B0,0RESHARD\n"
        self.good("verify", "-", "--max-active-stages", 2, "--unshard-lookahead", 2, stdin=ahead)
        for option in (["--max-active-stages", 1], ["--unshard-lookahead", 1]):
            self.assertEqual(self.run_tool("verify", "-", *option, stdin=ahead).code, 1)
        self.bad(2, "verify", "-", "--unshard-lookahead", "1,1", stdin=ahead, says="the lookahead has 2 numbers, expected one for each of 1 ranks")

    def test_takes_edges_in_the_place_of_the_chain(self):
        compute = b"0F0,0B0\n1F0,1B0\n2F0,2B0\n"
        lowered = self.good("lower", "-", "--edges", "0-2", "--no-chain", stdin=compute)
        self.assertNotIn("SEND", lowered.splitlines()[1])
        self.assertIn("2RECV_F0", lowered)
        self.good("verify", "-", "--edges", "0-2", "--no-chain", stdin=lowered.encode())
        self.assertEqual(self.run_tool("verify", "-", stdin=lowered.encode()).code, 1)

    def test_takes_a_piece_of_a_schedule(self):
        piece = b"0F0,0F1\n1F0\n"
        self.bad(1, "lower", "-", says="standard input", stdin=piece)
        self.assertIn("0SEND_F0", self.good("lower", "-", "--mode", "partial", stdin=piece))


    def test_takes_what_pytorch_prints_for_gpipe(self):
        printed = "0F0,0F1,0B0,0B1,0REDUCE_GRAD\n1F0,1F1,1B0,1B1,1REDUCE_GRAD\n"
        lowered = self.good("lower", "-", stdin=printed.encode())
        self.assertEqual(lowered, self.good("schedule", "GPipe", "--ranks", 2, "--microbatches", 2, "--lower"))


    def test_refuses_what_a_version_of_pytorch_does_not_take(self):
        chain = b"0F0,0B0\n1F0,1B0\n2F0,2B0\n"
        for version in ("torch-2.13", "torch-2.15"):
            target = ["--for", version]
            for graph, edge in ((["--edges", "0-2"], "has the edge 0-2"), (["--edges", "0-2", "--no-chain"], "has the edge 0-2"),
                                (["--edges", "0-1", "--no-chain"], "lacks the edge 1-2")):
                self.bad(1, "lower", "-", *target, *graph, says=f"{version} does not take it: there, ", stdin=chain)
                self.bad(1, "lower", "-", *target, *graph, says=edge, stdin=chain)
                self.bad(1, "draw", "-", "--lower", *target, *graph, says=edge, stdin=chain)
            self.bad(1, "schedule", "ForwardOnly", *SHAPE, "--lower", *target, says="stage 0 has 8 forwards and 0 backwards")
            self.bad(1, "lower", "-", "--mode", "partial", *target, says="of 2 microbatches stage 0 has 2 forwards and 0 backwards",
                     stdin=b"0F0,0F1\n1F0\n")
            self.write("lowered.csv", self.good("schedule", "1F1B", *SHAPE, "--lower"))
            self.bad(1, "lower", "lowered.csv", *target, says="lowered.csv: the schedule is lowered already")
        # torch 2.15 alone counts reductions and active stages.
        two = "0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD,1WAIT_REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
        self.good("lower", "-", stdin=two.encode())
        self.good("lower", "-", "--for", "torch-2.13", stdin=two.encode())
        self.bad(1, "lower", "-", "--for", "torch-2.15", says="0REDUCE_GRAD while the reduction of stage 1", stdin=two.encode())
        overlap = ["schedule", "DualPipeV", *SHAPE, "--lower", "--max-active-stages", 1]
        self.good(*overlap, "--for", "torch-2.13")
        self.bad(1, *overlap, "--for", "torch-2.15", says="max_active_stages is 1")

    def test_refuses_options_without_effect(self):
        sharded = b"0UNSHARD,0F0,0B0,0RESHARD\n"
        for option in (["--max-active-stages", 1], ["--unshard-lookahead", "auto"]):
            self.bad(1, "lower", "-", *option, says="has UNSHARD or RESHARD already", stdin=sharded)
        waits = b"0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
        self.bad(1, "lower", "-", "--defer-reduction-waits", says="has WAIT_REDUCE_GRAD already", stdin=waits)

    def test_lowers_for_a_version_of_pytorch(self):
        compared = 0
        for path in sorted((GOLDEN / "torch-2.15").glob("*.csv")):
            name, stages, microbatches, ranks = re.fullmatch(r"(\w+)_l(\d+)_mb(\d+)_pp(\d+)_comms.csv", path.name).groups()
            shape = ["--ranks", ranks, "--microbatches", microbatches, "--stages-per-rank", stages]
            self.assertEqual(self.good("schedule", name, *shape, "--lower", "--for", "torch-2.15"), path.read_text(), path.name)
            compute = self.good("schedule", name, *shape).encode()
            self.assertEqual(self.good("lower", "-", "--for", "torch-2.15", stdin=compute), path.read_text(), path.name)
            self.assertEqual(self.good("lower", "-", "--for", "torch-2.13", stdin=compute), self.good("lower", "-", stdin=compute))
            self.assertIn("at level lowered", self.good("verify", path))
            self.good("draw", path, "--format", "html", "-o", "page.html")
            compared += 1
        self.assertGreaterEqual(compared, 8)

    def test_auto_unshards_later_on_early_ranks(self):
        shape = ["--ranks", 4, "--microbatches", 8, "--stages-per-rank", 4, "--lower"]
        full = self.good("schedule", "LoopedBFS", *shape).splitlines()
        auto = self.good("schedule", "LoopedBFS", *shape, "--unshard-lookahead", "auto").splitlines()
        self.assertNotEqual(auto[0], full[0])
        self.assertTrue(full[0].startswith("0UNSHARD,4UNSHARD,8UNSHARD,0F0"))
        self.assertTrue(auto[0].startswith("0UNSHARD,4UNSHARD,0F0"))
        self.assertEqual(self.good("schedule", "LoopedBFS", *shape, "--unshard-lookahead", "full").splitlines(), full)


class Slots(ToolTest):
    def test_counts_buffers(self):
        text = self.good("slots", "Interleaved1F1B", *SHAPE)
        self.assertRegex(text, r"rank +slots +activations\n +0 +11 +16\n +1 +9 +16\n +2 +7 +16\n +3 +5 +16\n$")
        text = self.good("slots", "Interleaved1F1B", *SHAPE, "--granularity", "microbatch")
        self.assertRegex(text, r"\n +0 +8 +16\n +1 +8 +16\n +2 +7 +16\n +3 +5 +16\n$")

    def test_lists_what_is_in_a_buffer(self):
        text = self.good("slots", "1F1B", "--ranks", 2, "--microbatches", 3, "--rank", 0)
        self.assertTrue(text.endswith("slot 0: 0.0 0.2\nslot 1: 0.1\n"), text)

    def test_json_has_every_activation(self):
        data = json.loads(self.good("slots", "ZBVZeroBubble", *SHAPE, "--lower", "--json"))
        self.assertEqual([rank["slots"] for rank in data["per_rank"]], [8, 8, 8, 8])
        for rank in data["per_rank"]:
            self.assertEqual(len(rank["activations"]), 16)
            for each in rank["activations"]:
                self.assertLess(each["slot"], rank["slots"])
                self.assertLess(each["first"], each["last"])

    def test_says_what_has_no_buffers(self):
        self.bad(1, "slots", "ForwardOnly", *SHAPE, says="lacks the F, or the B or W, of microbatch 0")
        self.bad(2, "slots", "1F1B", *SHAPE, "--rank", 4, says="there is no rank 4")


class Documentation(ToolTest):
    def test_every_schedule_has_a_section_and_a_picture(self):
        page = (DOCS / "schedules.md").read_text()
        for name in self.schedules():
            self.assertIn(f"| [{name}](#{name.lower()}) |", page)
            self.assertIn(f"\n### {name}\n", page)
            self.assertIn(f"![{name}](pictures/{name.lower()}.svg)", page)
            self.assertTrue((DOCS / "pictures" / f"{name.lower()}.svg").exists(), name)


class Verify(ToolTest):
    def findings(self, text, *options):
        result = self.run_tool("verify", "-", *options, stdin=text.encode())
        self.assertEqual((result.code, result.err), (1, ""))
        return result.text.splitlines()

    def test_says_what_is_missing(self):
        lines = self.findings("0F0,0B0\n1F0\n")
        self.assertEqual(len(lines), 1)
        self.assertEqual(lines[0], "1B0: is missing on rank 1")

    def test_prints_the_cycle_of_a_deadlock(self):
        text = ("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                "1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F0,1F0,1B0,1SEND_B0\n")
        lines = self.findings(text)
        self.assertEqual(len(lines), 1)
        for action in ("0SEND_F0", "1RECV_F0", "1F1", "0SEND_F1"):
            self.assertIn(action, lines[0])

    def test_judges_for_a_mode(self):
        forward = b"0F0,0F1\n1F0,1F1\n"
        self.assertIn("forward-only", self.good("verify", "-", stdin=forward))
        self.assertEqual(self.run_tool("verify", "-", "--mode", "training", stdin=forward).code, 1)
        self.assertIn("partial", self.good("verify", "-", "--mode", "partial", stdin=b"0F3\n1F3\n"))

    def test_counts_microbatches(self):
        self.good("verify", "-", "--microbatches", 2, stdin=b"0F0,0F1\n")
        self.assertEqual(len(self.findings("0F0,0F1\n", "--microbatches", "3")), 1)

    def test_counts_findings_that_it_does_not_show(self):
        text = "".join(f"{rank}F0,{rank}F1,{rank}F2\n" for rank in range(9))
        self.assertEqual(len(self.findings(text, "--mode", "training", "--max-findings", "100")), 27)
        lines = self.findings(text, "--mode", "training", "--max-findings", "5")
        self.assertEqual((len(lines), lines[-1]), (6, "and 22 more; --max-findings shows them"))


class Simulate(ToolTest):
    def test_the_papers_numbers(self):
        for ranks, microbatches, costs, time in (
                (8, 24, "F=18522,B=18086,W=9337,C=601", "1456749"),
                (16, 64, "F=11307,B=11254,W=8101,C=379", "2478390"),
                (32, 256, "F=10402,B=10248,W=7698,C=460", "8391636")):
            report = self.good("simulate", "1F1B", "--ranks", ranks, "--microbatches", microbatches, "--costs", costs)
            self.assertEqual(facts(report)["span"], time)

    def test_gathers_are_on_the_critical_path(self):
        """The cause of such a step had no name, so --json failed."""
        arguments = ["simulate", "ZBVZeroBubble", "--ranks", 2, "--microbatches", 4, "--lower", "--max-active-stages", 1, "--costs", "G=2,F=3,C=1"]
        path = json.loads(self.good(*arguments, "--json"))["critical_path"]
        self.assertEqual(sum(step["cause"] == "gather" for step in path), 12)
        self.assertEqual(facts(self.good(*arguments))["critical path"], "25 actions on 2 ranks: F 27, I 8, W 8, gathers 26, transfers 1")

    def test_bubble_of_1f1b(self):
        for ranks, microbatches in ((1, 1), (2, 5), (4, 8), (7, 3), (8, 32)):
            data = json.loads(self.good("simulate", "1F1B", "--ranks", ranks, "--microbatches", microbatches, "--json"))
            self.assertAlmostEqual(data["bubble"], (ranks - 1) / (microbatches + ranks - 1), places=12)
            self.assertEqual(data["makespan"], 3 * (microbatches + ranks - 1))

    def test_unit_steps_equal_the_golden_ones(self):
        with open(GOLDEN / "simulated_steps.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertGreater(len(rows), 100)
        for row in rows[::max(1, len(rows) // 40)]:
            report = self.good("simulate", row["schedule"], "--ranks", row["pp"], "--microbatches",
                               row["n_microbatches"], "--stages-per-rank", row["n_local"], "--unit")
            self.assertEqual(facts(report)["steps"], row["simulated_steps"], row)

    def test_unit_steps_are_the_same_lowered_before(self):
        for name in self.schedules():
            lowered = self.good("schedule", name, *SHAPE, "--lower").encode()
            runs = [json.loads(self.good("simulate", name, *SHAPE, "--unit", "--json", "--timeline")),
                    json.loads(self.good("simulate", name, *SHAPE, "--lower", "--unit", "--json", "--timeline")),
                    json.loads(self.good("simulate", "-", "--unit", "--json", "--timeline", stdin=lowered))]
            for run in runs:
                run.pop("schedule")
                self.assertEqual(run, runs[0])
            self.assertEqual(max(map(len, runs[0]["timeline"])), runs[0]["steps"])

    def test_json_has_what_the_text_has(self):
        for name in self.schedules():
            arguments = ["simulate", name, *SHAPE, "--costs", "F=3,B=4,W=2,C=1"]
            said = facts(self.good(*arguments))
            data = json.loads(self.good(*arguments, "--json", "--timeline"))
            self.assertEqual((said["makespan"], said["span"], said["peak memory"], said["transfers"]),
                             tuple(str(data[key]) for key in ("makespan", "span", "peak_memory", "transfers")))
            self.assertEqual(len(data["per_rank"]), 4)
            self.assertEqual(max(rank["last_end"] for rank in data["per_rank"]), data["makespan"])
            self.assertEqual(sum(rank["transfers_sent"] for rank in data["per_rank"]), data["transfers"])
            path = data["critical_path"]
            self.assertEqual((path[0]["start"], path[-1]["end"]), (0, data["makespan"]))
            ends = [action["end"] for rank in data["timeline"] for action in rank]
            self.assertEqual((len(ends), max(ends)), (data["actions"], data["makespan"]))
            self.assertEqual(max(sample["memory"] for rank in data["memory"] for sample in rank), data["peak_memory"])
            self.assertNotIn("timeline", json.loads(self.good(*arguments, "--json")))

    def test_lowered_and_not_take_the_same_time(self):
        for name in self.schedules():
            both = [json.loads(self.good("simulate", name, *SHAPE, "--json", *lower)) for lower in ([], ["--lower"])]
            for key in ("makespan", "span", "bubble", "peak_memory", "transfers"):
                self.assertAlmostEqual(both[0][key], both[1][key], places=9, msg=(name, key))

    def test_says_when_memory_is_not_enough(self):
        arguments = ["simulate", "GPipe", *SHAPE, "--costs"]
        self.good(*arguments, "CAP=8")
        result = self.bad(1, *arguments, "CAP=7", says=["memory cap of 7", "rank 0", "with 8", "0F7"])
        self.assertIn("peak memory", result.text)

    def test_reads_a_cost_file(self):
        self.write("costs.json", '{"F": 3, "B": 4, "W": 2, "C": 1}')
        self.assertEqual(self.good("simulate", "1F1B", *SHAPE, "--cost-file", "costs.json"),
                         self.good("simulate", "1F1B", *SHAPE, "--costs", "F=3,B=4,W=2,C=1"))

    def test_prints_fractions_to_read(self):
        said = facts(self.good("simulate", "1F1B", "--ranks", 2, "--microbatches", 3, "--costs", "F=0.1,B=0.1,W=0.1"))
        self.assertEqual(said["makespan"], "1.2")


class Draw(ToolTest):
    def test_every_format(self):
        for name in self.schedules():
            terminal = self.good("draw", name, *SHAPE)
            self.assertNotIn("\x1b", terminal)
            self.assertLessEqual(max(map(len, re.findall(r"(?m)^rank .*", terminal))), 100)
            self.assertIn(name, terminal)
            self.assertRegex(self.good("draw", name, *SHAPE, "--format", "svg"), r"(?s)\A<(\?xml|svg).*</svg>\n\Z")
            self.assertIn("<html", self.good("draw", name, *SHAPE, "--format", "html"))
            self.assertTrue(json.loads(self.good("draw", name, *SHAPE, "--format", "trace")))

    def test_the_name_of_the_output_says_the_format(self):
        for ending, form in (("svg", "svg"), ("html", "html"), ("json", "trace"), ("txt", "terminal")):
            self.assertEqual(self.good("draw", "1F1B", *SHAPE, "-o", f"out.{ending}"), "")
            self.assertEqual((self.folder / f"out.{ending}").read_text(),
                             self.good("draw", "1F1B", *SHAPE, "--format", form))

    def test_colours(self):
        always = ["draw", "1F1B", *SHAPE, "--color", "always"]
        self.assertIn("\x1b[", self.good(*always))
        self.assertIn("\x1b[", self.good(*always, env={"NO_COLOR": "1"}))
        self.assertNotEqual(self.good(*always), self.good(*always, env={"COLORTERM": "truecolor"}))
        self.assertNotIn("\x1b", self.good("draw", "1F1B", *SHAPE, "--color", "never"))

    def on_terminal(self, columns, **env):
        """What the program draws on a terminal of that width."""
        reader, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        result = self.run_tool("draw", "1F1B", *SHAPE, stdout=terminal, env={"TERM": "xterm", **env})
        os.close(terminal)
        self.assertEqual((result.code, result.err), (0, ""))
        drawn = b""
        try:
            while part := os.read(reader, 65536):
                drawn += part
        except OSError:  # how Linux says that all was read
            pass
        os.close(reader)
        return drawn.decode()

    def test_a_terminal_gets_colours_and_its_own_width(self):
        self.assertIn("\x1b[48;5;", self.on_terminal(100))
        self.assertIn("\x1b[48;2;", self.on_terminal(100, COLORTERM="truecolor"))
        self.assertNotIn("\x1b", self.on_terminal(100, NO_COLOR="1"))
        self.assertNotIn("\x1b", self.on_terminal(100, TERM="dumb"))
        for columns in (60, 160):
            lanes = re.findall(r"(?m)^rank [^\r\n]*", self.on_terminal(columns, NO_COLOR="1"))
            expected = re.findall(r"(?m)^rank .*", self.good("draw", "1F1B", *SHAPE, "--width", columns))
            self.assertEqual(lanes, expected)

    def test_width_title_and_costs(self):
        narrow = self.good("draw", "1F1B", *SHAPE, "--width", 60, "--title", "Mine", "--costs", "F=2,B=3,W=1,C=1")
        self.assertLessEqual(max(map(len, re.findall(r"(?m)^rank .*", narrow))), 60)
        self.assertIn("Mine", narrow)
        figure = self.good("draw", "1F1B", *SHAPE, "--format", "svg", "--width", 500)
        self.assertIn('width="500"', figure)
        self.assertNotEqual(self.good("draw", "1F1B", *SHAPE, "--format", "svg", "--memory", "--transfers"), figure)

    def test_draws_lowered_schedules_from_standard_input(self):
        lowered = self.good("schedule", "ZBVZeroBubble", *SHAPE, "--lower").encode()
        for form in ("terminal", "svg", "html", "trace"):
            self.assertIn("standard input", self.good("draw", "-", "--format", form, stdin=lowered))


class Compare(ToolTest):
    def rows(self, *arguments):
        return json.loads(self.good("compare", *arguments, "--json"))

    def test_every_training_schedule_that_fits_fastest_first(self):
        data = self.rows(*SHAPE)
        self.assertEqual({row["schedule"] for row in data["schedules"]}, set(self.schedules()) - {"ForwardOnly"})
        times = [row["makespan"] for row in data["schedules"]]
        self.assertEqual(times, sorted(times))
        self.assertEqual(data["unfit"], [])

    def test_all_compute_the_same(self):
        """The busy time of a rank does not depend on the number of its stages."""
        data = self.rows(*SHAPE, "--stages-per-rank", 4, "--costs", "F=4,B=8,W=4")
        self.assertIn(4, {row["stages_per_rank"] for row in data["schedules"]})
        for row in data["schedules"]:
            self.assertAlmostEqual(row["makespan"] * (1 - row["bubble"]), 8 * 16, places=6, msg=row)

    def test_table(self):
        table = self.good("compare", *SHAPE, "--costs", "F=10,B=10,W=10,C=1")
        self.assertRegex(table, r"(?m)^schedule +L +time +vs best +bubble +peak memory +transfers$")
        self.assertIn("1/L", table.splitlines()[0])
        self.assertRegex(table, r"(?m)^1F1B +1 +\d+ +\+\d+\.\d\d % +\d+\.\d\d % +4 +48$")

    def test_names_what_does_not_fit_and_why(self):
        data = self.rows("--ranks", 4, "--microbatches", 3)
        self.assertIn("DualPipeV", {row["schedule"] for row in data["unfit"]})
        self.assertRegex(self.good("compare", "--ranks", 4, "--microbatches", 3),
                         r"(?s)\nThese do not fit:\n.*  DualPipeV, 2 stages a rank: \S")
        tight = self.rows(*SHAPE, "--costs", "CAP=5")
        self.assertIn("memory cap", next(row["reason"] for row in tight["unfit"] if row["schedule"] == "GPipe"))
        self.assertIn("1F1B", {row["schedule"] for row in tight["schedules"]})
        self.bad(1, "compare", *SHAPE, "--costs", "CAP=0.5", says="no schedule fits")

    def test_finds_the_least_lookahead(self):
        """As fast as the full lookahead, with no more memory."""
        shape = ["--ranks", 2, "--microbatches", 8, "--stages-per-rank", 4, "--costs", "F=4,B=4,W=4,G=2,MG=8"]
        full = {(row["schedule"], row["stages_per_rank"]): row for row in self.rows(*shape)["schedules"]}
        least = self.rows(*shape, "--unshard-lookahead", "least")["schedules"]
        self.assertEqual(len(least), len(full))
        for row in least:
            other = full[row["schedule"], row["stages_per_rank"]]
            self.assertAlmostEqual(row["makespan"], other["makespan"], places=6)
            self.assertLessEqual(row["peak_memory"], other["peak_memory"])
            self.assertEqual(len(row["unshard_lookahead"]), 2)
        self.assertTrue(any(min(row["unshard_lookahead"]) < 3 for row in least))
        self.assertIn("lookahead", self.good("compare", *shape, "--unshard-lookahead", "least"))
        self.bad(2, "compare", *SHAPE, "--unshard-lookahead", "least", says="needs the costs of gathers")

    def test_wants_the_same_costs_for_all_stages(self):
        self.write("costs.json", '{"stages": [{"F": 1}, {"F": 2}, {"F": 1}, {"F": 1}]}')
        self.bad(2, "compare", *SHAPE, "--cost-file", "costs.json", says="one cost for all stages")


if __name__ == "__main__":
    tool_support.main()
