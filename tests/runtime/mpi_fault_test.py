"""Ranks under mpirun that are killed, stopped, leave or throw at any action of any schedule.

    mpi_fault_test.py FAULT_PROGRAM openmpi|mpich MPIRUN...

The launcher is told not to end the job when a process dies, so that survivors show their own errors: each throws one
that names the rank, soon, and no process stays behind. MPICH's mpirun (4.0) does not listen when a signal has killed the
process: then the job is to be gone as soon, with a line that names the rank. SC_FAULTS: how many; SC_FAULT_SEED.
"""

import contextlib
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, MPI, MPIRUN = None, None, None
FLAGS = {"openmpi": ["--enable-recovery"], "mpich": ["-disable-auto-cleanup"]}
# UCX, below MPICH, ends a process that reads the memory of one that has died: it shall copy through shared memory.
ENVIRONMENT = {"openmpi": {}, "mpich": {"UCX_TLS": "^cma"}}
SILENCE_MS = 1000  # after which the program takes a rank for lost


def processes_of(folder):
    """Those whose environment names the folder: all that a run has started."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str(folder).encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


class Run:
    def __init__(self, seed, ranks):
        self.ranks = ranks
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ, SC_FAULT_FOLDER=folder, OMP_NUM_THREADS="1", STAGECRAFT_LOG="error", **ENVIRONMENT[MPI])
            process = subprocess.Popen([*MPIRUN, *FLAGS[MPI], "-np", str(ranks), PROGRAM, str(seed)], env=environment,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                self.wait(process, folder)
                self.output = process.communicate(timeout=20)[0].decode(errors="replace")
                self.over = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
                self.code = process.returncode
                self.left = self.processes_left(folder)
            finally:
                for pid in processes_of(folder):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.kill()
            self.read(folder)

    def read(self, folder):
        self.struck, self.threw = None, {}
        for file in pathlib.Path(folder).iterdir():
            for line in file.read_text().splitlines():
                if match := re.match(r"STRUCK (\d+) (\d+) (\d+) (.*)", line):
                    self.struck = (int(match[1]), int(match[2]), int(match[3]), match[4])
                if match := re.match(r"THREW (\d+) (\d+) (\w+) (.*)", line):
                    self.threw[int(match[1])] = (int(match[2]), match[3], match[4])

    def wait(self, process, folder):
        """Until the job is over; a rank that is stopped is killed when the others have thrown."""
        deadline = time.monotonic() + 40
        while process.poll() is None and time.monotonic() < deadline:
            self.read(folder)
            survivors = [rank for rank in self.threw if self.struck and rank != self.struck[0]]
            if self.struck and "is stopped" in self.struck[3] and len(survivors) == self.ranks - 1:
                os.kill(self.struck[2], signal.SIGKILL)
                return
            time.sleep(0.05)

    @staticmethod
    def processes_left(folder):
        for _ in range(40):
            left = processes_of(folder)
            if not left:
                return []
            time.sleep(0.05)
        return left


class Faults(unittest.TestCase):
    def test_every_survivor_names_the_rank_at_once(self):
        seed = int(os.environ.get("SC_FAULT_SEED", random.randrange(2**32)))
        runs = int(os.environ.get("SC_FAULTS", 3))
        print(f"seed {seed}")
        choose = random.Random(seed)
        self.named = 0
        waited = {}
        for _ in range(runs):
            ranks, each = choose.choice((2, 3)), choose.randrange(2**32)
            with self.subTest(seed=each, ranks=ranks):
                run = Run(each, ranks)
                self.assertIsNotNone(run.struck, run.output)
                victim, struck, _, what = run.struck
                kind = re.search(r"rank \d+ (.*) at its", what)[1]
                with self.subTest(what):
                    if MPI == "mpich" and kind == "is killed":
                        self.check_gone(run, victim)
                        waited.setdefault("is killed (end of the job)", []).append((run.over - struck) / 1e6)
                        continue
                    self.check(run, victim)
                    times = [(run.threw[rank][0] - struck) / 1e6 for rank in range(ranks) if rank != victim]
                    waited.setdefault(kind, []).extend(times)
        if "is killed (end of the job)" in waited:
            print(f"{MPI}: {self.named} of {len(waited['is killed (end of the job)'])} jobs named the rank that was killed")
        for kind, times in sorted(waited.items()):
            print(f"{MPI}: a rank {kind}: {len(times)} survivors, threw after {statistics.median(times):.0f} ms (median), "
                  f"{max(times):.0f} ms (worst)")
            self.assertLess(max(times), 2000 + (SILENCE_MS if kind == "is stopped" else 0))

    def check_gone(self, run, victim):
        # The line that says so is printed by a survivor, if it is faster than the launcher's own SIGKILL.
        self.named += f"rank {victim} is lost: its process has ended" in run.output
        self.assertNotEqual(run.code, 0, run.output)
        self.assertEqual(run.left, [], run.output)

    def check(self, run, victim):
        for rank in range(run.ranks):
            if rank == victim:
                continue
            self.assertIn(rank, run.threw, run.output)
            _, kind, message = run.threw[rank]
            self.assertEqual(kind, "PeerError", message)
            self.assertIn(f"rank {victim}", message)
            if "throws" in run.struck[3]:
                self.assertIn("no space left on device", message)
        # A rank that is lost, not one that says why it goes: one of the others shows where all were.
        if "throws" not in run.struck[3] and "exits" not in run.struck[3]:
            self.assertIn("  rank  last action", run.output)
        # Told to recover, Open MPI's mpirun itself ends with 0, whatever its processes do.
        if MPI != "openmpi":
            self.assertNotEqual(run.code, 0, run.output)
        self.assertEqual(run.left, [], run.output)


if __name__ == "__main__":
    PROGRAM, MPI, *MPIRUN = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
