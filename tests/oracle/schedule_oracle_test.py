"""Compares the tool's schedules, lowering and unit-step simulation with torch's, and reads each other's files.

usage: schedule_oracle_test.py TOOL [MEMORY]

The tool lowers for the version of torch that runs this script. At least 696 shapes of schedules with several stages a rank must
be compared, all that this torch builds. Shapes of single-stage schedules do not count.
SC_ORACLE_LARGE=1 compares the two largest shapes of the catalogue, too, for which torch takes half of the time.

Torch takes minutes for all shapes. The file MEMORY remembers what the tool printed for a shape when torch agreed, as a digest;
where the tool prints the same again and neither torch's version nor these scripts have changed, torch is not asked again.
"""

import csv
import gc
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import schedule_torch as oracle

# The shapes of PyTorch's own tests (one of them is there twice): stages per rank, microbatches, ranks.
CATALOGUE = [
    (2, 2, 2), (2, 4, 4), (2, 8, 2), (2, 8, 4), (2, 8, 8), (4, 4, 4), (4, 8, 4), (4, 8, 8), (4, 16, 4), (4, 32, 4),
    (4, 64, 4), (4, 16, 16), (4, 32, 32), (4, 128, 64), (3, 2, 2), (3, 8, 2), (3, 12, 4), (4, 6, 3), (4, 10, 5),
    (2, 3, 4), (2, 10, 4), (2, 15, 4),
]  # fmt: skip
LARGEST = (4, 128, 64)
LARGE = 4096  # stages * microbatches
# What torch refuses and we build.
EXTENSIONS = ("1F1B", "Interleaved1F1B", "InterleavedZeroBubble")
MOST_DIFFERENCES = 5
LEAST_SHAPES = 696  # of multi-stage schedules
FOR = ("--for", oracle.TARGET)


def configurations():
    """(name, ranks, stages per rank, microbatches), the largest first."""
    chosen = set()
    with_large = os.environ.get("SC_ORACLE_LARGE") == "1"
    for name in oracle.MULTI:
        for stages, microbatches, ranks in CATALOGUE:
            if with_large or ranks * stages * microbatches < LARGE:
                chosen.add((name, ranks, stages, microbatches))
    loops = set(oracle.MULTI) - set(oracle.V_SHAPED)
    for ranks in range(1, 9):
        for microbatches in range(1, 18):
            is_small = ranks <= 6 and microbatches <= 12  # all of these, and some of the others
            if (ranks + microbatches) % 2 == 0:
                chosen.update((name, ranks, 1, microbatches) for name in oracle.SINGLE)
            if is_small or (ranks + microbatches) % 4 == 0:
                chosen.update((name, ranks, 2, microbatches) for name in oracle.V_SHAPED)
            for stages in range(1, 5):
                if (is_small and stages <= 3) or (ranks + stages + microbatches) % 8 == 0:
                    chosen.update((name, ranks, stages, microbatches) for name in loops)
    return sorted(chosen, key=lambda c: (-c[1] * c[2] * c[3], c))


class Different(Exception):
    """Ours is not theirs."""


ran = {}  # what the tool did for the shape at hand
known = {}  # Memory.agreed


def run(*arguments, stdin=""):
    """Runs the tool once for each command; a file among the arguments counts by what is in it."""
    files = [pathlib.Path(word).read_bytes() for word in arguments if isinstance(word, str) and word.endswith(".csv")]
    key = (arguments, stdin, *files)
    if key not in ran:
        # Bytes: Python's text would turn \r\n into \n unseen.
        done = subprocess.run([TOOL, *map(str, arguments)], input=stdin.encode(), capture_output=True, timeout=60)
        ran[key] = subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
    return ran[key]


def run_well(*arguments, stdin=""):
    done = run(*arguments, stdin=stdin)
    if done.returncode != 0:
        command = " ".join(map(str, arguments))
        raise Different(f"stagecraft {command}: exit {done.returncode}\n{done.stdout[:500]}{done.stderr[:500]}")
    return done.stdout


def rows_of(text):
    if not text.endswith("\n") or "\r" in text:
        raise Different("the lines of the tool do not end with \\n alone")
    return [line.split(",") for line in text.splitlines()]


def expect_same(what, ours, theirs):
    if ours == theirs:
        return
    lines = [f"{what}: {len(ours)} ranks here, {len(theirs)} in torch"]
    for rank, (mine, other) in enumerate(zip(ours, theirs)):
        if mine != other:
            at = next((i for i, (a, b) in enumerate(zip(mine, other)) if a != b), min(len(mine), len(other)))
            begin = max(0, at - 3)
            lines = [f"{what}: rank {rank} differs at slot {at}"]
            for side, row in (("ours", mine), ("torch", other)):
                shown = ",".join(row[begin : at + 8])
                lines.append(f"  {side:5} {'...,' if begin else ''}{shown} ({len(row)} slots)")
            break
    raise Different("\n".join(lines))


