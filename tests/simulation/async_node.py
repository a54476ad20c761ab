"""What a simulated site without a common clock computes: the wave strategy on the quadratics of `node.py`.

A node sends q_ij = 2 ρ_ij s_i − z_ij before a step. After it has computed, it takes what has come, z_ij ← ½ (z_ij +
q_ji), and adds its flows z_ij − ρ_ij s_i, cut to a limit. A test compares it with `db.Simulator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from decibel.network._links import LinkStatus

from .coded_links import CodedLinks
from .node import ENTRIES, Arrived, Problem

ALPHA = 0.25
STAMP = 16  # bytes
DROPPED = int(LinkStatus.DROP_FLOW)


class WaveNode:
    """`limit` is that of a link's flow in units of gradients; `code` names one of `coded_links.CODES`, or none."""

    def __init__(
        self,
        problem: Problem,
        number: int,
        neighbours: Sequence[int],
        weights: Sequence[float],
        *,
        limit: float = np.inf,
        code: str = "",
    ) -> None:
        levels = len(problem.a[number])
        if code:
            self.links = CodedLinks(levels, number, neighbours, weights, rate=ALPHA, limit=limit, code=code)
        else:
            self.links = PlainLinks(levels, weights, limit)
        self.a = problem.a[number].astype(self.links.dtype)
        self.b = problem.b[number].astype(self.links.dtype)
        self.s = np.zeros((levels, ENTRIES), self.links.dtype)
        self.used = np.zeros((levels, len(neighbours), ENTRIES))  # the flows of the last step

    def waves(self, step: int = 0, incarnation: int = 0) -> list[np.ndarray]:
        """(slots, ...) for every level, before a step."""
        return self.links.waves(self.s, step, incarnation)

    @property
    def flows(self) -> np.ndarray:
        """(levels, slots, entries)."""
        return np.stack([self.links.flows(level, s) for level, s in enumerate(self.s)])

    def step(self, collect: Callable[[int], Arrived]) -> tuple[float, list[np.ndarray]]:
        """The largest change of s, and by level that of every link's z."""
        before = self.s.copy()
        moved = []
        for level in range(len(self.s)):
            above = self.s[level - 1] if level else 0.0
            d = ALPHA * self.a[level] * (self.s[level] - self.b[level] - 0.5 * above)
            z = self.links.z(level).copy()
            self.links.take(level, self.s[level], collect(level))
            self.used[level] = self.links.flows(level, self.s[level])
            self.s[level] += self.used[level].sum(0).astype(self.s.dtype) - d
            moved.append(np.abs(self.links.z(level) - z).max(-1))
        return float(np.abs(self.s - before).max()), moved

    @property
    def state(self) -> bytes:
        """All of it, bit for bit."""
        return b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in (self.s, *self.links.leaves))

    @state.setter
    def state(self, raw: bytes) -> None:
        read = []
        for leaf in (self.s, *self.links.leaves):
            read.append(np.frombuffer(raw[: leaf.nbytes], leaf.dtype).reshape(leaf.shape).copy())
            raw = raw[leaf.nbytes :]
        self.s, *self.links.leaves = read


class PlainLinks:
    """What a node remembers of its links, by level and slot; messages are as they are."""

    dtype = np.float64

    def __init__(self, levels: int, weights: Sequence[float], limit: float) -> None:
        self._ρ = 2 * np.asarray(weights)[:, None]
        self._largest = ALPHA * limit
        z = np.zeros((levels, len(weights), ENTRIES))
        begun = np.zeros((levels, len(weights)))  # before, z is ρ s
        self.leaves = [z, begun]

    def z(self, level: int) -> np.ndarray:
        return self.leaves[0][level]

    def flows(self, level: int, s: np.ndarray) -> np.ndarray:
        return self._begun_z(level, s) - self._ρ * s

    def _begun_z(self, level: int, s: np.ndarray) -> np.ndarray:
        z, begun = self.leaves
        return np.where(begun[level][:, None] > 0, z[level], self._ρ * s)

    def waves(self, s: np.ndarray, step: int, incarnation: int) -> list[np.ndarray]:
        return [2 * self._ρ * one - self._begun_z(level, one) for level, one in enumerate(s)]

    def take(self, level: int, s: np.ndarray, arrived: Arrived) -> None:
        rows, came, states = arrived
        mine = self._ρ * s
        dropped = (states == DROPPED)[:, None]
        z = np.where(dropped, mine, self._begun_z(level, s))
        z = np.where(came[:, None] & ~dropped, 0.5 * (z + rows), z)
        F = z - mine
        norm = np.sqrt((F * F).sum(-1, keepdims=True))
        over = norm > self._largest
        if over.any():
            z = np.where(over, mine + F * (self._largest / np.where(over, norm, 1.0)), z)
        self.leaves[0][level] = z
        self.leaves[1][level] = ~dropped[:, 0]


def stamped(rows: np.ndarray, life: int, step: int) -> np.ndarray:
    """Rows that also say in which life and step of their sender they were sent."""
    stamp = np.array([life, step]).view(rows.dtype)
    return np.concatenate([rows, np.broadcast_to(stamp, (len(rows), stamp.size))], -1)


def read_stamp(row: np.ndarray) -> tuple[int, int]:
    life, step = np.frombuffer(row.tobytes()[-STAMP:], np.int64).tolist()
    return life, step


def unstamped(rows: np.ndarray) -> np.ndarray:
    return rows[..., : -STAMP // rows.itemsize]


def solution(problem: Problem) -> np.ndarray:
    """(levels, entries) where Σ_i a_i (x − b_i − ½ x of the level before) is 0."""
    found = np.zeros(problem.a.shape[1:])
    for level in range(len(found)):
        above = found[level - 1] if level else 0.0
        a, b = problem.a[:, level], problem.b[:, level]
        found[level] = (a * (b + 0.5 * above)).sum(0) / a.sum(0)
    return found


def largest_flow(problem: Problem) -> float:
    """No less than any flow at the solution, in units of gradients, whatever the graph."""
    x = solution(problem)
    above = np.concatenate([np.zeros((1, ENTRIES)), x[:-1]])
    gradients = problem.a * (x - problem.b - 0.5 * above)  # (nodes, levels, entries)
    return float(np.linalg.norm(gradients, axis=-1).sum(0).max())
