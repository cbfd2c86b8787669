#!/usr/bin/env python3
"""The stagecraft program on bad usage and bad input: exit status, one line on standard error, no crash.

    tests/e2e/tool_errors_test.py PROGRAM
"""

import os
import random
import subprocess
import unittest

import tool_support
from tool_support import ToolTest

SHAPE = ["--ranks", "4", "--microbatches", "8"]
READERS = ["lower", "verify", "simulate", "draw"]


class BadUsage(ToolTest):
    def test_no_or_unknown_subcommand(self):
        self.bad(2, says="subcommand")
        self.bad(2, "nonsense", says="nonsense")
        self.bad(2, "", says="stagecraft: ")
        self.bad(2, "--nonsense", says="--nonsense")

    def test_unknown_option_or_one_argument_too_many(self):
        for command in ["schedule", *READERS, "compare"]:
            shape = SHAPE if command in ("schedule", "compare") else []
            self.bad(2, command, *shape, *["1F1B"][:command != "compare"], "--nonsense", says=["--nonsense", f"stagecraft {command} --help"])
        self.bad(2, "verify", "a", "b", says='"b"')
        self.bad(2, "schedule", "1F1B", *SHAPE, "lower", says='"lower"')

    def test_missing_arguments(self):
        for command in READERS:
            self.bad(2, command, says="required")
        self.bad(2, "schedule", *SHAPE, says="NAME")
        self.bad(2, "schedule", "1F1B", "--ranks", 4, says="--microbatches")
        self.bad(2, "compare", "--microbatches", 4, says="--ranks")
        for command in ("simulate", "draw"):
            self.bad(2, command, "1F1B", "--microbatches", 4, says="--ranks")
            self.bad(2, command, "1F1B", "--ranks", 4, says="--microbatches")

    def test_options_that_do_not_go_together(self):
        for option in ("--prefetch=1", "--max-active-stages=1", "--edges=0-2", "--for=torch-2.15", "--limit-sends=1",
                       "--unshard-lookahead=auto", "--defer-reduction-waits"):
            self.bad(2, "schedule", "1F1B", *SHAPE, option, says="--lower")
        self.bad(2, "schedule", "1F1B", *SHAPE, "--lower", "--for", "torch-2.15", "--prefetch", 1, says="--prefetch")
        self.bad(2, "schedule", "1F1B", *SHAPE, "--lower", "--for", "torch-2.14", says="torch-2.13 or torch-2.15")
        for option in ("--limit-sends=1", "--defer-reduction-waits", "--unshard-lookahead=auto", "--unshard-lookahead=1,1,1,1"):
            name = option.split("=")[0]
            self.bad(2, "schedule", "1F1B", *SHAPE, "--lower", "--for", "torch-2.13", option, says=f"{name} is not for torch-2.13, which")
            self.good("schedule", "1F1B", *SHAPE, "--lower", "--for", "torch-2.15", option)
        self.good("schedule", "1F1B", *SHAPE, "--lower", "--for", "torch-2.13", "--unshard-lookahead", "full", "--max-active-stages", 1)
        for lookahead in ("1", "1,2,3,4", "1,,2,3", "some", "0,1,1,1"):
            self.bad(2, "schedule", "1F1B", *SHAPE, "--lower", "--unshard-lookahead", lookahead, says="lookahead")
        self.bad(2, "simulate", "1F1B", *SHAPE, "--unit", "--costs", "F=1", says="--unit")
        self.bad(2, "simulate", "1F1B", *SHAPE, "--costs", "F=1", "--cost-file", "x", says="--cost")
        self.bad(2, "simulate", "1F1B", *SHAPE, "--timeline", says="--json")
        self.bad(2, "verify", "-", "--no-chain", says="--edges")
        self.bad(2, "schedule", "1F1B", *SHAPE, *SHAPE, says="--")
        self.write("good.csv", "0F0,0B0\n")
        for option in ("--ranks", "--microbatches", "--stages-per-rank"):
            self.bad(2, "simulate", "good.csv", option, 1, says="by name")

    def test_numbers(self):
        for option in ("--ranks", "--microbatches", "--stages-per-rank"):
            for value in ("0", "-1", "", "x", "4x", "0x4", "1e3", " 4", "4.0", "99999999999999999999", "4294967298"):
                rest = [part for pair in (("--ranks", "4"), ("--microbatches", "8")) if pair[0] != option for part in pair]
                self.bad(2, "schedule", "LoopedBFS", *rest, f"{option}={value}", says=option)
                self.bad(2, "compare", *rest, option, value, says=option)
        self.bad(2, "lower", "x", "--prefetch", "-1", says="--prefetch")
        self.bad(2, "draw", "1F1B", *SHAPE, "--width", "10", says="--width")

    def test_words(self):
        for arguments in (["schedule", "1F1B", *SHAPE, "--format"], ["verify", "-", "--mode"], ["lower", "-", "--mode"],
                          ["draw", "1F1B", *SHAPE, "--format"], ["draw", "1F1B", *SHAPE, "--color"]):
            self.bad(2, *arguments, "nonsense", says=[arguments[-1], "nonsense"])

    def test_names(self):
        self.bad(2, "schedule", "2F2B", *SHAPE, says=["2F2B", "Interleaved1F1B"])
        for command in ("simulate", "draw"):
            self.bad(2, command, "2F2B", *SHAPE, says=["2F2B", "neither a file nor a schedule", "Interleaved1F1B"])
        self.bad(2, "schedule", "", *SHAPE, says="GPipe")

    def test_shapes_that_a_schedule_cannot_have(self):
        self.bad(2, "schedule", "ZBVZeroBubble", *SHAPE, "--stages-per-rank", 3, says="2")
        self.bad(2, "schedule", "GPipe", *SHAPE, "--stages-per-rank", 2, says="1")
        self.bad(2, "schedule", "DualPipeV", "--ranks", 4, "--microbatches", 3, says="8")

    def test_absurd_shapes(self):
        for name in self.schedules():
            for ranks, microbatches in ((2000000000, 8), (8, 2000000000), (2000000000, 2000000000), (16000000, 1)):
                self.bad(2, "schedule", name, "--ranks", ranks, "--microbatches", microbatches)
        self.bad(2, "schedule", "LoopedBFS", *SHAPE, "--stages-per-rank", 2000000000)

    def test_costs(self):
        arguments = ["simulate", "1F1B", *SHAPE, "--costs"]
        for costs in ("F", "F=", "F=x", "Q=1", "F=1,F=2", "F=1,,W=1", "F=1 ,;", "=1", "F=1x"):
            self.bad(2, *arguments, costs, says="--costs: column")
        for costs in ("F=nan", "F=inf", "F=1e999", "F=-1", "OVERLAP=2", "BW=0"):
            self.bad(2, *arguments, costs, says=costs.split("=")[0])
        self.bad(2, "simulate", "1F1B", *SHAPE, "--cost-file", "none.json", says="none.json: No such file")
        for text in ("", "{", "[]", "7", '{"F": "x"}', '{"Q": 1}', '{"F": 1}}', b"\xff\xfe", "[" * 100000):
            self.write("costs.json", text)
            self.bad(2, "simulate", "1F1B", *SHAPE, "--cost-file", "costs.json", says="costs.json: ")

    def test_edges(self):
        self.write("good.csv", "0F0,0B0\n1F0,1B0\n")
        for edges in ("0", "0-", "a-b", "0-1-2", "0-1,", "0-5", "1-0", "1-1", "99999999999-1"):
            for command in ("verify", "lower", "simulate"):
                self.bad(2, command, "good.csv", f"--edges={edges}", says="--edges: ")

    def test_one_line_whatever_is_in_the_arguments(self):
        self.bad(2, "two\nlines\x1b[31m", says="two\\nlines\\x1b[31m")
        self.bad(2, "simulate", "two\nlines", says="lines")
        self.bad(2, "verify", "two\nlines", says="lines")
        self.bad(2, "schedule", b"\xff\xfe".decode(errors="surrogateescape"), *SHAPE)


