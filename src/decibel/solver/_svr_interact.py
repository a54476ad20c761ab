"""SVR-INTERACT's Theorem 3 and Corollary 4 as functions: step sizes, terms of the Neumann series, and steps."""

from __future__ import annotations

import math

from ._bounds import Constants, interact_bias, interact_rounds, lower_rate
from ._complexity import positive_integer, spectral_gap


def svr_interact_step_sizes(
    constants: Constants, nodes: int, rho: float, *, beta: float | None = None
) -> dict[str, float]:
    """The largest step sizes for which SVR-INTERACT's Theorem 3 holds, as printed.

    Limits that the constants leave open (L_K or L_y is 0) are left out. They are far smaller than those of Theorem 1,
    `interact_step_sizes`, and than what works.

    Args:
        constants: of the losses.
        nodes: m.
        rho: λ, the second largest eigenvalue of the mixing matrix in magnitude.
        beta: a smaller β than the largest.

    Returns:
        `alpha` and `beta`, for `db.svr_interact`.

    References:
        Liu et al., INTERACT, 2022.
    """
    m, gap, c = positive_integer("nodes", nodes), spectral_gap(rho), constants
    both, product, K2, y2 = c.mu_g + c.L_g, c.mu_g * c.L_g, c.L_K**2, c.L_y**2
    most = [3 * both / product, 1 / (2 * both), 16 / (gap * both)]
    if K2:
        most += [gap * product / (768 * K2 * both), gap * both / (4096 * K2), gap * both / (512 * K2)]
    if K2 and y2:
        most.append(y2 * product / (24 * K2 * both))
    beta = min(most) if beta is None else beta
    if not 0 < beta <= min(most):
        raise ValueError(f"beta={beta} must be positive and at most {min(most):.3g}: Theorem 3 has no larger one.")
    r = lower_rate(c, beta)
    limits = [1 / (m * gap)]
    if c.L_l:
        limits.append(1 / (8 * c.L_l))
    if c.L_l or K2:
        limits.append(gap / 4 * m / (c.L_l + 16 * K2 * m))
    if K2:
        limits += [1 / (8 * c.L_K * math.sqrt(m)), gap**2 / (128 * K2), math.sqrt(gap / m) / (16 * c.L_K)]
        limits.append(math.sqrt(gap) / (8 * c.L_K))  # twice in the theorem
    if y2:
        limits += [r / (16 * m * y2 * (r + 1)), gap**2 / (16 * (1 + 1 / r) * y2), 32 * y2 / gap]
    if y2 and c.L_f:
        limits.append(288 * r * (1 + r) * m * y2 / (gap * c.L_f**2))
    if y2 and K2:
        limits += [r * (1 + r) * gap**power / (times * y2 * both * K2 * beta) for power, times in ((1, 256), (2, 512))]
    return {"alpha": min(limits), "beta": beta}


def svr_interact_rounds(
    constants: Constants, epsilon: float, gap: float, alpha: float, beta: float, rho: float, *, terms: int
) -> int:
    """The number of steps T from which SVR-INTERACT's Theorem 3 bounds the mean of 𝔐 over 0 … T by ε: that of
    `interact_rounds` for ε − C_bias. A step has two rounds of communication.

    Args:
        constants: of the losses.
        epsilon: ε, above `interact_bias`.
        gap: 𝔅₀ − ℓ*, as in `interact_rounds`.
        alpha: the step size of x.
        beta: that of y.
        rho: λ of the mixing matrix.
        terms: K of the Neumann series.
    """
    left = epsilon - interact_bias(constants, terms, alpha, beta, rho)
    if left <= 0:
        least = svr_interact_terms(constants, epsilon, alpha, beta, rho)
        raise ValueError(f"terms={terms} leaves a bias above epsilon={epsilon}: give {least} or more.")
    return interact_rounds(constants, left, gap, alpha, beta, rho)


def svr_interact_terms(constants: Constants, epsilon: float, alpha: float, beta: float, rho: float) -> int:
    """The fewest terms K of the Neumann series with which C_bias is at most ε/2: of order log(1/ε), as Corollary 4 has
    it.

    Args:
        constants: of the losses.
        epsilon: ε.
        alpha: the step size of x.
        beta: that of y.
        rho: λ of the mixing matrix.
    """
    if not epsilon > 0:
        raise ValueError(f"epsilon={epsilon} must be positive: 𝔐 is.")
    first, shrinks = (
        interact_bias(constants, 1, alpha, beta, rho),
        2 * math.log(1 - constants.mu_g / constants.L_g or 1),
    )
    if first <= epsilon / 2 or not shrinks:  # with μ_g = L_g one term is exact
        return 1
    found = 1 + math.ceil(math.log(epsilon / 2 / first) / shrinks)
    return found if interact_bias(constants, found, alpha, beta, rho) <= epsilon / 2 else found + 1  # rounding
