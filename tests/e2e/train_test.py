#!/usr/bin/env python3
"""`stagecraft train` as a user runs it: curves, checkpoints, kills, Ctrl-C, wrong inputs.

    train_test.py STAGECRAFT [unittest options]

SC_KILLS says how many times training is killed at a random moment (2 unless it is set); the seed of those moments is
printed, and SC_SEED sets it.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

import tool_support
from tool_support import ToolTest

# A model that trains in milliseconds a step.
SMALL = ["--layers", "4", "--width", "16", "--heads", "2", "--context", "16", "--batch", "8", "--microbatches", "4",
         "--eval-every", "0", "--sample", "0"]


def small(*arguments):
    """The options of SMALL that are not given, and those that are."""
    options = []
    for name, value in zip(SMALL[::2], SMALL[1::2]):
        if name not in arguments:
            options += [name, value]
    return [*options, *arguments]


class TrainTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("text.txt", " ".join(f"The {word} is {word}." for word in ["cat", "dog", "sun", "sea"] * 60))

    def start(self, *arguments):
        return subprocess.Popen([tool_support.tool, "train", *arguments], cwd=self.folder, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def lines(self, *arguments):
        """The JSON lines of a run that must succeed."""
        return [json.loads(line) for line in self.good("train", "--json", *arguments).splitlines()]

    def curve(self, *arguments):
        """Loss and norm by step."""
        return {line["step"]: (line["loss"], line["grad_norm"])
                for line in self.lines("--data", "text.txt", *small(*arguments)) if "loss" in line}

    def resume(self, *arguments):
        return {line["step"]: (line["loss"], line["grad_norm"])
                for line in self.lines("--resume", "run", *arguments) if "loss" in line}

    def late(self, *arguments):
        """A run that must fail because a rank has waited too long: a table of where all ranks are, then one line."""
        result = self.run_tool("train", "--data", "text.txt", *SMALL, "--timeout", "0.00001", "--quiet", *arguments)
        self.assertEqual(result.code, 1, result.err)
        self.assertRegex(result.err, r"\Astagecraft error .*rank \d.*waited")
        self.assertRegex(result.err, r"\n  rank +last action .*(\n  \d .*){2}\nstagecraft: rank \d, [^\n]*\n\Z")

    def weights(self, checkpoint):
        """All tensors of a checkpoint by section and name, read by Python's torch."""
        import torch
        found = {}
        for path in sorted((self.folder / checkpoint).glob("stage-*.pt")):
            for section, tensors in torch.load(path, weights_only=True).items():
                for name, tensor in tensors.items():
                    self.assertNotIn((section, name), found)
                    found[section, name] = tensor
        return found

    def assertSameWeights(self, a, b):
        self.assertEqual(a.keys(), b.keys())
        for key in a:
            self.assertTrue(a[key].equal(b[key]), key)


