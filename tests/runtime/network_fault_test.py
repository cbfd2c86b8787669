"""Ranks on two "machines" whose network is cut: network namespaces with a link between them.

    network_fault_test.py FAULT_PROGRAM

Needs root and `ip`; without them it says so and exits with 77, which is a test that was not run.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest

PROGRAM = None
NAMES = (f"sc-{os.getpid()}-a", f"sc-{os.getpid()}-b")
HOSTS = ("10.77.77.1", "10.77.77.2")
NOT_RUN = 77


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


def remove_network():
    for name in NAMES:
        ip("netns", "del", name, check=False)


def make_network():
    remove_network()
    for name in NAMES:
        ip("netns", "add", name)
    ip("link", "add", "sc-a", "netns", NAMES[0], "type", "veth", "peer", "name", "sc-b", "netns", NAMES[1])
    for name, device, host in zip(NAMES, ("sc-a", "sc-b"), HOSTS):
        ip("-n", name, "addr", "add", host + "/24", "dev", device)
        ip("-n", name, "link", "set", device, "up")
        ip("-n", name, "link", "set", "lo", "up")


class Rank:
    def __init__(self, rank):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR=HOSTS[0],
                           MASTER_PORT="29511", STAGECRAFT_LISTEN=HOSTS[0], STAGECRAFT_TOKEN="a token of the test",
                           OMP_NUM_THREADS="1")
        self.process = subprocess.Popen(["ip", "netns", "exec", NAMES[rank], PROGRAM, "none"], env=environment,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for(self, word):
        limit = threading.Timer(40, self.process.kill)
        limit.start()
        for line in self.process.stdout:
            if line.startswith(word):
                limit.cancel()
                return line
        raise AssertionError(f"no {word}: {self.process.stderr.read()}")

    def end(self, seconds):
        try:
            out, errors = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return out, errors, self.process.returncode


class CutNetwork(unittest.TestCase):
    def setUp(self):
        make_network()
        self.ranks = [Rank(0), Rank(1)]
        for rank in self.ranks:
            rank.wait_for("READY")

    def tearDown(self):
        for rank in self.ranks:
            rank.process.kill()
            rank.process.wait()
            rank.process.stdout.close()
            rank.process.stderr.close()
        remove_network()

    def processes_left(self):
        found = subprocess.run(["ip", "netns", "pids", NAMES[0]], capture_output=True, text=True).stdout.split()
        return found + subprocess.run(["ip", "netns", "pids", NAMES[1]], capture_output=True, text=True).stdout.split()

    def test_both_ranks_name_the_other(self):
        cut = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        ip("-n", NAMES[1], "link", "set", "sc-b", "down")
        for rank, process in enumerate(self.ranks):
            out, errors, code = process.end(20)
            threw = re.search(r"^THREW (\d) (\d+) (\w+) (.*)$", out, re.M)
            self.assertIsNotNone(threw, (out, errors))
            self.assertEqual(threw[3], "PeerError", threw[0])
            self.assertIn(f"rank {1 - rank}", threw[4])
            self.assertNotEqual(code, 0)
            seconds = (int(threw[2]) - cut) / 1e9
            print(f"rank {rank} threw {seconds:.2f} s after the cut: {threw[4]}")
            # The silence after which a rank is lost is one second here.
            self.assertLess(seconds, 3)
        self.assertEqual(self.processes_left(), [])

    def test_a_short_cut_does_no_harm(self):
        ip("-n", NAMES[1], "link", "set", "sc-b", "down")
        time.sleep(0.3)
        ip("-n", NAMES[1], "link", "set", "sc-b", "up")
        time.sleep(2)
        for process in self.ranks:
            self.assertIsNone(process.process.poll(), "it has ended")


def main():
    global PROGRAM
    PROGRAM = sys.argv.pop(1)
    if os.geteuid() != 0 or shutil.which("ip") is None:
        print("not run: this needs root and the program ip")
        return NOT_RUN
    try:
        make_network()
        remove_network()
    except subprocess.CalledProcessError as error:
        print("not run: no network namespaces here:", error.stderr.strip())
        return NOT_RUN
    signal.signal(signal.SIGTERM, lambda *_: (remove_network(), sys.exit(1)))
    return 0 if unittest.main(exit=False, verbosity=2).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
