"""Every link between the pages leads somewhere: files exist, and so do the headings after a `#`. The files that a newcomer should
open first exist, too. Pages are wrapped.

    links_test.py ROOT
"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]


def without_code(text):
    return re.sub(r"(?ms)^```.*?^```$", "", text)


def anchors(path):
    """What GitHub makes of the headings."""
    found = set()
    for heading in re.findall(r"(?m)^#+ (.*)$", without_code(path.read_text())):
        found.add(re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-"))
    return found


def dead_links(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", without_code(page.read_text()))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            yield f"{page.relative_to(ROOT)}: there is no {link}"
        elif anchor and anchor not in anchors(target):
            yield f"{page.relative_to(ROOT)}: {link} has no such heading"


class Links(unittest.TestCase):
    def test_lead_somewhere(self):
        pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
        self.assertGreater(len(pages), 10)
        self.assertEqual([link for page in pages for link in dead_links(page)], [])

    def test_the_index_has_every_page(self):
        index = (ROOT / "docs" / "README.md").read_text()
        missing = [page.name for page in sorted((ROOT / "docs").glob("*.md"))
                   if page.name != "README.md" and f"({page.name})" not in index]
        self.assertEqual(missing, [], "put them into docs/README.md")

    def test_pages_are_wrapped_at_100_columns(self):
        pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
        long = [f"{page.relative_to(ROOT)}: {line}"
                for page in [*pages, *sorted((ROOT / "docs").rglob("*.md"))]
                for line in re.sub(r"(?s)<!--.*?-->", "", without_code(page.read_text())).splitlines()
                if len(line) > 100 and not line.startswith("|")]
        self.assertEqual(long, [], "tables and code may be wider")

    def test_have_no_marks_of_a_merge(self):
        pages = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *sorted((ROOT / "docs").rglob("*.md"))]
        marked = [f"{page.relative_to(ROOT)}: {line}" for page in pages
                  for line in re.findall(r"(?m)^(?:<{7}|={7}|>{7})(?: .*)?$", page.read_text())]
        self.assertEqual(marked, [])

    def test_files_to_open_first(self):
        table = (ROOT / "CONTRIBUTING.md").read_text().split("\n## Where to start\n")[1].split("\n## ")[0]
        first = re.findall(r"(?m)^\| [^|]+ \| `([^`]+)`", table)
        self.assertGreaterEqual(len(first), 10)
        self.assertEqual([name for name in first if not (ROOT / name).is_file()], [], "CONTRIBUTING.md names them")
        architecture = (ROOT / "docs" / "architecture.md").read_text()
        missing = [name for name in first if name.removeprefix("stagecraft/") not in architecture]
        self.assertEqual(missing, [], "name them in docs/architecture.md")


if __name__ == "__main__":
    unittest.main()