def compare_refused(configuration, refusal):
    """What torch refuses is an error here too, or a schedule that works."""
    name, ranks, stages, microbatches = configuration
    shape = ("--ranks", ranks, "--stages-per-rank", stages, "--microbatches", microbatches)
    done = run("schedule", name, *shape, "--lower")
    if name in EXTENSIONS:
        if done.returncode != 0:
            raise Different(f"torch refuses ({refusal}), and so do we: {done.stderr.strip()}")
        run_well("verify", "-", "--microbatches", microbatches, stdin=done.stdout)
        run_well("simulate", "-", "--unit", "--json", stdin=done.stdout)
    elif done.returncode != 2 or not done.stderr or done.stdout:
        raise Different(f"torch refuses ({refusal}), we do not: exit {done.returncode}")


def compare_built(configuration, order, folder):
    name, ranks, stages, microbatches = configuration
    shape = ("--ranks", ranks, "--stages-per-rank", stages, "--microbatches", microbatches)
    lowered = oracle.lowered(name, ranks, stages, microbatches, order)

    ours = run_well("schedule", name, *shape)
    expect_same("schedule", rows_of(ours), order)
    if name == "ForwardOnly":
        compare_forwards(shape, order, lowered)
        return
    ours_lowered = run_well("schedule", name, *shape, "--lower", *FOR)
    expect_same("schedule --lower", rows_of(ours_lowered), lowered)
    if has_options(configuration):
        compare_options(configuration, order)

    # Their files here.
    theirs = os.path.join(folder, "theirs.csv")
    write(theirs, order)
    expect_same("lower of torch's file", rows_of(run_well("lower", theirs, *FOR)), lowered)
    write(theirs, lowered)
    run_well("verify", theirs)
    simulated = json.loads(run_well("simulate", theirs, "--unit", "--json"))["steps"]
    # Torch takes many seconds to simulate the largest: once is enough.
    is_slow = (stages, microbatches, ranks) == LARGEST and name != "Interleaved1F1B"
    expected = None if is_slow else oracle.steps(name, ranks, stages, lowered)
    if expected is not None and simulated != expected:
        raise Different(f"simulate --unit: {simulated} steps, torch {expected}")

    # Ours in torch; the largest takes it seconds more.
    if (stages, microbatches, ranks) != LARGEST:
        path = os.path.join(folder, "ours.csv")
        for kind, text in (("compute_only", ours), ("compute_comms", ours_lowered)):
            with open(path, "w", newline="") as file:
                file.write(text)
            read = oracle.load(path, kind, ranks, stages, microbatches)
            expect_same(f"our file, read by torch as {kind}", read, lowered)


def compare_forwards(shape, order, lowered):
    """torch lowers a schedule without backward, but does not load one, so the tool writes none for it."""
    done = run("schedule", "ForwardOnly", *shape, "--lower", *FOR)
    if done.returncode != 1 or done.stdout or "0 backwards" not in done.stderr:
        raise Different(f"torch does not load schedules without backward, but the tool writes one: exit {done.returncode}")
    without_waits = [[action for action in row if "WAIT_SEND" not in action] for row in lowered]
    ours = rows_of(run_well("schedule", "ForwardOnly", *shape, "--lower"))
    expect_same("schedule --lower, without waits", ours, without_waits)


def has_options(configuration):
    """Whether torch's other ways to lower are compared, too: it needs waits for them, and long for large shapes."""
    name, ranks, stages, microbatches = configuration
    is_chosen = name in oracle.V_SHAPED or (ranks + stages + microbatches) % 4 == 0
    return oracle.HAS_WAITS and ranks <= 4 and microbatches <= 8 and is_chosen


def options_of(ranks):
    """Options of the tool, and torch's for the same."""
    return ((("--unshard-lookahead", "auto"), {"lookahead": [min(rank + 2, 3) for rank in range(ranks)]}),
            (("--defer-reduction-waits",), {"defer": True}),
            (("--limit-sends", 1), {"limit": 1}), (("--limit-sends", 3), {"limit": 3}))


def compare_options(configuration, order):
    name, ranks, stages, microbatches = configuration
    shape = ("--ranks", ranks, "--stages-per-rank", stages, "--microbatches", microbatches)
    for words, options in options_of(ranks):
        ours = run_well("schedule", name, *shape, "--lower", *FOR, *words)
        theirs = oracle.lowered(name, ranks, stages, microbatches, order, **options)
        expect_same(f"schedule --lower {' '.join(map(str, words))}", rows_of(ours), theirs)