class BadFiles(ToolTest):
    def test_files_that_cannot_be_read(self):
        (self.folder / "folder").mkdir()
        for command in READERS:
            self.bad(2, command, "folder", says="folder: Is a directory")
        for command in ("lower", "verify"):
            self.bad(2, command, "none.csv", says="none.csv: No such file")
            self.bad(2, command, "", says="No such file")
        for command in ("simulate", "draw"):
            self.bad(2, command, "none.csv", says="neither a file nor a schedule")

    def test_text_that_is_no_schedule(self):
        cases = {
            "": "",
            "\n": "",
            "\n\n\n": "",
            ",,,\n": "",
            "2F0x\n": "line 1, column 4",
            "0F0,0B0\n1F0,1B0,2F\n": "line 2, column",
            "0F0;0B0\n": "line 1, column 4",
            "0f0\n": "line 1",
            "F0\n": "line 1",
            "0Q0\n": "line 1",
            "-1F0\n": "line 1",
            "0F-1\n": "line 1",
            "0F0 0B0\n": "line 1, column 5",
            "0UNSHARD3\n": "line 1, column 9",
            "(0F0)OVERLAP_F_B\n": "line 1",
            "(0F0;0B0\n": "line 1",
            "99999999999999999999F0\n": "line 1",
            "1048576F0\n": "line 1",
            "0F2147483647\n": "line 1",
            "0F99999999999999999999\n": "line 1",
            "{": "line 1",
            "{}": "",
            '{"stagecraft": 2}': "",
            '  {"stagecraft": 1, "level": "compute", "ranks": 1, "stages": 1, "microbatches": 1, "placement": [9], '
            '"actions": [["0F0"]]}': "",
            "[[]]": "line 1",
            b"\x00\x01\x02\xff\xfe\x80": "line 1",
            b"\xef\xbb\xbf0F0\n": "line 1",
            b"PK\x03\x04\n\n": "line 1",
        }
        for text, says in cases.items():
            self.write("bad.csv", text)
            for command in READERS:
                result = self.bad(1, command, "bad.csv", says=["bad.csv: ", says])
                self.assertEqual(result.out, b"", (command, text))
                self.bad(1, command, "-", says="standard input: ", stdin=text if isinstance(text, bytes) else text.encode())

    def test_huge_but_legal_numbers_are_judged_in_time(self):
        for text in ("1048575F0,1048575B0\n", "0F2147483646,0B2147483646\n", "1048575F2147483646\n0F0\n"):
            self.write("huge.csv", text)
            for command in ("verify", "simulate"):
                result = self.run_tool(command, "huge.csv")
                self.assertEqual(result.code, 1, (command, text, result.err))
                self.assertLessEqual(result.err.count("\n"), 1)

    def test_schedules_that_cannot_be_executed(self):
        for text in ("0F0,0B0\n1B0,1F0\n", "0B0,0F0\n", "0F0,0F0,0B0\n", "0F0,0B0\n0F0,0B0\n", "1F0,0F0,0B0,1B0\n",
                     "0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n", "0I0,0F0,0W0\n"):
            self.write("bad.csv", text)
            result = self.run_tool("verify", "bad.csv")
            self.assertEqual((result.code, result.err), (1, ""), text)
            self.assertNotEqual(result.text, "")
            for command in ("simulate", "draw", "lower"):
                self.bad(1, command, "bad.csv", says="bad.csv: ")

    def test_pieces_of_a_schedule_only_when_asked_for(self):
        self.write("piece.csv", "0F0,0F1,0B0\n1F0,1F1\n")
        for command in ("simulate", "draw"):
            self.bad(1, command, "piece.csv", says=["piece.csv: ", "0B1"])
            self.good(command, "piece.csv", "--mode", "partial")
        self.good("simulate", "piece.csv", "--mode", "partial", "--unit")

    def test_random_text_never_crashes(self):
        letters = "0123456789FBIW,;()\n\n\r\" SENDRCV_UHAGLOP{}[]:\x00\xff"
        good = self.good("schedule", "DualPipeV", "--ranks", 2, "--microbatches", 4, "--lower")
        for seed in range(150):
            chance = random.Random(seed)
            text = list(good) if seed % 2 else []
            for _ in range(chance.randrange(1, 30)):
                text.insert(chance.randrange(len(text) + 1), chance.choice(letters))
            command = chance.choice(READERS)
            result = self.run_tool(command, "-", stdin="".join(text).encode("latin-1"))
            self.assertIn(result.code, (0, 1), (seed, command, result.err))
            self.assertLessEqual(result.err.count("\n"), 1, seed)


