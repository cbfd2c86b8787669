#!/usr/bin/env python3
"""Opens drawings in headless Chromium: the page tries itself out (page/selftest.js) and says what it
found, and pictures of pages and figures are taken and looked at.

    browser_test.py MAKE_PAGE FOLDER

MAKE_PAGE writes the drawings (make_page.cpp); FOLDER gets them and their pictures.
"""

import html
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

MAKE_PAGE = None
FOLDER = None
HOSTILE = "</script><b>&\"'<!-- 1F1B"
SECONDS = 120


def find_browser():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    raise AssertionError("no chromium on PATH: install Debian's package chromium (scripts/bootstrap does)")


def browse(url, *flags):
    """Runs the browser on `url` with a profile of its own; returns what it prints. What a page says on its console, such
    as an error or something that it may not load, is a failure."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            find_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-dev-shm-usage", "--hide-scrollbars", "--enable-logging=stderr", f"--user-data-dir={profile}",
            "--window-size=1440,900", *flags, url]
        run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False,
                             env={**os.environ, "HOME": profile})
    if run.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\nexit status {run.returncode}\n{run.stderr[-2000:]}")
    said = [line for line in run.stderr.splitlines() if ":CONSOLE" in line]
    if said:
        raise AssertionError(f"{url}: on the console:\n" + "\n".join(said))
    return run.stdout


def write_drawing(name, form, schedule, ranks, microbatches, title=None, variant=""):
    text = subprocess.run(
        [MAKE_PAGE, form, schedule, str(ranks), str(microbatches), title or schedule, variant],
        capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    path = FOLDER / f"{name}.{form}"
    path.write_text(text)
    return path


def self_test(path, fragment="selftest", *flags):
    """What the page says of itself."""
    dom = browse(f"{path.as_uri()}#{fragment}", "--dump-dom", "--virtual-time-budget=20000", *flags)
    found = re.search(r'<html[^>]* data-stagecraft="([^"]*)"', dom)
    if not found:
        errors = re.search(r'<html[^>]* data-errors="([^"]*)"', dom)
        raise AssertionError(f"{path}: the page did not run to its end: {errors.group(1) if errors else dom[:300]}")
    return json.loads(html.unescape(found.group(1)))


def read_png(path):
    """The colours of the pixels of a picture: (width, height, rows of bytes, bytes a pixel)."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", f"{path} is no PNG"
    at, packed, head = 8, b"", None
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        if kind == b"IHDR":
            head = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            packed += body
        at += 12 + size
    width, height, depth, color = head[:4]
    assert depth == 8 and color in (2, 6), f"{path}: unexpected kind of PNG {head}"
    step = 3 if color == 2 else 4
    raw = zlib.decompress(packed)
    line = width * step
    rows, before = [], bytearray(line)
    for y in range(height):
        method = raw[y * (line + 1)]
        row = bytearray(raw[y * (line + 1) + 1:(y + 1) * (line + 1)])
        if method == 1:
            for i in range(step, line):
                row[i] = (row[i] + row[i - step]) & 255
        elif method == 2:
            for i in range(line):
                row[i] = (row[i] + before[i]) & 255
        elif method == 3:
            for i in range(line):
                row[i] = (row[i] + ((row[i - step] if i >= step else 0) + before[i]) // 2) & 255
        elif method == 4:
            for i in range(line):
                a = row[i - step] if i >= step else 0
                c = before[i - step] if i >= step else 0
                b = before[i]
                pa, pb, pc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
                row[i] = (row[i] + (a if pa <= pb and pa <= pc else b if pb <= pc else c)) & 255
        rows.append(row)
        before = row
    return width, height, rows, step


def count_colors(path, every=3):
    """How often each colour occurs among a sample of the pixels."""
    width, height, rows, step = read_png(path)
    counts = {}
    for y in range(0, height, every):
        for x in range(0, width, every):
            color = tuple(rows[y][x * step:x * step + 3])
            counts[color] = counts.get(color, 0) + 1
    return counts


def photograph(name, url, *flags, folder=None):
    path = (folder or FOLDER) / f"{name}.png"
    path.unlink(missing_ok=True)
    browse(url, f"--screenshot={path}", "--virtual-time-budget=10000", *flags)
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
