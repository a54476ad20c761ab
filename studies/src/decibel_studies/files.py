"""Files that are replaced whole, and arrays from files of strangers."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

LARGEST = 2**30  # bytes that the arrays of a file may take; a small file that unpacks to more is a bomb


def write_file(path: Path, content: str | bytes) -> Path:
    """Writes a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, which is not unpacked if they claim more than `LARGEST` bytes."""
    with zipfile.ZipFile(path) as archive:
        claimed = sum(entry.file_size for entry in archive.infolist())
    if claimed > LARGEST:
        raise ValueError(f"{path} unpacks to {claimed} bytes, more than {LARGEST}.")
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
