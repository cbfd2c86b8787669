#!/usr/bin/env python3
"""`stagecraft train` that continues after deaths: --resume auto, --processes, --restarts, torchrun's restarts.

    train_healing_test.py STAGECRAFT [unittest options]

SC_KILLS says how many times a rank is killed in one run (2 unless it is set); the seed of ranks and moments is printed,
and SC_SEED sets it.
"""

import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

import tool_support
from train_processes_test import LAUNCHER, SECONDS, ProcessesTest, steps_of
from train_test import SMALL, TrainTest, small

KILLS = int(os.environ.get("SC_KILLS", "2"))
RUN = ["--data", "text.txt", *SMALL, "--quiet"]


class ResumeAuto(TrainTest):
    def test_the_same_command_begins_and_continues(self):
        # A learning rate that does not depend on --steps.
        constant = ["--lr", "0.003", "--min-lr", "0.003", "--warmup", "0"]
        whole = self.curve("--steps", "6", "--checkpoint", "whole", *constant)
        command = ["--data", "text.txt", *small(*constant), "--checkpoint", "run", "--save-every", "2", "--resume", "auto"]
        parts = {}
        for steps in [2, 5, 6]:
            text = self.good("train", "--json", *command, "--steps", str(steps))
            self.assertEqual(min(steps_of(text)), max(parts, default=0) + 1)
            parts.update(steps_of(text))
        self.assertEqual(parts, whole)
        again = self.good("train", *command, "--steps", "6")
        self.assertIn("nothing to train", again)

    def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken(self):
        run = [*RUN, "--checkpoint", "run", "--save-every", "2", "--keep", "0", "--steps", "6"]
        self.good("train", *run)
        expected = self.weights("run/step-00000006")
        index = self.folder / "run/step-00000006/index.json"
        index.write_text(index.read_text()[:-40])
        result = self.run_tool("train", *run, "--resume", "auto")
        self.assertEqual(result.code, 0, result.err)
        self.assertRegex(result.err, r"\Astagecraft: [^\n]*step-00000006[^\n]*trying the checkpoint before it\n\Z")
        self.assert_same(self.weights("run/step-00000006"), expected)
        for path in (self.folder / "run").glob("step-*/index.json"):
            path.write_text("{")
        result = self.run_tool("train", *run, "--resume", "auto")
        self.assertEqual(result.code, 2, result.err)
        self.assertRegex(result.err, r"\nstagecraft: run/step-00000002/index.json: not a checkpoint index, or damaged\n\Z")

    def test_needs_a_folder(self):
        self.bad(2, "train", *RUN, "--resume", "auto", says="--resume auto continues from the folder of --checkpoint")

    def assert_same(self, a, b):
        import torch
        self.assertEqual(sorted(a), sorted(b))
        for name in a:
            self.assertTrue(torch.equal(a[name], b[name]), name)


class Times(TrainTest):
    def saved(self, *options):
        self.good("train", *RUN, "--checkpoint", "run", "--keep", "0", *options)
        return sorted(path.name for path in (self.folder / "run").iterdir())

    def test_between_checkpoints_may_be_a_time(self):
        self.assertEqual(self.saved("--steps", "4", "--save-every", "1000s"), ["step-00000004"])

    def test_a_short_time_saves_after_every_step(self):
        self.assertEqual(self.saved("--steps", "4", "--save-every", "1us"),
                         [f"step-{step:08}" for step in range(1, 5)])

    def test_that_are_none_are_refused(self):
        for text in ["0s", "-3s", "5GB", "soon"]:
            self.bad(2, "train", *RUN, "--checkpoint", "run", "--save-every", text, says="--save-every")


