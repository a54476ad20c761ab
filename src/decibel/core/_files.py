"""Atomic file writes."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_writer(path: str | os.PathLike[str], mode: int = 0o644) -> Generator[BinaryIO]:
    """A file to write in. It takes its name when the block ends, and leaves nothing behind when the block fails."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def atomic_write(path: str | os.PathLike[str], content: str | bytes, mode: int = 0o644) -> Path:
    with atomic_writer(path, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return Path(path)
