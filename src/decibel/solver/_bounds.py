"""Bounds that Gossip-DSBO and INTERACT prove, as functions: rates, step sizes, the bias of a Neumann series, rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ..methods._method import Rate
from ._complexity import positive_integer, spectral_gap


class Bound(NamedTuple):
    """Of Gossip-DSBO's theorems, orders with constants dropped.

    Attributes:
        asymptotic: the term that every network reaches.
        consensus: the term of the network, which vanishes faster.
    """

    asymptotic: float
    consensus: float


def gossip_dsbo(nodes: int, steps: int, rho: float, *, pl: bool = False) -> Bound:
    """Gossip-DSBO's rate: 1/√(KT) + K/(T(1−ρ)²) for the mean of ‖∇F(x̄)‖² (Theorem 5.1), or 1/(KT) + ln T/(T²(1−ρ)²) for
    F(x̄_T) − F* where F satisfies the PL condition (Theorem 5.3).

    The step sizes are those of (5), `db.theory.rates`, or of (6), `db.theory.diminishing`, where F is PL.

    Args:
        nodes: K.
        steps: T.
        rho: ρ of the graph.
        pl: whether F satisfies the PL condition.

    References:
        Yang, Zhang and Wang, Decentralized Gossip-Based Stochastic Bilevel Optimization over Communication Networks,
        2022.
    """
    n, t, gap = positive_integer("nodes", nodes), positive_integer("steps", steps), spectral_gap(rho)
    if pl:
        return Bound(1 / (n * t), math.log(t) / (t * gap) ** 2)
    return Bound(1 / math.sqrt(n * t), n / (t * gap**2))


@dataclass(frozen=True)
class Falling:
    """scale / (offset + k): compares equal where it is, so that runs share what is compiled."""

    scale: float
    offset: float

    def __call__(self, k: ArrayLike) -> Array:
        return self.scale / (self.offset + jnp.asarray(k, float))


def diminishing(convexity: float, offset: float) -> dict[str, Rate]:
    """Gossip-DSBO's falling step sizes (6): α = 2/(μ(C₁ + t)), and C₁/(C₁ + t) for the step of y and the weight of the
    newest sample, our `beta` and `theta`.

    For example `db.gossip_dsbo(**db.theory.diminishing(1.0, 50.0), terms=20, smoothness=4.0, convexity=0.1)`.

    Args:
        convexity: μ of the PL condition.
        offset: C₁, large.
    """
    for name, value in (("convexity", convexity), ("offset", offset)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name}={value} must be positive and finite: (6) divides by it.")
    slow = Falling(float(offset), float(offset))
    return {"alpha": Falling(2 / convexity, float(offset)), "beta": slow, "theta": slow}


@dataclass(frozen=True)
class Constants:
    """The constants of INTERACT's Assumptions 1 and 2, in the paper's letters.

    Args:
        mu_g: μ_g, the strong convexity of g in y.
        L_g: the Lipschitz constant of ∇g.
        C_gxy: a bound on ‖∇²_xy g‖.
        L_gxy: the Lipschitz constant of ∇²_xy g; 0 where g is quadratic.
        L_gyy: that of ∇²_yy g.
        L_fx: the Lipschitz constant of ∇_x f.
        L_fy: that of ∇_y f.
        C_fy: a bound on ‖∇_y f‖.
    """

    mu_g: float
    L_g: float
    C_gxy: float
    L_fx: float
    L_fy: float
    C_fy: float
    L_gxy: float = 0.0
    L_gyy: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.mu_g <= self.L_g:
            raise ValueError(f"mu_g={self.mu_g} must be positive and at most L_g={self.L_g}: give the curvature of g.")
        for name in ("C_gxy", "L_fx", "L_fy", "C_fy", "L_gxy", "L_gyy"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative: give a bound on a norm.")

    @property
    def L_y(self) -> float:
        """The Lipschitz constant of y*(x). Lemma 1 prints the squares of L_y, L_f and L_ℓ; (14) and (15) need these."""
        return self.C_gxy / self.mu_g

    @property
    def L_f(self) -> float:
        """That of ∇̄f in y."""
        bends = self.L_gxy / self.mu_g + self.L_gyy * self.C_gxy / self.mu_g**2
        return self.L_fx + self.L_fy * self.C_gxy / self.mu_g + self.C_fy * bends

    @property
    def L_l(self) -> float:
        """That of ∇ℓ."""
        return self.L_f * (1 + self.L_y)

    @property
    def L_K(self) -> float:
        """That of ∇̄f in both, by (13), whose C_gy we read as C_gxy."""
        inverse = 1 / self.mu_g**2
        first = 2 * self.L_fx**2 + 6 * (self.C_gxy * self.L_fy) ** 2 * inverse
        return math.sqrt(
            first + 6 * self.C_fy**2 * (self.L_gxy**2 + (self.C_gxy * self.L_gyy) ** 2 * inverse) * inverse
        )


def interact_step_sizes(constants: Constants, nodes: int, rho: float, *, beta: float | None = None) -> dict[str, float]:
    """The largest step sizes for which INTERACT's Theorem 1 holds.

    They are far smaller than what works: the paper's own experiments use 0.5.

    Args:
        constants: of the losses.
        nodes: m.
        rho: λ, the second largest eigenvalue of the mixing matrix in magnitude.
        beta: a smaller β than the largest.

    Returns:
        `alpha` and `beta`, for `db.interact`.

    References:
        Liu et al., INTERACT, 2022.
    """
    m, gap, c = positive_integer("nodes", nodes), spectral_gap(rho), constants
    both, product = c.mu_g + c.L_g, c.mu_g * c.L_g
    most = min(3 * both / product, 1 / both)
    beta = most if beta is None else beta
    if not 0 < beta <= most:
        raise ValueError(f"beta={beta} must be positive and at most {most:.3g}: Theorem 1 has no larger one.")
    r = lower_rate(c, beta)
    limits = [1.0, 1 / (m * gap)]
    if c.L_l:
        limits += [1 / (4 * c.L_l), m * gap / (4 * c.L_l)]
    if c.L_K:
        limits += [math.sqrt(gap / (2 * m)) / (4 * c.L_K), gap**2 / (32 * c.L_K**2), gap / (4 * c.L_K)]
    if c.L_y and c.L_f:
        limits.append(9 * r**2 * m * gap / (32 * c.L_y**2 * (1 + 1 / r) * c.L_f**2))
    if c.L_y and c.L_K:
        limits.append((1 - r) * (1 + r) * r * gap**2 / (32 * c.L_y**2 * both * c.L_K**2 * beta))
    return {"alpha": min(limits), "beta": beta}


def lower_rate(c: Constants, beta: float) -> float:
    """r of INTERACT's theorems, a third of how fast a step β brings y closer to y*."""
    return beta * c.mu_g * c.L_g / (c.mu_g + c.L_g) / 3