class Curves(TrainTest):
    def test_do_not_depend_on_the_cut_nor_on_the_schedule(self):
        one = self.curve("--steps", "6", "--ranks", "1", "--dropout", "0.1")
        self.assertEqual(sorted(one), list(range(1, 7)))
        self.write("own.csv", self.good("schedule", "1F1B", "--ranks", "2", "--microbatches", "4"))
        for options in [["--ranks", "2"], ["--ranks", "4", "--schedule", "GPipe"],
                        ["--ranks", "2", "--schedule", "ZBVZeroBubble", "--recompute", "all"],
                        ["--schedule", "own.csv"], ["--ranks", "3", "--split", "blocks.1,head"],
                        ["--schedule", "own.csv", "--limit-sends", "1", "--defer-reduction-waits"],
                        ["--ranks", "2", "--schedule", "Interleaved1F1B", "--max-active-stages", "2", "--unshard-lookahead", "1,2",
                         "--limit-sends", "2"],
                        ["--ranks", "2", "--stages", "4", "--schedule", "Interleaved1F1B", "--policy", "parameters"]]:
            self.assertEqual(self.curve("--steps", "6", "--dropout", "0.1", *options), one, options)
        self.assertNotEqual(self.curve("--steps", "6", "--dropout", "0.1", "--seed", "2"), one)

    def test_the_lookahead_is_found_from_the_first_steps(self):
        text = self.good("train", "--data", "text.txt", *small("--steps", "5", "--ranks", "1", "--replicas", "2", "--microbatches", "2"),
                         "--schedule", "Interleaved1F1B", "--shard", "parameters", "--unshard-lookahead", "least", "--checkpoint", "run",
                         "--report-json", "report.json")
        said = [line for line in text.splitlines() if line.startswith("unshard lookahead")]
        self.assertEqual(len(said), 1)
        self.assertRegex(said[0], r"lookahead [123] by rank \(at most 3\): a gather takes up to \S+ ms, a forward \S+ ms or more")
        facts = json.loads((self.folder / "report.json").read_text())["facts"]
        self.assertIn({"name": "unshard lookahead", "value": said[0]}, facts)
        # Without gathers there is nothing to measure.
        self.assertEqual(sorted(self.resume("--steps", "6", "--replicas", "1")), [6])

    def test_learning_beats_guessing_by_frequency(self):
        text = self.good("train", "--data", "text.txt", *small("--steps", "150", "--sample", "40", "--eval-every", "75"))
        entropy = float(text.split("unigram entropy ")[1].split()[0])
        losses = [float(line.split("loss ")[1].split()[0]) for line in text.splitlines() if "  loss " in line]
        self.assertGreater(losses[0], 5)
        self.assertLess(losses[-1], 0.7 * entropy)
        self.assertIn("evaluation loss", text)
        self.assertIn("sample:\n", text)

    def test_the_corpus_comes_with_the_program(self):
        self.assertIn("231267 bytes of text", self.good("train", *SMALL, "--steps", "1"))

    def test_quiet_says_nothing(self):
        self.assertEqual(self.good("train", "--data", "text.txt", *SMALL, "--steps", "2", "--quiet"), "")


