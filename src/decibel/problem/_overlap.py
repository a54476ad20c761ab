"""Rows that the data of both levels have in common, as validation data must not."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Shaped, UInt32

from ._samples import NodeData
from ._streams import Samples

COLUMNS = 16  # of each row that are compared first
MAX_BYTES = 2**28  # of the largest array that a run compares
SAMPLED = 64  # rows that a run compares


class Overlap(NamedTuple):
    """`shared` of the `rows` compared rows of `upper_data` also occur in `lower_data`."""

    shared: int
    rows: int

    @property
    def share(self) -> float:
        return self.shared / max(1, self.rows)


def overlap(upper: Samples, lower: Samples, *, max_rows: int | None = None) -> Overlap:
    """Compares the largest pair of arrays whose rows have equal shape and dtype.

    With `max_rows`, compares at most that many rows, and no arrays above `MAX_BYTES`.
    """
    pair = _comparable(upper, lower)
    if pair is None or (max_rows is not None and max(leaf.nbytes for leaf in pair) > MAX_BYTES):
        return Overlap(0, 0)
    ours, theirs = (np.asarray(leaf).reshape(-1, _entries(leaf)) for leaf in pair)
    if max_rows is not None:
        ours = ours[np.unique(np.linspace(0, len(ours) - 1, max_rows).astype(int))]
    ours = np.unique(ours, axis=0)
    return Overlap(int(_found(ours, theirs).sum()), len(ours))


def _comparable(upper: Samples, lower: Samples) -> tuple[jax.Array, jax.Array] | None:
    """The largest pair of arrays whose rows match; None if rows are single numbers."""
    if not isinstance(upper, NodeData) or not isinstance(lower, NodeData):
        return None
    pairs = [
        (ours, theirs)
        for ours in jax.tree.leaves(upper.tree)
        for theirs in jax.tree.leaves(lower.tree)
        if ours.shape[2:] == theirs.shape[2:] and ours.dtype == theirs.dtype and ours.is_fully_addressable
    ]
    largest = max(pairs, key=lambda pair: _entries(pair[0]), default=None)
    return None if largest is None or _entries(largest[0]) < 2 else largest


def _entries(leaf: jax.Array) -> int:
    """The number of entries of one row."""
    return math.prod(leaf.shape[2:])


def _found(
    ours: Shaped[np.ndarray, "rows entries"], theirs: Shaped[np.ndarray, "others entries"]
) -> Bool[np.ndarray, " rows"]:
    """For each of our rows, whether it is one of theirs."""
    columns = np.unique(np.linspace(0, ours.shape[1] - 1, COLUMNS).astype(int))
    our_digests, their_digests = _digests(ours[:, columns]), _digests(theirs[:, columns])
    order = np.argsort(their_digests)
    first, last = (np.searchsorted(their_digests[order], our_digests, side) for side in ("left", "right"))
    return np.array(
        [(theirs[order[a:b]] == row).all(1).any() for row, a, b in zip(ours, first, last, strict=True)], bool
    )


def _digests(rows: Shaped[np.ndarray, "rows columns"]) -> UInt32[np.ndarray, " rows"]:
    """A number for each row, the same for equal rows."""
    words = np.frombuffer(np.ascontiguousarray(rows).tobytes(), np.uint8).reshape(len(rows), -1)
    weights = np.random.default_rng(0).integers(1, 2**32, words.shape[1], dtype=np.uint32) | np.uint32(1)
    return words.astype(np.uint32) @ weights
