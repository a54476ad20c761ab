"""Files that are replaced whole: after a crash or a power cut there is the old content or the new, never a part.

All of it goes through `os`, in whose place the tests put a disk that fails (`tests/simulation/disk.py`).
"""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

LARGEST = 2**30  # bytes that arrays in a file may take; a small file that unpacks to more is a bomb


@contextmanager
def atomic_writer(path: str | os.PathLike[str], mode: int = 0o644, *, durable: bool = True) -> Generator[BinaryIO]:
    """A file to write in. It takes its name when the block ends, and leaves nothing behind when the block fails.

    When it returns, the content and the name are on the disk; `durable=False` is for notes that are written again
    every second, which a power cut may take away.
    """
    path = Path(path)
    _make_folder(path.parent, durable)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    _remove(beside)
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
        if durable:
            durable_replace(beside, path)
        else:
            os.replace(beside, path)
    finally:
        _remove(beside)


def atomic_write(
    path: str | os.PathLike[str], content: str | bytes, mode: int = 0o644, *, durable: bool = True
) -> Path:
    with atomic_writer(path, mode, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return Path(path)


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, which is not unpacked if they claim more than `LARGEST` bytes; no objects."""
    with open(path, "rb") as raw:
        with zipfile.ZipFile(raw) as archive:
            claimed = sum(entry.file_size for entry in archive.infolist())
        if claimed > LARGEST:
            raise ValueError(f"{path} unpacks to {claimed} bytes, more than {LARGEST}.")
        raw.seek(0)
        with np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}


def read_bytes(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """What a file holds, or its first so many bytes."""
    with os.fdopen(os.open(path, os.O_RDONLY), "rb") as file:
        return file.read(most)


def append_line(path: str | os.PathLike[str], line: str, mode: int = 0o644) -> None:
    """Adds a line to a file, on the disk when it returns. One that a crash cut short is ended first."""
    path = Path(path)
    _make_folder(path.parent, durable=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode), "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write((b"\n" if torn else b"") + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)  # always: what made the file may have failed before it came to this


def durable_replace(source: Path, target: Path) -> Path:
    """Gives a file its name. Its content is on the disk before the name is, and the name when it returns."""
    number = os.open(source, os.O_RDWR)
    try:
        os.fsync(number)
    finally:
        os.close(number)
    os.replace(source, target)
    sync_folder(target.parent)
    return target


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Puts the names in a folder on the disk, where the system can."""
    if os.name != "posix":
        return
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no such thing
            raise
    finally:
        os.close(number)


def sync_tree(folder: str | os.PathLike[str]) -> None:
    """Puts all files below a folder, and their names, on the disk."""
    for path, _, names in os.walk(folder):
        for name in names:
            number = os.open(os.path.join(path, name), os.O_RDWR if os.name == "nt" else os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
        sync_folder(path)


def _make_folder(folder: Path, durable: bool) -> None:
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    os.makedirs(folder, exist_ok=True)
    if durable:
        for one in missing:
            sync_folder(one.parent)


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
