"""docs/coming_from_pytorch.md has every name of torch.distributed.pipelining, and every name of ours on it exists.

    pytorch_names_test.py ROOT    with a Python that has torch
"""

import importlib
import pathlib
import re
import sys
import unittest
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402

ROOT = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "coming_from_pytorch.md").read_text()
PACKAGE = "torch.distributed.pipelining"
MODULES = ["stage", "schedules", "microbatch", "_IR", "_backward", "_utils", "_unflatten", "_debug", "_schedule_visualizer"]


def is_there(name):
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", PAGE) is not None


def own_names(module):
    """The classes and functions that a module defines."""
    return [name for name, value in vars(module).items()
            if getattr(value, "__module__", None) == module.__name__ and (isinstance(value, type) or callable(value))]


class Names(unittest.TestCase):
    def test_public_names(self):
        names = set(importlib.import_module(PACKAGE).__all__)
        for module in MODULES:
            names |= set(getattr(importlib.import_module(f"{PACKAGE}.{module}"), "__all__", None) or [])
        self.assertGreater(len(names), 13)
        self.assertEqual(sorted(name for name in names if not is_there(name)), [])

    @unittest.skipUnless(torch.__version__.startswith("2.13."), "private names are those of 2.13")
    def test_private_names(self):
        missing = []
        for module in MODULES:
            found = own_names(importlib.import_module(f"{PACKAGE}.{module}"))
            missing += [f"{module}.{name}" for name in found if not is_there(name)]
        self.assertEqual(missing, [])

    def test_names_of_ours_exist(self):
        sources = "\n".join(path.read_text() for folder in ("stagecraft", "cli") for path in (ROOT / folder).rglob("*")
                            if path.suffix in (".h", ".cpp"))
        words = set(re.findall(r"\w+", sources))
        rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
        self.assertGreater(len(rows), 50)
        unknown = [name for row in rows for span in re.findall(r"`([^`]+)`", row[1])
                   for name in re.findall(r"[A-Za-z_]\w+", span) if not span.startswith('"') and "torch" not in span
                   and name not in words and name not in ("index", "num_stages", "module", "device", "model", "example")]
        self.assertEqual(unknown, [])


if __name__ == "__main__":
    unittest.main()
