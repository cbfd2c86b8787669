"""The example several_ranks, unchanged, in every way it can be started: the same losses to the last digit.

    several_ranks_test.py PROGRAM PYTHON [openmpi MPIRUN...] [-- mpich MPIRUN...]
"""

import os
import socket
import subprocess
import sys
import unittest

PROGRAM, PYTHON, MPIS = None, None, {}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(*command, **environment):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "PMI", "OMPI_COMM"))}
    return subprocess.run([str(word) for word in command], env={**clean, "OMP_NUM_THREADS": "1", **environment},
                          capture_output=True, text=True, timeout=100)


def torchrun(count, *options):
    return [PYTHON, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", count, PROGRAM, *options]


class SeveralRanks(unittest.TestCase):
    def losses(self, first_line, *command, **environment):
        done = run(*command, **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[0], first_line)
        self.assertEqual(len(lines), 6, done.stdout)
        return lines[1:]

    def bad(self, says, *command, **environment):
        done = run(*command, **environment)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn(says, done.stderr + done.stdout)

    def test_the_same_losses_in_every_way(self):
        threads = self.losses("2 ranks over local", PROGRAM)
        self.assertEqual(self.losses("2 ranks over gloo", *torchrun(2)), threads)
        for mpirun in MPIS.values():
            self.assertEqual(self.losses("2 ranks over mpi", *mpirun, "-np", 2, PROGRAM), threads)

    def test_srun(self):
        """Its variables alone; there is no Slurm here."""
        step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": "7",
                "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
        ranks = [subprocess.Popen([PROGRAM], env={**os.environ, **step, "SLURM_PROCID": str(rank)}, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
        outputs = [rank.communicate(timeout=100) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
        self.assertEqual(outputs[0][0].splitlines()[0], "2 ranks over gloo")
        self.assertEqual(outputs[0][0].splitlines()[1:], self.losses("2 ranks over local", PROGRAM))
        self.assertEqual(outputs[1][0], "")

    def test_replicas_have_the_losses_of_one_pipeline(self):
        one = self.losses("2 ranks over local", PROGRAM)
        self.assertEqual(self.losses("4 ranks over local", PROGRAM, "--ranks", 4, "--replicas", 2), one)
        self.assertEqual(self.losses("4 ranks over gloo", *torchrun(4, "--replicas", 2)), one)

    def test_the_transport_can_be_said(self):
        self.bad("a world over mpi needs a launcher", PROGRAM, "--transport", "mpi")
        self.bad("expected auto, local, gloo, nccl or mpi for a transport, got 'tcp'", PROGRAM, "--transport", "tcp")
        self.bad("expected 3 ranks, but torchrun has started 2", PROGRAM, "--ranks", 3, RANK="0", WORLD_SIZE="2")
        for mpirun in MPIS.values():
            self.losses("2 ranks over gloo", *mpirun, "-np", 2, PROGRAM, "--transport", "gloo", MASTER_PORT=str(free_port()))


if __name__ == "__main__":
    PROGRAM, PYTHON, *rest = sys.argv[1:]
    while rest:
        end = rest.index("--") if "--" in rest else len(rest)
        MPIS[rest[0]] = rest[1:end]
        rest = rest[end + 1:]
    unittest.main(argv=sys.argv[:1])
