#!/usr/bin/env python3
"""Opens the page of `stagecraft plan --report` in headless Chromium: its timeline tries itself out, its tables and its chart are
those of the plan's JSON, and names from the cost file stay text.

    plan_page_test.py STAGECRAFT FOLDER
"""

import json
import pathlib
import subprocess
import sys
import unittest

import browser_test
from browser import SECONDS

PROGRAM = None
FOLDER = None
HOSTILE = "<img src=x onerror=alert(1)>&\"'</script>"

# What a reader sees: each section with its heading, note, rows of its table and points of its chart.
SECTIONS = """JSON.stringify([...document.querySelectorAll("#sections section")].map((section) => ({
  title: section.querySelector("h2").textContent,
  note: (section.querySelector("p.note") || {textContent: ""}).textContent,
  rows: [...section.querySelectorAll("tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent)),
  marked: section.querySelectorAll("tr.this").length,
  points: section.querySelectorAll("svg.chart circle").length,
  height: section.getBoundingClientRect().height,
})))"""


def plan(name, *arguments, costs=None):
    """The page of a plan, and what --json says of it."""
    file = FOLDER / f"{name}.json"
    example = subprocess.run([PROGRAM, "plan", "--example"], capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    file.write_text(costs(example) if costs else example)
    page = FOLDER / f"{name}.html"
    result = subprocess.run([PROGRAM, "plan", file, "--ranks", "4", "--microbatches", "8", "--rounds", "2", "--json", "--report",
                             page, *arguments], capture_output=True, text=True, timeout=SECONDS, check=True)
    return page, json.loads(result.stdout)


def sections_of(page):
    return {section["title"]: section for section in json.loads(browser_test.open_page(page.as_uri(), value=SECTIONS))}


class PlanPage(unittest.TestCase):
    def test_timeline_tries_itself_out(self):
        page, report = plan("plan", "--memory", "9000")
        result = browser_test.self_test(page)
        self.assertEqual(result.get("errors"), [])
        self.assertEqual(result.get("problems"), [])
        self.assertEqual(result["hits"], result["tried"])
        self.assertGreater(result["path"], 5)  # the critical path
        self.assertEqual(result["overview"]["ranks"], 4)

    def test_sections_are_those_of_the_plan(self):
        page, report = plan("sections", "--memory", "9000", "--curve")
        sections = sections_of(page)
        for title in ("Ways to run the model", "Stages", "Memory", "Bounds", "Time against memory"):
            self.assertIn(title, sections)
            self.assertGreater(sections[title]["height"], 20, title)
        ways = sections["Ways to run the model"]
        self.assertEqual(ways["marked"], 1)
        self.assertGreaterEqual(len(ways["rows"]), 2)
        self.assertEqual(len(sections["Stages"]["rows"]), report["plan"]["stages"])
        self.assertEqual(len(sections["Memory"]["rows"]), 4)
        self.assertEqual([row[3] for row in sections["Memory"]["rows"]], ["9000"] * 4)
        self.assertEqual(sections["Time against memory"]["points"], len(report["curve"]))
        text = " ".join(section["note"] for section in sections.values())
        self.assertRegex(text, r"critical path has \d+ actions")
        self.assertRegex(text, r"can take less than \d+")

    def test_without_a_curve_there_is_no_chart(self):
        page, _ = plan("no_curve")
        self.assertNotIn("Time against memory", sections_of(page))

    def test_names_are_text(self):
        page, _ = plan("hostile", costs=lambda text: text.replace('"embedding"', json.dumps(HOSTILE)))
        rows = sections_of(page)["Stages"]["rows"]
        self.assertIn(HOSTILE, " ".join(rows[0]))
        self.assertEqual(browser_test.open_page(page.as_uri(), value="String(document.querySelectorAll('img').length)"), "0")

    def test_picture(self):
        page, _ = plan("picture", "--memory", "9000", "--curve")
        colors = browser_test.count_colors(browser_test.photograph("plan_page", page.as_uri(), FOLDER, size=(1280, 2400)))
        self.assertGreater(len(colors), 20)
        self.assertLess(max(colors.values()) / sum(colors.values()), 0.98)


if __name__ == "__main__":
    PROGRAM, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
    FOLDER.mkdir(parents=True, exist_ok=True)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