class BadOutput(ToolTest):
    def test_files_that_cannot_be_written(self):
        (self.folder / "folder").mkdir()
        for arguments in (["schedule", "1F1B", *SHAPE], ["draw", "1F1B", *SHAPE]):
            self.bad(2, *arguments, "-o", "none/out.csv", says="none/out.csv: No such file")
            self.bad(2, *arguments, "-o", "folder", says="folder: Is a directory")
            self.bad(2, *arguments, "-o", "", says="cannot write")
        self.assertEqual(list((self.folder / "folder").iterdir()), [])

    @unittest.skipUnless(os.path.exists("/dev/full"), "needs /dev/full")
    def test_a_full_disk(self):
        for arguments in (["schedule", "1F1B", *SHAPE], ["simulate", "1F1B", *SHAPE], ["compare", *SHAPE], ["--help"],
                          ["--version"], ["draw", "1F1B", *SHAPE]):
            with open("/dev/full", "wb") as full:
                self.bad(2, *arguments, stdout=full, says="No space left")
        self.bad(2, "schedule", "1F1B", *SHAPE, "-o", "/dev/full", says="/dev/full: No space left")
        self.assertTrue(os.path.exists("/dev/full"))

    def test_what_was_there_stays_when_writing_fails(self):
        self.write("kept.csv", "kept")
        self.bad(2, "schedule", "nonsense", *SHAPE, "-o", "kept.csv")
        self.assertEqual((self.folder / "kept.csv").read_text(), "kept")

    def test_a_reader_that_goes_early(self):
        for name, code in (("1F1B", 0), ("GPipe", 0)):
            with subprocess.Popen([tool_support.tool, "schedule", name, "--ranks", "64", "--microbatches", "4096"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, restore_signals=True) as process:
                process.stdout.read(10)
                process.stdout.close()
                self.assertEqual(process.stderr.read(), b"")
                self.assertEqual(process.wait(timeout=60), code)

    def test_no_standard_streams(self):
        script = f'"{tool_support.tool}" schedule 1F1B --ranks 4 --microbatches 8'
        self.assertEqual(subprocess.run(["bash", "-c", script + " >&- 2>&-"], timeout=60).returncode, 2)
        self.assertEqual(subprocess.run(["bash", "-c", f'"{tool_support.tool}" verify - <&- 2>/dev/null'],
                                        timeout=60).returncode, 2)


if __name__ == "__main__":
    tool_support.main()
