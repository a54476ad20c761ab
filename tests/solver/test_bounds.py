"""Bounds of D-SOBA, SPARKLE and Gossip-DSBO: written out again in NumPy, and where their terms meet."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest

import decibel as db
from decibel import theory
from decibel.solver._complexity import RIVALS, ROWS

SIZES = (1, 2, 8, 50)
RHOS = (0.1, 0.5, 0.9, 0.999)


def dsoba(n, rho, b, T):
    """D-SOBA's Theorem 1: 1/√(nT), and the other terms."""
    gap = 1 - rho
    first = rho ** (2 / 3) / (gap ** (1 / 3) * T ** (2 / 3))
    second = (rho * b / gap) ** (2 / 3) / T ** (2 / 3)
    return 1 / np.sqrt(n * T), np.array([first, second, rho / (gap * T), 1 / T])


@pytest.mark.parametrize("b", [0.0, 0.1, 1.0, 3.0, 20.0])
def test_dsoba_is_theorem_1(b):
    for n in SIZES:
        for rho in RHOS:
            bound = theory.dsoba(n, rho, b)
            for T in (1, 100, 10**7):
                rate, others = dsoba(n, rho, b, T)
                assert list(bound.parts(T).values()) == pytest.approx([rate, *others])
                assert bound(T) == pytest.approx(rate + others.sum())


@pytest.mark.parametrize("b", [0.0, 0.1, 1.0, 3.0, 20.0])
def test_dsobas_transient_is_where_theorem_1_reaches_the_rate(b):
    for n in SIZES:
        for rho in RHOS:
            T, gap = theory.dsoba(n, rho, b).transient, 1 - rho
            by_hand = [
                rho**4 * n**3 / gap**2, rho**4 * n**3 * b**4 / gap**4, rho**2 * n / gap**2, n,
            ]  # fmt: skip
            assert pytest.approx(max(by_hand)) == T
            rate, others = dsoba(n, rho, b, T)
            assert others.max() == pytest.approx(rate)  # later every term is below it, and earlier one is not
            for later in (10 * T, 1e6 * T):
                rate, others = dsoba(n, rho, b, later)
                assert np.all(others <= rate * (1 + 1e-9))
            rate, others = dsoba(n, rho, b, 0.9 * T)
            assert others.max() > rate
            if rho >= 0.5 and n > 2:  # the ranking of `transient` drops ρ⁴ < 1, and no more
                assert T <= theory.transient("d-soba", n, rho, b) <= max(T / rho**4, n**3 / gap**2) * (1 + 1e-9)


@pytest.mark.parametrize("b", [2.0, 3.0, 20.0])
def test_the_squared_heterogeneity_of_the_tables_is_too_early(b):
    n, rho = 16, 0.9
    printed = rho**4 * n**3 * b**2 / (1 - rho) ** 4
    rate, others = dsoba(n, rho, b, printed)
    assert others[1] == pytest.approx(b ** (1 / 3) * rate)


TRACKING = ("gt", "semi-gt", "non-gt")


def deltas(rho_x, rho_y, lower, upper):
    """δ_x, δ_y, δ̂_x and δ̂_y of SPARKLE's Corollaries 2 to 4."""
    x, y = 1 - rho_x, 1 - rho_y
    return x**-2, y**-2, x ** -(2 if upper in TRACKING else 1.5), y ** -(8 / 3 if lower in TRACKING else 2)


MIXTURES = [("ed", "ed"), ("extra", "gt"), ("gt", "ed"), ("non-gt", "semi-gt"), ("semi-gt", "extra")]


@pytest.mark.parametrize(("lower", "upper"), MIXTURES)
def test_sparkle_is_theorem_1(lower, upper):
    """Written out again as on the slide, with δ_{s,i} by the roots that make its transient Corollary 1's."""
    for n, rho_x, rho_y in ((3, 0.2, 0.9), (20, 0.99, 0.7)):
        dx, dy, hx, hy = deltas(rho_x, rho_y, lower, upper)
        x1, y1, x3, y3 = dx ** (1 / 4), dy ** (1 / 6), hx ** (1 / 2), hy ** (1 / 2)
        y2 = dy ** (1 / 10) * hy ** (1 / 5)
        for κ, σ, K in ((1.0, 1.0, 10), (7.0, 0.3, 5000), (2.0, 0.0, 99)):
            slide = (
                κ**5 * σ / math.sqrt(n * K)
                + κ ** (16 / 3) * (y1 + y1) * σ ** (2 / 3) / K ** (2 / 3)
                + κ ** (7 / 2) * x1 * σ ** (1 / 2) / K ** (3 / 4)
                + (κ ** (26 / 5) * y2 + κ**6 * y2) * σ ** (2 / 5) / K ** (4 / 5)
                + (κ ** (16 / 3) * y3 + κ ** (14 / 3) * y3 + κ ** (8 / 3) * x3) / K
                + (κ + κ**4) / K
            )
            bound = theory.sparkle(n, rho_x, rho_y, lower=lower, upper=upper, kappa=κ, sigma=σ)
            assert bound(K) == pytest.approx(slide)


