"""The Python side of a benchmark: runs named cases on request and answers with the time they took."""

import sys
import time


def serve(cases):
    """Reads lines "CASE ITERATIONS" from standard input; writes the seconds for each to standard output."""
    for line in sys.stdin:
        name, iterations = line.split()
        work = cases[name]
        start = time.perf_counter()
        for _ in range(int(iterations)):
            work()
        print(time.perf_counter() - start, flush=True)
