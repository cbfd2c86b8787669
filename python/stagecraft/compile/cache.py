"""A cache of compiled programs on disk, keyed by a fingerprint of their graphs."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["Cache", "default_folder", "sha256_of"]


def default_folder() -> Path:
    """STAGECRAFT_CACHE, or a folder among the user's caches."""
    named = os.environ.get("STAGECRAFT_CACHE")
    if named:
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "stagecraft" / "compiled"


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class Cache:
    """A folder of packages, each with its checksum. A damaged package counts as missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str) -> Path | None:
        path = self.folder / f"{key}.pt2"
        try:
            expected = path.with_suffix(".sha256").read_text().strip()
            return path if sha256_of(path) == expected else None
        except OSError:
            return None

    def problem(self) -> str | None:
        """Makes the folder. Returns the reason if it cannot be written, otherwise None."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                return None
        except OSError as error:
            return f"{self.folder}: the cache cannot be written: {error.strerror}"

    def put(self, key: str, package: Path) -> Path:
        """Copies a package into the cache. It appears there only when it is complete. Raises
        OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{key}.pt2"
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=key, suffix=".unfinished")
        os.close(handle)
        unfinished = Path(name)
        try:
            shutil.copyfile(package, unfinished)
            path.with_suffix(".sha256").write_text(sha256_of(unfinished) + "\n")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        return path
