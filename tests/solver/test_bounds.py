"""Bounds of single papers: hand-derived values, and experiments that must stay below them."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel import theory

QUADRATIC = theory.Constants(mu_g=1.0, L_g=2.0, C_gxy=2.0, L_fx=0.0, L_fy=1.0, C_fy=3.0)


@pytest.mark.parametrize("lower", ["ed", "extra", "gt"])
@pytest.mark.parametrize("upper", ["ed", "extra", "gt"])
def test_sparkle_has_the_table_of_mixtures(lower, upper):
    """Corollaries 2 to 4 and the talk's table: only gradient tracking below has the second term."""
    for n, rho in ((4, 0.5), (4, 0.999), (50, 0.9)):
        short, long = n**3 / (1 - rho) ** 2, n / (1 - rho) ** (8 / 3)
        expected = max(short, long) if lower == "gt" else short
        assert theory.sparkle(n, rho, lower=lower, upper=upper) == pytest.approx(expected)
    assert 4 / 0.001 ** (8 / 3) > 4**3 / 0.001**2  # the second term is felt at ρ = 0.999


def test_gossip_dsbo_has_theorems_5_1_and_5_3():
    assert theory.gossip_dsbo(4, 100, 0.5) == pytest.approx((1 / 20, 4 / 25))  # 1/√400 and 4 / (100 · ¼)
    assert theory.gossip_dsbo(4, 100, 0.5, pl=True) == pytest.approx((1 / 400, math.log(100) / 2500))
    # The transient of 5.1: the network's term is the smaller one from n³/(1−ρ)⁴ steps on.
    change = int(theory.transient("gossip-dsbo", 4, 0.5))
    before, after = theory.gossip_dsbo(4, change // 2, 0.5), theory.gossip_dsbo(4, change, 0.5)
    assert before.consensus > before.asymptotic and after.consensus <= after.asymptotic


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
    alpha = theory.diminishing(1.0, 10.0)["alpha"]
    ends = {}
    for nodes in (1, 16):
        for steps in (100, 1600):
            x = np.zeros(400)  # runs
            for k in range(steps):
                x = x - alpha(k) * (x - 1 + rng.normal(size=(nodes, 400)).mean(0))
            ends[nodes, steps] = np.mean((x - 1) ** 2) / 2
    for few, many in (((1, 100), (1, 1600)), ((1, 1600), (16, 1600))):
        assert 8 < ends[few] / ends[many] < 32  # 16, constants and chance aside


def test_constants_of_lemmas_1_and_2():
    c = theory.Constants(mu_g=2.0, L_g=4.0, C_gxy=3.0, L_fx=1.0, L_fy=5.0, C_fy=7.0, L_gxy=0.5, L_gyy=0.25)
    assert c.L_y == 1.5
    assert c.L_f == pytest.approx(1 + 5 * 3 / 2 + 7 * (0.25 + 0.25 * 3 / 4))
    assert c.L_l == pytest.approx(2.5 * c.L_f)
    printed = 2 + 6 * 9 / 4 * 25 + 6 * 49 / 4 * 0.25 + 6 * 9 * 49 * 0.0625 / 16
    assert pytest.approx(math.sqrt(printed)) == c.L_K
    with pytest.raises(ValueError, match=r"mu_g=3 must be positive and at most L_g=2"):
        theory.Constants(3, 2, 1, 1, 1, 1)


def test_interact_step_sizes_by_hand():
    """μ = 1, L = 2, C = 2, L_fy = 1: L_y = 2, L_f = 2, L_ℓ = 6, L_K² = 24, β ≤ ⅓, r = 2/27."""
    sizes = theory.interact_step_sizes(QUADRATIC, 5, 0.5)
    assert sizes["beta"] == pytest.approx(1 / 3)
    r = 2 / 27
    by_hand = [
        1 / 24, math.sqrt(0.5 / 10) / (4 * math.sqrt(24)), 1 / 2.5, 0.25 / (32 * 24), 2.5 / 24,
        9 * r**2 * 2.5 / (32 * 4 * (1 + 1 / r) * 4), (1 - r) * (1 + r) * r * 0.25 / (32 * 4 * 3 * 24 / 3),
        0.5 / (4 * math.sqrt(24)), 1.0,
    ]  # fmt: skip
    assert sizes["alpha"] == pytest.approx(min(by_hand))
    assert theory.interact_step_sizes(QUADRATIC, 5, 0.9)["alpha"] < sizes["alpha"]  # Remark 1: denser is faster
    with pytest.raises(ValueError, match=r"beta=1 must be positive and at most 0\.333"):
        theory.interact_step_sizes(QUADRATIC, 5, 0.5, beta=1)


def _interact_run(steps):
    """f_i = ½‖y − a_i‖², g_i = ½(y − x)ᵀH(y − x) with H = diag(1, 2), so that y* = x and ∇ℓ_i = x − a_i."""
    nodes = 5
    a = np.random.default_rng(0).normal(size=(nodes, 1, 2))
    curvature = jnp.array([1.0, 2.0])
    problem = db.Problem(
        lambda x, y, batch: 0.5 * jnp.sum((y - batch.mean(0)) ** 2),
        lambda x, y, batch: 0.5 * jnp.sum(curvature * (y - x) ** 2) + 0 * batch.sum(),
        upper_data=a, lower_data=a, x0=jnp.zeros(2), y0=jnp.ones(2), personal=True,
    )  # fmt: skip
    graph = db.graphs.ring(nodes)
    sizes = theory.interact_step_sizes(QUADRATIC, nodes, graph.rho)

    def measure(snapshot):  # 𝔐 of (11), in closed form
        x, y, _ = (np.asarray(leaf) for leaf in (*snapshot.nodes[:2], 0))
        return sum(np.sum(part**2) for part in (x.mean(0) - a.mean((0, 1)), x - x.mean(0), y - x.mean(0)))

    method = db.interact(**sizes, hypergradient=db.hypergradient.exact())
    result = db.solve(problem, method, graph, steps=steps, eval_every=4, metrics=[measure])
    slopes = 1 - a[:, 0]  # u₀: ∇̄f_i = y − a_i at y = 1
    start = 0.5 * np.sum(a**2) / nodes  # ℓ(0)
    tracked = np.sum((slopes - slopes.mean(0)) ** 2)
    least = 0.5 * np.sum((a - a.mean(0)) ** 2) / nodes
    r = sizes["beta"] * 2 / 9
    weight = (1 - graph.rho) / (32 * (1 + 1 / r) * 4)
    return result, graph, sizes, start + weight * nodes * 2.0 + sizes["alpha"] * tracked - least


def test_interact_stays_below_theorem_1():
    steps = 60
    result, graph, sizes, gap = _interact_run(steps)
    measured = float(result.trace["measure"].mean())
    rounds = theory.interact_rounds(QUADRATIC, measured, gap, **sizes, rho=graph.rho)
    assert rounds >= steps  # the theorem allows as many for what was reached in `steps`
    tenth = theory.interact_rounds(QUADRATIC, measured / 10, gap, **sizes, rho=graph.rho)
    assert tenth == pytest.approx(10 * rounds, rel=1e-3)  # of order 1/ε
    assert result.trace["measure"][-1] < result.trace["measure"][0]


@pytest.mark.parametrize("terms", [1, 3, 10])
def test_the_neumann_series_is_within_its_bias(terms):
    """INTERACT's Lemma 3 on a quadratic: the mean of (22) is −J (1/L Σ_{k<K} (I − H/L)^k) ∇_y f."""
    rng = np.random.default_rng(terms)
    q, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    hessian = q @ np.diag([1.0, 1.2, 1.7, 2.0]) @ q.T
    jacobian, slope = rng.normal(size=(3, 4)), rng.normal(size=4)
    size = lambda m: np.linalg.norm(m, 2) if m.ndim == 2 else np.linalg.norm(m)  # noqa: E731
    c = theory.Constants(1.0, 2.0, C_gxy=size(jacobian), L_fx=0, L_fy=0, C_fy=size(slope))
    series = sum(np.linalg.matrix_power(np.eye(4) - hessian / 2, k) for k in range(terms)) / 2
    bias = size(jacobian @ (series - np.linalg.inv(hessian)) @ slope)
    assert bias <= theory.neumann_bias(c, terms)
    # A direction of the smallest curvature attains it.
    worst = q[:, 0]
    c = theory.Constants(1.0, 2.0, C_gxy=1.0, L_fx=0, L_fy=0, C_fy=1.0)
    attained = size((series - np.linalg.inv(hessian)) @ worst)
    assert attained == pytest.approx(theory.neumann_bias(c, terms))


def test_the_bias_of_svr_interact_falls_geometrically():
    biases = [theory.interact_bias(QUADRATIC, terms, 1e-4, 0.1, 0.5) for terms in (1, 2, 3)]
    assert np.diff(np.log(biases)) == pytest.approx(2 * math.log(1 / 2))  # (1 − μ/L)² = ¼ a term
    r = 0.1 * 2 / 3 / 3
    least = min(0.5 / 4, 3 * r**2 * 0.5 / (32 * (1 + r) * 4), 5e-5)
    assert biases[0] == pytest.approx(2 * 1e-4 * (2 * 3 * 0.5) ** 2 / least)


def test_svr_interact_step_sizes_by_hand():
    """With L_y = 2, L_f = 2, L_ℓ = 6 and L_K² = 24 as above, m = 5 and λ = ½: β ≤ ½ · 3 / (4096 · 24)."""
    sizes = theory.svr_interact_step_sizes(QUADRATIC, 5, 0.5)
    beta = min(1 / (768 * 24 * 3), 1.5 / (4096 * 24), 9 / 2, 8 / (24 * 24 * 3), 1.5 / (512 * 24), 1 / 6, 16 / 1.5)
    r, K = beta * 2 / 9, math.sqrt(24)
    by_hand = [
        1 / 48, r / (16 * 5 * 4 * (r + 1)), 1 / (8 * K * math.sqrt(5)), 1 / 2.5, 0.25 / (128 * 24),
        0.125 * 5 / (6 + 16 * 24 * 5), math.sqrt(0.1) / (16 * K), 288 * r * (1 + r) * 5 * 4 / (0.5 * 4),
        r * (1 + r) * 0.5 / (256 * 4 * 3 * 24 * beta), r * (1 + r) * 0.25 / (512 * 4 * 3 * 24 * beta),
        math.sqrt(0.5) / (8 * K), 0.25 / (16 * (1 + 1 / r) * 4), math.sqrt(0.5 / (64 * 24)), 128 / 0.5,
    ]  # fmt: skip
    assert sizes == {"alpha": pytest.approx(min(by_hand)), "beta": pytest.approx(beta)}
    plain = theory.interact_step_sizes(QUADRATIC, 5, 0.5)
    assert sizes["alpha"] < plain["alpha"] and sizes["beta"] < plain["beta"]  # what noise costs
    with pytest.raises(ValueError, match=r"beta=1 must be positive and at most 1\.53e-05"):
        theory.svr_interact_step_sizes(QUADRATIC, 5, 0.5, beta=1)


def test_svr_interact_needs_terms_of_order_log_and_steps_of_order_one_over_epsilon():
    at = (1e-4, 0.1, 0.5)  # α, β, λ
    few, more, most = (theory.svr_interact_terms(QUADRATIC, epsilon, *at) for epsilon in (1e-2, 1e-4, 1e-6))
    assert more - few == pytest.approx(most - more, abs=1) and most - more == pytest.approx(math.log(100, 4), abs=1)
    for terms, epsilon in ((few, 1e-2), (most, 1e-6)):
        below, above = (theory.interact_bias(QUADRATIC, each, *at) for each in (terms, terms - 1))
        assert below <= epsilon / 2 < above
        rounds = theory.svr_interact_rounds(QUADRATIC, epsilon, 1.0, *at, terms=terms)
        without = theory.interact_rounds(QUADRATIC, epsilon, 1.0, *at)
        assert without < rounds <= 2 * without + 1, "at most twice those of INTERACT with the same step sizes"
    with pytest.raises(ValueError, match=rf"terms=1 leaves a bias above epsilon=0\.01: give {few} or more"):
        theory.svr_interact_rounds(QUADRATIC, 1e-2, 1.0, *at, terms=1)
    exact = theory.Constants(2.0, 2.0, C_gxy=1.0, L_fx=0, L_fy=1.0, C_fy=1.0)
    assert theory.svr_interact_terms(exact, 1e-9, *at) == 1


@pytest.mark.parametrize("graph", [db.graphs.ring(7), db.graphs.path(5), db.graphs.erdos_renyi(9, 0.5)])
def test_contractions_16_and_17_hold(graph):
    rng = np.random.default_rng(0)
    for c in (None, 0.1, 2.0):
        keep, inflow = theory.contraction(graph.rho, c)
        for _ in range(20):
            x, u, p = rng.normal(size=(3, graph.nodes, 4))
            apart = lambda s: np.sum((s - s.mean(0)) ** 2)  # noqa: E731
            assert apart(graph.W @ x - 0.3 * u) <= keep * apart(x) + inflow * 0.3**2 * apart(u) + 1e-9
            assert apart(graph.W @ u + p) <= keep * apart(u) + inflow * np.sum(p**2) + 1e-9  # p_t − p_{t−1} is p
    assert theory.contraction(0.8) == pytest.approx(theory.contraction(0.8, 1 / 0.8 - 1))
    # It is attained: x along the second eigenvector, and u opposite to it.
    values, vectors = np.linalg.eigh(graph.W)
    second = vectors[:, np.argsort(np.abs(values))[-2]]
    keep, inflow = theory.contraction(graph.rho)
    x, u = second[:, None], -np.sign(values[np.argsort(np.abs(values))[-2]]) * (1 - graph.rho) * second[:, None]
    apart = lambda s: np.sum((s - s.mean(0)) ** 2)  # noqa: E731
    assert apart(graph.W @ x - u) == pytest.approx(keep * apart(x) + inflow * apart(u))
