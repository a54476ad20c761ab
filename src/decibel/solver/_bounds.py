"""The convergence theorems of D-SOBA, SPARKLE and Gossip-DSBO as functions of the number of steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ..core._names import hint
from ..methods._method import Rate
from ._complexity import positive_integer, spectral_gap


class Term(NamedTuple):
    """One term of a bound, `coefficient` · (ln T)^`logs` / T^`power`.

    Attributes:
        name: what the term depends on.
        coefficient: everything but T.
        power: of 1/T.
        logs: of ln T, 0 or 1.
    """

    name: str
    coefficient: float
    power: float
    logs: int = 0

    def at(self, steps: int) -> float:
        """Its value after `steps` steps."""
        return self.coefficient * math.log(steps) ** self.logs / steps**self.power

    def below(self, level: float, power: float = 0.0) -> float:
        """The T from which the term stays at or below `level`/T^`power`: at least 1, and infinite where it never does.

        Without a logarithm it is (coefficient/level)^(1/d) with d the difference of the powers. With one, u = T^d is
        the larger solution of u = a ln u, a = coefficient/(level · d), which is −a W₋₁(−1/a) with Lambert's W. It
        exists for a > e; below, the term is smaller than the level at every T.
        """
        if not self.coefficient:
            return 1.0
        if not level:
            return math.inf
        difference = self.power - power
        ratio = self.coefficient / level
        if self.logs:
            from scipy.special import lambertw

            ratio /= difference
            ratio = -ratio * float(lambertw(-1 / ratio, -1).real) if ratio > math.e else 1.0
        return max(ratio ** (1 / difference), 1.0)


@dataclass(frozen=True)
class Bound:
    """What a theorem bounds its measure by after T steps, constants dropped: `bound(T)` is the sum of the terms.

    Attributes:
        rate: the term that is left after many steps, the rate of a centralized method.
        terms: the others, which vanish faster.
    """

    rate: Term
    terms: tuple[Term, ...]

    def __call__(self, steps: int) -> float:
        return sum(self.parts(steps).values())

    def parts(self, steps: int) -> dict[str, float]:
        """Every term by its name after `steps` steps."""
        positive_integer("steps", steps)
        return {term.name: term.at(steps) for term in (self.rate, *self.terms)}

    @property
    def transient(self) -> float:
        """The T from which every other term is at most the rate; infinite where the rate is zero (no noise)."""
        return max(term.below(self.rate.coefficient, self.rate.power) for term in self.terms)

    def steps(self, epsilon: float) -> float:
        """The T from which every term is at most `epsilon`."""
        if not epsilon > 0:
            raise ValueError(f"epsilon={epsilon} must be positive: give the error to reach, such as 1e-3.")
        return max(term.below(epsilon) for term in (self.rate, *self.terms))


def dsoba(nodes: int, rho: float, heterogeneity: float = 1.0) -> Bound:
    """D-SOBA's bound on the mean of ‖∇Φ(x̄)‖², which is also that of single-level D-SGD:
    1/√(nT) + ρ^⅔/((1−ρ)^⅓ T^⅔) + ρ^⅔ b^⅔/((1−ρ)^⅔ T^⅔) + ρ/((1−ρ) T) + 1/T.

    Its transient is max{ρ⁴n³/(1−ρ)², ρ⁴n³b⁴/(1−ρ)⁴, ρ²n/(1−ρ)², n}. The tables of D-SOBA and SPARKLE print b², which
    does not follow from it.

    Args:
        nodes: n.
        rho: ρ of the graph.
        heterogeneity: b, a bound on the distance of the nodes' gradients and Hessians from their mean.

    References:
        D-SOBA (talk), slide "Theorem 1" after "D-SOBA Convergence: Assumptions"; Kong et al., Decentralized Bilevel
        Optimization over Graphs: Loopless Algorithmic Update and Transient Iteration Complexity, 2024.
    """
    n = positive_integer("nodes", nodes)
    gap = spectral_gap(rho)
    b = _not_negative("heterogeneity", heterogeneity)
    root = rho ** (2 / 3)
    return Bound(
        Term("1/√(nT)", n**-0.5, 1 / 2),
        (
            Term("network", root / gap ** (1 / 3), 2 / 3),
            Term("heterogeneity", root * (b / gap) ** (2 / 3), 2 / 3),
            Term("network, 1/T", rho / gap, 1.0),
            Term("1/T", 1.0, 1.0),
        ),
    )


# SPARKLE's Theorem 1 besides κ⁵σ/√(nK): a level s, the i of δ_{s,i}, and the powers of κ, σ and 1/K.
SPARKLE_TERMS = (
    ("y", 1, 16 / 3, 2 / 3, 2 / 3),
    ("z", 1, 16 / 3, 2 / 3, 2 / 3),
    ("x", 1, 7 / 2, 1 / 2, 3 / 4),
    ("y", 2, 26 / 5, 2 / 5, 4 / 5),
    ("z", 2, 6.0, 2 / 5, 4 / 5),
    ("y", 3, 16 / 3, 0.0, 1.0),
    ("z", 3, 14 / 3, 0.0, 1.0),
    ("x", 3, 8 / 3, 0.0, 1.0),
)
# Powers of 1/(1−ρ) in δ̂_s (Corollaries 2 to 4), by the strategy of x, and by that of y and z. In δ_s it is 2 for all.
UPPER_POWER = {"ed": 1.5, "extra": 1.5, "gt": 2.0, "semi-gt": 2.0, "non-gt": 2.0}
LOWER_POWER = {"ed": 2.0, "extra": 2.0, "gt": 8 / 3, "semi-gt": 8 / 3, "non-gt": 8 / 3}


def sparkle(
    nodes: int,
    rho_x: float,
    rho_y: float | None = None,
    *,
    lower: str = "ed",
    upper: str | None = None,
    kappa: float = 1.0,
    sigma: float = 1.0,
) -> Bound:
    """SPARKLE's bound on the mean of ‖∇Φ(x̄)‖² after K steps, with W_y = W_z:
    κ⁵σ/√(nK) + κ^(16/3)(δ_{y,1}+δ_{z,1})σ^⅔/K^⅔ + κ^(7/2)δ_{x,1}σ^½/K^¾ + (κ^(26/5)δ_{y,2}+κ⁶δ_{z,2})σ^(2/5)/K^(4/5)
    + (κ^(16/3)δ_{y,3}+κ^(14/3)δ_{z,3}+κ^(8/3)δ_{x,3})/K + (κC_α+κ⁴C_θ)/K.

    Its transient for κ = σ = 1 is Corollary 1's, max{n²δ_x, n³δ_y, n³δ_z, nδ̂_x, nδ̂_y, nδ̂_z}, with δ and δ̂ of
    Corollaries 2 to 4. On one graph it is n³/(1−ρ)² with ED or EXTRA on y, and max{n³/(1−ρ)², n/(1−ρ)^(8/3)} with
    gradient tracking on y. With κ and σ it is the largest of κ²n³δ_y, κ^(10/3)n^(5/3)δ_{z,2}^(10/3), κ⁻⁶n²δ_x,
    κ^(2/3)nδ̂_y and smaller ones, over σ². Heterogeneity is not in it.

    Our reading, since the talk leaves δ_{s,i} to Lemma 18 of the paper: δ_{y,1} = δ_y^(1/6), δ_{x,1} = δ_x^¼ and
    δ_{s,3} = δ̂_s^½, with which Theorem 1 gives Corollary 1; δ_{s,2} = δ_{s,1}^(3/5) δ_{s,3}^(2/5), the largest with
    which it still does; C_α = C_θ = 1.

    Args:
        nodes: n.
        rho_x: ρ of the graph of x.
        rho_y: ρ of the graph of y and z; None is that of x.
        lower: the strategy of y and z.
        upper: the strategy of x; None is that of y.
        kappa: κ, the condition number of g in y, at least 1.
        sigma: σ, a bound on the standard deviation of gradients and second derivatives.

    References:
        SPARKLE (talk), slide "Unified convergence analysis: Assumptions", Theorem 1; slides "SPARKLE with the same
        decentralized mechanism", Corollaries 1 to 3, and "SPARKLE with the different mechanisms across levels",
        Corollary 4; Zhu et al., SPARKLE: A Unified Single-Loop Primal-Dual Framework for Decentralized Bilevel
        Optimization, 2024.
    """
    upper = lower if upper is None else upper
    for name in (lower, upper):
        if name not in LOWER_POWER:
            raise ValueError(f"SPARKLE's theory does not cover the strategy {name!r}: {hint(name, LOWER_POWER)}")
    if not kappa >= 1:
        raise ValueError(f"kappa={kappa} must be at least 1: it is the largest curvature of g over the smallest.")
    n = positive_integer("nodes", nodes)
    sigma = _not_negative("sigma", sigma)
    above = _deltas(spectral_gap(rho_x), 1 / 2, UPPER_POWER[upper])
    below = _deltas(spectral_gap(rho_x if rho_y is None else rho_y), 1 / 3, LOWER_POWER[lower])
    terms = []
    for level, number, of_kappa, of_sigma, power in SPARKLE_TERMS:
        delta = (above if level == "x" else below)[number]
        terms.append(Term(f"δ_{level},{number}", kappa**of_kappa * delta * sigma**of_sigma, power))
    starts = (Term("C_α", kappa, 1.0), Term("C_θ", kappa**4, 1.0))
    return Bound(Term("κ⁵σ/√(nK)", kappa**5 * sigma * n**-0.5, 1 / 2), (*terms, *starts))


def _deltas(gap: float, first: float, hat: float) -> dict[int, float]:
    """δ_{s,1}, δ_{s,2} and δ_{s,3} of SPARKLE; `first` and `hat` are the powers of 1/(1−ρ) in δ_{s,1} and δ̂_s."""
    third = hat / 2
    return {1: gap**-first, 2: gap ** -(3 / 5 * first + 2 / 5 * third), 3: gap**-third}


def gossip_dsbo(nodes: int, rho: float, *, pl: bool = False, gradients: float = 1.0) -> Bound:
    """Gossip-DSBO's bound on the mean of ‖∇F(x̄)‖², 1/√(KT) + K G²/(T(1−ρ)²) (Theorem 5.1), or on F(x̄_T) − F* where F
    satisfies the PL condition, 1/(KT) + ln T/(T²(1−ρ)²) (Theorem 5.3).

    Its transients are K³G⁴/(1−ρ)⁴, and the larger solution of T = a ln T with a = K/(1−ρ)² under the PL condition, of
    order a ln a. The step sizes are those of (5), `db.theory.rates`, or of (6), `db.theory.diminishing`. The paper's ρ
    is the square of ours, which changes no order: 1−ρ² lies between 1−ρ and 2(1−ρ).

    Args:
        nodes: K.
        rho: ρ of the graph.
        pl: whether F satisfies the PL condition.
        gradients: G, a bound on the nodes' gradients. Theorem 5.1 drops it as a constant; D-SOBA's table prints it, as
            G⁴ in the transient. For Theorem 5.3 no paper prints it.

    References:
        Gossip-DSBO, §5.1, Theorem 5.1, and §5.2, Theorem 5.3; G⁴: D-SOBA (talk), slide "Comparison with existing
        algorithms"; Yang, Zhang and Wang, Decentralized Gossip-Based Stochastic Bilevel Optimization over Communication
        Networks, 2022.
    """
    n = positive_integer("nodes", nodes)
    gap = spectral_gap(rho)
    gradients = _not_negative("gradients", gradients)
    if not pl:
        return Bound(Term("1/√(KT)", n**-0.5, 1 / 2), (Term("consensus", n * gradients**2 / gap**2, 1.0),))
    if gradients != 1:
        raise ValueError(f"the bound under the PL condition does not use gradients={gradients}: leave it out.")
    return Bound(Term("1/(KT)", 1 / n, 1.0), (Term("consensus", gap**-2, 2.0, logs=1),))


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

    References:
        Gossip-DSBO, §5.2, (6).
    """
    for name, value in (("convexity", convexity), ("offset", offset)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name}={value} must be positive and finite, since formula (6) divides by it.")
    slow = Falling(float(offset), float(offset))
    return {"alpha": Falling(2 / convexity, float(offset)), "beta": slow, "theta": slow}


def _not_negative(name: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}={value} must be finite and not negative.")
    return float(value)
