"""Samples that are read while a run lasts: from files, from data sets of other libraries, or from iterators.

A source is any object with `__len__`, the number of samples, and `__getitem__(indices)`, which takes an array of
indices and returns a pytree of arrays with a row for each. `Problem` takes a list with one source per node, or a
function from a node's index to its source, so that each process opens only its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import Protocol, cast, runtime_checkable

import jax
import numpy as np
from jaxtyping import Int

from ..core._optional import optional
from ..core._types import PyTree

__all__ = ["Source", "arrays", "hdf5", "hugging_face", "items", "iterator"]


@runtime_checkable
class Source(Protocol):
    """One node's samples, read by index."""

    def __len__(self) -> int:
        """The number of samples."""
        ...

    def __getitem__(self, indices: Int[np.ndarray, " samples"], /) -> PyTree:
        """A pytree of arrays with a row for each index; an index may occur more than once."""
        ...


def arrays(tree: PyTree) -> Source:
    """A source of arrays that are not read as a whole, such as NumPy's memory-mapped files.

    Args:
        tree: a pytree of arrays with leaves (samples, ...), such as `np.load(path, mmap_mode="r")`.
    """
    return Arrays(tree)


def hdf5(path: str | PathLike[str], names: Sequence[str] | None = None) -> Source:
    """A source of the data sets of an HDF5 file, as a dictionary by name. Needs the extra `[hdf5]`.

    Args:
        path: the file, which stays open while the source is in use.
        names: the data sets to read; None is all at the root of the file.
    """
    return _HDF5(path, names)


def items(dataset: PyTree) -> Source:
    """A source of a data set that returns one sample for one index, such as PyTorch's map-style data sets and grain's.

    Args:
        dataset: an object with `__len__` and `__getitem__(index)`, a pytree of arrays or numbers; if it has PyTorch's
            `__getitems__(indices)`, that is used. A sample must depend on its index only.
    """
    return _Items(dataset)


def hugging_face(dataset: PyTree) -> Source:
    """A source of a Hugging Face data set, as a dictionary by column.

    Args:
        dataset: a `datasets.Dataset` whose columns are numbers; select others away, or encode them first.
    """
    return _HuggingFace(dataset)


def iterator(batches: Iterable[PyTree]) -> BatchIterator:
    """Batches as they come, which cannot be drawn by index: each draw of a node takes the next one.

    Such a run cannot be resumed, repeated or distributed over devices. It may read a few more batches than it uses.

    Args:
        batches: an iterable of pytrees of arrays with leaves (batch_size, ...), such as a PyTorch `DataLoader`; at its
            end it is iterated again, so a generator must be endless.
    """
    return BatchIterator(batches)


class Arrays:
    """Rows of arrays, which several threads may read at a time."""

    def __init__(self, tree: PyTree) -> None:
        lengths = {len(leaf) for leaf in jax.tree.leaves(tree)}
        if len(lengths) != 1:
            raise ValueError(f"db.sources.arrays has leaves with {sorted(lengths)} samples: give all equally many.")
        self._tree, self._length = tree, lengths.pop()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, indices: Int[np.ndarray, " samples"], /) -> PyTree:
        return jax.tree.map(lambda leaf: _rows(leaf, indices), self._tree)


def _rows(leaf: np.ndarray, indices: Int[np.ndarray, " samples"]) -> np.ndarray:
    # The faster `take` would first copy all of an array that does not lie in memory as NumPy wants it.
    if isinstance(leaf, np.ndarray) and leaf.flags.c_contiguous and leaf.flags.aligned and leaf.dtype.isnative:
        return np.take(leaf, indices, axis=0)
    return np.asarray(leaf[indices])


class _HDF5:
    def __init__(self, path: str | PathLike[str], names: Sequence[str] | None) -> None:
        with optional("h5py", caller="db.sources.hdf5", extra="hdf5"):
            import h5py  # pyright: ignore[reportMissingImports]

        file = h5py.File(path, "r")
        chosen = [name for name in file if isinstance(file[name], h5py.Dataset)] if names is None else list(names)
        missing = [name for name in chosen if name not in file]
        if missing or not chosen:
            problem = f"no data set {missing[0]!r}" if missing else "no data sets"
            raise ValueError(f"names={names!r}: {path} has {problem}: choose from {sorted(file)}.")
        self._sets: dict[str, PyTree] = {name: file[name] for name in chosen}
        lengths = {len(leaf) for leaf in self._sets.values()}
        if len(lengths) != 1:
            raise ValueError(f"names={chosen}: they have {sorted(lengths)} samples: give data sets of equally many.")
        self._length = lengths.pop()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, indices: Int[np.ndarray, " samples"], /) -> PyTree:
        rows, places = np.unique(indices, return_inverse=True)  # HDF5 reads increasing rows only
        return {name: leaf[rows][places] for name, leaf in self._sets.items()}


class _Items:
    def __init__(self, dataset: PyTree) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, indices: Int[np.ndarray, " samples"], /) -> PyTree:
        rows = cast(list[int], indices.tolist())
        get_items = getattr(self._dataset, "__getitems__", None)
        samples: list[PyTree] = [self._dataset[i] for i in rows] if get_items is None else list(get_items(rows))
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *samples)


class _HuggingFace:
    def __init__(self, dataset: PyTree) -> None:
        self._dataset = dataset.with_format("numpy")

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, indices: Int[np.ndarray, " samples"], /) -> PyTree:
        return {name: np.asarray(column) for name, column in self._dataset[indices.tolist()].items()}


class BatchIterator:
    """One node's batches, in the order in which an iterable gives them."""

    def __init__(self, batches: Iterable[PyTree]) -> None:
        if not isinstance(batches, Iterable):
            raise TypeError(f"db.sources.iterator got a {type(batches).__name__}: give an iterable of batches.")
        self._batches = batches
        self._current = iter(batches)
        self.taken = 0
        self._waiting: list[PyTree] = []

    def first(self) -> PyTree:
        """The first batch, which stays to be taken."""
        if not self._waiting:
            self._waiting.append(self._next())
        return self._waiting[0]

    def take(self) -> PyTree:
        """The next batch."""
        self.taken += 1
        return self._waiting.pop() if self._waiting else self._next()

    def _next(self) -> PyTree:
        for _ in range(2):
            try:
                return next(self._current)
            except StopIteration:
                self._current: Iterator[PyTree] = iter(self._batches)
        raise ValueError(
            f"db.sources.iterator ended after {max(0, self.taken - 1)} batches and cannot begin again: give an endless "
            "one, or an iterable such as a list or a data loader."
        )


def is_source(thing: object) -> bool:
    """Whether this is read by index or in order, and neither an array nor a pytree of arrays."""
    if isinstance(thing, BatchIterator):
        return True
    plain = isinstance(thing, str | bytes | range) or hasattr(thing, "__array__") or isinstance(thing, type)
    indexed = hasattr(thing, "__len__") and hasattr(thing, "__getitem__")
    return indexed and not plain and jax.tree_util.all_leaves([thing])
