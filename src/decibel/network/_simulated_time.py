"""How long the iterations of a run take where nodes are slow, in steps of a node that is not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .faults import Fault, Slow


class SimulatedTime(NamedTuple):
    """The time of a run whose nodes wait for each other in every iteration, or, if `asynchronous`, for nobody."""

    faults: tuple[Slow, ...]
    nodes: np.ndarray
    asynchronous: bool
    seed: int

    def between(self, first: int, length: int) -> float:
        """Of so many iterations."""
        if self.asynchronous:
            return float(length)
        return float(sum(self._slowest(k) for k in range(first, first + length)))

    def _slowest(self, k: int) -> float:
        durations = np.ones(len(self.nodes))
        for number, fault in enumerate(self.faults):
            if not fault.during[0] <= k < fault.during[1]:
                continue
            of = slice(None) if fault.nodes is None else np.isin(self.nodes, fault.nodes)
            chances = np.random.default_rng([self.seed, k, number]) if fault.random else None
            drawn = fault.factor if chances is None else chances.geometric(1 / fault.factor, len(self.nodes))[of]
            durations[of] = drawn
        return float(durations.max())


def simulated_time(
    faults: tuple[Fault, ...], nodes: np.ndarray, *, asynchronous: bool, seed: int
) -> tuple[tuple[Fault, ...], SimulatedTime | None]:
    """The faults that bear on the numbers of a run, and its time, if any node is slow."""
    slow = tuple(fault for fault in faults if isinstance(fault, Slow))
    acting = faults if asynchronous else tuple(fault for fault in faults if not isinstance(fault, Slow))
    return acting, SimulatedTime(slow, nodes, asynchronous, seed) if slow else None
