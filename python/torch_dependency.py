"""Tells the build of the wheel which torch it depends on: the minor version that it is compiled with."""

from __future__ import annotations

import importlib.metadata
from typing import Any


def dynamic_metadata(field: str, settings: dict[str, Any] | None = None) -> list[str]:
    """The list of dependencies, such as ["torch==2.15.*"]."""
    if field != "dependencies":
        raise ValueError(f"expected the field dependencies, got {field}")
    major, minor, *_ = importlib.metadata.version("torch").split(".")
    return [f"torch=={major}.{minor}.*"]
