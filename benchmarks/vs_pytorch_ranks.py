"""PyTorch's pipelines on several ranks: WORKER ARGUMENTS...

Speaks the protocol of pytorch_cases.py. Each case is run by two processes, or by SC_BENCH_RANKS processes, one for each rank: WORKER, a
script of this folder, with RANK RANKS STORE ARGUMENTS. If one of them fails or does not answer, this script fails.
"""

import os
import pathlib
import selectors
import subprocess
import sys
import tempfile

RANKS = int(os.environ.get("SC_BENCH_RANKS", "2"))
ANSWER_SECONDS = 100  # less than the time that the benchmark waits for this script


class Failure(Exception):
    pass


def start(rank, store, worker, arguments):
    script = pathlib.Path(__file__).with_name(worker)
    return subprocess.Popen([sys.executable, str(script), str(rank), str(RANKS), store, *arguments],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)


def ask(workers, line):
    """Sends the request to all workers, and returns the largest of their answers."""
    answers = {}
    with selectors.DefaultSelector() as selector:
        for rank, worker in enumerate(workers):
            try:
                worker.stdin.write(line)
                worker.stdin.flush()
            except BrokenPipeError:
                raise Failure(f"rank {rank} is gone (exit code {worker.wait()})") from None
            selector.register(worker.stdout, selectors.EVENT_READ, rank)
        while selector.get_map():
            ready = selector.select(ANSWER_SECONDS)
            if not ready:
                raise Failure(f"{line.split()[0]}: no answer within {ANSWER_SECONDS} seconds")
            for key, _ in ready:
                answer = key.fileobj.readline()
                if not answer:
                    code = workers[key.data].wait(ANSWER_SECONDS)
                    raise Failure(f"{line.split()[0]}: rank {key.data} ended with {code}; its own message is above")
                answers[key.data] = float(answer)
                selector.unregister(key.fileobj)
    return max(answers.values())


def main():
    workers = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(RANKS):
                workers.append(start(rank, f"{folder}/store", sys.argv[1], sys.argv[2:]))
            for line in sys.stdin:
                print(ask(workers, line), flush=True)
        except Failure as failure:
            print(f"{pathlib.Path(__file__).name}: {failure}", file=sys.stderr)
            return 1
        finally:
            for worker in workers:
                worker.kill()
            for worker in workers:
                worker.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
