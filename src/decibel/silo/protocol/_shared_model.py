"""The model that a site which has finished gives to one that was away: the levels that all sites agree on, as one row.

A site that returns takes the model if enough neighbours give the same one (`Federation.confirmations_needed`), so that
an honest site is among them. The models of honest sites differ by the consensus error,
so "the same" means within a distance, which the log shows. A malicious site can move the model that a site takes by no
more than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decibel import Method, State, Vector
from decibel.core import PyTree

from ._frames import Model

SAME = 0.05  # the largest distance of two copies of a model, relative to their norms


def row_of(method: Method, state: State) -> np.ndarray:
    """(entries,) x and y of this site, as far as they are mixed; nothing where no level is."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(_shared(method, state))]
    wide = any(leaf.dtype == np.float64 for leaf in leaves)
    rows = [leaf.ravel().astype(np.float64 if wide else np.float32) for leaf in leaves]
    return np.concatenate(rows) if rows else np.zeros(0, np.float32)


def with_row(method: Method, state: State, row: np.ndarray) -> State:
    """The state with the model of another site; what is not mixed stays this site's own."""
    shared = _shared(method, state)
    leaves, structure = jax.tree.flatten(shared)
    parts = np.split(row, np.cumsum([leaf.size for leaf in leaves])[:-1])
    taken = [
        jnp.asarray(part.reshape(leaf.shape), leaf.dtype, device=leaf.sharding)
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    levels = jax.tree.unflatten(structure, taken)
    return state._replace(**{level: getattr(state, level)._replace(s=Vector(tree)) for level, tree in levels.items()})


def _shared(method: Method, state: State) -> dict[str, PyTree]:
    strategies = method.strategies
    mixed = [level for level in ("x", "y") if level in strategies and strategies[level].communicates]
    return {level: getattr(state, level).s.tree for level in mixed if getattr(state, level) is not None}


class Agreement(NamedTuple):
    """Whose model to take, the others who agree with it, and the largest distance to theirs, relative to the norm."""

    giver: str
    others: tuple[str, ...]
    distance: float

    def __str__(self) -> str:
        if not self.others:
            return f"of {self.giver}, which no other neighbour confirms"
        return f"of {self.giver}, from which that of {', '.join(self.others)} differs by at most {self.distance:.2g}"


def agree_on(offers: Mapping[str, Model], needed: int) -> Agreement | None:
    """The offered model with which most others agree, ties broken by the smaller distance; None if fewer than `needed`
    sites agree, itself included."""
    givers = {name: model for name, model in offers.items() if model.row.size}
    agreements: list[Agreement] = []
    for name, model in givers.items():
        peers = [other for other in givers if other != name and givers[other].step == model.step]
        apart = {other: _distance(model.row, givers[other].row) for other in peers}
        near = {other: distance for other, distance in apart.items() if distance <= SAME}
        agreements.append(Agreement(name, tuple(near), max(near.values(), default=0.0)))
    best = max(agreements, key=lambda agreement: (len(agreement.others), -agreement.distance), default=None)
    return best if best is not None and 1 + len(best.others) >= needed else None


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """The distance of two models, relative to the larger norm."""
    scale = max(float(np.abs(a).max()), float(np.abs(b).max())) or 1.0  # or the norm of 1e300 would be infinite
    first = a.astype(np.float64) / scale
    second = b.astype(np.float64) / scale
    return float(np.linalg.norm(first - second) / (max(np.linalg.norm(first), np.linalg.norm(second)) or 1.0))
