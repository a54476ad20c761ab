"""What a simulated site computes, in NumPy: Exact Diffusion on quadratics, with flows per link or without.

f_i(x) = ½ Σ a_i (x − b_i)². A test compares it with `db.Simulator`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import cache
from typing import NamedTuple
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np

import decibel as db
from decibel.network._links import LinkStatus

ENTRIES, ALPHA = 3, 0.3
Arrived = tuple[np.ndarray, np.ndarray, np.ndarray]  # the rows, by slot; where there is one; the states of the links
Neighbours = tuple[tuple[int, ...], ...]


class Peers(NamedTuple):
    """Which links do not rest: those of a phase that is drawn for every step and level."""

    seed: int
    phases: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, seed: int, edges: Sequence[tuple[int, int]]) -> Peers:
        """Matchings that have all edges."""
        phases: list[list[tuple[int, int]]] = []
        for edge in edges:
            free = [phase for phase in phases if not {*edge} & {end for one in phase for end in one}]
            if not free:
                phases.append([])
            (free or phases[-1:])[0].append(edge)
        return cls(seed, tuple(tuple(phase) for phase in phases))

    @property
    def damping(self) -> float:
        return 1 / len(self.phases)

    def phase(self, step: int, level: int) -> int:
        return crc32(f"phase {self.seed} {step} {level}".encode()) % len(self.phases)

    def among(self, number: int, others: Sequence[int], step: int, level: int) -> tuple[int, ...]:
        """The neighbour of each slot, −1 where the link rests."""
        links = self.phases[self.phase(step, level)]
        return tuple(other if (min(number, other), max(number, other)) in links else -1 for other in others)


class Problem(NamedTuple):
    """(nodes, levels, entries) of curvatures and of the minima of every node's own function."""

    a: np.ndarray
    b: np.ndarray

    @classmethod
    def of(cls, nodes: int, levels: int) -> Problem:
        chance = np.random.default_rng(nodes * 10 + levels)
        shape = (nodes, levels, ENTRIES)
        return cls(chance.uniform(0.5, 2.0, shape), chance.normal(size=shape))

    def of_library(self) -> db.Problem:
        """The first level, as the library has it."""

        def loss(x: jax.Array, sample: dict[str, jax.Array]) -> jax.Array:
            return 0.5 * jnp.sum(sample["a"] * (x - sample["b"]) ** 2)

        by_node = [{"a": a, "b": b} for a, b in zip(self.a, self.b, strict=True)]
        return db.Problem(loss, upper_data=by_node, x0=jnp.zeros(ENTRIES))


class Node:
    """One node; `lossy` keeps F_ij by link (`edge-ed`), otherwise c is summed (`ed`), damped where the graph changes.
    Every level has an exchange of its own in a step, and follows the level before it."""

    def __init__(
        self, problem: Problem, number: int, weights: Sequence[float], *, lossy: bool, damping: float = 1.0
    ) -> None:
        self.a, self.b = problem.a[number], problem.b[number]
        self.weights, self.lossy, self.damping = np.asarray(weights), lossy, damping
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
                rows, arrived, _ = yield φ
                δ = (np.where(arrived, self.weights, 0.0)[:, None] * (rows - φ)).sum(0)
                self.s[level], self.c[level] = φ + δ, self.c[level] + self.damping * δ

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


def weights(neighbours: Neighbours, peers: Peers | None = None) -> list[list[float]]:
    """Lazy Metropolis, by slot."""
    degree = [len(of) if peers is None else 1 for of in neighbours]
    return [[0.5 / max(degree[i], degree[j]) for j in of] for i, of in enumerate(neighbours)]


@cache
def undisturbed(
    neighbours: Neighbours, levels: int, lossy: bool, steps: int, peers: Peers | None = None
) -> list[bytes]:
    """Every node's state after so many steps in which nothing goes wrong, without any transport."""
    problem, slots = Problem.of(len(neighbours), levels), weights(neighbours, peers)
    damping = 1.0 if peers is None else peers.damping
    nodes = [Node(problem, i, slots[i], lossy=lossy, damping=damping) for i in range(len(neighbours))]
    for step in range(steps):
        running = [node.step() for node in nodes]
        sent = [next(one) for one in running]
        for level in range(levels):
            met = [of if peers is None else peers.among(i, of, step, level) for i, of in enumerate(neighbours)]
            sent = [_answer(running[i], i, sent, neighbours, met[i]) for i in range(len(nodes))]
    return [node.state for node in nodes]


def _answer(
    node: Generator[np.ndarray, Arrived, None], i: int, sent: list, neighbours: Neighbours, met: tuple[int, ...]
) -> np.ndarray:
    got = [sent[j] if sent[j].ndim == 1 else sent[j][neighbours[j].index(i)] for j in neighbours[i]]
    arrived = np.array(met) >= 0
    rows = np.where(arrived[:, None], got, 0.0)
    try:
        return node.send((rows, arrived, np.full(len(got), LinkStatus.CONTINUE)))
    except StopIteration:
        return np.zeros(0)
