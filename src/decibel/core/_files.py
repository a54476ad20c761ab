"""Atomic file replacement: after a crash or a power cut a file has its old content or the new, never a part.

Everything goes through `os`, which tests replace by a failing disk (`tests/simulation/disk.py`).
"""

from __future__ import annotations

import errno
import math
import os
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

LARGEST = 2**30  # bytes that arrays in a file may take; a small file that unpacks to more is a bomb


@contextmanager
def atomic_writer(path: str | os.PathLike[str], mode: int = 0o644, *, durable: bool = True) -> Generator[BinaryIO]:
    """A file to write to. It gets its name when the block ends; if the block fails, nothing remains.

    Then the content and the name are on the disk. `durable=False` is for files that are rewritten every second and may
    be lost in a power cut.
    """
    path = Path(path)
    _make_folder(path.parent, durable)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    _remove(temporary)
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
        if durable:
            durable_replace(temporary, path)
        else:
            os.replace(temporary, path)
    finally:
        _remove(temporary)


def atomic_write(
    path: str | os.PathLike[str], content: str | bytes, mode: int = 0o644, *, durable: bool = True
) -> Path:
    with atomic_writer(path, mode, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return Path(path)


def read_arrays(path: str | os.PathLike[str], largest: int | None = LARGEST) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; no objects.

    Sizes are checked before memory is allocated: that of each entry against the header of its array, and their sum
    against `largest` bytes (None: the size of the file, and no entry may be compressed).
    """
    with open(path, "rb") as raw, zipfile.ZipFile(raw) as archive:
        entries = archive.infolist()
        claimed = sum(entry.file_size for entry in entries)
        most = os.fstat(raw.fileno()).st_size if largest is None else largest
        if claimed > most:
            raise ValueError(f"{path} unpacks to {claimed} bytes, more than {most}.")
        if largest is None and any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError(f"{path} has entries that are compressed.")
        arrays: dict[str, np.ndarray] = {}
        for entry in entries:
            with archive.open(entry) as file:
                arrays[entry.filename.removesuffix(".npy")] = _array(file, entry.file_size)
        return arrays


def _array(file: IO[bytes], size: int) -> np.ndarray:
    """The array of an .npy file, if its header agrees with the size of the file."""
    headers: dict[tuple[int, int], Callable[[IO[bytes]], tuple[tuple[int, ...], bool, np.dtype]]] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(file)
    if version not in headers:
        raise ValueError(f"an array has version {version} of NumPy's format.")
    shape, fortran, dtype = headers[version](file)
    if dtype.hasobject:
        raise ValueError("an array holds Python objects, which are not read.")
    if (
        dtype.itemsize == 0
        or any(axis < 0 for axis in shape)
        or math.prod(shape) * dtype.itemsize != size - file.tell()
    ):
        raise ValueError("an array is not as large as its header says.")
    flat = np.frombuffer(bytearray(file.read()), dtype)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def read_bytes(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """The content of a file, or its first `most` bytes."""
    with os.fdopen(os.open(path, os.O_RDONLY), "rb") as file:
        return file.read(most)


def read_file(path: Path, largest: int = 2**24) -> bytes:
    """The content of a small file; raises a ValueError that says why it cannot be read."""
    try:
        raw = read_bytes(path, largest + 1)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: name the right folder, or restore the file.") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from None
    if len(raw) > largest:
        raise ValueError(f"{path} is larger than {largest} bytes, so it is damaged or another file: restore it.")
    return raw


def append_line(path: str | os.PathLike[str], line: str, mode: int = 0o644) -> None:
    """Appends a line to a file and flushes it to the disk. A line that a crash cut short is ended first."""
    path = Path(path)
    _make_folder(path.parent, durable=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode), "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write((b"\n" if torn else b"") + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)  # always: the call that created the file may have failed before its own sync


def durable_replace(source: Path, target: Path) -> Path:
    """Renames a file: its content is on the disk before the rename, and the name when this returns."""
    number = os.open(source, os.O_RDWR)
    try:
        os.fsync(number)
    finally:
        os.close(number)
    os.replace(source, target)
    sync_folder(target.parent)
    return target


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Flushes the names in a folder to the disk, where the system supports it."""
    if os.name != "posix":
        return
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system does not support it
            raise
    finally:
        os.close(number)


def sync_tree(folder: str | os.PathLike[str]) -> None:
    """Flushes all files below a folder, and their names, to the disk."""
    for path, _, names in os.walk(folder):
        for name in names:
            number = os.open(os.path.join(path, name), os.O_RDWR if os.name == "nt" else os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
        sync_folder(path)


def _make_folder(folder: Path, durable: bool) -> None:
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    os.makedirs(folder, exist_ok=True)
    if durable:
        for created in missing:
            sync_folder(created.parent)


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
