#!/usr/bin/env python3
"""`stagecraft train` on several processes, started by torchrun and mpirun, and with replicas.

    train_processes_test.py STAGECRAFT [unittest options]

$SC_MPIRUNS: the commands of the MPIs that are there, separated by "|".
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest
import uuid

import tool_support
from train_test import SMALL, TrainTest, small

SECONDS = 120
LAUNCHER = ["RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"]


def steps_of(text):
    lines = [json.loads(line) for line in text.splitlines()]
    return {line["step"]: (line["loss"], line["grad_norm"]) for line in lines if "loss" in line}


class ProcessesTest(TrainTest):
    def torchrun(self, processes, *arguments):
        """Starts it; self.rank(n) is the process of a rank then."""
        self.mark = uuid.uuid4().hex
        environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
        environment.update(SC_TEST_MARK=self.mark, OMP_NUM_THREADS="1")
        process = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python",
                                    "--nproc-per-node", str(processes), tool_support.tool, "train", *arguments],
                                   cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=environment)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.kill()
        for number in range(4):
            left = self.rank(number, 0)
            if left is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(left, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()

    def rank(self, number, seconds=SECONDS):
        wanted = {f"SC_TEST_MARK={self.mark}", f"RANK={number}"}
        limit = time.monotonic() + seconds
        while True:
            for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
                try:
                    if wanted <= set(path.read_bytes().decode(errors="replace").split("\0")):
                        return int(path.parent.name)
                except OSError:
                    pass
            if time.monotonic() > limit:
                return None
            time.sleep(0.05)

    def train(self, processes, *arguments):
        """What the processes of a run that must succeed print together."""
        out, err = self.torchrun_to_end(processes, *arguments, code=0)
        self.assertNotIn("stagecraft", err)
        return out

    def torchrun_to_end(self, processes, *arguments, code):
        process = self.torchrun(processes, *arguments)
        out, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, code, err)
        return out, err


class Processes(ProcessesTest):
    def test_go_on_with_the_digits_of_threads_and_back(self):
        options = ["--data", "text.txt", *small("--eval-every", "3"), "--dropout", "0.1", "--steps", "7", "--json",
                   "--save-every", "2", "--keep", "0"]
        whole = self.good("train", *options, "--checkpoint", "whole", "--save-weights", "whole.pt")
        curve = steps_of(whole)
        (self.folder / "run").mkdir()
        shutil.copytree(self.folder / "whole/step-00000002", self.folder / "run/step-00000002")
        out = self.train(2, "--resume", "run", "--json", "--report-json", "report.json", "--save-weights", "trained.pt")
        self.assertEqual(steps_of(out), {step: curve[step] for step in range(3, 8)})
        self.assertEqual([line for line in out.splitlines() if "eval_loss" in line],
                         [line for line in whole.splitlines() if "eval_loss" in line])
        report = json.loads((self.folder / "report.json").read_text())
        self.assertEqual([stage["F"]["count"] for stage in report["stages"]], [4, 4])
        self.assertEqual(len(report["ranks"]), 2)
        import torch
        ours = torch.load(self.folder / "trained.pt", weights_only=True)
        theirs = torch.load(self.folder / "whole.pt", weights_only=True)
        self.assertSameWeights(ours, theirs)
        for step in [6, 7]:
            self.assertSameWeights(self.weights(f"run/step-0000000{step}"), self.weights(f"whole/step-0000000{step}"))
            shutil.rmtree(self.folder / f"run/step-0000000{step}")
        self.assertEqual(self.resume("--ranks", "1"), {step: curve[step] for step in range(5, 8)})

    def test_a_kill_of_one_ends_all_and_names_it(self):
        process = self.torchrun(2, "--data", "text.txt", *SMALL, "--steps", "100000", "--json")
        process.stdout.readline()
        os.kill(self.rank(1), signal.SIGKILL)
        out, err = process.communicate(timeout=SECONDS)
        self.assertNotEqual(process.returncode, 0)
        self.assertRegex(err, "(?m)^stagecraft: .*rank 1: its process has ended")
        self.assertIsNone(self.rank(0, 0))

    def test_an_interrupt_of_one_ends_all_after_the_same_step(self):
        process = self.torchrun(2, "--data", "text.txt", *SMALL, "--steps", "100000", "--checkpoint", "run",
                                "--save-every", "100000")
        process.stdout.readline()
        process.stdout.readline()  # the first step
        os.kill(self.rank(1), signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
        self.assertNotEqual(process.returncode, 0)
        self.assertNotIn("stagecraft:", err)
        self.assertRegex(out, r"stopped after step \d+: saved run/step-\d+; to continue: stagecraft train --resume run\n\Z")
        self.assertEqual(len(list((self.folder / "run").iterdir())), 1)

    def test_replicas_have_the_digits_of_replicas_on_threads(self):
        options = ["--data", "text.txt", *small("--microbatches", "2"), "--steps", "3", "--json", "--replicas", "2"]
        threads = steps_of(self.good("train", *options, "--ranks", "1"))
        self.assertEqual(steps_of(self.train(2, *options)), threads)
        one = self.curve("--steps", "3", "--ranks", "1")
        for step in one:
            self.assertAlmostEqual(threads[step][0], one[step][0], 5)
            self.assertAlmostEqual(threads[step][1], one[step][1], 4)

    def test_sharded_replicas_have_the_digits_of_whole_ones(self):
        options = ["--data", "text.txt", *small("--microbatches", "2"), "--dropout", "0.1", "--json"]
        whole = steps_of(self.good("train", *options, "--steps", "4", "--replicas", "2", "--ranks", "2",
                                   "--save-weights", "whole.pt"))
        run = [*options, "--steps", "4", "--replicas", "2", "--shard", "parameters", "--shard-units", "embed,blocks.1", "--checkpoint", "run",
               "--save-every", "2", "--keep", "0"]
        self.assertEqual(steps_of(self.train(4, *run)), whole)
        parts = sorted(path.name for path in (self.folder / "run/step-00000002").iterdir())
        self.assertEqual(parts, ["index.json", "part-0.pt", "part-1.pt", "part-2.pt", "part-3.pt"])
        # Threads go on with it, sharded differently.
        shutil.rmtree(self.folder / "run/step-00000004")
        last = steps_of(self.good("train", "--resume", "run", "--shard", "gradients", "--json",
                                  "--save-weights", "sharded.pt"))
        import torch
        self.assertSameWeights(torch.load(self.folder / "sharded.pt", weights_only=True),
                               torch.load(self.folder / "whole.pt", weights_only=True))
        self.assertEqual(last, {step: whole[step] for step in (3, 4)})


class Mpi(ProcessesTest):
    def test_has_the_digits_of_threads(self):
        options = ["--data", "text.txt", *small(), "--dropout", "0.1", "--steps", "4", "--json"]
        threads = steps_of(self.good("train", *options, "--ranks", "2"))
        self.assertEqual(len(threads), 4)
        commands = [command.split() for command in os.environ.get("SC_MPIRUNS", "").split("|") if command]
        if not commands:
            self.skipTest("there is no MPI")
        for command in commands:
            environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
            done = subprocess.run([*command, "-np", "2", tool_support.tool, "train", *options], cwd=self.folder,
                                  env=dict(environment, OMP_NUM_THREADS="1"), capture_output=True, text=True,
                                  timeout=SECONDS)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(steps_of(done.stdout), threads, command)


class WrongInputs(ProcessesTest):
    def refused(self, *arguments, says, env=None):
        self.bad(2, "train", "--data", "text.txt", *small(*arguments), says=says, env=env)

    def test_are_refused_before_anybody_is_waited_for(self):
        self.refused("--transport", "gloo", says="a world over gloo needs a launcher")
        self.refused("--transport", "pigeons", says="--transport")
        self.refused("--transport", "nccl", says="--transport nccl carries tensors of a GPU: pass --device cuda")
        self.refused("--shard", "gradients", says="--shard gradients divides among replicas: pass --replicas, too")
        self.refused("--shard-units", "head", says="--shard-units says how --shard divides: pass --shard, too")
        self.refused("--replicas", "3", says="--batch 8 has fewer rows than there are microbatches: 4 x 1 x 3")
        two = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        self.refused("--microbatches", "1", "--replicas", "3", env=two,
                     says="--replicas 3 does not divide the 2 processes that torchrun started")
        self.refused("--ranks", "3", env=two, says="expected 3 ranks, but torchrun has started 2")
        self.refused("--transport", "local", env=two, says="torchrun has started 2 processes")


if __name__ == "__main__":
    tool_support.main()
