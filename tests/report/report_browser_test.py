#!/usr/bin/env python3
"""Opens reports of real runs in headless Chromium: the page tries itself out (viz/page/report_selftest.js) and says what
it found, and pictures are taken and looked at.

    report_browser_test.py REPORT_PAGE FOLDER

REPORT_PAGE runs and reports (report_page.cpp); FOLDER gets the reports and their pictures.
"""

import json
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "viz"))
import browser_test as browser  # noqa: E402

REPORT_PAGE = None
FOLDER = None
ALL = ["time", "memory", "loss", "stages", "comparison", "about"]


def make_report(name, schedule, ranks, stages, variant=""):
    """Runs and reports; returns the page and the JSON."""
    subprocess.run([REPORT_PAGE, str(FOLDER), name, schedule, str(ranks), str(stages), variant], check=True,
                   timeout=browser.SECONDS, capture_output=True)
    return FOLDER / f"{name}.html", json.loads((FOLDER / f"{name}.json").read_text())


class Report(unittest.TestCase):
    def assert_runs(self, path, **options):
        result = browser.self_test(path, "reporttest", **options)
        self.assertEqual(result.get("errors"), [], path)
        self.assertEqual(result.get("problems"), [], path)
        self.assertEqual(result["loaded"], [], path)
        self.assertEqual(result["hits"], result["tried"])
        return result

    def test_pages_try_themselves_out(self):
        for schedule, ranks, stages in (("1F1B", 4, 4), ("ZBVZeroBubble", 2, 4)):
            with self.subTest(schedule):
                path, data = make_report(schedule, schedule, ranks, stages)
                result = self.assert_runs(path, size=(1200, 900))
                self.assertEqual(result["sections"], ALL)
                self.assertEqual(result["charts"], ranks)
                self.assertGreaterEqual(result["pieces"], 2 * ranks)
                self.assertEqual(result["timed"], stages * (3 if schedule == "ZBVZeroBubble" else 2))
                # Each rank's pieces fill its bar.
                for width in result["widths"]:
                    self.assertAlmostEqual(width, 100, places=2)
                self.assertIn(f"Step {data['losses'][-1][0]}", result["lossHint"])
                self.assertIn(f"{data['losses'][-1][1]:.6f}".rstrip("0"), result["lossHint"])
                self.assertEqual(result["command"], data["command"])
                self.assertEqual(result["rows"], 1 + len(data["comparison"]["schedules"]))
                self.assertEqual(result["failure"], "")
                self.assertEqual(result["actions"], sum(
                    entry["action"].lstrip("0123456789")[0] in "FIWB" and "_" not in entry["action"]
                    for rank in data["actions"] for entry in rank))

    def test_nothing_is_cut_off_in_windows_of_any_width(self):
        for schedule, stages in (("1F1B", 2), ("ZBVZeroBubble", 4)):
            path, _ = make_report(f"width_{schedule}", schedule, 2, stages)
            for size in ((1280, 800), (1041, 800), (900, 900), (390, 800)):
                with self.subTest(f"{schedule} {size}"):
                    self.assert_runs(path, size=size)

    def test_step_that_failed(self):
        path, data = make_report("failed", "1F1B", 4, 4, "failed")
        result = self.assert_runs(path)
        self.assertGreater(data["schedule"]["not_run"], 0)
        self.assertIn("a stage that fails", result["failure"])
        self.assertIn("actions did not run", result["failure"])
        self.assertEqual(result["rows"], 0)

    def test_run_without_memory_and_losses(self):
        path, _ = make_report("plain", "GPipe", 2, 2, "plain")
        result = self.assert_runs(path)
        self.assertEqual(result["sections"], [name for name in ALL if name != "loss"])
        self.assertEqual(result["charts"], 0)

    def test_pictures(self):
        path, _ = make_report("picture", "1F1B", 4, 4)
        for theme, page in (("light", (255, 255, 255)), ("dark", (16, 20, 27))):
            picture = browser.photograph(f"report_{theme}", f"{path.as_uri()}#theme={theme}", size=(1200, 1700),
                                         folder=FOLDER)
            counts = browser.count_colors(picture)
            self.assertGreater(browser.share_of(counts, page), 0.4)
            # The run is a real one: on a busy machine the forwards are a small part of the step.
            self.assertGreater(browser.share_of(counts, browser.FORWARD), 0.0005)


if __name__ == "__main__":
    REPORT_PAGE, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    FOLDER.mkdir(parents=True, exist_ok=True)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
