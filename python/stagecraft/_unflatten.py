"""Submodules of a traced graph."""

from __future__ import annotations

import importlib
from collections import defaultdict
from typing import Any

import torch
from torch import fx


def _outline_submodules(orig_graph: fx.Graph) -> fx.GraphModule:
    """A module that runs the graph, with the submodules that its nodes came from as modules of their own."""
    # torch.export has a function of the module's name.
    unflatten: Any = importlib.import_module("torch.export.unflatten")
    module = fx.GraphModule(torch.nn.Module(), fx.Graph())
    frame = unflatten._ModuleFrame(
        flat_graph=orig_graph, nodes=tuple(orig_graph.nodes), seen_nodes={}, seen_modules=defaultdict(list),
        seen_attrs=defaultdict(set),
        created_modules={}, parent=None, module_stack=[("", None, 0)], module_id="", module_call_graph={},
        module=module)
    frame.run_outer()
    module.graph.lint()
    module.recompile()
    return module
