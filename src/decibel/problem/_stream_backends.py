"""Where the samples of a stream come from: sources or iterators of nodes, read and checked on the host.

A compiled step cannot raise: an error while it reads is stored and the step continues with zeros; `Run.advance` then
calls `pop_source_error`, discards the result and raises.
"""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Int

from ..core._types import PyTree
from ._samples import as_float, validate_numeric
from .sources import Arrays, BatchIterator, Source

PARALLEL_FROM_BYTES = 4 * 2**20
THREADS = 8


class LeafSpec(NamedTuple):
    """A leaf of one sample."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Host(ABC):
    """What nodes read from. `structure` and `kinds` are those of one sample, the same at every node.

    Args:
        argument: the name of the data in messages.
        dtype: of floating-point samples.
    """

    ordered = False  # whether a second reading gives something else
    parallel = False  # whether several nodes may be read at a time

    def __init__(self, argument: str, dtype: DTypeLike) -> None:
        self.argument, self._dtype = argument, dtype
        self.structure: PyTree = None
        self.kinds: tuple[LeafSpec, ...] = ()
        self._lock = threading.Lock()  # sources need not be safe to read from several threads
        self._error: Exception | None = None
        self._on_error: Callable[[Exception], None] | None = None

    @property
    def sample_bytes(self) -> int:
        return sum(kind.bytes for kind in self.kinds)

    @abstractmethod
    def read(self, node: int, draws: Sequence[Int[np.ndarray, "steps batch"]]) -> list[list[np.ndarray]]:
        """One node's samples for every draw of every step: for each draw its leaves (steps · batch, ...)."""

    def gather(
        self, nodes: Int[np.ndarray, " nodes"], draws: Sequence[Int[np.ndarray, "steps nodes batch"]]
    ) -> list[tuple[np.ndarray, ...]]:
        """For each draw its leaves (steps, nodes, batch, ...)."""
        out = [tuple(np.empty((*rows.shape, *kind.shape), kind.dtype) for kind in self.kinds) for rows in draws]

        def fill(column: int, node: int) -> None:
            samples = self.read(node, [rows[:, column] for rows in draws])
            for leaves, parts in zip(out, samples, strict=True):
                for leaf, part in zip(leaves, parts, strict=True):
                    leaf[:, column] = part.reshape(leaf[:, column].shape)

        with self._lock:
            if self.parallel and sum(leaf.nbytes for leaves in out for leaf in leaves) > PARALLEL_FROM_BYTES:
                with ThreadPoolExecutor(THREADS, thread_name_prefix="decibel-gather") as threads:
                    list(threads.map(fill, range(len(nodes)), nodes.tolist()))
            else:
                for column, node in enumerate(nodes.tolist()):
                    fill(column, node)
        return out

    def call(
        self, nodes: Int[np.ndarray, "*runs nodes"], rows: Int[np.ndarray, "*runs nodes batch"]
    ) -> tuple[np.ndarray, ...]:
        """Leaves (..., nodes, batch, ...) for a compiled step; zeros once something has failed."""
        nodes, rows = np.asarray(nodes), np.asarray(rows)
        flat = rows.reshape(-1, *rows.shape[-2:])
        if self._error is None:
            try:
                (leaves,) = self.gather(nodes.reshape(-1, nodes.shape[-1])[0], [flat])
                return tuple(leaf.reshape(*rows.shape, *leaf.shape[3:]) for leaf in leaves)
            except Exception as error:  # a source may raise anything
                self._error = error
                if self._on_error is not None:
                    self._on_error(error)
        return tuple(np.zeros((*rows.shape, *kind.shape), kind.dtype) for kind in self.kinds)

    def pop_error(self) -> Exception | None:
        """Returns the first error in compiled steps since the last call, and forgets it."""
        error, self._error = self._error, None
        return error

    def on_error(self, callback: Callable[[Exception], None]) -> None:
        """Calls `callback` with an error as soon as it occurs."""
        self._on_error = callback

    def _set_expected(self, node: int, tree: PyTree) -> None:
        """Expects the structure and leaves of the first node's first batch of all batches."""
        if self.structure is not None:
            return
        leaves, self.structure = jax.tree.flatten(tree)
        if not leaves:
            raise ValueError(f"{self.argument}: the source of node {node} gives no arrays: give leaves (samples, ...).")
        leaves = [np.asarray(leaf) for leaf in leaves]
        validate_numeric(leaves, self.argument)
        self.kinds = tuple(LeafSpec(leaf.shape[1:], self._device_dtype(leaf)) for leaf in leaves)

    def _device_dtype(self, leaf: np.ndarray) -> np.dtype:
        """The type on the device, as of arrays that are given to `Problem`."""
        return jax.dtypes.canonicalize_dtype(as_float(leaf[:0], self._dtype).dtype)

    def _validated(self, node: int, tree: PyTree, size: int, name: Callable[[int], str]) -> list[np.ndarray]:
        """The leaves of a batch of that size, in the types of the device; `name(row)` is a row's sample in messages."""
        raw_leaves, structure = jax.tree.flatten(tree)
        source = f"{self.argument}: the source of node {node}"
        if structure != self.structure:
            raise ValueError(
                f"{source} gave {structure}, unlike the first sample's {self.structure}: "
                "give all samples one structure."
            )
        leaves: list[np.ndarray] = []
        for leaf, kind in zip(map(np.asarray, raw_leaves), self.kinds, strict=True):
            expected = (size, *kind.shape)
            if leaf.shape != expected or self._device_dtype(leaf) != kind.dtype:
                raise ValueError(
                    f"{source} gave an array {leaf.shape} of {leaf.dtype} where {expected} of {kind.dtype} was "
                    "expected from the first sample: give all samples one shape and type, with a row for each index."
                )
            if jnp.issubdtype(leaf.dtype, jnp.inexact) and not np.isfinite(leaf).all():
                bad = int(np.argwhere(~np.isfinite(leaf))[0][0])
                raise ValueError(
                    f"{self.argument} holds a NaN or infinity at node {node}, {name(bad)}: clean or drop it."
                )
            leaves.append(leaf.astype(kind.dtype, copy=False))
        return leaves