class LaunchTest(ProcessesTest):
    """Starts programs that start ranks themselves."""

    def launch(self, *arguments):
        environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
        environment.update(OMP_NUM_THREADS="1")
        process = subprocess.Popen([tool_support.tool, "train", *arguments], cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=environment)
        self.addCleanup(self.close, process)
        return process

    def close(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()

    def ranks(self, process, number):
        """The process numbers of the ranks, in order, when all of them are there."""
        limit = time.monotonic() + SECONDS
        while time.monotonic() < limit:
            found = {}
            for path in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    if int(re.search(r"\nPPid:\s*(\d+)", (path / "status").read_text())[1]) != process.pid:
                        continue
                    words = dict(word.split("=", 1) for word in
                                 (path / "environ").read_bytes().decode(errors="replace").split("\0") if "=" in word)
                    found[int(words["RANK"])] = int(path.name)
                except (OSError, KeyError, TypeError):
                    pass
            if len(found) == number:
                return [found[rank] for rank in sorted(found)]
            time.sleep(0.02)
        self.fail("the ranks did not start")

    def wait_for_step(self, step, folder="run"):
        limit = time.monotonic() + SECONDS
        while time.monotonic() < limit:
            if any(int(path.name[5:]) >= step for path in (self.folder / folder).glob("step-*")):
                return
            time.sleep(0.02)
        self.fail(f"no checkpoint of step {step}")


class Launched(LaunchTest):
    """--processes starts the ranks itself."""

    def test_the_losses_are_those_of_threads(self):
        options = ["--data", "text.txt", *SMALL, "--steps", "4", "--json"]
        threads = steps_of(self.good("train", *options, "--ranks", "2"))
        process = self.launch(*options, "--processes", "2")
        out, err = process.communicate(timeout=SECONDS)
        self.assertEqual((process.returncode, err), (0, ""))
        lines = [line.removeprefix("rank 0: ") for line in out.splitlines()]
        self.assertEqual(steps_of("\n".join(lines)), threads)

    def test_a_death_without_restarts_is_one_more_line(self):
        process = self.launch(*RUN, "--steps", "100000", "--processes", "2", "--checkpoint", "run", "--save-every", "5")
        ranks = self.ranks(process, 2)
        self.wait_for_step(5)
        os.kill(ranks[1], signal.SIGKILL)
        out, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 1, err)
        self.assertRegex(err, r"\nstagecraft: rank 1 was killed by signal 9 \(Killed\) after step \d+\n\Z")
        self.assertRegex(err, r"rank 0: [^\n]*rank 1")  # the survivor names it, too

    def test_bad_usage_is_not_tried_again(self):
        process = self.launch(*RUN, "--processes", "2", "--restarts", "3", "--checkpoint", "run", "--ranks", "3")
        out, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 2, err)
        self.assertNotIn("restart", err)
        self.bad(2, "train", *RUN, "--processes", "2", "--restarts", "1", says="--restarts continues from checkpoints")
        self.bad(2, "train", *RUN, "--processes", "2", "--transport", "local", says="--transport local")
        self.bad(2, "train", *RUN, "--processes", "3", "--replicas", "2", says="--replicas 2 does not divide")
        self.bad(2, "train", *RUN, "--processes", "2", env={"RANK": "0", "WORLD_SIZE": "2"}, says="torchrun has started")

    def test_an_interrupt_is_passed_on_and_saves(self):
        process = self.launch(*RUN, "--steps", "100000", "--processes", "2", "--checkpoint", "run", "--save-every", "5",
                              "--restarts", "2")
        self.wait_for_step(5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 130, err)
        self.assertNotIn("restart", err)

    def test_no_rank_outlives_its_launcher(self):
        process = self.launch(*RUN, "--steps", "100000", "--processes", "2", "--checkpoint", "run", "--save-every", "5")
        ranks = self.ranks(process, 2)
        self.wait_for_step(5)
        process.kill()
        limit = time.monotonic() + 20
        while any(pathlib.Path(f"/proc/{rank}").exists() for rank in ranks) and time.monotonic() < limit:
            time.sleep(0.05)
        self.assertFalse([rank for rank in ranks if pathlib.Path(f"/proc/{rank}").exists()])


