#!/usr/bin/env python3
"""Compiles and runs the code in the documentation.

    docs_snippets.py sources FOLDER PARTS PAGE.md...
                                                  writes the C++ of all pages as a program of PARTS sources (0: one for each
                                                  page and each program), lists them. A PAGE.cpp is a program, called
                                                  example_PAGE
    docs_snippets.py run PAGE.md PROGRAM PYTHON BUILD
                                                  runs the page's snippets and compares what they print
    docs_snippets.py shell ROOT BUILD PAGE.md...  checks the commands of ```sh blocks

A ```cpp block that has main() is a program, called PAGE_main_N. Any other, called PAGE_N, is the body of a function, with its #include lines moved to
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
    """The fenced blocks of a page, each with the text between it and the block before; a C++ source is one block."""
    if page.endswith(".cpp"):
        return [Block("cpp", 0, pathlib.Path(page).read_text(), "")]
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


def split_includes(block):
    """Its #include lines, and the rest with as many lines as before."""
    lines = block.text.splitlines()
    return ([line for line in lines if line.startswith("#include")],
            "\n".join("" if line.startswith("#include") else line for line in lines))


def as_function(text):
    """A program for use inside a namespace, where main has no special meaning and ends with what it returns."""
    head, main = re.split(r"(?m)^(?=int main\()", text, maxsplit=1)
    return head + re.sub(r"(?m)^}", "  return 0; }", main, count=1)


def units(page):
    """Its programs, one by one, and its other snippets together: as (scope, [(number, block)])."""
    numbered = list(enumerate(snippets(page)))
    if page.endswith(".cpp"):
        return [(f"example_{pathlib.Path(page).stem}", numbered)]
    found = [(f"{name_of(page)}_main_{number}", [(number, block)]) for number, block in numbered if block.is_program]
    others = [(number, block) for number, block in numbered if not block.is_program]
    return found + ([(name_of(page), others)] if others else [])


class Source:
    """Units of pages in one C++ source, each in a namespace of its own."""

    def __init__(self):
        self.size, self.includes, self.bodies, self.cases = 0, [], [], []

    def add(self, page, scope, numbered):
        text = ""
        for number, block in numbered:
            includes, body = split_includes(block)
            where = f'#line {block.line + 1} "{pathlib.Path(page).name}"\n'
            self.size += len(body)
            self.includes += [line for line in includes if line not in self.includes]
            if block.is_program:
                arguments = "argc, argv" if re.search(r"int main\(\s*int", body) else ""
                text += f"{where}{as_function(body)}\n"
                self.cases.append(f'  if (name == "{scope}") return {scope}::main({arguments});\n')
            else:
                text += f"void snippet_{number}() {{\n{where}{body}\n}}\n"
                self.cases.append(f'  if (name == "{scope}_{number}") return {scope}::snippet_{number}(), 0;\n')
        use = "" if numbered[0][1].is_program else "using namespace stagecraft;\n"
        self.bodies.append(f"namespace {scope} {{\n{use}{text}}}  // namespace\n")

    def text(self, function, following):
        """Defines a function that runs a snippet by its name, and asks the following one where there is none."""
        otherwise = f"{following}(name, argc, argv)" if following else "-1"
        parameters = "(std::string_view name, [[maybe_unused]] int argc, [[maybe_unused]] char** argv)"
        return ('#include <string_view>\n#include "stagecraft/stagecraft.h"\n' + "\n".join(self.includes) +
                "\nnamespace {\n" + "\n".join(self.bodies) + "}  // namespace\n" +
                (f"int {following}{parameters};\n" if following else "") + f"int {function}{parameters} {{\n" +
                "".join(self.cases) + f"  return {otherwise};\n}}\n")


def write_sources(folder, parts, pages):
    """Deals the units out to `parts` sources: the largest unit first, each to the smallest source. 0: a source for each."""
    folder.mkdir(parents=True, exist_ok=True)
    found = [(page, scope, numbered) for page in pages for scope, numbered in units(page)]
    found.sort(key=lambda unit: (-sum(len(block.text) for _, block in unit[2]), unit[1]))
    sources = [Source() for _ in range(parts or len(found))]
    for unit in found:
        min(sources, key=lambda source: source.size).add(*unit)
    functions = [f"run_snippets_{number}" for number in range(len(sources))]
    for source, function, following in zip(sources, functions, functions[1:] + [None]):
        write_if_changed(folder / f"{function}.cpp", source.text(function, following))
    write_if_changed(folder / "snippets_main.cpp", """#include <cstdio>
#include <string_view>
int run_snippets_0(std::string_view name, int argc, char** argv);
int main(int argc, char** argv) {
  const char* const name = argc > 1 ? argv[1] : "";
  const int code = run_snippets_0(name, argc - 1, argv + 1);
  if (code == -1) std::fprintf(stderr, "no snippet is called '%s'\\n", name);
  return code;
}
""")


def is_story(page):
    return "<!-- run in order -->" in pathlib.Path(page).read_text()


def is_marked(block):
    """Whether the page says why a block is not run."""
    return block.before.endswith("-->") and "<!-- not run:" in block.before.splitlines()[-1]


def run_page(page, program, python, build):
    """Runs the C++ of a page; of a story all that can be run, in a folder of its own."""
    if not is_story(page):
        return run_blocks(page, snippets(page), program, python, build, None)
    found = [block for block in blocks(page) if block.language in ("cpp", "python", "sh") and not is_marked(block)]
    with tempfile.TemporaryDirectory() as scratch:
        return run_blocks(page, found, program, python, build, scratch)


def without_version(text):
    """A page names one version of torch; the tests run with several."""
    return re.sub(r"exported with torch \S+", "exported with torch", text)


def run_blocks(page, found, program, python, build, folder):
    failures = 0
    numbers = {block.line: number for number, block in enumerate(snippets(page))}
    for block in found:
        number = numbers.get(block.line)
        if block.language == "python":
            command = [python, "-c", block.text]
        elif block.language == "sh":
            command = ["sh", "-ec", re.sub(r"(?m)^build/bin/", f"{build}/bin/", block.text)]
        else:
            command = [program, f"{name_of(page)}_{'main_' if block.is_program else ''}{number}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder)
        problem = None
        if done.returncode != 0:
            problem = f"exit code {done.returncode}: {done.stderr.strip()}"
        elif block.expected is not None and without_version(done.stdout) != without_version(block.expected):
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
        write_sources(pathlib.Path(rest[0]), int(rest[1]), rest[2:])
        return 0
    if verb == "run":
        return 1 if run_page(*rest) else 0
    if verb == "shell":
        with tempfile.TemporaryDirectory() as scratch:  # what the commands write stays out of the tree
            pages = [page for page in rest[2:] if not is_story(page)]
            return 1 if sum(check_shell(rest[0], rest[1], page, scratch) for page in pages) else 0
    raise SystemExit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
