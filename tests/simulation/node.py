"""What a simulated site computes, in NumPy: Exact Diffusion on quadratics, with flows per link or without.

f_i(x) = ½ Σ a_i (x − b_i)². A test compares it with `db.Simulator`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from decibel.network._links import LinkStatus

ENTRIES, ALPHA = 3, 0.3
Arrived = tuple[np.ndarray, np.ndarray, np.ndarray]  # the rows, by slot; where there is one; the states of the links
Neighbours = tuple[tuple[int, ...], ...]


class Problem(NamedTuple):
    """(nodes, levels, entries) of curvatures and of the minima of every node's own function."""

    a: np.ndarray
    b: np.ndarray

    @classmethod
    def of(cls, nodes: int, levels: int) -> Problem:
        chance = np.random.default_rng(nodes * 10 + levels)
        shape = (nodes, levels, ENTRIES)
        return cls(chance.uniform(0.5, 2.0, shape), chance.normal(size=shape))


class Node:
    """One node; `lossy` keeps F_ij by link (`edge-ed`), otherwise c is summed (`ed`). Every level has an exchange of
    its own in a step, and follows the level before it."""

    def __init__(self, problem: Problem, number: int, weights: Sequence[float], *, lossy: bool) -> None:
        self.a, self.b = problem.a[number], problem.b[number]
        self.weights, self.lossy = np.asarray(weights), lossy
        levels, slots = len(self.a), len(weights)
        self.s, self.c = np.zeros((levels, ENTRIES)), np.zeros((levels, ENTRIES))
        self.F = np.zeros((levels, slots, ENTRIES))

    def step(self) -> Generator[np.ndarray, Arrived, None]:
        """Yields what it sends, and takes what arrived."""
        for level in range(len(self.a)):
            before = self.s[level - 1] if level else 0.0
            d = ALPHA * self.a[level] * (self.s[level] - self.b[level] - 0.5 * before)
            φ = self.s[level] - d + self.c[level]
            if self.lossy:
                rows = np.concatenate([np.broadcast_to(φ, self.F[level].shape), self.F[level]], -1)
                self.F[level] = self._flows(φ, self.F[level], *(yield rows))
                self.c[level] = self.F[level].sum(0)
                self.s[level] = self.s[level] - d + self.c[level]
            else:
                rows, _, _ = yield φ
                δ = (self.weights[:, None] * (rows - φ)).sum(0)
                self.s[level], self.c[level] = φ + δ, self.c[level] + δ

    def _flows(
        self, φ: np.ndarray, F: np.ndarray, rows: np.ndarray, arrived: np.ndarray, states: np.ndarray
    ) -> np.ndarray:
        """As `decibel.network._messages.accumulate`, written anew."""
        F = F.copy()
        for slot, (row, state) in enumerate(zip(rows, states, strict=True)):
            if state == LinkStatus.DROP_FLOW:
                F[slot] = 0
                continue
            theirs, back = row[:ENTRIES], row[ENTRIES:]
            mine = F[slot].copy()
            if state == LinkStatus.TAKE_FLOW:
                mine = -back
            elif state == LinkStatus.GIVE_FLOW:
                back = -mine
            elif state == LinkStatus.START_AT_ZERO:
                mine, back = np.zeros(ENTRIES), np.zeros(ENTRIES)
            if arrived[slot]:
                F[slot] = self.weights[slot] * (theirs - φ) + 0.5 * (mine - back)
            else:
                F[slot] = mine
        return F

    @property
    def state(self) -> bytes:
        """All of it, bit for bit."""
        return b"".join(np.ascontiguousarray(part).tobytes() for part in (self.s, self.c, self.F))

    @state.setter
    def state(self, raw: bytes) -> None:
        flat = np.frombuffer(raw)
        s, c, F = np.split(flat, [self.s.size, self.s.size + self.c.size])
        self.s, self.c, self.F = s.reshape(self.s.shape).copy(), c.reshape(self.c.shape).copy(), F.reshape(self.F.shape)
        self.F = self.F.copy()


def weights(neighbours: Neighbours) -> list[list[float]]:
    """Lazy Metropolis, by slot."""
    degree = [len(of) for of in neighbours]
    return [[0.5 / max(degree[i], degree[j]) for j in of] for i, of in enumerate(neighbours)]


@cache
def undisturbed(neighbours: Neighbours, levels: int, lossy: bool, steps: int) -> list[bytes]:
    """Every node's state after so many steps in which nothing goes wrong, without any transport."""
    problem, slots = Problem.of(len(neighbours), levels), weights(neighbours)
    nodes = [Node(problem, i, slots[i], lossy=lossy) for i in range(len(neighbours))]
    for _ in range(steps):
        running = [node.step() for node in nodes]
        sent = [next(one) for one in running]
        for _ in range(levels):
            sent = [_answer(running[i], i, sent, neighbours) for i in range(len(nodes))]
    return [node.state for node in nodes]


def _answer(node: Generator[np.ndarray, Arrived, None], i: int, sent: list, neighbours: Neighbours) -> np.ndarray:
    got = [sent[j] if sent[j].ndim == 1 else sent[j][neighbours[j].index(i)] for j in neighbours[i]]
    try:
        return node.send((np.array(got), np.ones(len(got), bool), np.full(len(got), LinkStatus.CONTINUE)))
    except StopIteration:
        return np.zeros(0)
