"""Runs a command that writes what tests read, unless it has done so before and nothing that it depends on has changed.

    once.py STAMP FOLDER[:FOLDER...] -- COMMAND...

What it depends on is the command, the Python files of the folders, and the versions of Python, torch and transformers. The file
STAMP remembers them. Delete it to run the command again.
"""

import hashlib
import importlib.metadata
import pathlib
import subprocess
import sys


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def key_of(folders, command):
    found = hashlib.sha256(repr((command, sys.version, version_of("torch"), version_of("transformers"))).encode())
    for folder in folders:
        for path in sorted(folder.glob("*.py")):
            found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def main():
    stamp = pathlib.Path(sys.argv[1])
    folders = [pathlib.Path(folder) for folder in sys.argv[2].split(":")]
    command = sys.argv[4:]
    if sys.argv[3] != "--" or not command:
        raise SystemExit(__doc__)
    key = key_of(folders, command)
    if stamp.exists() and stamp.read_text() == key:
        print(f"nothing has changed since {stamp} was written")
        return 0
    stamp.unlink(missing_ok=True)
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(key)
    return code


if __name__ == "__main__":
    sys.exit(main())
