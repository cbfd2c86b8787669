"""The account of a test run: which tests were slow, how many objects were compiled."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import test_times


class TestTimes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_the_slowest_come_first(self):
        (self.folder / "ctest.xml").write_text(
            '<testsuite><testcase name="a" time="1.5"/><testcase name="b" time="20"/><testcase name="c" time="3"/></testsuite>')
        self.assertEqual(test_times.slowest(self.folder / "ctest.xml", 2), [(20.0, "b"), (3.0, "c")])

    def test_counts_objects_once_and_those_of_this_run(self):
        (self.folder / "log").write_text("# ninja log v5\n"
                                         "0\t5\t100000000000\ta.o\tx\n"
                                         "0\t5\t200000000000\ta.o\ty\n"
                                         "0\t5\t100000000000\tb.o\tx\n"
                                         "0\t5\t200000000000\tc.hxx.gch\tx\n"
                                         "0\t5\t200000000000\tprogram\tx\n")
        self.assertEqual(test_times.objects(self.folder / "log", 150), (3, 2))


if __name__ == "__main__":
    unittest.main()
