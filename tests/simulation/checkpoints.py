"""A site's checkpoints on the simulated disk, put on it as the product does: folders, synced before the next is saved.

Orbax writes in threads and C++ of its own and cannot be driven call by call. This stands in for it; what the product
adds to it, `sync_tree` and `sync_folder`, is the product's.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from decibel.core import _files as files

KEEP = 3


class Checkpoints:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._synced: set[int] = set()

    @property
    def steps(self) -> list[int]:
        return sorted(int(one.name) for one in self.folder.iterdir() if one.name.isdigit())

    def save(self, step: int, state: bytes) -> None:
        self.sync()
        target, beside = self.folder / str(step), self.folder / f"{step}.tmp"
        for old in (target, beside):
            if old.exists():
                _os().rmtree(old)
        self._synced.discard(step)
        _os().makedirs(beside)
        for name, content in (("state", state), ("digest", hashlib.sha256(state).digest())):
            number = _os().open(beside / name, _os().O_WRONLY | _os().O_CREAT, 0o644)
            with _os().fdopen(number, "wb") as file:
                file.write(content)
        _os().replace(beside, target)
        for old in self.steps[:-KEEP]:
            _os().rmtree(self.folder / str(old))

    def sync(self) -> list[int]:
        """As `engines._checkpoint.Checkpoints._sync`; the steps that are on the disk now."""
        new = set(self.steps) - self._synced
        for step in sorted(new):
            files.sync_tree(self.folder / str(step))
        if new:
            files.sync_folder(self.folder)
        self._synced |= new
        return sorted(self._synced)

    def load(self, step: int) -> bytes | None:
        """None where it is damaged."""
        try:
            state, digest = (files.read_bytes(self.folder / str(step) / name) for name in ("state", "digest"))
        except FileNotFoundError:
            return None
        return state if hashlib.sha256(state).digest() == digest else None

    def delete(self, step: int) -> None:
        _os().rmtree(self.folder / str(step))


def _os():
    return files.os  # whatever stands there now