def _descent(c: Constants, alpha: float, beta: float, rho: float) -> float:
    """min{(1−λ)/4, 3r²(1−λ)/(32(1+r)L_y²), α/2} of (21) and (30)."""
    gap, r = spectral_gap(rho), lower_rate(c, beta)
    limits = [gap / 4, alpha / 2]
    return min([*limits, 3 * r**2 * gap / (32 * (1 + r) * c.L_y**2)] if c.L_y else limits)


def neumann_bias(constants: Constants, terms: int) -> float:
    """How far the mean of the hypergradient's estimate with K terms lies from its limit, C_gxy C_fy/μ_g (1 − μ_g/L_g)^K
    (INTERACT's Lemma 3).

    Args:
        constants: of the losses.
        terms: K.
    """
    c = constants
    return c.C_gxy * c.C_fy / c.mu_g * (1 - c.mu_g / c.L_g) ** positive_integer("terms", terms)


def interact_bias(constants: Constants, terms: int, alpha: float, beta: float, rho: float) -> float:
    """C_bias of SVR-INTERACT's Theorem 3, below which its bound on the mean of 𝔐 does not fall: it shrinks
    geometrically in K.

    Args:
        constants: of the losses.
        terms: K of the Neumann series.
        alpha: the step size of x.
        beta: that of y.
        rho: λ of the mixing matrix.
    """
    return 2 * alpha * neumann_bias(constants, terms) ** 2 / _descent(constants, alpha, beta, rho)


def interact_rounds(constants: Constants, epsilon: float, gap: float, alpha: float, beta: float, rho: float) -> int:
    """The number of steps T from which INTERACT's Theorem 1 bounds the mean of 𝔐 over 0 … T by ε: of order 1/ε. A step
    has two rounds of communication.

    Args:
        constants: of the losses.
        epsilon: ε.
        gap: 𝔅₀ − ℓ*, with 𝔅₀ = ℓ(x̄₀) + w‖y₀ − y₀*‖² + ‖x₀ − x̄₀‖² + α‖u₀ − ū₀‖² and w = (1−λ)/(32(1+1/r)L_y²), which
            the theorem's statement leaves out and its proof has.
        alpha: the step size of x.
        beta: that of y.
        rho: λ of the mixing matrix.
    """
    if not epsilon > 0 or not gap >= 0:
        raise ValueError(f"epsilon={epsilon} must be positive and gap={gap} not negative: 𝔐 and 𝔅₀ − ℓ* are.")
    return max(math.ceil(gap / (epsilon * _descent(constants, alpha, beta, rho))) - 1, 0)


def contraction(rho: float, c: float | None = None) -> tuple[float, float]:
    """The factors of INTERACT's (16) and (17): a step leaves ‖x − x̄‖² at most the first times itself, plus the second
    times α²‖u − ū‖²; and ‖u − ū‖² likewise, plus the second times ‖p_t − p_{t−1}‖².

    Args:
        rho: λ of the mixing matrix, above 0.
        c: c₁ or c₂; None is 1/λ − 1, as in the proof of Theorem 3, which gives (λ, 1/(1−λ)).

    Returns:
        (1 + c) λ² and 1 + 1/c.
    """
    gap = spectral_gap(rho)
    if c is None:
        return float(rho), 1 / gap
    if not c > 0:
        raise ValueError(f"c={c} must be positive: leave it out for 1/λ − 1.")
    return (1 + c) * rho**2, 1 + 1 / c