def digest_of(configuration, folder):
    """A digest of all that the tool prints for a shape, if torch's files are what they are when both agree."""
    name, ranks, stages, microbatches = configuration
    shape = ("--ranks", ranks, "--stages-per-rank", stages, "--microbatches", microbatches)
    done = [run("schedule", name, *shape), run("schedule", name, *shape, "--lower", *FOR)]
    if name == "ForwardOnly":
        done.append(run("schedule", name, *shape, "--lower"))
    if all(each.returncode == 0 for each in done):
        theirs = os.path.join(folder, "theirs.csv")
        write(theirs, rows_of(done[0].stdout))
        done.append(run("lower", theirs, *FOR))
        write(theirs, rows_of(done[1].stdout))
        done += [run("verify", theirs), run("simulate", theirs, "--unit", "--json")]
        if has_options(configuration):
            done += [run("schedule", name, *shape, "--lower", *FOR, *words) for words, _ in options_of(ranks)]
    said = [(each.returncode, each.stdout.replace(folder, ""), each.stderr.replace(folder, "")) for each in done]
    return hashlib.sha256(repr((configuration, said)).encode()).hexdigest()


def write(path, rows):
    """A file as torch writes it, with line ends \\r\\n."""
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)


class Memory:
    """The digests of shapes on which torch has agreed, and whether it refuses them."""

    def __init__(self, path):
        self.path = path
        sources = [pathlib.Path(__file__), pathlib.Path(oracle.__file__)]
        self.key = [importlib.metadata.version("torch"), *(hashlib.sha256(each.read_bytes()).hexdigest() for each in sources)]
        self.agreed = {}
        if path and path.exists():
            read = json.loads(path.read_text())
            self.agreed = read["agreed"] if read["key"] == self.key else {}

    def save(self, agreed):
        if self.path:
            self.path.write_text(json.dumps({"key": self.key, "agreed": agreed}))


def compare(task):
    """(configuration, digest, refused by torch, difference or None)."""
    configuration, folder = task
    folder = os.path.join(folder, str(os.getpid()))
    os.makedirs(folder, exist_ok=True)
    ran.clear()
    digest = digest_of(configuration, folder)
    if digest in known:
        return configuration, digest, known[digest], None
    return configuration, digest, *compare_with_torch(configuration, folder)


def compare_with_torch(configuration, folder):
    """(refused by torch, difference or None)."""
    name, ranks, stages, microbatches = configuration
    refused = False
    try:
        try:
            order = oracle.compute(name, ranks, stages, microbatches)
        except oracle.Refused as refusal:
            refused = True
            compare_refused(configuration, refusal)
        else:
            compare_built(configuration, order, folder)
    except (Different, AssertionError, subprocess.TimeoutExpired) as error:
        shape = f"{ranks} ranks, {stages} stages per rank, {microbatches} microbatches"
        return refused, f"{name}, {shape}: {type(error).__name__ if not error.args else error}"
    return refused, None


def compare_all(folder, memory):
    """(configurations that torch has, those of them with several stages a rank, those that it refuses, those that it was
    asked about, differences)."""
    built = multi = refused = asked = 0
    differences, agreed = [], {}
    tasks = [(configuration, folder) for configuration in configurations()]
    known.update(memory.agreed)  # before the workers are forked
    gc.freeze()  # what torch holds is not looked through again and again
    with multiprocessing.get_context("fork").Pool(min(2, os.cpu_count() or 1)) as pool:
        for (name, *_), digest, was_refused, difference in pool.imap_unordered(compare, tasks):
            asked += digest not in memory.agreed
            if difference:
                differences.append(difference)
                if len(differences) == MOST_DIFFERENCES:
                    pool.terminate()
                    break
            else:
                agreed[digest] = was_refused
                refused += was_refused
                built += not was_refused
                multi += name in oracle.MULTI and not was_refused
    memory.save(agreed)
    return built, multi, refused, asked, differences


def main():
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        built, multi, refused, asked, differences = compare_all(folder, Memory(MEMORY))
    took = time.monotonic() - started
    print(f"torch {importlib.metadata.version('torch')}, {oracle.TARGET}: {built} configurations as torch has them, "
          f"{multi} of them of multi-stage schedules, {refused} that torch refuses, in {took:.1f} s; torch was asked about {asked}")
    for difference in differences:
        print(difference)
    if multi < LEAST_SHAPES and not differences:
        print(f"fewer than {LEAST_SHAPES} configurations of multi-stage schedules were compared")
    return 1 if differences or multi < LEAST_SHAPES else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    TOOL = sys.argv[1]
    MEMORY = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else None
    sys.exit(main())
