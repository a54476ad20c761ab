"""What a simulated site without a common clock computes, in NumPy: the wave strategy on the quadratics of `node.py`.

A node sends q_ij = 2 ρ_ij s_i − z_ij before a step. After it has computed, it takes what has come, z_ij ← ½ (z_ij +
q_ji), and adds its flows z_ij − ρ_ij s_i. A test compares it with `db.Simulator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from decibel.network._links import LinkState

from .node import ENTRIES, Arrived, Problem

ALPHA = 0.25
WIDTH = ENTRIES + 2  # a row also says in which life and step of its sender it was sent


class WaveNode:
    def __init__(self, problem: Problem, number: int, weights: Sequence[float]) -> None:
        self.a, self.b = problem.a[number], problem.b[number]
        self.ρ = 2 * np.asarray(weights)[:, None]
        levels, slots = len(self.a), len(weights)
        self.s, self.z = np.zeros((levels, ENTRIES)), np.zeros((levels, slots, ENTRIES))
        self.begun = np.zeros((levels, slots))  # whether z has; before it is ρ s

    def _z(self, level: int) -> np.ndarray:
        return np.where(self.begun[level][:, None] > 0, self.z[level], self.ρ * self.s[level])

    def waves(self) -> list[np.ndarray]:
        """(slots, entries) for every level."""
        return [2 * self.ρ * self.s[level] - self._z(level) for level in range(len(self.a))]

    @property
    def flows(self) -> np.ndarray:
        """(levels, slots, entries)."""
        return np.stack([self._z(level) - self.ρ * self.s[level] for level in range(len(self.a))])

    def step(self, collect: Callable[[int], Arrived]) -> tuple[float, list[np.ndarray]]:
        """The largest change of s, and by level that of every link's z."""
        before, moved = self.s.copy(), []
        for level in range(len(self.a)):
            above = self.s[level - 1] if level else 0.0
            d = ALPHA * self.a[level] * (self.s[level] - self.b[level] - 0.5 * above)
            mine, old, z = self.ρ * self.s[level], self.z[level].copy(), self._z(level)
            rows, arrived, states = collect(level)
            dropped = (np.asarray(states) == LinkState.DROPPED)[:, None]
            z = np.where(dropped, mine, z)
            z = np.where(np.asarray(arrived)[:, None] & ~dropped, 0.5 * (z + rows[:, :ENTRIES]), z)
            self.s[level] = self.s[level] - d + (z - mine).sum(0)
            self.z[level], self.begun[level] = z, ~dropped[:, 0]
            moved.append(np.abs(z - old).max(-1))
        return float(np.abs(self.s - before).max()), moved

    @property
    def state(self) -> bytes:
        """All of it, bit for bit."""
        return b"".join(np.ascontiguousarray(part).tobytes() for part in (self.s, self.z, self.begun))

    @state.setter
    def state(self, raw: bytes) -> None:
        flat = np.frombuffer(raw)
        s, z, begun = np.split(flat, [self.s.size, self.s.size + self.z.size])
        self.s, self.z = s.reshape(self.s.shape).copy(), z.reshape(self.z.shape).copy()
        self.begun = begun.reshape(self.begun.shape).copy()


def solution(problem: Problem) -> np.ndarray:
    """(levels, entries) where Σ_i a_i (x − b_i − ½ x of the level before) is 0."""
    found = np.zeros(problem.a.shape[1:])
    for level in range(len(found)):
        above = found[level - 1] if level else 0.0
        a, b = problem.a[:, level], problem.b[:, level]
        found[level] = (a * (b + 0.5 * above)).sum(0) / a.sum(0)
    return found