class Deaths(LaunchTest):
    """A run in which ranks are killed ends with the same weights as a run without kills."""

    def setUp(self):
        super().setUp()
        seed = int(os.environ.get("SC_SEED", random.randrange(1 << 30)))
        print(f"SC_SEED={seed}", file=sys.stderr)
        self.random = random.Random(seed)
        self.steps = 60 + 60 * KILLS

    def train_whole(self, *arguments):
        """The run without kills, on threads."""
        self.options = ["--data", "text.txt", *small("--width", "32", *arguments), "--steps", str(self.steps), "--quiet",
                        "--save-every", "7"]
        self.good("train", *self.options, "--ranks", "1" if "--replicas" in arguments else "2", "--checkpoint", "whole",
                  "--save-weights", "whole.pt")

    def newest(self):
        return max((int(path.name[5:]) for path in (self.folder / "run").glob("step-*")), default=0)

    def kill_again_and_again(self, ranks_of, process):
        """Kills a random rank after some steps of each life."""
        killed = 0
        while killed < KILLS and process.poll() is None:
            goal = self.newest() + self.random.randrange(7, 40)
            while self.newest() < goal and process.poll() is None:
                time.sleep(0.01)
            ranks = ranks_of()
            if process.poll() is not None or not ranks:
                continue
            try:
                os.kill(self.random.choice(ranks), signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                pass
        return killed

    def test_of_sharded_replicas_that_are_started_here(self):
        """Every rank writes its part of a checkpoint, so a kill may leave some parts of it."""
        import torch
        self.train_whole("--microbatches", "2", "--replicas", "2")
        process = self.launch(*self.options, "--shard", "parameters", "--processes", "2", "--restarts", str(KILLS), "--checkpoint", "run",
                              "--save-weights", "run.pt")
        texts = []
        readers = [threading.Thread(target=lambda pipe=pipe: texts.append(pipe.read()))
                   for pipe in (process.stdout, process.stderr)]
        for reader in readers:
            reader.start()
        killed = self.kill_again_and_again(lambda: self.ranks(process, 2), process)
        process.wait(timeout=SECONDS)
        for reader in readers:
            reader.join()
        text = "".join(texts)
        self.assertEqual(process.returncode, 0, text)
        self.assertEqual(killed, KILLS)
        self.assertTrue((self.folder / f"run/step-{self.steps:08}/part-1.pt").exists())
        self.assertSameWeights(torch.load(self.folder / "run.pt", weights_only=True),
                               torch.load(self.folder / "whole.pt", weights_only=True))
        found = re.findall(r"^stagecraft: rank (\d) was killed by signal 9 \(Killed\) after step (\d+); continuing "
                           r"after step (\d+) of run: (\d+) steps? (?:is|are) lost \(restart (\d+) of", text, re.M)
        self.assertEqual([int(each[4]) for each in found], list(range(1, KILLS + 1)), text)
        for _, reached, saved, lost, _ in found:
            self.assertEqual(int(lost), int(reached) - int(saved))

    def test_under_torchrun(self):
        self.train_whole()
        self.mark = f"heal{self.random.random()}"
        environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
        environment.update(SC_TEST_MARK=self.mark, OMP_NUM_THREADS="1")
        process = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python",
                                    "--nproc-per-node", "2", "--max-restarts", str(KILLS), "--monitor-interval", "0.1",
                                    tool_support.tool, "train", *self.options, "--checkpoint", "run", "--resume", "auto"],
                                   cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   env=environment)
        self.addCleanup(lambda: (process.poll() is None and process.kill(), process.wait(), process.stderr.close()))
        errors = []
        reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))
        reader.start()
        killed = self.kill_again_and_again(
            lambda: [rank for rank in (self.rank(number, 0) for number in range(2)) if rank], process)
        process.wait(timeout=SECONDS)
        reader.join()
        self.assertEqual(process.returncode, 0, "".join(errors))
        self.assertEqual(killed, KILLS)
        self.assertSameWeights(self.weights(f"run/step-{self.steps:08}"), self.weights(f"whole/step-{self.steps:08}"))


if __name__ == "__main__":
    tool_support.main()
