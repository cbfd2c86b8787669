"""Ranks of ours: PROGRAM ARGUMENTS... -- [link MBITS] gloo [RANKS] | local | mpi MPIRUN...

Starts PROGRAM as two ranks, or as RANKS, and passes lines on: input goes to rank 0, and its answers are output. Ends when all
ranks have ended.

With a link the ranks are in a network of their own. Its only interface carries MBITS million bits a second and uses no
processor time meanwhile. This requires root, or a system on which users may create such networks, and the programs
`unshare`, `ip` and `tc`.
"""

import os
import shutil
import socket
import subprocess
import sys

INSIDE = "STAGECRAFT_BENCH_INSIDE_NETWORK"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(program, transport, launcher):
    """Starts the processes. That of rank 0 is the first."""
    if transport == "mpi":
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        return [subprocess.Popen([*launcher, *program], env=environment)]
    if transport == "local":
        return [subprocess.Popen(program)]
    port = str(free_port())
    ranks = []
    size = launcher[0] if launcher else "2"
    for rank in range(int(size)):
        environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size, MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=port)
        ranks.append(subprocess.Popen(program, env=environment, stdin=None if rank == 0 else subprocess.DEVNULL))
    return ranks


def enter_network():
    """Runs this script again, in a network of its own."""
    missing = [tool for tool in ("unshare", "ip", "tc") if shutil.which(tool) is None]
    if missing:
        sys.exit("step_ranks.py: a network of its own needs " + " and ".join(missing))
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    environment = dict(os.environ, **{INSIDE: "1"})
    os.execvpe("unshare", ["unshare", "--net", *as_root, sys.executable, *sys.argv], environment)


def limit_network(megabits):
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # Bursts of a few packets of the interface, and a queue for the data that two sockets write at
    # the same time.
    subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", megabits + "mbit", "burst", "512kb",
                    "limit", "32mb"], check=True)


def main():
    words = sys.argv[1:]
    split = words.index("--")
    how = words[split + 1:]
    if how[0] == "link":
        if INSIDE not in os.environ:
            enter_network()
        limit_network(how[1])
        how = how[2:]
    processes = start(words[:split], how[0], how[1:])
    try:
        return max(process.wait() for process in processes)
    finally:
        for process in processes:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
