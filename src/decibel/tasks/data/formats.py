"""Readers of single files: idx, LIBSVM text, npz and xz text. Errors name the damaged file."""

from __future__ import annotations

import gzip
import lzma
import math
import re
import zipfile
import zlib
from pathlib import Path

import numpy as np

from ...core._files import read_arrays
from .errors import DamagedData

LIMIT = 512 * 2**20  # no file of ours unpacks to more, so anything beyond is a bomb
MOST_LINES = 2_000_000  # none has more; a line of one byte takes a hundred in memory
XZ_MEMORY = 256 * 2**20
IDX_UBYTE = 0x08


def content(path: Path) -> bytes:
    """What the file holds, decompressed where it is .gz or .xz."""
    if path.suffix == ".gz":
        return _gunzip(path)
    if path.suffix == ".xz":
        return _unxz(path)
    if path.stat().st_size > LIMIT:
        raise DamagedData(path, f"it is larger than {LIMIT} bytes")
    return path.read_bytes()


def _gunzip(path: Path) -> bytes:
    try:
        with gzip.open(path) as stream:
            data = stream.read(LIMIT + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DamagedData(path, f"gzip says {error}") from error
    return _within_limit(path, data)


def _unxz(path: Path) -> bytes:
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
    try:
        data = unpacker.decompress(path.read_bytes(), LIMIT + 1)
    except lzma.LZMAError as error:
        raise DamagedData(path, f"xz says {error}") from error
    _within_limit(path, data)
    if not unpacker.eof or unpacker.unused_data:
        raise DamagedData(path, "its xz stream is cut short or followed by something else")
    return data


def _within_limit(path: Path, data: bytes) -> bytes:
    if len(data) > LIMIT:
        raise DamagedData(path, f"it unpacks to more than {LIMIT} bytes")
    return data


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An idx file of unsigned bytes: 0, 0, type, number of dimensions, their big-endian sizes, the body."""
    data = content(path)
    header = 4 + 4 * dimensions
    if len(data) < header:
        raise DamagedData(path, f"its idx header needs {header} bytes and it has {len(data)}")
    if data[:4] != bytes([0, 0, IDX_UBYTE, dimensions]):
        raise DamagedData(path, f"its magic number is {data[:4].hex()}, not 000008{dimensions:02x}")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", dimensions, 4))
    promised, body = math.prod(shape), len(data) - header
    if body != promised:
        raise DamagedData(path, f"its header promises {promised} bytes and {body} follow")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def read_libsvm(path: Path, features: int) -> tuple[np.ndarray, np.ndarray]:
    """LIBSVM text as dense (rows, features) float32 and labels 0 (for -1) and 1 (for +1)."""
    data = content(path)
    if not data[-1:].isspace():
        raise DamagedData(path, "it ends in the middle of a row")
    _validate_lines(path, data)
    lines = data.splitlines()
    x = np.zeros((len(lines), features), np.float32)
    y = np.zeros(len(lines), np.int32)
    for row, line in enumerate(lines):
        try:
            y[row] = _parse_row(line, x[row])
        except ValueError as error:
            raise DamagedData(path, f"line {row + 1} {error}") from None
    return x, y


def _validate_lines(path: Path, data: bytes) -> None:
    if data.count(b"\n") + data.count(b"\r") > MOST_LINES:
        raise DamagedData(path, f"it has more than {MOST_LINES} lines")


def _parse_row(line: bytes, out: np.ndarray) -> int:
    words = line.split()
    if not words or words[0] not in (b"+1", b"1", b"-1", b"0"):
        raise ValueError("does not begin with the label +1 or -1")
    last = 0
    for word in words[1:]:
        index, colon, value = word.partition(b":")
        if not (colon and index.isdigit() and last < int(index) <= len(out)):
            raise ValueError(f"has {word!r} where index:value with index {last + 1} to {len(out)} belongs")
        last = int(index)
        try:
            out[last - 1] = float(value)
        except ValueError:
            raise ValueError(f"has {word!r}, whose value is not a number") from None
    if not np.isfinite(out).all():
        raise ValueError("has a value that is not finite")
    return int(words[0] in (b"+1", b"1"))


def canonical_libsvm(data: bytes) -> bytes:
    """LIBSVM text without trailing blanks, in which copies of the same file differ."""
    return b"".join(line.rstrip() + b"\n" for line in data.splitlines())


def read_npz(path: Path, names: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """The arrays called `names`; object arrays raise, because they would have to be unpickled."""
    try:
        arrays = read_arrays(path, LIMIT)
        return tuple(arrays[name] for name in names)
    except KeyError as error:
        raise DamagedData(path, f"it does not hold {error.args[0]}") from error
    except DamagedData:
        raise
    except (zipfile.BadZipFile, ValueError, EOFError, OSError, zlib.error, MemoryError) as error:
        raise DamagedData(path, f"it cannot be read: {error}") from error


def read_text(path: Path) -> tuple[str, ...]:
    """The documents of a text file: what stands between blank lines."""
    data = content(path)
    _validate_lines(path, data)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedData(path, f"byte {error.start} is not UTF-8") from error
    documents = tuple(part.strip("\n") for part in re.split(r"\n(?:[ \t\r\f]*\n)+", text) if part.strip())
    if not documents:
        raise DamagedData(path, "it holds no text")
    return documents