class Checkpoints(TrainTest):
    def test_resume_at_another_number_of_stages_has_the_same_curve_and_weights(self):
        whole = self.curve("--steps", "9", "--ranks", "2", "--dropout", "0.1", "--checkpoint", "whole")
        self.curve("--steps", "9", "--ranks", "4", "--dropout", "0.1", "--checkpoint", "run", "--save-every", "3", "--keep", "0")
        shutil.rmtree(self.folder / "run/step-00000009")
        shutil.rmtree(self.folder / "run/step-00000006")
        self.assertEqual(self.resume("--ranks", "1"), {step: whole[step] for step in range(4, 10)})
        self.assertSameWeights(self.weights("run/step-00000009"), self.weights("whole/step-00000009"))
        shutil.rmtree(self.folder / "run/step-00000009")
        self.assertEqual(self.resume("--ranks", "2", "--schedule", "ZBVZeroBubble")[9], whole[9])

    def test_a_kill_at_any_moment_loses_nothing_that_was_saved(self):
        kills = int(os.environ.get("SC_KILLS", "2"))
        seed = int(os.environ.get("SC_SEED", str(random.randrange(1 << 30))))
        print(f"kills: {kills}, seed {seed}", file=sys.stderr)
        draw = random.Random(seed)
        # Enough steps that there is always something to kill: at most some 60 between two kills.
        last = 80 * (kills + 1)
        options = ["--data", "text.txt", *SMALL, "--steps", str(last), "--keep", "2", "--quiet", "--dropout", "0.1"]
        patience = tool_support.SECONDS + last  # a step takes far less than a second
        self.good("train", *options, "--checkpoint", "whole", "--save-every", str(last), timeout=patience)
        expected = self.weights(f"whole/step-{last:08}")

        def newest():
            return max((int(path.name[5:]) for path in self.folder.glob("run/step-*")), default=0)

        process = self.start(*options, "--checkpoint", "run", "--save-every", "1")
        before, reached = 0, []
        for _ in range(kills):
            limit = time.monotonic() + 60
            while newest() <= before:  # until it is at work
                self.assertIsNone(process.poll())
                self.assertLess(time.monotonic(), limit)
                time.sleep(0.002)
            time.sleep(draw.uniform(0, 0.2))
            self.assertIsNone(process.poll(), "it must be alive to be killed")
            process.kill()
            process.communicate()
            before = newest()
            reached.append(before)
            process = self.start("--resume", "run", "--quiet", "--ranks", str(draw.choice([1, 2, 4])))
        out, err = process.communicate(timeout=patience)
        self.assertEqual((process.returncode, out, err), (0, "", ""))
        print(f"killed after steps {reached} of {last}", file=sys.stderr)
        self.assertSameWeights(self.weights(f"run/step-{last:08}"), expected)
        self.assertEqual(sorted(path.name for path in (self.folder / "run").iterdir()),
                         [f"step-{last - 1:08}", f"step-{last:08}"])

    def test_damage_is_named_and_refused(self):
        self.curve("--steps", "4", "--checkpoint", "run", "--save-every", "2")
        path = self.folder / "run/step-00000004/stage-1.pt"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        self.bad(2, "train", "--resume", "run", says="run/step-00000004/stage-1.pt: damaged")
        self.assertEqual(sorted(self.resume_from("run/step-00000002")), [3, 4])

    def resume_from(self, checkpoint):
        return [line["step"] for line in self.lines("--resume", checkpoint, "--checkpoint", "other")]

    def test_a_folder_in_use_and_another_text_are_refused(self):
        self.curve("--steps", "2", "--checkpoint", "run")
        self.bad(2, "train", "--data", "text.txt", *SMALL, "--checkpoint", "run", says="continue from them with --resume run")
        self.write("other.txt", "Something else. " * 100)
        self.bad(2, "train", "--resume", "run", "--data", "other.txt", says="the checkpoint was trained on data different from --data")
        self.bad(2, "train", "--resume", "run", "--width", "32", says="the checkpoint has")
        self.bad(2, "train", "--resume", "nothing", says="nothing: no checkpoint found")
        self.curve("--steps", "4", "--checkpoint", "later", "--save-every", "2")
        self.bad(2, "train", "--resume", "later/step-00000002", says="there are later checkpoints (step-00000004)")

    def test_python_finds_the_unsplit_names(self):
        self.curve("--steps", "1", "--ranks", "4", "--checkpoint", "run")
        names = {name for section, name in self.weights("run/step-00000001") if section == "model"}
        self.assertIn("blocks.3.qkv.weight", names)
        self.assertIn("embed.tokens.weight", names)

    def test_a_full_disk_ends_no_training_and_leaves_the_last_checkpoint(self):
        small = self.folder / "small"
        small.mkdir()
        more, says = {}, "cannot be written: No space left on device"
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", small],
                          stderr=subprocess.DEVNULL).returncode == 0:
            self.addCleanup(subprocess.run, ["umount", "-l", small])
        else:
            # Without the right to mount: the second checkpoint's file may not grow as it must.
            print("no right to mount: a limit on the size of files instead", file=sys.stderr)
            self.good("train", "--data", "text.txt", *SMALL, "--steps", "1", "--quiet", "--checkpoint", "small/run")

            def limit():
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

            more, says = {"preexec_fn": limit}, "cannot be written: File too large"
        start = ["--resume", "small/run", "--steps", "50"] if more else ["--data", "text.txt", *SMALL, "--steps", "50"]
        result = self.run_tool("train", *start, "--save-every", "1", "--keep", "0", "--quiet", "--checkpoint",
                               "small/run", **more)
        self.assertEqual(result.code, 3, result.err)
        steps = sorted(path.name for path in (small / "run").iterdir())
        self.assertTrue(steps)
        self.assertTrue(all(name.startswith("step-") for name in steps), steps)
        first, *others, last = result.err.splitlines()  # said when it begins, and at the end
        self.assertLess(len(others), 3)
        self.assertRegex(first, r"the checkpoint of step \d+ was not written: small/run/.unfinished.*" + re.escape(says))
        self.assertIn("training continues", first)
        self.assertIn("the last checkpoint, of step 50, was not written", last)
        self.good("train", "--resume", f"small/run/{steps[-1]}", "--checkpoint", "run", "--steps", "12", "--quiet")

    def test_options_of_then_hold_unless_others_are_given(self):
        self.write("own.csv", self.good("schedule", "1F1B", "--ranks", "3", "--microbatches", "4"))
        options = ["--data", "text.txt", *SMALL, "--prompt", "", "--bf16=false", "--checkpoint", "run"]
        self.lines(*options, "--steps", "1", "--ranks", "3", "--split", "blocks.1,head", "--recompute", "1")
        # An empty prompt does not swallow the next option; the old cut goes with the old ranks.
        lines = self.lines("--resume", "run", "--steps", "2", "--ranks", "1")
        self.assertEqual([line.get("step") for line in lines], [2])
        lines = self.lines("--resume", "run", "--steps", "3", "--schedule", "own.csv")
        self.assertEqual([line.get("step") for line in lines], [3])
        # Numbers for each rank go with the ranks; a schedule's file may be lowered.
        lines = self.lines("--resume", "run", "--steps", "4", "--schedule", "1F1B", "--ranks", "2", "--unshard-lookahead", "1,1",
                           "--limit-sends", "1", "--defer-reduction-waits")
        self.assertEqual([line.get("step") for line in lines], [4])
        lines = self.lines("--resume", "run", "--steps", "5", "--ranks", "1")
        self.assertEqual([line.get("step") for line in lines], [5])
        # Stage 2 has the head, whose weight is the embedding's.
        self.write("lowered.csv", self.good("schedule", "1F1B", "--ranks", "3", "--microbatches", "4", "--lower", "--edges", "0-2"))
        lines = self.lines("--resume", "run", "--steps", "6", "--schedule", "lowered.csv")
        self.assertEqual([line.get("step") for line in lines], [6])
        # From another folder.
        (self.folder / "elsewhere").mkdir()
        self.folder = self.folder / "elsewhere"
        lines = self.lines("--resume", "../run", "--steps", "7")
        self.assertEqual([line.get("step") for line in lines], [7])

    def test_a_run_that_is_done_has_nothing_to_report(self):
        self.curve("--steps", "2", "--checkpoint", "run")
        text = self.good("train", "--resume", "run", "--report", "report.html")
        self.assertIn("nothing to train: --steps 2 are done", text)
        self.assertFalse((self.folder / "report.html").exists())


