"""The simulated time of a run with slow nodes, in steps of a node that is not slow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .faults import Fault, Slow


class SimulatedTime(NamedTuple):
    """The simulated time of a run. Its nodes wait for each other in every iteration, or never if `asynchronous`."""

    faults: tuple[Slow, ...]
    nodes: np.ndarray
    asynchronous: bool
    seed: int

    def between(self, first: int, length: int) -> float:
        """The time of `length` iterations."""
        if self.asynchronous:
            return float(length)
        return float(sum(self._slowest(k) for k in range(first, first + length)))

    def _slowest(self, k: int) -> float:
        durations = np.ones(len(self.nodes))
        for number, fault in enumerate(self.faults):
            if not fault.during[0] <= k < fault.during[1]:
                continue
            affected = slice(None) if fault.nodes is None else np.isin(self.nodes, fault.nodes)
            if fault.random:
                rng = np.random.default_rng([self.seed, k, number])
                durations[affected] = rng.geometric(1 / fault.factor, len(self.nodes))[affected]
            else:
                durations[affected] = fault.factor
        return float(durations.max())


def split_slow_faults(
    faults: tuple[Fault, ...], nodes: np.ndarray, *, asynchronous: bool, seed: int
) -> tuple[tuple[Fault, ...], SimulatedTime | None]:
    """The faults to simulate (no slow nodes if nodes wait for each other), and the simulated time if any is slow."""
    slow = tuple(fault for fault in faults if isinstance(fault, Slow))
    to_simulate = faults if asynchronous else tuple(fault for fault in faults if not isinstance(fault, Slow))
    return to_simulate, SimulatedTime(slow, nodes, asynchronous, seed) if slow else None
