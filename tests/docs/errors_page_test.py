"""docs/when_it_fails.md has every error there is: each type, and each message that the sources throw; and none that there is not.

    errors_page_test.py ROOT

On the page a message is a code span in the first column of a table, `…` stands for what is filled in. A message of the sources is the
longest text inside a throw or a require; so are the findings of the verifier. Messages without fixed words cannot be looked for.
"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "when_it_fails.md"
LITERALS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*')
CALL = re.compile(r"\brequire<\w+>\(|\bthrow \w+\("
                  r"|\b(?:throw_parse_error|fail|fail_expected|refuse|check|findings\.add|findings\.add_at)\(")
ESCAPES = {"n": "\n", '"': '"', "\\": "\\", "t": "\t", "r": "\r"}


def text_of(run):
    """Neighbouring literals as one text, `…` for each thing that is filled in."""
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', run))
    text = re.sub(r"\\(.)", lambda found: ESCAPES.get(found.group(1), found.group(0)), text)
    text = text.replace("{{", "\0").replace("}}", "\1")
    return re.sub(r"\{[^}]*\}", "…", text).replace("\0", "{").replace("\1", "}")


def body_of(text, begin):
    """What is inside the parenthesis at `begin`."""
    depth, position, length = 0, begin, len(text)
    while position < length:
        if text[position] == '"':
            position = re.compile(r'"(?:[^"\\]|\\.)*"').match(text, position).end()
            continue
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        position += 1
        if depth == 0:
            return text[begin:position]
    return text[begin:]


def without_comments(text):
    text = text.replace("'\"'", "' '")  # a character, no text
    return re.sub(r"(?m)^\s*//.*$|(?<=[;{}\s])//(?=[ /]).*$", "", text)


def fixed_words(text):
    return len(re.findall(r"[A-Za-z]{2,}", text.replace("…", " ")))


def messages(path):
    """The messages that a source throws."""
    text = without_comments(path.read_text())
    found = []
    for call in CALL.finditer(text):
        runs = [text_of(run) for run in LITERALS.findall(body_of(text, call.end() - 1))]
        best = max(runs, key=fixed_words, default="")
        if fixed_words(best) >= 3:
            found.append(best.strip())
    return found


def sources():
    return sorted(path for folder in ("stagecraft", "cli") for path in (ROOT / folder).rglob("*")
                  if path.suffix in (".h", ".cpp"))


def quoted():
    """The messages on the page: code spans of first columns."""
    found = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            cell = line.split(" | ")[0].removeprefix("| ")
            found += re.findall(r"`([^`]+)`", cell)
    return found


class ErrorsPage(unittest.TestCase):
    maxDiff = None

    def test_every_type_is_described(self):
        page = PAGE.read_text()
        types = {"Error"}
        for path in sources():
            types |= set(re.findall(r"class (\w+) : public (?:stagecraft::)?\w*Error\b", path.read_text()))
        self.assertGreaterEqual(len(types), 11)
        for name in sorted(types - {"BadSchedule", "BadUsage"}):  # of the tool, which says them with its exit code
            self.assertTrue(re.search(rf"(?m)^#+ {name}$", page), f"{PAGE.name} has no heading for {name}")

    def test_every_message_of_the_sources_is_there(self):
        page = set(quoted())
        missing = [f"{path.relative_to(ROOT)}: {message}" for path in sources() for message in messages(path)
                   if message not in page and not any(message in one for one in page)]
        self.assertEqual(missing, [], "put them into docs/when_it_fails.md, with cause and fix")

    def test_every_message_there_is_in_the_sources(self):
        known = "\0".join(text_of(run) for path in sources()
                          for run in LITERALS.findall(without_comments(path.read_text())))
        gone = [message for message in quoted() if message not in known]
        self.assertEqual(gone, [], "no source says that any more")


if __name__ == "__main__":
    unittest.main()