@pytest.mark.parametrize(("lower", "upper"), MIXTURES)
def test_sparkles_transient_is_corollary_1_and_grows_with_kappa_and_noise(lower, upper):
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = int(rng.integers(1, 500))
        rho_x, rho_y = 1 - 10 ** rng.uniform(-6, 0, 2)
        κ, σ = 10 ** rng.uniform(0, 3), 10 ** rng.uniform(-2, 1)
        dx, dy, hx, hy = deltas(rho_x, rho_y, lower, upper)
        plain = theory.sparkle(n, rho_x, rho_y, lower=lower, upper=upper)
        assert plain.transient == pytest.approx(max(n**2 * dx, n**3 * dy, n * hx, n * hy))
        # Each term of Theorem 1 against κ⁵σ/√(nK), solved for K by hand; δ_{y,2}^(10/3) = δ_y^⅓ δ̂_y^⅔.
        middle = n ** (5 / 3) * dy ** (1 / 3) * hy ** (2 / 3)
        by_hand = [
            κ**2 * n**3 * dy, κ**-6 * n**2 * dx, κ ** (2 / 3) * middle, κ ** (10 / 3) * middle,
            κ ** (2 / 3) * n * hy, κ ** (-2 / 3) * n * hy, κ ** (-14 / 3) * n * hx, n / κ**8, n / κ**2,
        ]  # fmt: skip
        full = theory.sparkle(n, rho_x, rho_y, lower=lower, upper=upper, kappa=κ, sigma=σ)
        assert full.transient == pytest.approx(max(max(by_hand) / σ**2, 1))
    assert theory.sparkle(8, 0.5, sigma=0.0).transient == math.inf  # no noise, no 1/√(nK) to reach


@pytest.mark.parametrize("lower", ["ed", "extra", "gt"])
@pytest.mark.parametrize("upper", ["ed", "extra", "gt"])
def test_sparkle_has_the_table_of_mixtures(lower, upper):
    """Corollaries 2 to 4 and the talk's table: only gradient tracking below has the second term."""
    for n, rho in ((4, 0.5), (4, 0.999), (50, 0.9)):
        short, long = n**3 / (1 - rho) ** 2, n / (1 - rho) ** (8 / 3)
        expected = max(short, long) if lower == "gt" else short
        assert theory.sparkle(n, rho, lower=lower, upper=upper).transient == pytest.approx(expected)
    assert 4 / 0.001 ** (8 / 3) > 4**3 / 0.001**2  # the second term is felt at ρ = 0.999


def test_levels_by_hand():
    # n = 16, 1 − ρ_y = 1/2: x is free down to 1 − ρ_x = 1/8, where n²·8² = n³·2².
    assert theory.sparkle(16, 1 - 1 / 8, 0.5).transient == pytest.approx(16**3 * 4)
    assert theory.sparkle(16, 1 - 1 / 16, 0.5).transient == pytest.approx(16**2 * 256)
    assert theory.sparkle(16, 0.5, 1 - 1 / 8).transient == pytest.approx(16**3 * 64)


def test_gossip_dsbo_has_theorems_5_1_and_5_3():
    parts = theory.gossip_dsbo(4, 0.5).parts(100)
    assert list(parts.values()) == pytest.approx([1 / 20, 4 / 25])  # 1/√400 and 4 / (100 · ¼)
    parts = theory.gossip_dsbo(4, 0.5, pl=True).parts(100)
    assert list(parts.values()) == pytest.approx([1 / 400, math.log(100) / 2500])


@pytest.mark.parametrize("n", [2, 8, 50])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.99])
def test_gossip_dsbos_transients_are_where_its_terms_meet(n, rho):
    for G in (1.0, 3.0):
        T = theory.gossip_dsbo(n, rho, gradients=G).transient
        assert pytest.approx(n**3 * G**4 / (1 - rho) ** 4) == T  # as D-SOBA's table prints it
        assert n * G**2 / (T * (1 - rho) ** 2) == pytest.approx(1 / np.sqrt(n * T))
    # Under the PL condition ln T/(T²(1−ρ)²) falls below 1/(nT) for good; by bisection on T ↦ n ln T/((1−ρ)² T).
    T = theory.gossip_dsbo(n, rho, pl=True).transient
    a = n / (1 - rho) ** 2
    if a <= math.e:  # ln T/T is at most 1/e, so that the network's term is never the larger one
        assert T == 1
        return
    low, high = math.e, 1e12
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if a * math.log(middle) > middle else (low, middle)
    assert pytest.approx(high) == T
    assert a * math.log(a) <= T <= 2 * a * math.log(a)  # of order a ln a


