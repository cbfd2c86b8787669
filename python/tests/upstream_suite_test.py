"""The runner of torch's own tests: how it changes a file, and that it counts."""

import subprocess
import sys
from pathlib import Path

import upstream_suite

SCRIPT = Path(__file__).with_name("upstream_suite.py")
FILE = '''import unittest
import torch
from torch.distributed.pipelining import ScheduleGPipe
device_type = acc.type if acc else "cpu"
backend = dist.get_default_backend_for_device(device_type)
class StageTest(MultiProcContinuousTest):
    world_size = torch.accelerator.device_count()
    @requires_accelerator_dist_backend(["nccl"])
    @skip_but_pass_in_sandcastle_if(not TEST_MULTIACCELERATOR, "x")
    def test(self):
        torch.device(device_type, self.rank)
'''


def test_form_for_the_cpu():
    text = upstream_suite.cpu_form("test_stage.py", FILE, swap=True)
    assert "from stagecraft import ScheduleGPipe" in text
    assert 'device_type = "cpu"\nbackend = "gloo"\n' in text
    assert "class StageTest(MultiProcContinuousTest):\n    world_size = 2\n" in text
    assert "requires_accelerator" not in text and "device_count" not in text
    assert '(False, "x")' in text and 'torch.device("cpu")' in text
    assert "torch.distributed.pipelining" in upstream_suite.cpu_form("test_stage.py", FILE, swap=False)


def test_without_a_suite_nothing_passes():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "Nothing was run" in done.stdout


def test_outcomes_are_counted(tmp_path):
    (tmp_path / "test_small.py").write_text(
        "import unittest\nimport torch.distributed.pipelining as p\n"
        "class SmallTest(unittest.TestCase):\n"
        "    def test_good(self): pass\n"
        "    def test_only_there(self): self.assertTrue(p.__name__.startswith('torch'))\n"
        "    @unittest.skip('x')\n    def test_skipped(self): pass\n")
    done = subprocess.run([sys.executable, SCRIPT, "--suite", tmp_path], capture_output=True, text=True, timeout=200)
    assert "torch:      2 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "stagecraft: 1 passed, 1 skipped, 1 failed" in done.stdout
    assert "! test_small.py::SmallTest.test_only_there" in done.stdout and done.returncode == 1
