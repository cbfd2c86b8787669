"""`stagecraft` and `python -m stagecraft`: run the tools of the package, which are C++ programs.

    python -m stagecraft draw 1F1B --ranks 4 --microbatches 8
    python -m stagecraft train --steps 5
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def _torch_lib() -> str | None:
    """The folder of torch's libraries, without importing torch."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    return str(Path(found.origin).parent / "lib")


def main() -> None:
    """Replaces this process by the program `stagecraft`, with the same arguments."""
    program = Path(__file__).with_name("bin") / "stagecraft"
    if not program.exists():
        sys.exit(f"stagecraft: expected the program {program}, which is part of the package; install the package again")
    lib = _torch_lib()
    if lib is not None:
        os.environ.setdefault("STAGECRAFT_TORCH_LIB", lib)
    os.environ["STAGECRAFT_PYTHON"] = os.environ.get("STAGECRAFT_PYTHON") or sys.executable
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(program, ["stagecraft", *sys.argv[1:]])


if __name__ == "__main__":
    main()
