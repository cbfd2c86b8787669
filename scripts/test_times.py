#!/usr/bin/env python3
"""Prints the times of a test run, so that growth is noticed.

    scripts/test_times.py BUILD BEGIN BUILT     the build folder; when set-up and build began, and when the tests (seconds since 1970)

Reads BUILD/ctest.xml (ctest --output-junit) and ninja's log. Prints the ten slowest tests, then one line with the length of
the run and the number of objects that it compiled. The same line is added to BUILD/test_times.csv.
"""

import csv
import os
import pathlib
import platform
import sys
import time
import xml.etree.ElementTree


def slowest(junit, count):
    """[(seconds, test)], the longest first, of what ctest wrote."""
    cases = xml.etree.ElementTree.parse(junit).getroot().iter("testcase")
    return sorted(((float(case.get("time")), case.get("name")) for case in cases), reverse=True)[:count]


def objects(log, since):
    """The number of objects in the log of ninja, and the number of those that were made since
    then."""
    made = {}
    for line in pathlib.Path(log).read_text().splitlines():
        fields = line.split("\t")
        # begin and end in ms from the start of ninja, time of the file in ns, file, command
        if len(fields) == 5 and fields[3].endswith((".o", ".gch")):
            made[fields[3]] = int(fields[2]) / 1e9
    # The time of a restored object is new, too, because ccache writes the file again.
    return len(made), sum(when >= since for when in made.values())


def main(build, begin, built):
    build, begin, built, end = pathlib.Path(build), float(begin), float(built), time.time()
    if (build / "ctest.xml").exists():
        print("\nThe ten slowest tests:")
        for seconds, name in slowest(build / "ctest.xml", 10):
            print(f"  {seconds:7.1f} s  {name}")
    known, compiled = objects(build / ".ninja_log", begin)
    print(f"\nThis run: {end - begin:.0f} s in all, {built - begin:.0f} s set-up and build, {end - built:.0f} s tests; "
          f"{compiled} of {known} objects compiled ({platform.machine()}, {os.cpu_count()} cores)")
    history = build / "test_times.csv"
    is_new = not history.exists()
    with history.open("a", newline="") as file:
        rows = csv.writer(file)
        if is_new:
            rows.writerow(["date", "machine", "cores", "all s", "build s", "tests s", "compiled", "objects"])
        rows.writerow([time.strftime("%Y-%m-%d %H:%M", time.gmtime(end)), platform.machine(), os.cpu_count(), round(end - begin),
                       round(built - begin), round(end - built), compiled, known])


if __name__ == "__main__":
    main(*sys.argv[1:])
