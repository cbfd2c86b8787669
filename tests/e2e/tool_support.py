"""What the tests of the stagecraft program share: they run it as a user would, in a scratch folder.

Each test file is called with the program as its first argument; what follows goes to unittest.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
DOCS = GOLDEN.parent.parent / "docs"
# A call may take longer under a sanitizer.
SECONDS = 600 if "SC_SANITIZER" in os.environ else 60
tool = None


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def text(self):
        return self.out.decode()


class ToolTest(unittest.TestCase):
    """Runs the program in a folder of its own, self.folder."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def run_tool(self, *arguments, stdin=b"", env=None, **more):
        environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLORTERM", "STAGECRAFT_LOG")}
        environment.update(env or {})
        more.setdefault("stdout", subprocess.PIPE)
        more.setdefault("timeout", SECONDS)
        done = subprocess.run([tool, *map(str, arguments)], input=stdin, stderr=subprocess.PIPE, cwd=self.folder,
                              env=environment, **more)
        return Result(done.returncode, done.stdout or b"", done.stderr.decode(errors="replace"))

    def good(self, *arguments, **more):
        """Standard output of a run that must succeed in silence."""
        result = self.run_tool(*arguments, **more)
        self.assertEqual((result.code, result.err), (0, ""), arguments)
        return result.text

    def bad(self, code, *arguments, says="", **more):
        """A run that must fail with this exit status and one line on standard error."""
        result = self.run_tool(*arguments, **more)
        self.assertEqual(result.code, code, (arguments, result.err))
        self.assertRegex(result.err, r"\Astagecraft: [^\n]+\n\Z", arguments)
        for part in [says] if isinstance(says, str) else says:
            self.assertIn(part, result.err, arguments)
        return result

    def schedules(self):
        """The names of all schedules, as the help lists them."""
        listed = self.good("schedule", "--help").split("Schedules:\n")[1].split("\n\n")[0]
        names = [line.split()[0] for line in listed.splitlines()]
        self.assertGreaterEqual(len(names), 8)
        return names

    def write(self, name, text):
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path


def main():
    global tool
    tool = os.path.abspath(sys.argv.pop(1))
    unittest.main(module="__main__")
