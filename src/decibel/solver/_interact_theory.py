"""INTERACT's and SVR-INTERACT's theorems as functions: constants, step sizes, the bias of a Neumann series, steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ._complexity import positive_integer, spectral_gap


@dataclass(frozen=True)
class Constants:
    """The constants of INTERACT's Assumptions 1 and 2 (§4.2), in the paper's letters.

    Lemma 1 defines L_y, L_f and L_ℓ as squares of Lipschitz constants. Here they are the Lipschitz constants
    themselves, which (14), (15) and the theorems square.

    Args:
        mu_g: μ_g, the strong convexity of g in y.
        L_g: the Lipschitz constant of ∇g.
        C_gxy: a bound on ‖∇²_xy g‖.
        L_fx: the Lipschitz constant of ∇_x f.
        L_fy: that of ∇_y f.
        C_fy: a bound on ‖∇_y f‖.
        L_gxy: the Lipschitz constant of ∇²_xy g; 0 where g is quadratic.
        L_gyy: that of ∇²_yy g.

    References:
        INTERACT, §4.2, Assumptions 1 and 2, Lemma 1 and (13); §5.2, Lemma 4; Liu et al., INTERACT: Achieving Low Sample
        and Communication Complexities in Decentralized Bilevel Learning over Networks, 2022.
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
        """The Lipschitz constant of y*(x) (Lemma 1, whose L_y is its square)."""
        return self.C_gxy / self.mu_g

    @property
    def L_f(self) -> float:
        """That of ∇̄f in y (Lemma 1, likewise)."""
        bends = self.L_gxy / self.mu_g + self.L_gyy * self.C_gxy / self.mu_g**2
        return self.L_fx + self.L_fy * self.C_gxy / self.mu_g + self.C_fy * bends

    @property
    def L_l(self) -> float:
        """L_ℓ, that of ∇ℓ (Lemma 1, likewise)."""
        return self.L_f * (1 + self.L_y)

    @property
    def L_Kd(self) -> float:
        """That of ∇̄f in x and y together (Lemma 2, (13), whose C_gy we read as C_gxy)."""
        inverse = 1 / self.mu_g**2
        return self._together(inverse, self.L_gyy**2 * inverse**2)

    def L_Ks(self, terms: int) -> float:
        """That of the estimate (22) of ∇̄f with K terms, in the mean square (Lemma 4). It grows with K: as √K where g is
        quadratic, and as K² otherwise.

        Args:
            terms: K of the Neumann series.
        """
        K = positive_integer("terms", terms)
        return self._together(K / (2 * self.mu_g * self.L_g - self.mu_g**2), K**4 * self.L_gyy**2 / self.L_g**4)

    def _together(self, inverse: float, bend: float) -> float:
        """(13) and Lemma 4, which differ in what stands for ‖H⁻¹‖² and for the square of its Lipschitz constant."""
        linear = (self.C_gxy * self.L_fy) ** 2 + (self.C_fy * self.L_gxy) ** 2
        return math.sqrt(2 * self.L_fx**2 + 6 * linear * inverse + 6 * (self.C_gxy * self.C_fy) ** 2 * bend)


def interact_step_sizes(constants: Constants, nodes: int, rho: float, *, beta: float | None = None) -> dict[str, float]:
    """The largest step sizes for which INTERACT's Theorem 1 holds.

    They are far smaller than what works: the paper's own experiments use 0.5. Two limits differ from the printed ones,
    with which the theorem is false or its proof incomplete: m(1−λ)/(4 L_ℓ²) where L_ℓ is printed, and α ≤ (1−λ)²/2,
    which is missing (docs/evidence/errata.md).

    Args:
        constants: of the losses.
        nodes: m.
        rho: λ, the second largest eigenvalue of the mixing matrix in magnitude.
        beta: a smaller β than the largest.

    Returns:
        `alpha` and `beta`, for `db.interact`.

    References:
        INTERACT, §4.2, Theorem 1.
    """
    c = constants
    m = positive_integer("nodes", nodes)
    gap = spectral_gap(rho)
    sum_mu_L = c.mu_g + c.L_g
    beta = _at_most(beta, [3 * sum_mu_L / (c.mu_g * c.L_g), 1 / sum_mu_L], "Theorem 1")
    r = lower_rate(c, beta)
    L_K = c.L_Kd
    limits = [
        _over(1, 4 * c.L_l),
        _over(math.sqrt(gap / (2 * m)), 4 * L_K),
        1 / (m * gap),
        _over(gap**2, 32 * L_K**2),
        _over(m * gap, 4 * c.L_l**2),  # L_ℓ is printed: C₂ of (20) has the square that (14) needs
        _over(9 * r**2 * m * gap, 32 * c.L_y**2 * (1 + 1 / r) * c.L_f**2),
        _over((1 - r) * (1 + r) * r * gap**2, 32 * c.L_y**2 * sum_mu_L * L_K**2 * beta),
        _over(gap, 4 * L_K),
        1.0,
        gap**2 / 2,  # not printed: without it C₅ of (20) is positive where L_K is small
    ]
    return {"alpha": min(limits), "beta": beta}


