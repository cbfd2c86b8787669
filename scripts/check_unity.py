"""Finds names that would clash when the sources of a target are compiled as one unit (STAGECRAFT_UNITY).

    scripts/check_unity.py build/unity     a file TARGET.txt there names the sources of a target, a line each

Private names of a source (in an unnamed namespace, static functions, macros) are visible to every source that follows it
in the unit. So each such name may occur in one source of a target only. Two functions with the same name and different
arguments are not allowed either: a call could silently use the wrong one. Identical aliases may be repeated.

The script reads text, not C++. It requires code that is formatted by clang-format.
"""

import collections
import pathlib
import re
import sys

NOISE = re.compile(
    r'R"(?P<mark>\w*)\((?:.|\n)*?\)(?P=mark)"'  # raw text
    r"|//[^\n]*|/\*(?:.|\n)*?\*/"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])'")
BLOCK = re.compile(r"\bnamespace\s*\{")
TYPE = re.compile(r"(?:struct|class|enum class|enum|union)\s+(?:\[\[\w+\]\]\s*)?(\w+)")
ALIAS = re.compile(r"(?:using|namespace)\s+(\w+)\s*=\s*(.+)", re.S)
TEST_MACRO = re.compile(r"(?:TEST|TEST_F|TEST_P|TYPED_TEST|MATCHER|MATCHER_P\d?|INSTANTIATE_TEST_SUITE_P|SC_[A-Z_]+)\s*\(")


def without_noise(text):
    return NOISE.sub(lambda m: " " if m[0].startswith("/") else '""', text)


def blank_angles(text):
    """The text with blanks instead of template arguments and of the contents of square brackets."""
    out, depth = [], 0
    for i, c in enumerate(text):
        if c in "<[":
            depth += 1
        closes = c == "]" or (c == ">" and text[i - 1] != "-")
        out.append(" " if depth else c)
        if closes and depth:
            depth -= 1
    return "".join(out)


def declared(statement):
    """(name, what the alias stands for or None) of a declaration at namespace scope, or None."""
    statement = re.sub(r"^\s*#.*$", "", statement, flags=re.M).strip()
    statement = re.sub(r"^template\s*(?=<)", "", statement)
    if not statement or statement.startswith(("static_assert", "using namespace", "friend", "extern", "TORCH_LIBRARY")):
        return None
    if TEST_MACRO.match(statement):
        return None
    alias = ALIAS.match(statement)
    if alias:
        return alias[1], " ".join(alias[2].split())
    if statement.startswith("using "):
        return None
    plain = blank_angles(statement).strip()
    plain = re.sub(r"^(?:requires\b[^\n]*\n)", "", plain)
    kind = TYPE.match(plain)
    if kind:
        return kind[1], None
    plain = re.sub(r"\boperator\s*\S+?\s*(?=\()", "operator_", plain)
    head = re.split(r"[=({]", plain, maxsplit=1)[0]
    name = re.search(r"(\w+)\s*$", head)
    if not name or name[1] == "operator_" or name[1].isdigit():
        return None
    # A member defined outside its class belongs to the class.
    if re.search(r"::\s*~?\w+\s*$", head):
        return None
    return name[1], None


def statements(text, start):
    """The declarations of the block that begins at `start`, each up to its body or semicolon."""
    depth, statement, parentheses = 0, "", 0
    for c in text[start:]:
        if c == "{":
            if depth == 0 and parentheses == 0 and statement.strip():
                yield statement
                statement = ""
            depth += 1
        elif c == "}":
            if depth == 0:
                return
            depth -= 1
        elif depth == 0:
            parentheses += (c == "(") - (c == ")")
            if c == ";" and parentheses == 0:
                yield statement
                statement = ""
            else:
                statement += c


def own_names(text):
    """{name: alias or None} of what a source keeps for itself."""
    names = {}
    for macro in re.finditer(r"^#define\s+(\w+)", text, flags=re.M):
        if not re.search(rf"^#undef\s+{macro[1]}\b", text, flags=re.M):
            names[macro[1]] = None
    text = without_noise(text)
    for block in BLOCK.finditer(text):
        for statement in statements(text, block.end()):
            found = declared(statement)
            if found:
                names[found[0]] = found[1]
    for function in re.finditer(r"^static\s+[^;={(]*?(\w+)\s*\(", text, flags=re.M):
        names[function[1]] = None
    return names


def clashes(sources):
    """[(name, [sources])] for {source: text}."""
    found = collections.defaultdict(dict)
    for source, text in sources.items():
        for name, alias in own_names(text).items():
            found[name][source] = alias
    result = []
    for name, places in sorted(found.items()):
        aliases = set(places.values())
        if len(places) > 1 and (None in aliases or len(aliases) > 1):
            result.append((name, sorted(places)))
    return result


def main(folder):
    failed = False
    lists = sorted(pathlib.Path(folder).glob("*.txt"))
    if not lists:
        print(f"{folder} has no lists of sources; configure the build first")
        return 1
    for path in lists:
        sources = {pathlib.Path(line) for line in path.read_text().split("\n") if line}
        # Generated sources do not exist before the build.
        texts = {source.name: source.read_text() for source in sources if source.exists()}
        for name, places in clashes(texts):
            failed = True
            print(f"{path.stem}: {', '.join(places)} each have a {name} of their own: give them different names")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