def test_steps_until_every_term_is_small():
    bound = theory.gossip_dsbo(4, 0.75)
    assert bound.steps(0.1) == pytest.approx(640)  # max{1/(nε²), n/((1−ρ)²ε)} = max{25, 640}
    assert bound.steps(1e-4) == pytest.approx(1 / (4 * 1e-8))
    linear = theory.gossip_dsbo(4, 0.5, pl=True)
    assert linear.steps(1e-9) == pytest.approx(1 / (4 * 1e-9))  # Theorem 5.3: 1/(Kε)
    T = theory.gossip_dsbo(4, 0.999, pl=True).steps(1e-3)
    assert math.log(T) / (T * 0.001) ** 2 == pytest.approx(1e-3)
    with pytest.raises(ValueError, match="epsilon=0 must be positive"):
        bound.steps(0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: theory.dsoba(4, 0.5, -1.0), "heterogeneity=-1.0"),
        (lambda: theory.dsoba(4, 0.5)(0), "steps=0"),
        (lambda: theory.sparkle(4, 0.5, kappa=0.5), "kappa=0.5 must be at least 1"),
        (lambda: theory.sparkle(4, 0.5, sigma=-0.1), "sigma=-0.1"),
        (lambda: theory.sparkle(8, 0.5, lower="edd"), "did you mean 'ed'"),
        (lambda: theory.gossip_dsbo(4, 1.0), "rho=1.0"),
        (lambda: theory.gossip_dsbo(4, 0.5, gradients=float("nan")), "gradients=nan"),
        (lambda: theory.gossip_dsbo(4, 0.5, pl=True, gradients=2.0), "does not use gradients=2.0: leave it out"),
    ],
)
def test_errors(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_diminishing_step_sizes_are_those_of_6():
    sizes = theory.diminishing(0.5, 10.0)
    assert sizes["alpha"](30) == pytest.approx(2 / (0.5 * 40))
    assert sizes["beta"](30) == sizes["theta"](30) == pytest.approx(10 / 40)
    db.gossip_dsbo(**sizes, terms=2, smoothness=2.0, convexity=1.0)
    with pytest.raises(ValueError, match="convexity=0 must be positive and finite"):
        theory.diminishing(0, 1.0)


def test_falling_steps_give_the_rate_of_theorem_5_3():
    """Stochastic gradients of ½(x − 1)² averaged over K nodes with (6): the error falls as 1/(KT)."""
    rng = np.random.default_rng(0)
    alpha = np.asarray(theory.diminishing(1.0, 10.0)["alpha"](np.arange(1600)))
    ends = {}
    for nodes in (1, 16):
        for steps in (100, 1600):
            x = np.zeros(400)  # runs
            for k in range(steps):
                x = x - alpha[k] * (x - 1 + rng.normal(size=(nodes, 400)).mean(0))
            ends[nodes, steps] = np.mean((x - 1) ** 2) / 2
    for few, many in (((1, 100), (1, 1600)), ((1, 1600), (16, 1600))):
        assert 8 < ends[few] / ends[many] < 32  # 16, constants and chance aside


# What holds no formula of a paper; that of `wave_step_size` is ours.
NO_FORMULA = {
    *("Advice", "Bound", "Links", "Measured", "Plan", "Samples", "Term"),
    *("measured_transient", "plans", "wave_step_size"),  # our own
}


@pytest.mark.parametrize("name", sorted(set(theory.__all__) - NO_FORMULA))
def test_every_formula_names_paper_and_place(name):
    place = inspect.getdoc(getattr(theory, name)).partition("References:")[2]
    assert any(paper in place for paper in ("SPARKLE", "D-SOBA", "Gossip-DSBO", "SPDB", "INTERACT")), place
    assert any(result in place for result in ("Theorem", "Corollar", "Lemma", "Table", "Assumption", "(")), place
    assert "§" in place or "slide" in place, place


def test_every_row_of_the_tables_names_its_place():
    for row in (*ROWS.values(), *RIVALS.values()):
        assert "slide" in row.source or "§" in row.source
