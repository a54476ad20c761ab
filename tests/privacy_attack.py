"""What an attacker proves about ε from samples of a score, shared by the audits of messages and of sums."""

from __future__ import annotations

import numpy as np
from scipy.stats import beta

DELTAS = (1e-5, 1e-3, 1e-2, 0.05)
MISSED = 1e-4  # how often a bound may miss


def least_epsilon(one, other, delta):
    """The ε that two samples of a score prove, at confidence 1 − 2 MISSED; the threshold is chosen on their halves."""

    def proves(p, q, trials):
        low = np.where(p > 0, beta.ppf(MISSED, np.maximum(p, 1), trials - p + 1), 0)
        high = np.where(q < trials, beta.ppf(1 - MISSED, q + 1, np.maximum(trials - q, 1)), 1)
        return np.log(np.maximum(low - delta, 1e-300) / high)

    found = []
    for a, b in ((one, other), (other, one), (-one, -other), (-other, -one)):
        half = len(a) // 2
        exceed = lambda values, at: len(values) - np.searchsorted(np.sort(values), at, "right")  # noqa: E731
        places = np.unique(np.quantile(np.concatenate([a[:half], b[:half]]), np.linspace(0, 1, 201)))
        best = places[np.argmax(proves(exceed(a[:half], places), exceed(b[:half], places), half))]
        found.append(float(proves(*(exceed(part[half:], best) for part in (a, b)), half)))
    return max(found)
