"""stagecraft under the names of torch.distributed.pipelining, for programs that cannot be edited."""

from __future__ import annotations

import importlib
import sys

_UPSTREAM = "torch.distributed.pipelining"
_MODULES = ("microbatch", "schedules", "stage", "_IR", "_utils", "_backward", "_debug", "_unflatten",
            "_schedule_visualizer")


def replace_upstream() -> None:
    """Makes `import torch.distributed.pipelining` give stagecraft, its modules too.

    Call it before anything imports that package. RuntimeError if it was imported already: then some code holds its
    names, and would mix them with ours.
    """
    loaded = sys.modules.get(_UPSTREAM)
    ours = importlib.import_module("stagecraft")
    if loaded is ours:
        return
    if loaded is not None:
        raise RuntimeError(
            f"{_UPSTREAM} was imported already, so its names are in use: call stagecraft.replace_upstream() before "
            f"any import of it, or of a package that imports it")
    import torch.distributed

    modules = {name: importlib.import_module(f"stagecraft.{name}") for name in _MODULES}
    sys.modules[_UPSTREAM] = ours
    for name, module in modules.items():
        sys.modules[f"{_UPSTREAM}.{name}"] = module
    setattr(torch.distributed, "pipelining", ours)