def svr_interact_step_sizes(
    constants: Constants, nodes: int, rho: float, terms: int, *, beta: float | None = None
) -> dict[str, float]:
    """The largest step sizes for which SVR-INTERACT's Theorem 3 holds, corrected as those of `interact_step_sizes`.

    L_K is the larger of L_Ks(K) of Lemma 4 and L_Kd of (13), since both the estimate and full gradients move p. Limits
    that a constant of 0 leaves open are left out. They are far smaller than those of Theorem 1 and than what works. The
    theorem is for batches of `period` samples or more, |S| ≥ q, which only its proof says.

    Args:
        constants: of the losses.
        nodes: m.
        rho: λ, the second largest eigenvalue of the mixing matrix in magnitude.
        terms: K of the Neumann series.
        beta: a smaller β than the largest.

    Returns:
        `alpha` and `beta`, for `db.svr_interact`.

    References:
        INTERACT, §5.2, Theorem 3 and Lemma 4. The constants of its proof are in a technical report that we have not
        seen.
    """
    c = constants
    m = positive_integer("nodes", nodes)
    gap = spectral_gap(rho)
    sum_mu_L = c.mu_g + c.L_g
    product = c.mu_g * c.L_g
    L_K = max(c.L_Kd, c.L_Ks(terms))
    K2 = L_K**2
    y2 = c.L_y**2
    largest = [
        _over(gap * product, 768 * K2 * sum_mu_L),
        _over(gap * sum_mu_L, 4096 * K2),
        3 * sum_mu_L / product,
        _over(y2 * product, 24 * K2 * sum_mu_L),
        _over(gap * sum_mu_L, 512 * K2),
        1 / (2 * sum_mu_L),
        16 / (gap * sum_mu_L),
    ]
    beta = _at_most(beta, largest, "Theorem 3")
    r = lower_rate(c, beta)
    limits = [
        _over(1, 8 * c.L_l),
        _over(r, 16 * m * y2 * (r + 1)),
        _over(1, 8 * L_K * math.sqrt(m)),
        1 / (m * gap),
        _over(gap**2, 128 * K2),
        _over(gap * m, 4 * (c.L_l**2 + 16 * K2 * m)),  # L_ℓ is printed, as in Theorem 1
        _over(math.sqrt(gap / m), 16 * L_K),
        _over(288 * r * (1 + r) * m * y2, gap * c.L_f**2),
        _over(r * (1 + r) * gap, 256 * y2 * sum_mu_L * K2 * beta),
        _over(r * (1 + r) * gap**2, 512 * y2 * sum_mu_L * K2 * beta),
        _over(math.sqrt(gap), 8 * L_K),  # twice in the theorem
        _over(gap**2, 16 * (1 + 1 / r) * y2),
        _over(32 * y2, gap),
        gap**2 / 2,  # not printed, as in Theorem 1
    ]
    return {"alpha": min(limits), "beta": beta}


def _over(numerator: float, denominator: float) -> float:
    """A limit on a step size; infinite where a constant is 0, which leaves it open."""
    return numerator / denominator if numerator and denominator else math.inf


def _at_most(beta: float | None, limits: list[float], theorem: str) -> float:
    most = min(limits)
    beta = most if beta is None else beta
    if not 0 < beta <= most:
        raise ValueError(f"beta={beta} must be positive and at most {most:.3g}: {theorem} has no larger one.")
    return beta


def lower_rate(c: Constants, beta: float) -> float:
    """r of INTERACT's theorems, a third of how fast a step β brings y closer to y*."""
    return beta * c.mu_g * c.L_g / (c.mu_g + c.L_g) / 3


