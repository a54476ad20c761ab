"""Readers of archives, in memory: CIFAR-10's pickles in a tar and spoken digits in a zip."""

from __future__ import annotations

import gzip
import io
import pickle
import pickletools
import re
import tarfile
import wave
import zipfile
import zlib
from pathlib import Path

import numpy as np

from .errors import DamagedData
from .formats import LIMIT

CIFAR_FOLDER = "cifar-10-batches-py"
CIFAR_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
PIXELS = 3 * 32 * 32
BATCH_LIMIT = 64 * 2**20  # a batch has 31 million bytes
MOST_REUSES = 16  # of a remembered object: with more, one that contains itself twice at every level grows without end
# What Python 2 wrote for CIFAR's authors. Other opcodes name a size and get it, before a byte of it is there.
OPCODES = {
    "PROTO", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "APPEND", "APPENDS", "SETITEM", "SETITEMS", "SHORT_BINSTRING", "BINSTRING", "BININT", "BININT1", "BININT2",
    "NONE", "NEWTRUE", "NEWFALSE", "GLOBAL", "REDUCE", "BUILD", "BINPUT", "LONG_BINPUT", "BINGET",
    "LONG_BINGET",
}  # fmt: skip
SAMPLE_RATE = 8_000
RECORDING = re.compile(r"recordings/([0-9])_([a-z]+)_([0-9]{1,4})\.wav")


class _Part:
    """Stands in for the numpy names in a CIFAR pickle and only remembers, so loading runs no foreign code.

    It defines `__setstate__` because a pickle could otherwise write attributes onto the class itself.
    """

    __slots__ = ("arguments", "state")

    def __init__(self, *arguments: object):
        self.arguments = arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _CifarUnpickler(pickle.Unpickler):
    """Admits the three names that an array pickled by the Python 2 of CIFAR's authors needs, and no other."""

    ADMITTED = frozenset({("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")})

    def find_class(self, module: str, name: str) -> type[_Part]:
        if (module, name) not in self.ADMITTED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which CIFAR-10's batches do not")
        return _Part


def _validate_pickle(data: bytes) -> None:
    """Looks at a pickle without loading it: small opcodes, and no memory that the bytes do not fill."""
    reuses = 0
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if opcode.name not in OPCODES:
            raise pickle.UnpicklingError(f"it has a {opcode.name}, which CIFAR-10's batches do not")
        if opcode.name.endswith("BINPUT") and isinstance(argument, int) and argument > count:
            raise pickle.UnpicklingError(f"it remembers object {argument} after {count}")
        reuses += opcode.name.endswith("BINGET")
        if reuses > MOST_REUSES:
            raise pickle.UnpicklingError(f"it uses remembered objects more than {MOST_REUSES} times")


def read_cifar(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Batch name -> images (rows, 32, 32, 3) uint8 and labels, from `cifar-10-python.tar.gz`."""
    batches = {name: _cifar_batch(path, name, data) for name, data in _tar_members(path).items()}
    missing = [name for name in CIFAR_BATCHES if name not in batches]
    if missing:
        raise DamagedData(path, f"it does not hold {CIFAR_FOLDER}/{missing[0]}")
    return batches


class _Bounded(io.RawIOBase):
    """A stream that gives at most LIMIT bytes, so that no tar header can ask for the whole memory."""

    def __init__(self, stream: gzip.GzipFile):
        self.stream, self.left = stream, LIMIT

    def read(self, size: int = -1) -> bytes:
        data = self.stream.read(min(size, self.left + 1) if size >= 0 else self.left + 1)
        self.left -= len(data)
        if self.left < 0:
            raise tarfile.ReadError(f"more than {LIMIT} bytes")
        return data


def _tar_members(path: Path) -> dict[str, bytes]:
    names = {f"{CIFAR_FOLDER}/{name}": name for name in CIFAR_BATCHES}
    members: dict[str, bytes] = {}
    try:
        with gzip.open(path) as stream, tarfile.open(fileobj=_Bounded(stream), mode="r|") as archive:
            for member in archive:
                if member.name in names and member.isreg():
                    if member.issparse() or member.size > BATCH_LIMIT:  # a sparse file of 100 bytes may claim any size
                        raise tarfile.ReadError(f"{member.name} claims {member.size} bytes")
                    body = archive.extractfile(member)
                    members[names[member.name]] = body.read() if body else b""
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
        raise DamagedData(path, f"tar says {error}") from error
    return members


def _cifar_batch(path: Path, name: str, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    try:
        _validate_pickle(data)
        batch = _CifarUnpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a hostile pickle can raise anything at all
        raise DamagedData(path, f"{name} cannot be read: {error}") from error
    try:
        # ndarray.__reduce__: (version, shape, dtype, is_fortran, bytes)
        _, shape, dtype, fortran, body = batch[b"data"].state
        listed = batch[b"labels"]
        if type(listed) is not list or not all(type(label) is int for label in listed):
            raise TypeError("labels")  # lists in lists could make an array of any size
        labels = np.array(listed, dtype=np.int64)
        sound = labels.ndim == 1 and dtype.arguments[0] == b"u1" and not fortran and shape == (len(labels), PIXELS)
        images = np.frombuffer(body, np.uint8).reshape(len(labels), 3, 32, 32)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedData(path, f"{name} does not hold data and labels as published") from error
    if not sound:
        raise DamagedData(path, f"{name} holds data that is not {len(labels)} rows of {PIXELS} bytes")
    return images.transpose(0, 2, 3, 1), labels


def read_recordings(path: Path) -> list[tuple[int, str, int, np.ndarray]]:
    """Digit, speaker, index and waveform of every recording, sorted."""
    recordings: dict[tuple[int, str, int], np.ndarray] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if sum(entry.file_size for entry in entries) > LIMIT:
                raise DamagedData(path, f"it unpacks to more than {LIMIT} bytes")
            for entry in entries:
                match = RECORDING.fullmatch(entry.filename)
                if match is None:
                    raise DamagedData(path, f"{entry.filename!r} is not recordings/DIGIT_SPEAKER_INDEX.wav")
                key = (int(match[1]), match[2], int(match[3]))
                if key in recordings:
                    raise DamagedData(path, f"{entry.filename!r} is there twice")
                recordings[key] = _waveform(path, entry.filename, archive.read(entry))
    except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError) as error:
        raise DamagedData(path, f"zip says {error}") from error
    return [(*key, recordings[key]) for key in sorted(recordings)]


def _waveform(path: Path, name: str, data: bytes) -> np.ndarray:
    try:
        with wave.open(io.BytesIO(data)) as sound:
            form = (sound.getnchannels(), sound.getsampwidth(), sound.getframerate())
            frames, body = sound.getnframes(), sound.readframes(sound.getnframes())
    except (wave.Error, EOFError) as error:
        raise DamagedData(path, f"{name} is not a wav file ({error})") from error
    if form != (1, 2, SAMPLE_RATE):
        raise DamagedData(path, f"{name} is not 16-bit mono at {SAMPLE_RATE} Hz")
    if frames == 0 or len(body) != 2 * frames:
        raise DamagedData(path, f"{name} promises {frames} samples and holds {len(body) // 2}")
    return np.frombuffer(body, "<i2").astype(np.float32) / np.float32(2**15)
