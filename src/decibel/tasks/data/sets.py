"""The datasets as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core._optional import optional
from . import archives, formats
from .cache import require
from .errors import DamagedData
from .registry import DIGITS, DOMAINS, Source, nearest, source

Part = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset as arrays: float32 inputs (pixels in [0, 1]) and int32 labels in [0, classes).

    Attributes:
        x_train: (samples, ...) inputs of the training part.
        y_train: (samples,) its labels.
        x_test: inputs of the test part; empty if none was published, as for australian.
        y_test: its labels.
        name: the name of the dataset.
        classes: the number of classes.
        class_names: their names.
    """

    x_train: np.ndarray  # (samples, ...)
    y_train: np.ndarray  # (samples,)
    x_test: np.ndarray
    y_test: np.ndarray
    name: str
    classes: int
    class_names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Recordings:
    """Spoken digits, ordered by digit, speaker and index.

    Attributes:
        waveforms: float32 arrays in [−1, 1), of unequal lengths.
        digit: of each recording.
        speaker: names.
        index: of each recording among those of its digit and speaker.
        rate: samples per second.
    """

    waveforms: tuple[np.ndarray, ...]  # float32 in [-1, 1), unequal lengths
    digit: np.ndarray
    speaker: np.ndarray  # names
    index: np.ndarray
    rate: int  # samples per second


def load(name: str) -> Dataset:
    """An image or tabular dataset.

    Args:
        name: a key of `SOURCES`, or `"digits"`.
    """
    if name == "digits":
        return digits()
    origin = source(name)
    if origin.kind not in _READERS:
        instead = "load_speech()" if origin.kind == "wav" else f"load_text([{name.removeprefix('text/')!r}])"
        raise ValueError(f"name={name!r} is not an image or tabular dataset: use {instead}.")
    return _READERS[origin.kind](origin, require(origin))


def digits(*, test: float = 0.2, seed: int = 0) -> Dataset:
    """The 8×8 handwritten digits that scikit-learn contains.

    Args:
        test: the share kept for testing.
        seed: of the shuffle.
    """
    with optional("scikit-learn", caller="tasks.data.digits", extra="tasks"):
        from sklearn.datasets import load_digits

    if not 0 <= test < 1:
        raise ValueError(f"test={test} must be a fraction in [0, 1).")
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    x = np.asarray(images, np.float32)[order].reshape(-1, 8, 8) / np.float32(16)
    y = np.asarray(labels, np.int32)[order]
    cut = round(len(y) * (1 - test))
    return Dataset(x[:cut], y[:cut], x[cut:], y[cut:], "digits", len(DIGITS), DIGITS)


def synthetic(
    samples: int = 4_000,
    features: int = 50,
    informative: int = 10,
    classes: int = 4,
    *,
    test: float = 0.25,
    seed: int = 0,
) -> Dataset:
    """A synthetic dataset for classification: standard normal inputs, classes drawn from a softmax.

    Args:
        samples: the number of samples, training and test part together.
        features: the number of features.
        informative: the first so many features decide the class; the others are noise.
        classes: the number of classes.
        test: the share of the test part.
        seed: of the samples.
    """
    if not 1 <= informative <= features or classes < 2:
        raise ValueError(
            f"informative={informative} must lie between 1 and features={features}, and classes={classes} be 2 or more."
        )
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(samples, features)).astype(np.float32)
    weight = 4 / np.sqrt(informative) * rng.normal(size=(informative, classes))
    logits = inputs[:, :informative] @ weight + rng.gumbel(size=(samples, classes))
    labels = logits.argmax(1).astype(np.int32)
    cut = round(samples * (1 - test))
    names = tuple(str(label) for label in range(classes))
    return Dataset(inputs[:cut], labels[:cut], inputs[cut:], labels[cut:], "synthetic", classes, names)


def load_speech() -> Recordings:
    """The Free Spoken Digit recordings."""
    origin = source("fsdd")
    (path,) = require(origin)
    rows = archives.read_recordings(path)
    if len(rows) != origin.files[0].rows:
        raise DamagedData(path, f"it holds {len(rows)} recordings, not {origin.files[0].rows}")
    digit, speaker, index, waveforms = zip(*rows, strict=True)
    return Recordings(
        waveforms=waveforms,
        digit=np.array(digit, np.int32),
        speaker=np.array(speaker),
        index=np.array(index, np.int32),
        rate=archives.SAMPLE_RATE,
    )


