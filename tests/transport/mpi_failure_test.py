"""What a job of mpirun does when something happens to one of its processes.

    mpi_failure_test.py PROGRAM MPI MPIRUN...

PROGRAM is mpi_failure_program, MPI is openmpi or mpich. No process may be left, and no job may last.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, MPI, *MPIRUN = sys.argv[1:]
del sys.argv[1:]
LIMIT = 60
# mpirun's flag with which the others go on when one has died.
GO_ON = {"openmpi": ["--enable-recovery"], "mpich": ["-disable-auto-cleanup"]}[MPI]


def processes_of(folder):
    """Numbers of the processes that have the folder of a job among their arguments, but mpirun."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if len(words) > 2 and os.fsencode(folder) in words and words[0].endswith(os.path.basename(PROGRAM).encode()):
            found.append(int(entry.name))
    return found


class Job:
    """mpirun with some processes of the program."""

    def __init__(self, ranks, mode, victim=0, flags=(), silence=3000, environment=None):
        self.ranks = ranks
        self.folder = tempfile.TemporaryDirectory()
        command = [*MPIRUN, *flags, "-np", str(ranks), PROGRAM, mode, self.folder.name, str(victim), str(silence)]
        self.output = open(os.path.join(self.folder.name, "output"), "w+")
        self.process = subprocess.Popen(command, stdout=self.output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                        start_new_session=True, env={**os.environ, **(environment or {})})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        self.output.close()
        self.folder.cleanup()

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in processes_of(self.folder.name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pids(self):
        """Of the ranks, once all have met."""
        deadline = time.monotonic() + LIMIT
        paths = [pathlib.Path(self.folder.name) / f"ready.{rank}" for rank in range(self.ranks)]
        while not all(path.exists() for path in paths):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the ranks did not meet:\n{self.text()}")
            time.sleep(0.01)
        return [int(path.read_text()) for path in paths]

    def wait(self, limit=LIMIT):
        """The exit code, and after how many seconds."""
        begin = time.monotonic()
        try:
            return self.process.wait(limit), time.monotonic() - begin
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end within {limit} s:\n{self.text()}") from None

    def text(self):
        self.output.flush()
        return pathlib.Path(self.output.name).read_text(errors="replace")

    def left(self):
        """Processes that are still there a moment after the job's end."""
        deadline = time.monotonic() + 2
        while processes_of(self.folder.name) and time.monotonic() < deadline:
            time.sleep(0.01)
        return processes_of(self.folder.name)


class Failures(unittest.TestCase):
    def strike(self, number, ranks, victim, flags=(), limit=2.0, **options):
        """Sends a signal to a rank: the job is over in time, has failed, and left nothing behind."""
        with Job(ranks, "run", victim, flags, **options) as job:
            pid = job.pids()[victim]
            time.sleep(0.05)
            at = time.monotonic()
            os.kill(pid, number)
            if number == signal.SIGSTOP and flags:
                # mpirun waits for it as long as it is there.
                while len(processes_of(job.folder.name)) > 1 and time.monotonic() < at + LIMIT:
                    time.sleep(0.01)
                os.kill(pid, signal.SIGKILL)
            code, _ = job.wait()
            text = job.text()
            # Open MPI's mpirun takes what it was told to live with for a success.
            if MPI == "mpich" or not flags:
                self.assertNotEqual(code, 0, text)
            self.assertLess(time.monotonic() - at, limit, text)
            self.assertEqual(job.left(), [], text)
            return text, at

    def expect_named(self, text, victim, survivors, message, at, limit):
        """Every survivor threw PeerError that names the victim, which may have been woken to be ended."""
        threw = re.findall(rf"rank (?!{victim} )(\d+) threw (\w+) at ([0-9.]+): (.*)", text)
        self.assertEqual(len({rank for rank, *_ in threw}), survivors, text)
        for _, kind, when, what in threw:
            self.assertEqual(kind, "PeerError", text)
            self.assertIn(f"rank {victim}: {message}", what)
            self.assertLess(float(when) - at, limit, text)

    def test_a_killed_rank_ends_the_job(self):
        named = 0
        for ranks, victim in ((2, 0), (2, 1), (3, 1), (4, 3)):
            text, _ = self.strike(signal.SIGKILL, ranks, victim)
            named += f"rank {victim} " in text
            if MPI == "openmpi":
                self.assertIn(f"process rank {victim} ", text)
        # MPICH's mpirun kills the others within a millisecond, so their line may not come through.
        print(f"{named} of 4 jobs named the rank that was lost")

    def test_a_killed_rank_is_named_by_all_who_go_on(self):
        for ranks, victim in ((2, 0), (3, 1), (3, 2), (4, 0)):
            text, at = self.strike(signal.SIGKILL, ranks, victim, GO_ON)
            if MPI == "openmpi":
                self.expect_named(text, victim, ranks - 1, "its process has ended", at, limit=1.0)

    def test_a_stopped_rank_is_found_by_its_silence(self):
        for victim in range(2):
            text, at = self.strike(signal.SIGSTOP, 2, victim, limit=10.0, silence=2000)
            self.expect_named(text, victim, 1, "no heartbeat for", at, limit=6.0)
        text, at = self.strike(signal.SIGSTOP, 3, 1, GO_ON, limit=10.0, silence=2000)
        self.assertIn("rank 1: no heartbeat for", text)

    def test_an_exception_ends_the_job(self):
        for mode in ("throw", "uncaught"):
            with Job(3, mode, victim=1) as job:
                code, _ = job.wait(20)
                self.assertNotEqual(code, 0, job.text())
                self.assertIn("the disk is full", job.text())
                self.assertEqual(job.left(), [])

    def test_exit_in_the_middle_of_things_does_not_hang(self):
        with Job(3, "exit", victim=1) as job:
            job.pids()
            code, seconds = job.wait(20)
            self.assertNotEqual(code, 0, job.text())
            self.assertLess(seconds, 5, job.text())
            self.assertEqual(job.left(), [])

    def test_a_rank_that_leaves_is_named(self):
        with Job(3, "leave", victim=2, flags=GO_ON) as job:
            code, _ = job.wait(20)
            if MPI == "mpich":
                self.assertNotEqual(code, 0, job.text())
            self.assertRegex(job.text(), "rank 2 (left while|has left)")
            self.assertEqual(job.left(), [])

    def test_a_clean_end_is_one(self):
        for ranks in (1, 2, 4):
            with Job(ranks, "clean") as job:
                code, _ = job.wait(30)
                self.assertEqual(code, 0, job.text())
                self.assertEqual(job.text(), "all went around\n")
                self.assertEqual(job.left(), [])

    def test_a_forked_child_ends_as_usual(self):
        with Job(2, "fork") as job:
            code, _ = job.wait(30)
            self.assertEqual(code, 0, job.text())
            self.assertIn("all went around\n", job.text())

    def test_ranks_that_do_not_agree_say_so(self):
        with Job(3, "version", victim=1) as job:
            code, _ = job.wait(20)
            self.assertEqual(code, 3, job.text())
            self.assertIn("threw MetadataError", job.text())
            self.assertRegex(job.text(), r"the ranks do not agree: version is \S+ on ranks 0 and 2, 0\.0\.1 on rank 1")
            self.assertEqual(job.left(), [])

    def test_a_rank_that_does_not_come_is_named(self):
        for ranks, victim in ((2, 1), (4, 1)):
            with Job(ranks, "late", victim=victim) as job:
                code, _ = job.wait(20)
                self.assertNotEqual(code, 0, job.text())
                self.assertIn("threw TimeoutError", job.text())
                # Ranks that have joined are not named.
                named = set(re.findall("for (ranks? .*) to join", job.text()))
                self.assertEqual(named, {f"rank {victim}"}, job.text())
                self.assertEqual(job.left(), [])

    def test_a_rank_that_comes_too_late_is_told_so_and_all_meet_again(self):
        for ranks, victim in ((2, 0), (3, 2)):
            with Job(ranks, "again", victim=victim) as job:
                code, _ = job.wait(30)
                self.assertEqual(code, 0, job.text())
                self.assertNotRegex(job.text(), "(?m)^joined$")
                self.assertEqual(job.text().count(f"in time: rank {victim} joined after rank"), 1, job.text())
                self.assertEqual(len(re.findall(rf"in time: rank \d waited 500 ms for rank {victim} to join", job.text())),
                                 ranks - 1, job.text())
                self.assertIn("all went around", job.text())
                self.assertEqual(job.left(), [])

    def test_a_missing_plugin_says_how_to_get_it(self):
        with Job(2, "clean", environment={"STAGECRAFT_MPI_PLUGIN": "/nowhere/plugin.so"}) as job:
            code, _ = job.wait(20)
            self.assertEqual(code, 3, job.text())
            self.assertIn("threw ArgumentError", job.text())
            package = {"openmpi": "libopenmpi-dev", "mpich": "libmpich-dev"}[MPI]
            self.assertRegex(job.text(), rf"/nowhere/plugin\.so.*install .*{package}")

    def test_a_program_may_start_mpi_itself(self):
        with Job(2, "own_multiple") as job:
            code, _ = job.wait(30)
            self.assertEqual(code, 0, job.text())
            self.assertIn("all went around", job.text())
        with Job(2, "own_single") as job:
            code, _ = job.wait(30)
            self.assertNotEqual(code, 0, job.text())
            self.assertIn("request MPI_THREAD_MULTIPLE", job.text())


class Alone(unittest.TestCase):
    def test_a_process_of_which_nothing_can_be_read_has_not_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            ended = subprocess.run([PROGRAM, "processes", folder], capture_output=True, text=True, timeout=30)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(ended.stdout, "another one: 1\nunknown: 0\ndone watching\n")

    def test_without_a_launcher_it_says_so(self):
        environment = {name: value for name, value in os.environ.items() if not re.match("OMPI_|PMI|STAGECRAFT_MPI", name)}
        with tempfile.TemporaryDirectory() as folder:
            ended = subprocess.run([PROGRAM, "clean", folder], env=environment, capture_output=True, text=True, timeout=30)
        self.assertEqual(ended.returncode, 3)
        self.assertIn("this process was not started by MPI", ended.stdout)


if __name__ == "__main__":
    unittest.main()
