#!/usr/bin/env python3
"""Writes small random schedule problems with their optima, which OR-tools' CP-SAT finds and proves.

    tests/plan/solve_exact.py > tests/golden/plan/optima.txt       (needs: pip install ortools)

A line: objective, ranks, stages, microbatches, ranks of the stages, F, I, W, MF, MW of the stages, latency, caps, optimum.
For a span the first action of a rank may start late. Not a part of the build.
"""

import random
import sys

from ortools.sat.python import cp_model


def make(rng, span):
    while True:
        ranks, laps, count = rng.randint(2, 3), rng.randint(1, 2), rng.randint(2, 6)
        stages = ranks * laps
        if 3 * stages * count <= 60:
            break
    is_v = rng.random() < 0.5
    rank = [ranks - 1 - s % ranks if is_v and s // ranks % 2 else s % ranks for s in range(stages)]
    alike = rng.random() < 0.33
    loads = []
    for s in range(stages):
        mf = rng.randint(4, 9)
        load = (rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 9), mf, rng.randint(0, mf))
        loads.append(loads[0] if alike and s else load)
    caps = []
    for r in range(ranks):
        one = sum(load[3] for s, load in enumerate(loads) if rank[s] == r)
        caps.append(round(one * (1 + 1.5 * rng.random())))
    return {"span": span, "ranks": ranks, "stages": stages, "count": count, "rank": rank, "loads": loads,
            "latency": rng.randint(0, 3), "caps": caps}


def solve(p, limit):
    model = cp_model.CpModel()
    horizon = p["count"] * sum(sum(load[:3]) for load in p["loads"]) + 2 * p["stages"] * p["latency"]
    start, value = {}, model.NewIntVar(0, horizon, "value")
    time = {(t, s): p["loads"][s][t] for t in range(3) for s in range(p["stages"])}
    intervals = {r: [] for r in range(p["ranks"])}
    first = {r: p["rank"].index(r) for r in range(p["ranks"])}
    for t, s in time:
        for m in range(p["count"]):
            start[t, s, m] = model.NewIntVar(0, horizon, "")
            intervals[p["rank"][s]].append(model.NewFixedSizeIntervalVar(start[t, s, m], time[t, s], ""))
    for s in range(p["stages"]):
        hop = 0 if s + 1 < p["stages"] and p["rank"][s] == p["rank"][s + 1] else p["latency"]
        for m in range(p["count"]):
            if s + 1 < p["stages"]:
                model.Add(start[0, s + 1, m] >= start[0, s, m] + time[0, s] + hop)
                model.Add(start[1, s, m] >= start[1, s + 1, m] + time[1, s + 1] + hop)
            model.Add(start[1, s, m] >= start[0, s, m] + time[0, s])
            model.Add(start[2, s, m] >= start[1, s, m] + time[1, s])
            begin = start[0, first[p["rank"][s]], 0] if p["span"] else 0
            model.Add(value >= start[2, s, m] + time[2, s] - begin)
            for t in range(3):
                if m:
                    model.Add(start[t, s, m] >= start[t, s, m - 1] + time[t, s])
    for r in range(p["ranks"]):
        model.AddNoOverlap(intervals[r])
        times, changes = [], []
        for s in (s for s in range(p["stages"]) if p["rank"][s] == r):
            mf, mw = p["loads"][s][3:]
            for m in range(p["count"]):
                times += [start[0, s, m], start[1, s, m] + time[1, s], start[2, s, m] + time[2, s]]
                changes += [mf, mw - mf, -mw]
        model.AddReservoirConstraint(times, changes, 0, p["caps"][r])
    model.Minimize(value)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit
    solver.parameters.num_workers = 1
    status = solver.Solve(model)
    return round(solver.ObjectiveValue()) if status == cp_model.OPTIMAL else None


def main():
    rng = random.Random(25)
    written = 0
    while written < 140:
        p = make(rng, written % 3 == 2)
        optimum = solve(p, 8)
        if optimum is None:
            continue
        numbers = [p["ranks"], p["stages"], p["count"], *p["rank"]]
        for i in range(5):
            numbers += [load[i] for load in p["loads"]]
        numbers += [p["latency"], *p["caps"], optimum]
        print("span" if p["span"] else "step", *numbers, flush=True)
        written += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
