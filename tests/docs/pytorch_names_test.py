"""docs/coming_from_pytorch.md has every name of torch.distributed.pipelining, and every name of ours on it exists.

    pytorch_names_test.py ROOT    with a Python that has torch

The names are those of the installed torch. Public names of 2.13 and 2.15 that only one of the two has are looked for with
either.
"""

import importlib
import inspect
import pathlib
import pkgutil
import re
import sys
import unittest
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402

ROOT = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "coming_from_pytorch.md").read_text()
PACKAGE = "torch.distributed.pipelining"
MODULES = sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__))
VERSION = ".".join(torch.__version__.split(".")[:2])
# What 2.13 has and 2.15 lacks, and the reverse.
PUBLIC = {
    "2.13": {"fwd_cache"},
    "2.15": {
        "analyze_pipeline_activation_liveness", "PipelineActivationLiveness", "slot_for", "get_activation_lifetime",
        "PipelineStageInfo", "register_forward_context", "release_fwd_send_outputs", "start_gradient_reduction",
        "wait_for_gradient_reduction", "p2p_per_edge", "max_active_stages", "unshard_lookahead", "defer_reduce_grad_wait",
        "max_outstanding_sends", "arg_mbs", "kwarg_mbs", "target_mbs", "finalize_gradients", "WAIT_SEND_F", "WAIT_SEND_B",
        "WAIT_REDUCE_GRAD",
    },
}  # fmt: skip


def is_there(name):
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", PAGE) is not None


def own_names(module):
    """The classes and functions that a module defines."""
    return [name for name, value in vars(module).items()
            if getattr(value, "__module__", None) == module.__name__ and (isinstance(value, type) or callable(value))]


class Names(unittest.TestCase):
    def test_public_names(self):
        names = set(importlib.import_module(PACKAGE).__all__)
        for module in MODULES:
            names |= set(getattr(importlib.import_module(f"{PACKAGE}.{module}"), "__all__", None) or [])
        self.assertGreater(len(names), 13)
        self.assertEqual(sorted(name for name in names if not is_there(name)), [])

    def test_names_of_one_version(self):
        for version, names in PUBLIC.items():
            with self.subTest(version):
                self.assertEqual(sorted(name for name in names if not is_there(name)), [])
        sources = "".join(path.read_text() for folder in importlib.import_module(PACKAGE).__path__
                          for path in pathlib.Path(folder).glob("*.py"))
        self.assertEqual([name for name in PUBLIC.get(VERSION, ()) if name not in sources], [])

    def test_members_of_classes(self):
        """Methods and properties of stages, schedules and what they return, and what they are called with."""
        missing = set()
        for module in ("stage", "schedules"):
            for kind in vars(importlib.import_module(f"{PACKAGE}.{module}")).values():
                if not isinstance(kind, type) or kind.__module__ != f"{PACKAGE}.{module}":
                    continue
                if not kind.__name__.startswith("_") or kind.__name__ == "_PipelineStageBase":
                    missing |= {f"{kind.__name__}.{name}" for name in vars(kind)
                                if not name.startswith("_") and not is_there(name)}
                if kind.__name__.startswith(("Schedule", "Pipeline")):
                    missing |= {f"{kind.__name__}({name})" for name in self.parameters(kind) if not is_there(name)}
        self.assertEqual(sorted(missing), [])

    def parameters(self, kind):
        """The names with which objects are made, and those of `step` and `eval`."""
        calls = [kind, *(getattr(kind, name) for name in ("step", "eval") if hasattr(kind, name))]
        names = {name for call in calls for name in inspect.signature(call).parameters}
        return names - {"self", "args", "kwargs"} if not kind.__name__.startswith("PipelineActivation") else set()

    def test_private_names(self):
        missing = []
        for module in MODULES:
            found = own_names(importlib.import_module(f"{PACKAGE}.{module}"))
            missing += [f"{module}.{name}" for name in found if not is_there(name)]
        self.assertEqual(missing, [])

    def test_names_of_ours_exist(self):
        sources = "\n".join(path.read_text() for folder in ("stagecraft", "cli") for path in (ROOT / folder).rglob("*")
                            if path.suffix in (".h", ".cpp"))
        words = set(re.findall(r"\w+", sources))
        rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
        self.assertGreater(len(rows), 50)
        unknown = [name for row in rows for span in re.findall(r"`([^`]+)`", row[1])
                   for name in re.findall(r"[A-Za-z_]\w+", span) if not span.startswith('"') and "torch" not in span
                   and name not in words and name not in ("index", "num_stages", "module", "device", "model", "example")]
        self.assertEqual(unknown, [])


if __name__ == "__main__":
    unittest.main()
