#!/usr/bin/env python3
"""The code in the documentation, made to compile and run.

    docs_snippets.py sources FOLDER PAGE.md...    writes FOLDER/PAGE.cpp (and PAGE_main_N.cpp), lists them
    docs_snippets.py run PAGE.md BINARY_FOLDER PYTHON BUILD
                                                  runs the page's snippets and compares what they print
    docs_snippets.py shell ROOT BUILD PAGE.md...  checks the commands of ```sh blocks

A ```cpp block that has main() is a program. Any other is the body of a function, with its #include lines moved to
the top and `using namespace stagecraft`. A ```text block right after a ```cpp block is what it must print. In a ```sh
block after a ```python block likewise. A page with `<!-- run in order -->` tells a story: its Python, C++ and shell blocks
run one after another in one folder, each in a process of its own. On other pages Python is not run, and in a ```sh
block `make` commands must name targets that exist and `build/bin/...` commands must succeed, and print together what a
```text block right after says; any other command needs `<!-- not run: why -->` in the line before the block.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

FENCE = re.compile(r"^```(\w*)\s*$")


class Block:
    def __init__(self, language, line, text, before):
        self.language, self.line, self.text, self.before = language, line, text, before
        self.expected = None

    @property
    def is_program(self):
        return re.search(r"\bint main\(", self.text) is not None


def blocks(page):
    """The fenced blocks of a page, each with the text between it and the block before."""
    found, between, current = [], [], None
    for number, line in enumerate(pathlib.Path(page).read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if current is None and fence:
            current = Block(fence.group(1), number, "", "\n".join(between).strip())
        elif current is not None and line.startswith("```"):
            if current.language == "text" and found and found[-1].language in ("cpp", "sh", "python") and not current.before:
                found[-1].expected = current.text
            found.append(current)
            current, between = None, []
        elif current is not None:
            current.text += line + "\n"
        else:
            between.append(line)
    if current is not None:
        raise SystemExit(f"{page}:{current.line}: the block is not closed")
    return found


def snippets(page):
    return [block for block in blocks(page) if block.language == "cpp"]


def name_of(page):
    return "docs_" + re.sub(r"\W", "_", pathlib.Path(page).stem.lower())


def write_if_changed(path, text):
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    print(path)


def write_sources(folder, page):
    folder.mkdir(parents=True, exist_ok=True)
    includes, bodies, cases = [], [], []
    for number, block in enumerate(snippets(page)):
        where = f'#line {block.line + 1} "{pathlib.Path(page).name}"\n'
        if block.is_program:
            write_if_changed(folder / f"{name_of(page)}_main_{number}.cpp", where + block.text)
            continue
        lines = block.text.splitlines()
        includes += [line for line in lines if line.startswith("#include") and line not in includes]
        body = "\n".join("" if line.startswith("#include") else line for line in lines)
        bodies.append(f"void snippet_{number}() {{\n{where}{body}\n}}\n")
        cases.append(f'  if (number == "{number}") snippet_{number}();\n')
    if bodies:
        text = ('#include <string_view>\n#include "stagecraft/stagecraft.h"\n' + "\n".join(includes) +
                "\nnamespace {\nusing namespace stagecraft;\n" + "\n".join(bodies) +
                "}  // namespace\nint main(int argc, char** argv) {\n"
                '  const std::string_view number = argc > 1 ? argv[1] : "";\n' + "".join(cases) + "}\n")
        write_if_changed(folder / f"{name_of(page)}.cpp", text)


def is_story(page):
    return "<!-- run in order -->" in pathlib.Path(page).read_text()


def is_marked(block):
    """Whether the page says why a block is not run."""
    return block.before.endswith("-->") and "<!-- not run:" in block.before.splitlines()[-1]


def run_page(page, binaries, python, build):
    """Runs the C++ of a page; of a story all that can be run, in a folder of its own."""
    if not is_story(page):
        return run_blocks(page, snippets(page), binaries, python, build, None)
    found = [block for block in blocks(page) if block.language in ("cpp", "python", "sh") and not is_marked(block)]
    with tempfile.TemporaryDirectory() as scratch:
        return run_blocks(page, found, binaries, python, build, scratch)


def run_blocks(page, found, binaries, python, build, folder):
    failures = 0
    numbers = {block.line: number for number, block in enumerate(snippets(page))}
    for block in found:
        number = numbers.get(block.line)
        if block.language == "python":
            command = [python, "-c", block.text]
        elif block.language == "sh":
            command = ["sh", "-ec", re.sub(r"(?m)^build/bin/", f"{build}/bin/", block.text)]
        elif block.is_program:
            command = [str(binaries / f"{name_of(page)}_main_{number}")]
        else:
            command = [str(binaries / name_of(page)), str(number)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder)
        problem = None
        if done.returncode != 0:
            problem = f"exit code {done.returncode}: {done.stderr.strip()}"
        elif block.expected is not None and done.stdout != block.expected:
            problem = f"it printed\n{done.stdout}instead of\n{block.expected}"
        if problem:
            print(f"{page}:{block.line}: {problem}")
            failures += 1
    print(f"{pathlib.Path(page).name}: {len(found) - failures} passed, {failures} failed")
    return failures


def check_shell(root, build, page, scratch):
    failures = 0
    for block in blocks(page):
        if block.language != "sh" or is_marked(block):
            continue
        printed = ""
        for offset, line in enumerate(block.text.splitlines(), 1):
            command = line.split("#")[0].strip()
            if not command:
                continue
            is_run = command.startswith("build/bin/")
            if re.match(r"(\w+=\S+ )*make\b", command):
                checked = command.replace("make", "make --dry-run --no-print-directory", 1)
            elif is_run:
                checked = re.sub(r"(?<!\S)build/bin/", f"{build}/bin/", command)
            else:
                print(f"{page}:{block.line + offset}: neither run nor marked <!-- not run: why -->: {command}")
                failures += 1
                continue
            done = subprocess.run(checked, shell=True, cwd=scratch if is_run else root, capture_output=True, text=True,
                                  timeout=60)
            if done.returncode != 0:
                print(f"{page}:{block.line + offset}: {command}: {done.stderr.strip()}")
                failures += 1
            printed += done.stdout if is_run else ""
        if block.expected is not None and printed != block.expected:
            print(f"{page}:{block.line}: the commands printed\n{printed}instead of\n{block.expected}")
            failures += 1
    return failures


def main():
    verb, *rest = sys.argv[1:]
    if verb == "sources":
        for page in rest[1:]:
            write_sources(pathlib.Path(rest[0]), page)
        return 0
    if verb == "run":
        return 1 if run_page(rest[0], pathlib.Path(rest[1]), *rest[2:]) else 0
    if verb == "shell":
        with tempfile.TemporaryDirectory() as scratch:  # what the commands write stays out of the tree
            pages = [page for page in rest[2:] if not is_story(page)]
            return 1 if sum(check_shell(rest[0], rest[1], page, scratch) for page in pages) else 0
    raise SystemExit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
