"""Zero-concentrated differential privacy: the total cost ρ of noisy messages, and its (ε, δ).

A message whose content changes by at most twice its clipped norm, with (discrete) Gaussian noise of `noise` times that
norm, is ρ-zCDP with ρ = (2/noise)²/2, and messages add up, also where later ones depend on earlier ones.

References:
    Bun and Steinke, Concentrated Differential Privacy, 2016; Canonne, Kamath and Steinke, The Discrete Gaussian for
    Differential Privacy, 2020 (Theorem 14 for the noise, Proposition 12 for ε).
"""

from __future__ import annotations

import math


def rho(noise: float, messages: int) -> float:
    return 2 * messages / noise**2


def epsilon(ρ: float, delta: float) -> float:
    """The smallest ε = ρ α + log((α − 1)/α) − log(δ α)/(α − 1) over the orders α > 1; every order gives a bound."""
    from scipy.optimize import minimize_scalar  # takes a tenth of a second

    if ρ == 0:
        return 0.0

    def bound(t: float) -> float:
        order = 1 + math.exp(t)
        return ρ * order + t - math.log(order) - (math.log(delta) + math.log(order)) / math.exp(t)

    near = 0.5 * math.log(-math.log(delta) / ρ)
    minimum = minimize_scalar(bound, bounds=(min(near, 0.0) - 5, max(near, 0.0) + 5), method="bounded")
    return max(0.0, min(bound(near), float(minimum.fun)))


def rho_for(ε: float, delta: float) -> float:
    """The largest ρ whose `epsilon` is at most ε."""
    low, high = -80.0, 80.0  # of its logarithm
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(math.exp(middle), delta) <= ε else (low, middle)
    return math.exp(low)