class Reports(TrainTest):
    def test_tell_of_the_last_step_of_training(self):
        self.curve("--steps", "3", "--ranks", "2", "--eval-every", "1", "--report", "report.html", "--report-json",
                   "report.json", "--trace", "trace.json")
        report = json.loads((self.folder / "report.json").read_text())
        text = json.dumps(report)
        self.assertIn("stagecraft train --json --data text.txt", text)
        self.assertEqual([point[0] for point in report["losses"]], [1, 2, 3])
        self.assertEqual([point[0] for point in report["evaluations"]], [1, 2, 3])
        for stage in report["stages"]:
            self.assertEqual(stage["F"]["count"], 4)
            self.assertEqual(stage["B"]["count"], 4)
        self.assertEqual(report["stages"][0]["name"].split()[0], "embed")
        self.assertEqual(report["stages"][1]["name"].split()[-1], "head")
        for rank in report["ranks"]:
            self.assertGreater(rank["memory"]["recorded_peak"], rank["memory"]["parameters"])
        self.assertGreater(len(report["comparison"]["schedules"]), 3)
        page = (self.folder / "report.html").read_text()
        self.assertTrue(page.startswith("<!DOCTYPE html>") or page.startswith("<!doctype html>"))
        events = json.loads((self.folder / "trace.json").read_text())["traceEvents"]
        self.assertTrue(any(event.get("name") == "1B3" for event in events))

    def test_tell_of_a_step_that_failed(self):
        self.late("--report-json", "report.json")
        self.assertIn("waited", json.loads((self.folder / "report.json").read_text())["failure"])


class Interrupts(TrainTest):
    def test_ctrl_c_finishes_the_step_and_saves(self):
        for number, code in [(signal.SIGINT, 130), (signal.SIGTERM, 143)]:
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            process = self.start("--data", "text.txt", *SMALL, "--steps", "100000", "--checkpoint", "run",
                                 "--save-every", "100000")
            process.stdout.readline()
            process.stdout.readline()  # the first step
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, err), (code, ""))
            self.assertRegex(out, r"stopped after step \d+: saved run/step-\d+; to continue: stagecraft train --resume run\n\Z")
            step = int(out.split("stopped after step ")[1].split(":")[0])
            self.assertEqual(min(self.resume("--steps", str(step + 2))), step + 1)

    def test_without_a_folder_nothing_is_saved(self):
        process = self.start("--data", "text.txt", *SMALL, "--steps", "100000")
        process.stdout.readline()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertIn("nothing was saved", out)


