"""Checks made when stagecraft is imported: no other package of that name, and the torch of the build."""

from __future__ import annotations

import importlib.metadata
import sys

from stagecraft._build import TORCH_VERSION, VERSION

__all__ = ["TORCH_VERSION", "VERSION"]


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _installed_torch() -> str | None:
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "__version__"):
        return str(torch.__version__)
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def refuse_other_distribution() -> None:
    """ImportError if the unrelated distribution called `stagecraft` is installed."""
    try:
        importlib.metadata.distribution("stagecraft")
    except importlib.metadata.PackageNotFoundError:
        return
    raise ImportError(
        "the distributions stagecraft and torch-stagecraft both install a package called stagecraft, and "
        "overwrite each other's files. Uninstall both, then install the one you need:\n"
        "  pip uninstall -y stagecraft torch-stagecraft && pip install torch-stagecraft")


def refuse_other_torch() -> None:
    """ImportError if the minor version of the installed torch is not that of the build."""
    found = _installed_torch()
    if found is None or not TORCH_VERSION or _minor(found) == _minor(TORCH_VERSION):
        return
    raise ImportError(
        f"this stagecraft {VERSION} was built with torch {_minor(TORCH_VERSION)}, and torch {found} is installed. "
        f"Install that torch, or the stagecraft that was built with yours:\n"
        f"  pip install 'torch=={_minor(TORCH_VERSION)}.*'")


refuse_other_distribution()
refuse_other_torch()
