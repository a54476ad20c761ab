"""A model of a round: so many messages one after the other, so many bytes through a node's link.

    seconds = latency · messages + bytes / bandwidth, times processes / cores where processes share cores

It knows nothing of congestion, of a machine's inside and of stragglers. What it says of more nodes than were measured
is an extrapolation.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares


class Cost(NamedTuple):
    """Of one round, for one node."""

    messages: float  # sent one after the other
    bytes: float
    sharing: float = 1.0  # nodes per core


class Fit(NamedTuple):
    latency: float  # seconds per message
    bandwidth: float  # bytes per second


def neighbours(kind: str, nodes: int) -> int:
    """How many a node of a family sends to."""
    hops = [2**power for power in range(max(1, math.ceil(math.log2(nodes)))) if 2**power < nodes]
    return {
        "ring": min(2, nodes - 1),
        "one-peer exponential": 1,
        "exponential": len({side * hop % nodes for hop in hops for side in (1, -1)}),
        "complete": nodes - 1,
    }[kind]


def costs(kind: str, nodes: int, entries: int, cores: int | None = None) -> Cost:
    """Of a vector of float32. An all-reduce goes around a ring twice, a part of the vector at a time."""
    sharing = max(1.0, nodes / (cores or os.cpu_count() or 1))
    if kind == "all-reduce":
        return Cost(2.0 * (nodes - 1), 2 * (nodes - 1) / nodes * 4 * entries, sharing)
    degree = neighbours(kind, nodes)
    return Cost(float(degree), 4.0 * entries * degree, sharing)


def predict(fit: Fit, cost: Cost) -> float:
    """Seconds."""
    return cost.sharing * (fit.latency * cost.messages + cost.bytes / fit.bandwidth)


def fit(rows: Sequence[dict[str, Any]]) -> Fit:
    """Latency and bandwidth that come closest, by factors, to rows with a `cost` and `milliseconds`."""
    points = [(Cost(**row["cost"]), row["milliseconds"] / 1e3) for row in rows]

    def errors(logs: np.ndarray) -> list[float]:
        trial = Fit(*np.exp(logs))
        return [float(np.log(predict(trial, cost) / seconds)) for cost, seconds in points]

    found = least_squares(errors, np.log([1e-4, 1e9]), loss="soft_l1")
    return Fit(*map(float, np.exp(found.x)))
