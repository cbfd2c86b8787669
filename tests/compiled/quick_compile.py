"""Lets this process and its children compile packages for tests as `stagecraft compile` does, but sooner.

Import it before torch, which reads some of the variables when it is imported.
"""

import os
import pathlib
import sys

# g++ spends its time on the code around the kernels, which is nearly the same for all programs.
os.environ["AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL"] = "O0"
os.environ["CPATH"] = str(pathlib.Path(__file__).resolve().parent / "quick_headers")


def prepare_to_compile(tool, folder):
    """`tool`: the program stagecraft, whose Python this process then imports. `folder`: what is made goes there."""
    sys.path.insert(0, str(tool.parents[1] / "share/stagecraft/python"))
    os.environ.update(STAGECRAFT_PYTHON=sys.executable, STAGECRAFT_PROGRAM=str(tool))
    os.environ.setdefault("STAGECRAFT_CACHE", str(folder / "cache"))
    # A compiler that links libstdc++ statically makes packages that crash when they are loaded.
    if pathlib.Path("/usr/bin/g++").exists():
        os.environ.update(CXX="/usr/bin/g++", CC="/usr/bin/gcc")
