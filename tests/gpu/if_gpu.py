"""Runs a command if there is a CUDA device. Without one it does nothing, or fails where STAGECRAFT_REQUIRE_GPU is set.

    if_gpu.py COMMAND...
"""

import os
import subprocess
import sys

import torch


def main():
    if torch.cuda.is_available():
        return subprocess.run(sys.argv[1:], check=False).returncode
    print("there is no CUDA device")
    return 1 if "STAGECRAFT_REQUIRE_GPU" in os.environ else 0


if __name__ == "__main__":
    sys.exit(main())
