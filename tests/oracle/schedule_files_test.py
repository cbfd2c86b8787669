"""Schedule files travel both ways between the tool and torch: torch trains with the tool's files, the tool takes torch's.

usage: schedule_files_test.py TOOL

Two gloo processes load what the tool has lowered for this version of torch, and train a step of every schedule with it. The
gradients must be those of the model that is not cut. The tool verifies what torch dumps, and trains with it.
"""

import csv
import inspect
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import torch_pair  # noqa: E402

torch_pair.require_version()
import torch  # noqa: E402
from torch.distributed.pipelining import PipelineStage, schedules  # noqa: E402

TARGET = "torch-2.15" if hasattr(schedules, "_add_wait_send") else "torch-2.13"
RANKS, PER_RANK, WIDTH, ROWS = 2, 2, 8, 3
STAGES = RANKS * PER_RANK
CLASSES = {
    "LoopedBFS": schedules.ScheduleLoopedBFS,
    "Interleaved1F1B": schedules.ScheduleInterleaved1F1B,
    "InterleavedZeroBubble": schedules.ScheduleInterleavedZeroBubble,
    "ZBVZeroBubble": schedules.ScheduleZBVZeroBubble,
    "DualPipeV": schedules.ScheduleDualPipeV,
}
# Name, microbatches, further options of `lower`. ZBV with 6 and more has sends that wait for several backwards.
CASES = [(name, microbatches, ()) for name in CLASSES for microbatches in (4, 6)]
if TARGET == "torch-2.15":
    CASES += [(name, 4, options) for name in CLASSES
              for options in (("--limit-sends", "1"), ("--defer-reduction-waits",))]
# The tool trains with torch's files of these; a start takes a second.
TRAINED = ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")
# A model of four blocks, which is a chain, since the weights of head and embedding are not tied.
TRAIN = ["--layers", "4", "--width", "16", "--heads", "2", "--context", "16", "--batch", "8", "--microbatches", "4",
         "--eval-every", "0", "--sample", "0", "--steps", "3", "--untied"]


def run(*arguments):
    done = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise AssertionError(f"stagecraft {' '.join(map(str, arguments))}: exit {done.returncode}\n"
                             f"{done.stdout[:1000]}{done.stderr[:1000]}")
    return done.stdout


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def block(stage):
    """A stage with the same weights in every process."""
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
    with torch.no_grad():
        generator = torch.Generator().manual_seed(stage)
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return module


def batch(microbatches):
    generator = torch.Generator().manual_seed(17)
    return (torch.randn(ROWS * microbatches, WIDTH, generator=generator),
            torch.randn(ROWS * microbatches, WIDTH, generator=generator))


def expected_grads(microbatches):
    """By stage, from the model that is not cut, and its loss."""
    model = torch.nn.Sequential(*(block(stage) for stage in range(STAGES)))
    x, y = batch(microbatches)
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    return [[parameter.grad for parameter in each.parameters()] for each in model], loss.detach()


def own_stages(name, rank):
    return (rank, 2 * RANKS - 1 - rank) if name in ("ZBVZeroBubble", "DualPipeV") else (rank, rank + RANKS)


def train(schedule, stages, name, microbatches, rank):
    """One step; raises if the gradients of this rank or the losses are not those of the model that is not cut."""
    x, y = batch(microbatches)
    own, losses = own_stages(name, rank), []
    schedule.step(*((x,) if 0 in own else ()), **({"target": y, "losses": losses} if STAGES - 1 in own else {}))
    grads, loss = expected_grads(microbatches)
    for stage in stages:
        found = [parameter.grad for parameter in stage.submod.parameters()]
        torch.testing.assert_close(found, grads[stage.stage_index], msg=lambda text: f"stage {stage.stage_index}: {text}")
    if STAGES - 1 in own:
        assert len(losses) == microbatches, losses
        torch.testing.assert_close(torch.stack(losses).mean(), loss)


