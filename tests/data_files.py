"""Small files in the published formats, for the tests of the data layer."""

import dataclasses
import gzip
import hashlib
import io
import struct
import tarfile
import wave
import zipfile
from pathlib import Path

import numpy as np
import pooch
import pytest

from decibel.tasks.data import archives, cache, registry

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
TARGETS = np.array([0, 9, 3, 3, 1], np.uint8)
IDX_FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
ROWS = b"+1 1:0.5 3:-2 \n-1 2:1e3 14:7\n"
PLANES = np.random.default_rng(2).integers(0, 256, (3, 3072), dtype=np.uint8)
TONE = (np.sin(np.arange(400) / 5) * 20_000).astype("<i2")


def use_folders(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """An empty data folder and an empty cache; the network is out of reach."""
    folder, store = tmp_path / "data", tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("DECIBEL_DATA", str(folder))
    monkeypatch.setattr(cache, "cache_folder", lambda: store)
    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", lambda *_: pytest.fail("the test asked the network"))
    return folder, store


def use_small(monkeypatch, name: str, *changes: dict) -> None:
    """Put a smaller version of a registered dataset in its place."""
    origin = registry.SOURCES[name]
    files = tuple(dataclasses.replace(file, **change) for file, change in zip(origin.files, changes, strict=True))
    small = {**registry.SOURCES, name: dataclasses.replace(origin, files=files)}
    for module in (registry, cache):
        monkeypatch.setattr(module, "SOURCES", small)


def write(path: Path, body: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return path


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def place_mnist(folder: Path, **bodies: bytes) -> None:
    made = dict(zip(IDX_FILES, (idx(IMAGES), idx(TARGETS), idx(IMAGES[:2]), idx(TARGETS[:2])), strict=True))
    for name, body in {**made, **bodies}.items():
        write(folder / f"mnist/{name}-ubyte.gz", gzip.compress(body))


def npz(**changes: np.ndarray) -> bytes:
    rng = np.random.default_rng(1)
    arrays = {
        "x_train": rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8),
        "y_train": np.array([0, 1, 2, 9], np.uint8),
        "x_test": rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8),
        "y_test": np.array([5, 6], np.uint8),
    }
    stream = io.BytesIO()
    np.savez_compressed(stream, **{**arrays, **changes})
    return stream.getvalue()


# The three below write the opcodes that Python 2's cPickle wrote for the authors of CIFAR-10.


def text2(value: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(value)) + value


def array2(shape: tuple[int, int], body: bytes) -> bytes:
    reconstruct = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    rows, columns = (b"J" + struct.pack("<i", size) for size in shape)
    return reconstruct + b"(K\x01" + rows + columns + b"\x86" + dtype + b"\x89" + text2(body) + b"tb"


def batch(images: np.ndarray, labels: list[int], data: bytes | None = None) -> bytes:
    body = array2((len(images), 3072), images.tobytes()) if data is None else data
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    names = b"](" + b"".join(text2(b"x.png") for _ in labels) + b"e"
    fields = {b"batch_label": text2(b"batch"), b"data": body, b"labels": listed, b"filenames": names}
    return b"\x80\x02}(" + b"".join(text2(key) + value for key, value in fields.items()) + b"u."


def cifar(**bodies: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name in ("batches.meta", *archives.CIFAR_BATCHES):
            body = bodies.get(name, batch(PLANES, [0, 9, 4]))
            entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    return stream.getvalue()


def wav(samples: np.ndarray, channels: int = 1, width: int = 2, rate: int = 8000) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as sound:
        sound.setparams((channels, width, rate, 0, "NONE", ""))
        sound.writeframes(samples.tobytes())
    return stream.getvalue()


def zipped(entries: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in entries.items():
            archive.writestr(name, body)
    return stream.getvalue()