class Sources(Host):
    """Sources that are read by index, of the nodes that live here."""

    def __init__(self, of_node: Mapping[int, Source], argument: str, dtype: DTypeLike) -> None:
        super().__init__(argument, dtype)
        self._of_node = dict(of_node)
        self.parallel = all(isinstance(source, Arrays) for source in self._of_node.values())
        self.counts = {node: len(source) for node, source in self._of_node.items()}
        for node, count in self.counts.items():
            if count == 0:
                raise ValueError(f"{argument} has no samples at node {node}: leave that node out or give it data.")
            if count >= 2**31:
                raise ValueError(f"{argument} has {count} samples at node {node}: give it fewer than 2**31.")
            self._try(node, argument)

    def _try(self, node: int, argument: str) -> None:
        """Reads one sample; raises with a fix if the source takes only one index at a time."""
        source = self._of_node[node]
        try:
            self._take(node, np.zeros(1, np.int64))
        except (TypeError, IndexError, KeyError, ValueError) as error:
            kind = type(source)
            if kind.__module__.startswith("decibel.") or f"the source of node {node} gave" in str(error):
                raise
            wrap = "hugging_face" if kind.__module__.startswith("datasets.") else "items"
            reason = (str(error).splitlines() or [type(error).__name__])[0][:60].rstrip(".")
            raise TypeError(
                f"{argument}[{node}] is a {kind.__name__} that does not take an array of indices ({reason}): wrap it "
                f"in db.sources.{wrap}(...)."
            ) from error

    def read(self, node: int, draws: Sequence[Int[np.ndarray, "steps batch"]]) -> list[list[np.ndarray]]:
        return [self._take(node, rows.ravel().astype(np.int64)) for rows in draws]

    def _take(self, node: int, rows: Int[np.ndarray, " rows"]) -> list[np.ndarray]:
        try:
            tree = self._of_node[node][rows]
        except Exception as error:
            error.add_note(f"{self.argument}: raised by the source of node {node}.")
            raise
        self._set_expected(node, tree)
        return self._validated(node, tree, len(rows), lambda row: f"sample {rows[row]}")

    def digest(self, node: int) -> int:
        """A number for a node's samples, from how many there are and from the first, the middle and the last of
        them; zero where they are not read here."""
        if node not in self._of_node:
            return 0
        count, digest = self.counts[node], hashlib.sha256()
        digest.update(str(count).encode())
        for leaf in self._take(node, np.array([0, count // 2, count - 1])):
            digest.update(np.ascontiguousarray(leaf).tobytes())
        return int.from_bytes(digest.digest()[:4], "little")


class Iterators(Host):
    """Iterators of batches, of which each draw takes the next."""

    ordered = True

    def __init__(self, of_node: Mapping[int, BatchIterator], argument: str, dtype: DTypeLike) -> None:
        super().__init__(argument, dtype)
        self._of_node = dict(of_node)
        for node, batches in self._of_node.items():
            self._set_expected(node, batches.first())

    def read(self, node: int, draws: Sequence[Int[np.ndarray, "steps batch"]]) -> list[list[np.ndarray]]:
        parts: list[list[list[np.ndarray]]] = [[] for _ in draws]
        for _ in range(len(draws[0])):
            for part, rows in zip(parts, draws, strict=True):
                part.append(self._take(node, rows.shape[1]))
        return [[np.concatenate(leaves) for leaves in zip(*part, strict=True)] for part in parts]

    def _take(self, node: int, size: int) -> list[np.ndarray]:
        batches = self._of_node[node]
        try:
            tree = batches.take()
        except Exception as error:
            error.add_note(f"{self.argument}: raised by the iterator of node {node}.")
            raise
        lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)}
        if lengths != {(size,)}:
            (count,) = next(iter(lengths), ()) or (0,)
            raise ValueError(
                f"{self.argument}: the iterator of node {node} gave {count} samples, and a batch has {size} "
                "(batch_size): give batches of that size; a data loader has drop_last=True."
            )
        return self._validated(node, tree, size, lambda row: f"batch {batches.taken}, sample {row}")
