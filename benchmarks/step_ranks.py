"""Two ranks of ours: PROGRAM ARGUMENTS... -- gloo | local | mpi MPIRUN...

Starts PROGRAM as two ranks and hands lines on: what comes in goes to rank 0, what it answers goes out. Ends when both
have.
"""

import os
import socket
import subprocess
import sys


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(program, transport, launcher):
    """The processes, that of rank 0 first."""
    if transport == "mpi":
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        return [subprocess.Popen([*launcher, *program], env=environment)]
    if transport == "local":
        return [subprocess.Popen(program)]
    port = str(free_port())
    ranks = []
    for rank in range(2):
        environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=port)
        ranks.append(subprocess.Popen(program, env=environment, stdin=None if rank == 0 else subprocess.DEVNULL))
    return ranks


def main():
    words = sys.argv[1:]
    split = words.index("--")
    processes = start(words[:split], words[split + 1], words[split + 2:])
    try:
        return max(process.wait() for process in processes)
    finally:
        for process in processes:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
