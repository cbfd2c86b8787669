"""The dependency of the wheel on torch, for its build: the minor version that it is compiled with."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, list[str]]:
    """The list of dependencies, such as ["torch==2.15.*"]."""
    major, minor, *_ = importlib.metadata.version("torch").split(".")
    return {"dependencies": [f"torch=={major}.{minor}.*"]}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    """Marks the dependency as dynamic: the sources do not determine which torch a wheel is built
    with."""
    return {"dependencies": True}