def has_deferred(name):
    """Whether torch can hold receives back. Lists of 2.13 do not say when a send ends, so only it knows."""
    return TARGET != "torch-2.13" and "defer_pp_recv" in inspect.signature(CLASSES[name]).parameters


def rank_main(folder, rank):
    """The number of steps whose gradients were compared."""
    trained = 0
    for number, (name, microbatches, _) in enumerate(CASES):
        device = torch.device("cpu")
        stages = [PipelineStage(block(stage), stage, STAGES, device) for stage in own_stages(name, rank)]
        runtime = schedules._PipelineScheduleRuntime(stages, microbatches, loss_fn=torch.nn.functional.mse_loss)
        runtime._load_csv(str(folder / f"ours{number}.csv"), format="compute_comms")
        try:
            train(runtime, stages, name, microbatches, rank)
        except Exception as error:
            raise AssertionError(f"{CASES[number]}: {error}") from error
        trained += 1
        if rank == 0:
            runtime._dump_csv(str(folder / f"back{number}.csv"), format="compute_comms")
            theirs = CLASSES[name](stages, microbatches)
            theirs._dump_csv(str(folder / f"theirs{number}.csv"), format="compute_comms")
            theirs._dump_csv(str(folder / f"theirs{number}_compute.csv"), format="compute_only")
            if has_deferred(name):
                deferred = CLASSES[name](stages, microbatches, defer_pp_recv=True)
                deferred._dump_csv(str(folder / f"theirs{number}_deferred.csv"), format="compute_comms")
    return trained


def write_ours(folder):
    for number, (name, microbatches, options) in enumerate(CASES):
        shape = ("--ranks", RANKS, "--stages-per-rank", PER_RANK, "--microbatches", microbatches)
        compute = folder / f"ours{number}_compute.csv"
        compute.write_text(run("schedule", name, *shape))
        (folder / f"ours{number}.csv").write_text(run("lower", compute, "--for", TARGET, *options))


def curve(folder, schedule):
    """Loss and norm of the gradients by step of a training with that schedule."""
    lines = run("train", "--json", "--data", folder / "text.txt", *TRAIN, "--schedule", *schedule).splitlines()
    found = [(line["step"], line["loss"], line["grad_norm"]) for line in map(json.loads, lines) if "loss" in line]
    assert len(found) == 3, lines
    return found


def check_theirs(folder):
    """The numbers of files that the tool verified and of those that it trained with."""
    verified = trained = 0
    (folder / "text.txt").write_text(" ".join(f"The {word} is {word}." for word in ["cat", "dog", "sun", "sea"] * 60))
    for number, (name, microbatches, options) in enumerate(CASES):
        ours = rows_of(folder / f"ours{number}.csv")
        assert rows_of(folder / f"back{number}.csv") == ours, f"{CASES[number]}: torch dumps something else than it has loaded"
        for kind in ("theirs{}.csv", "theirs{}_compute.csv"):
            run("verify", folder / kind.format(number))
            verified += 1
        deferred = folder / f"theirs{number}_deferred.csv"
        if deferred.exists():
            run("verify", deferred)
            verified += 1
        if options:
            continue
        assert rows_of(folder / f"theirs{number}.csv") == ours, f"{CASES[number]}: torch lowers differently"
        if microbatches == 4 and name in TRAINED:
            named = curve(folder, (name, "--ranks", RANKS))
            for file in (folder / f"theirs{number}.csv", deferred):
                if not file.exists():
                    continue
                assert curve(folder, (file,)) == named, f"{CASES[number]}: different training with {file.name}"
                trained += 1
    return verified, trained


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_ours(folder)
        ends = torch_pair.run_pair(lambda rank: rank_main(folder, rank))
        for rank, end in enumerate(ends):
            if end.kind != "returned" or end.value != len(CASES):
                sys.exit(f"torch {torch.__version__}, rank {rank}: {end}")
        verified, trained = check_theirs(folder)
    print(f"torch {torch.__version__} trained with {len(CASES)} files that were lowered for {TARGET}; "
          f"the tool verified {verified} files of torch's and trained with {trained} of them")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    TOOL = sys.argv[1]
    main()
