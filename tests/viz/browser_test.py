#!/usr/bin/env python3
"""Opens drawings in headless Chromium: the page tries itself out (page/selftest.js) and says what it
found, and pictures of pages and figures are taken and looked at.

    browser_test.py MAKE_PAGE FOLDER

MAKE_PAGE writes the drawings (make_page.cpp); FOLDER gets them and their pictures.
"""

import atexit
import base64
import json
import pathlib
import subprocess
import sys
import unittest

from browser import SECONDS, Browser

BROWSER = None
MAKE_PAGE = None
FOLDER = None
HOSTILE = "</script><b>&\"'<!-- 1F1B"


def write_drawing(name, form, schedule, ranks, microbatches, title=None, variant=""):
    text = subprocess.run(
        [MAKE_PAGE, form, schedule, str(ranks), str(microbatches), title or schedule, variant],
        capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    path = FOLDER / f"{name}.{form}"
    path.write_text(text)
    return path


def open_page(url, **options):
    """Opens it in the one browser of this test."""
    global BROWSER
    if BROWSER is None:
        BROWSER = Browser().__enter__()
        atexit.register(BROWSER.__exit__)
    return BROWSER.open(url, **options)


def self_test(path, fragment="selftest", **options):
    """What the page says of itself."""
    said = open_page(f"{path.as_uri()}#{fragment}", **options, value="""(({stagecraft, errors}) =>
        stagecraft || (errors && JSON.stringify({failed: errors})))(document.documentElement.dataset)""")
    result = json.loads(said)
    if "failed" in result:
        raise AssertionError(f"{path}: the page did not run to its end: {result['failed']}")
    return result


# Counts the colours of every third pixel of a picture, as [[red, green, blue, count], ...].
COUNT_COLORS = """(async () => {
  const bytes = Uint8Array.from(atob("PICTURE"), (letter) => letter.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes], {type: "image/png"}));
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const {data} = canvas.getImageData(0, 0, image.width, image.height);
  const counts = new Map();
  for (let y = 0; y < image.height; y += 3) {
    for (let x = 0; x < image.width; x += 3) {
      const at = 4 * (y * image.width + x), color = data[at] << 16 | data[at + 1] << 8 | data[at + 2];
      counts.set(color, (counts.get(color) || 0) + 1);
    }
  }
  return JSON.stringify([...counts].map(([color, count]) => [color >> 16, color >> 8 & 255, color & 255, count]));
})()"""


def count_colors(path):
    picture = base64.b64encode(path.read_bytes()).decode()
    counts = json.loads(open_page("about:blank", value=COUNT_COLORS.replace("PICTURE", picture)))
    return {(red, green, blue): count for red, green, blue, count in counts}


def photograph(name, url, folder=None, **options):
    path = (folder or FOLDER) / f"{name}.png"
    open_page(url, picture=path, **options)
    return path


def near(color, wanted, distance=12):
    return all(abs(a - b) <= distance for a, b in zip(color, wanted))


def share_of(counts, wanted):
    return sum(count for color, count in counts.items() if near(color, wanted)) / sum(counts.values())


FORWARD, BACKWARD = (62, 120, 190), (232, 136, 48)
PALE_FORWARD = (154, 184, 220)


class Page(unittest.TestCase):
    def assert_runs(self, path):
        result = self_test(path)
        self.assertEqual(result.get("errors"), [], path)
        self.assertEqual(result.get("problems"), [], path)
        self.assertEqual(result["hits"], result["tried"])
        return result

    def test_small_pages_try_themselves_out(self):
        for schedule in ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV",
                         "ForwardOnly"):
            with self.subTest(schedule):
                result = self.assert_runs(write_drawing(schedule, "html", schedule, 4, 8))
                self.assertGreater(result["tried"], 30)
                self.assertGreater(result["links"], 20)
                self.assertGreater(result["path"], 5)
                self.assertEqual(result["overview"]["bars"], result["actions"])
                self.assertEqual(result["overview"]["ranks"], 4)
                self.assertGreater(result["overview"]["texts"], 30)
                # With the layer of slots, every activation is drawn once.
                stages = 1 if schedule in ("GPipe", "1F1B") else 2
                self.assertEqual(result["slots"], 0 if schedule == "ForwardOnly" else 4 * 8 * stages)

    def test_lowered_and_real_costs(self):
        self.assert_runs(write_drawing("lowered", "html", "Interleaved1F1B", 4, 8, variant="lowered"))
        self.assert_runs(write_drawing("costs", "html", "ZBVZeroBubble", 4, 8, variant="costs"))

    def test_one_rank_one_microbatch(self):
        self.assert_runs(write_drawing("one", "html", "GPipe", 1, 1))

    def test_plan_beside_a_run(self):
        for schedule, variant in (("1F1B", "plan"), ("DualPipeV", "plan"), ("ZBVZeroBubble", "failed"), ("DualPipeV", "failed")):
            with self.subTest(schedule=schedule, variant=variant):
                path = write_drawing(f"{variant}_{schedule}", "html", schedule, 4, 8, variant=variant)
                result = self.assert_runs(path)
                # Each was looked for with the pointer, and its tooltip said when it was planned.
                self.assertGreater(result["planned"], 20)
                self.assertGreater(result["overview"]["planned"], result["overview"]["bars"] - 1)
        self.assertEqual(self.assert_runs(write_drawing("1F1B", "html", "1F1B", 4, 8))["planned"], 0)

    def test_pictures_of_a_plan(self):
        path = write_drawing("plan_1F1B", "html", "1F1B", 4, 8, variant="plan")
        with_plan = count_colors(photograph("page_plan", f"{path.as_uri()}#select=2B1"))
        without = count_colors(photograph("page_plan_hidden", f"{path.as_uri()}#select=2B1&plan=0"))
        self.assertGreater(share_of(with_plan, PALE_FORWARD), 0.004)
        self.assertLess(share_of(without, PALE_FORWARD), 0.002)
        path = write_drawing("figure_plan", "svg", "1F1B", 4, 8, variant="plan")
        self.assertGreater(share_of(count_colors(photograph("figure_plan", path.as_uri())), PALE_FORWARD), 0.001)

    def test_title_is_text_only(self):
        path = write_drawing("hostile", "html", "1F1B", 2, 2, title=HOSTILE)
        self.assertEqual(self.assert_runs(path)["title"], HOSTILE)
        self.assertNotIn("<b>", path.read_text())

    def test_large_page(self):
        path = write_drawing("large", "html", "1F1B", 64, 512)
        self.assertLess(path.stat().st_size, 2_000_000)
        result = self.assert_runs(path)
        self.assertEqual(result["actions"], 64 * 512 * 2)
        # From afar bands, near by single bars, and never more of them than fit the screen.
        self.assertEqual(result["overview"]["bars"], 0)
        self.assertGreaterEqual(result["overview"]["bands"], 2 * 60)
        self.assertGreater(result["zoomed"]["bars"], 1000)
        self.assertLess(result["zoomed"]["bars"], 64 * 512)
        print(f"64 x 512: a frame takes {result['frame']} ms, with {result['full']['bars']} bars {result['fullFrame']} ms")

    def test_pictures(self):
        path = write_drawing("1F1B", "html", "1F1B", 4, 8)
        light = count_colors(photograph("page_light", path.as_uri()))
        self.assertGreater(share_of(light, (255, 255, 255)), 0.2)
        self.assertGreater(share_of(light, FORWARD), 0.02)
        self.assertGreater(share_of(light, BACKWARD), 0.04)
        dark = count_colors(photograph("page_dark", f"{path.as_uri()}#theme=dark&path"))
        self.assertGreater(share_of(dark, (16, 20, 27)), 0.2)
        chosen = count_colors(photograph("page_select", f"{path.as_uri()}#select=2B1&transfers"))
        self.assertNotEqual(light, chosen)

    def test_pictures_of_the_large_page(self):
        path = write_drawing("large", "html", "1F1B", 64, 512)
        whole = count_colors(photograph("large_overview", path.as_uri()))
        self.assertGreater(share_of(whole, FORWARD), 0.05)
        self.assertGreater(share_of(whole, BACKWARD), 0.1)
        near_by = count_colors(photograph("large_zoomed", f"{path.as_uri()}#t=180-240"))
        self.assertGreater(share_of(near_by, BACKWARD), 0.05)

    def test_picture_of_a_figure(self):
        for schedule in ("1F1B", "DualPipeV"):
            path = write_drawing(f"figure_{schedule}", "svg", schedule, 4, 8, title=HOSTILE)
            counts = count_colors(photograph(f"figure_{schedule}", path.as_uri()))
            self.assertGreater(len(counts), 10)
            self.assertGreater(share_of(counts, (255, 255, 255)), 0.2)


if __name__ == "__main__":
    MAKE_PAGE, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    FOLDER.mkdir(parents=True, exist_ok=True)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