class WrongInputs(TrainTest):
    def refused(self, *arguments, says, code=2):
        self.bad(code, "train", "--data", "text.txt", *small(*arguments), says=says)

    def test_flags(self):
        self.bad(2, "train", "--nonsense", says="there is no option --nonsense (see stagecraft train --help)")
        self.bad(2, "train", "word", says='"word" is one argument too many')
        self.refused("--steps", "0", says="--steps takes a whole number from 1")
        self.refused("--lr", "fast", says="--lr takes a number from 0 to 1000, got \"fast\"")
        self.refused("--batch", "3", says="--batch 3 has fewer rows than there are microbatches: 4 x 1")
        self.refused("--accumulate", "4", says="4 x 4")
        self.refused("--steps", "4", "--warmup", "10", says="--warmup 10 is longer than --steps 4")
        self.refused("--min-lr", "1", says="--min-lr 1 is above --lr")
        self.refused("--quiet", "--json", says="excludes")
        self.refused("--stages", "3", "--ranks", "2", says="--stages 3 cannot be placed evenly on --ranks 2")
        self.refused("--split", "blocks.1", "--stages", "2", says="excludes")
        self.refused("--split", "blocks.7", says="there is no module 'blocks.7'")
        self.refused("--schedule", "2F2B", says="there is no schedule '2F2B'")
        self.refused("--schedule", "none.csv", says="none.csv")
        self.refused("--schedule", "ForwardOnly", "--quiet", says="the schedule has only forwards, which train nothing", code=1)
        self.refused("--context", "3", says="--context takes a whole number from 4")
        self.refused("--recompute", "5", says="--recompute takes all, or stages from 0 to 1, got \"5\"")
        self.refused("--device", "toaster", says="--device takes cpu, cuda or cuda:N, got \"toaster\"")
        self.refused("--heads", "3", says="a width that 3 heads divide, got 16")
        self.write("own.csv", self.good("schedule", "1F1B", "--ranks", "2", "--microbatches", "6"))
        self.refused("--schedule", "own.csv", says="--microbatches 4 does not fit own.csv, which has 6")
        self.refused("--limit-sends", "0", says="--limit-sends takes a whole number from 1")
        self.refused("--max-active-stages", "0", says="--max-active-stages takes a whole number from 1")
        self.refused("--unshard-lookahead", "some",
                     says="--unshard-lookahead is full, auto, least or a number for each rank, got \"some\"")
        self.refused("--unshard-lookahead", "least", says="--unshard-lookahead least is found from the times of gathers: pass --shard parameters")
        self.refused("--unshard-lookahead", "least", "--replicas", "2", "--shard", "gradients", says="pass --shard parameters, too")
        self.write("unsharded.csv", "0UNSHARD,0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3,0RESHARD\n")
        self.refused("--unshard-lookahead", "least", "--replicas", "2", "--shard", "parameters", "--schedule", "unsharded.csv",
                     says="--unshard-lookahead least: the schedule says itself where stages are unsharded")
        self.refused("--unshard-lookahead", "1,2,3", says="--unshard-lookahead: the lookahead has 3 numbers, expected one for each of 2 ranks")
        self.refused("--unshard-lookahead", "1,2", "--max-active-stages", "1", says="--unshard-lookahead: a lookahead is a number from 1 to 1")
        self.write("lowered.csv", self.good("schedule", "1F1B", "--ranks", "2", "--microbatches", "4", "--lower"))
        self.refused("--schedule", "lowered.csv", "--limit-sends", "1",
                     says="--limit-sends does not fit lowered.csv, which is lowered already: it has transfers")

    def test_files(self):
        self.bad(2, "train", "--data", "missing.txt", says="missing.txt: cannot be read: No such file or directory")
        self.bad(2, "train", "--data", ".", says="--data . is a folder")
        self.bad(2, "train", "--data", self.write("short.txt", "too short"), says="the training part of the text has 8 bytes")
        self.bad(2, "train", "--data", self.write("empty.txt", ""), says="expected a text, got an empty one")
        self.refused("--report", "no/such/folder/report.html", says="cannot write no/such/folder/report.html")
        self.refused("--report", ".", says="cannot write .: Is a directory")
        self.refused("--checkpoint", "/proc/run", "--quiet", says="--checkpoint /proc/run: cannot be created")

    def test_a_failing_rank_ends_all_with_its_name(self):
        self.late()

    def test_help(self):
        text = self.good("train", "--help")
        for word in ["--schedule", "--resume", "Exit status", "Examples:"]:
            self.assertIn(word, text)
        self.assertIn("train", self.good("--help"))
        self.assertEqual(self.good("train", "--version"), self.good("--version"))


if __name__ == "__main__":
    tool_support.main()