def load_text(names: Iterable[str] | None = None) -> dict[str, tuple[str, ...]]:
    """Text documents by domain.

    Args:
        names: of `DOMAINS`; None is all.
    """
    chosen = DOMAINS if names is None else tuple([names] if isinstance(names, str) else names)
    for name in chosen:
        if name not in DOMAINS:
            raise ValueError(f"names has {name!r}, which is not a text domain{nearest(name, list(DOMAINS))}")
    return {name: formats.read_text(require(source(f"text/{name}"))[0]) for name in chosen}


def _pixels(array: np.ndarray) -> np.ndarray:
    x = array.astype(np.float32, order="C")
    x /= 255
    return x


def _labels(path: Path, labels: np.ndarray, rows: tuple[int, int], classes: int) -> np.ndarray:
    """Labels as int32 once there are as many as `rows` (images there, samples published) and all in range."""
    if len(set(rows) | {len(labels)}) > 1:
        raise DamagedData(path, f"{len(labels)} labels go with {rows[0]} images, not {rows[1]} with {rows[1]}")
    low, high = (labels.min(), labels.max()) if labels.size else (0, 0)
    if not 0 <= low <= high < classes:
        raise DamagedData(path, f"its labels reach from {low} to {high}, not from 0 to {classes - 1}")
    return labels.astype(np.int32)


def _dataset(origin: Source, train: Part, test: Part) -> Dataset:
    (x_train, y_train), (x_test, y_test) = train, test
    names = origin.class_names
    return Dataset(x_train, y_train, x_test, y_test, origin.name, len(names), names)


def _load_idx(origin: Source, paths: list[Path]) -> Dataset:
    parts = []
    for images, labels in ((0, 1), (2, 3)):
        x = formats.read_idx(paths[images], 3)
        y = formats.read_idx(paths[labels], 1)
        if x.shape[1:] != (28, 28):
            raise DamagedData(paths[images], f"its images are {x.shape[1]}×{x.shape[2]}, not 28×28")
        y = _labels(paths[labels], y, (len(x), origin.files[labels].rows), len(origin.class_names))
        parts.append((_pixels(x), y))
    return _dataset(origin, *parts)


def _load_cifar(origin: Source, paths: list[Path]) -> Dataset:
    classes, rows = len(origin.class_names), origin.files[0].rows
    batches = archives.read_cifar(paths[0])
    for images, labels in batches.values():
        _labels(paths[0], labels, (len(images), rows), classes)
    *train, test = (batches[name] for name in archives.CIFAR_BATCHES)
    x, y = (np.concatenate(part) for part in zip(*train, strict=True))
    return _dataset(origin, (_pixels(x), y.astype(np.int32)), (_pixels(test[0]), test[1].astype(np.int32)))


def _load_npz(origin: Source, paths: list[Path]) -> Dataset:
    path, rows = paths[0], origin.files[0].rows
    x_train, y_train, x_test, y_test = formats.read_npz(path, ("x_train", "y_train", "x_test", "y_test"))
    for x, y in ((x_train, y_train), (x_test, y_test)):
        if x.dtype != np.uint8 or x.shape[1:] != (32, 32, 3):
            raise DamagedData(path, f"its images are {x.dtype} {x.shape[1:]}, not uint8 (32, 32, 3)")
        if y.ndim != 1 or y.dtype.kind not in "iu":
            raise DamagedData(path, f"its labels are {y.dtype} of shape {y.shape}, not a row of integers")
    classes = len(origin.class_names)
    y_train = _labels(path, y_train, (len(x_train), rows), classes)
    y_test = _labels(path, y_test, (len(x_test), len(x_test)), classes)
    return _dataset(origin, (_pixels(x_train), y_train), (_pixels(x_test), y_test))


def _load_libsvm(origin: Source, paths: list[Path]) -> Dataset:
    parts = []
    for file, path in zip(origin.files, paths, strict=True):
        x, y = formats.read_libsvm(path, origin.features)
        if len(y) != file.rows:
            raise DamagedData(path, f"it has {len(y)} rows, not {file.rows}")
        parts.append((x, y))
    nothing = (np.zeros((0, origin.features), np.float32), np.zeros(0, np.int32))
    return _dataset(origin, parts[0], parts[1] if len(parts) > 1 else nothing)


_READERS: dict[str, Callable[[Source, list[Path]], Dataset]] = {
    "idx": _load_idx,
    "cifar": _load_cifar,
    "npz": _load_npz,
    "libsvm": _load_libsvm,
}
