"""`stagecraft compile` and `python -m stagecraft.compile`: compile the stages of a model ahead of time."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from .split import is_package, is_pipe_file, split_model
from .workers import Workers

_EXAMPLES = """\
FILE is an archive that torch.export.save has written (.pt2), a graph of save_graph, or a pipe of save_pipe. C++
programs load the package with CompiledPipe::load, without Python.

Exit status: 0 good, 1 the model cannot be compiled, 2 bad usage.

examples:
  stagecraft compile gpt.pt2 --stages 4 -o gpt.scp
  stagecraft compile gpt.pt2 --split layers.3,layers.6 --device cuda --bf16 --jobs 16
  stagecraft compile gpt.pt2 --plan gpt.plan --fix all
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stagecraft compile",
        description="Compile the stages of a model with Inductor: forward, backward, and the backward in halves.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("-o", "--output", metavar="FILE.scp", help="the package; default: the name of FILE with .scp")
    how = parser.add_argument_group("split").add_mutually_exclusive_group()
    how.add_argument("--stages", type=int, metavar="N", help="the best split into N; default: 1, or that of a pipe")
    how.add_argument("--split", metavar="NAME,...", help="split before these modules: layers.4,layers.8")
    how.add_argument("--plan", metavar="FILE.plan", help="split as in this plan")
    parser.add_argument("--program", metavar="NAME", help="a program of an archive that has several")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu")
    types = parser.add_mutually_exclusive_group()
    types.add_argument("--bf16", action="store_true", help="autocast to bfloat16; weights keep their type")
    types.add_argument("--fp16", action="store_true", help="autocast to float16")
    parser.add_argument(
        "--fix",
        metavar="all|NAME[=N],...",
        help="sizes with one value, that of the example if none is given; default: sizes that the model lets change may change",
    )
    parser.add_argument("--eval", action="store_true", help="one more program: a forward that saves nothing")
    parser.add_argument("--memory-budget", type=float, metavar="SHARE", help="share of the saved values that a forward may save, 0 to 1; the rest is recomputed")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that compile at the same time; default: 1")
    parser.add_argument("--cache", metavar="FOLDER", help="cache of programs; default: STAGECRAFT_CACHE or ~/.cache/stagecraft/compiled")
    parser.add_argument("--no-cache", action="store_true", help="compile all programs again")
    parser.add_argument("--import", dest="imports", action="append", default=[], metavar="MODULE", help="a Python module that registers operators of the model")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser


def _sizes_to_fix(text: str | None) -> dict[str, int | None] | None | bool:
    if text is None:
        return False
    if text == "all":
        return None
    fix: dict[str, int | None] = {}
    for entry in text.split(","):
        name, equals, number = entry.partition("=")
        if not name or (equals and not number.isdigit()):
            raise ValueError(f"--fix: expected NAME or NAME=N, got {entry!r}")
        fix[name] = int(number) if equals else None
    return fix


def _split_options(args: argparse.Namespace) -> list[str]:
    how = []
    if args.stages is not None:
        how += ["--stages", str(args.stages)]
    if args.split is not None:
        how += ["--split", args.split]
    if args.plan is not None:
        how += ["--split-of", args.plan]
    if args.program is not None:
        how += ["--program", args.program]
    return how


class _Terminated(BaseException):
    """Raised by SIGTERM."""


def _interrupt(*unused: object) -> None:
    raise _Terminated


def main(words: list[str] | None = None, workers: Workers | None = None) -> int:
    """Runs the command and returns its exit status. `workers`: existing processes; None: start --jobs processes."""
    parser = _parser()
    args = parser.parse_args(words)
    try:
        fix = _sizes_to_fix(args.fix)
    except ValueError as error:
        parser.error(str(error))
    if args.jobs < 1:
        parser.error(f"--jobs: expected at least 1, got {args.jobs}")
    if args.stages is not None and args.stages < 1:
        parser.error(f"--stages: expected at least 1, got {args.stages}")
    if args.memory_budget is not None and not 0 <= args.memory_budget <= 1:
        parser.error(f"--memory-budget: expected a number from 0 to 1, got {args.memory_budget}")
    file = Path(args.file)
    if not file.is_file():
        parser.error(f"{file}: expected a file, and this is a folder" if file.is_dir() else f"{file}: there is no such file")
    if is_package(file):
        parser.error(f"{file}: it is a package of compiled stages; pass the model that it was compiled from")
    if args.output == "":
        parser.error("-o: expected the name of a file, got nothing")
    output = Path(args.output) if args.output else file.with_suffix(".scp")
    if output.exists() and output.samefile(file):
        parser.error(f"-o {output}: the package would replace the model")

    def report(line: str) -> None:
        if not args.quiet:
            print(line, file=sys.stderr, flush=True)

    # torch takes seconds to import, so it is imported after the check of the options.
    try:
        import torch
    except ImportError:
        parser.error(f"{sys.executable} has no torch: name a Python that has it in STAGECRAFT_PYTHON")
    from .cache import Cache, default_folder
    from .compiler import compile_pipe
    from .errors import CompileError
    from .joint import StageOptions
    from .see_through import see_through

    autocast: Any = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
    options = StageOptions(
        device=args.device, autocast=autocast, with_eval=args.eval, memory_budget=args.memory_budget
    )
    cache = None if args.no_cache else Cache(Path(args.cache) if args.cache else default_folder())
    # Workers and folders are removed for every way in which this process ends.
    is_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _interrupt) if is_main_thread else None
    try:
        for module in args.imports:
            importlib.import_module(module)
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stagecraft-compile-"))
            if workers is None:
                workers = stack.enter_context(Workers(args.jobs))
            pipe = model = file
            if args.imports and file.suffix == ".pt2":
                found = see_through(file, Path(folder) / "model.pt2")
                if found:
                    model = Path(folder) / "model.pt2"
                    report(f"replaced with operators of torch: {', '.join(found)}")
            # A pipe also contains the whole model, which can be split differently.
            if _split_options(args) or not is_pipe_file(file):
                pipe = Path(folder) / "model.pipe"
                report(split_model(model, pipe, _split_options(args)).rstrip())
            compile_pipe(
                pipe,
                output,
                options,
                fix=fix,
                cache=cache,
                processes=args.jobs,
                workers=workers,
                imports=args.imports,
                report=report,
            )
    except (CompileError, ImportError) as error:
        if os.environ.get("STAGECRAFT_LOG") == "debug":
            raise
        print(f"stagecraft compile: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, _Terminated) as ended:
        print("stagecraft compile: interrupted; nothing was written", file=sys.stderr)
        return 130 if isinstance(ended, KeyboardInterrupt) else 143
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