def _descent(c: Constants, alpha: float, beta: float, rho: float) -> float:
    """min{(1−λ)/4, 3r²(1−λ)/(32(1+r)L_y²), α/2} of (21) and (30)."""
    gap = spectral_gap(rho)
    r = lower_rate(c, beta)
    return min(gap / 4, _over(3 * r**2 * gap, 32 * (1 + r) * c.L_y**2), alpha / 2)


def neumann_bias(constants: Constants, terms: int) -> float:
    """How far the mean of the hypergradient's estimate with K terms may lie from its limit,
    C_gxy C_fy/μ_g (1 − μ_g/L_g)^K.

    Args:
        constants: of the losses.
        terms: K.

    References:
        INTERACT, §5.2, Lemma 3.
    """
    c = constants
    return c.C_gxy * c.C_fy / c.mu_g * (1 - c.mu_g / c.L_g) ** positive_integer("terms", terms)


def interact_bias(constants: Constants, terms: int, alpha: float, beta: float, rho: float) -> float:
    """C_bias of SVR-INTERACT's Theorem 3, below which its bound on the mean of 𝔐 does not fall: it shrinks
    geometrically in K.

    As printed. Between full gradients the error of p is the difference of two truncation errors, and may be twice that
    of Lemma 3, so that up to four times C_bias may remain.

    Args:
        constants: of the losses.
        terms: K of the Neumann series.
        alpha: the step size of x.
        beta: that of y.
        rho: λ of the mixing matrix.

    References:
        INTERACT, §5.2, Theorem 3, below (28).
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

    References:
        INTERACT, §4.2, Theorem 1 and Corollary 2; §4.3, Step 4, for 𝔅₀.
    """
    if not epsilon > 0 or not gap >= 0:
        raise ValueError(f"epsilon={epsilon} must be positive and gap={gap} not negative: they bound 𝔐 and 𝔅₀ − ℓ*.")
    return max(math.ceil(gap / (epsilon * _descent(constants, alpha, beta, rho))) - 1, 0)


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

    References:
        INTERACT, §5.2, Theorem 3, (28).
    """
    remaining = epsilon - interact_bias(constants, terms, alpha, beta, rho)
    if remaining <= 0:
        least = svr_interact_terms(constants, epsilon, alpha, beta, rho)
        raise ValueError(f"terms={terms} leaves a bias above epsilon={epsilon}: give {least} or more.")
    return interact_rounds(constants, remaining, gap, alpha, beta, rho)


def svr_interact_terms(constants: Constants, epsilon: float, alpha: float, beta: float, rho: float) -> int:
    """The fewest terms K of the Neumann series with which C_bias is at most ε/2: of order log(1/ε).

    Args:
        constants: of the losses.
        epsilon: ε.
        alpha: the step size of x.
        beta: that of y.
        rho: λ of the mixing matrix.

    References:
        INTERACT, §5.2, Corollary 4.
    """
    if not epsilon > 0:
        raise ValueError(f"epsilon={epsilon} must be positive: give the bound on 𝔐 to reach.")
    first = interact_bias(constants, 1, alpha, beta, rho)
    shrinks = 2 * math.log(1 - constants.mu_g / constants.L_g or 1)
    if first <= epsilon / 2 or not shrinks:  # with μ_g = L_g one term is exact
        return 1
    least = 1 + math.ceil(math.log(epsilon / 2 / first) / shrinks)
    return least if interact_bias(constants, least, alpha, beta, rho) <= epsilon / 2 else least + 1  # rounding


def contraction(rho: float, c: float | None = None) -> tuple[float, float]:
    """The factors of INTERACT's (16) and (17): a step leaves ‖x − x̄‖² at most the first times itself, plus the second
    times α²‖u − ū‖²; and ‖u − ū‖² likewise, plus the second times ‖p_t − p_{t−1}‖².

    Args:
        rho: λ of the mixing matrix, above 0.
        c: c₁ or c₂; None is 1/λ − 1, as in the proofs of both theorems, which gives (λ, 1/(1−λ)).

    Returns:
        (1 + c) λ² and 1 + 1/c.

    References:
        INTERACT, §4.3, Step 3, (16) and (17).
    """
    gap = spectral_gap(rho)
    if c is None:
        return float(rho), 1 / gap
    if not c > 0:
        raise ValueError(f"c={c} must be positive: leave it out for 1/λ − 1.")
    return (1 + c) * rho**2, 1 + 1 / c
