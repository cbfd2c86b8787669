"""docs/threads.md has every thread that the library starts, and none that it does not start.

    threads_page_test.py ROOT

The table under "## The threads" has a row for each kind of thread: its name, or (no name), and the source that starts it. A
source starts threads if it, or its header, has a std::thread or std::jthread, or calls start_detached or run_detached
(base/detached.h). It names them by name_thread("NAME ..."), start_detached("NAME", ...) or run_detached("NAME", ...).
"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "threads.md"
THREAD = re.compile(r"\bstd::j?thread\b(?!::)|\b(?:start|run)_detached\(")
NAME = re.compile(r'\b(?:name_thread|(?:start|run)_detached)\([^;"]*"([^"]+)"')
HELPERS = {"base/detached"}  # start threads for others


def rows():
    """(name or None, source) of each row of the table."""
    section = PAGE.read_text().split("\n## The threads\n")[1].split("\n## ")[0]
    found = []
    for line in section.splitlines():
        row = re.match(r"\| (?:`([^`]+?)(?: R)?`|\(no name\)) \| `([\w/]+)` \|", line)
        if row is not None:
            found.append((row.group(1), row.group(2)))
        elif line.startswith("|") and not re.match(r"\| name \||\|---", line):
            raise AssertionError(f"{PAGE.name}: expected `NAME R`, `NAME` or (no name), and a source, got {line}")
    return found


def sources():
    """The text of each pair of source and header, by its path without ending."""
    texts = {}
    for folder in ("stagecraft", "cli"):
        for path in sorted((ROOT / folder).rglob("*")):
            stem = path.relative_to(ROOT).with_suffix("").as_posix().removeprefix("stagecraft/")
            if path.suffix in (".h", ".cpp") and stem not in HELPERS:
                text = re.sub(r"//.*", "", path.read_text())
                texts[stem] = texts.get(stem, "") + text
    return texts


class ThreadsPage(unittest.TestCase):
    maxDiff = None

    def test_the_table_is_there(self):
        self.assertGreater(len(rows()), 5)

    def test_sources_that_start_threads(self):
        starting = {stem for stem, text in sources().items() if THREAD.search(text)}
        self.assertEqual(sorted({source for _, source in rows()}), sorted(starting))

    def test_names_of_threads(self):
        named = {(name.strip(), stem) for stem, text in sources().items() for name in NAME.findall(text) if name.strip()}
        self.assertEqual(sorted((name, source) for name, source in rows() if name), sorted(named))

    def test_threads_without_a_name(self):
        texts = sources()
        wrong = [source for name, source in rows() if name is None and NAME.search(texts.get(source, ""))]
        self.assertEqual(wrong, [], "they name their threads")


if __name__ == "__main__":
    unittest.main()
