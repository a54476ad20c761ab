"""INTERACT's and SVR-INTERACT's theorems: values by hand, proofs redone, and runs that must stay below the bounds."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel import theory

QUADRATIC = theory.Constants(mu_g=1.0, L_g=2.0, C_gxy=2.0, L_fx=0.0, L_fy=1.0, C_fy=3.0)


def test_constants_of_lemmas_1_2_and_4():
    c = theory.Constants(mu_g=2.0, L_g=4.0, C_gxy=3.0, L_fx=1.0, L_fy=5.0, C_fy=7.0, L_gxy=0.5, L_gyy=0.25)
    assert c.L_y == 1.5
    assert c.L_f == pytest.approx(1 + 5 * 3 / 2 + 7 * (0.25 + 0.25 * 3 / 4))
    assert c.L_l == pytest.approx(2.5 * c.L_f)
    printed = 2 + 6 * 9 / 4 * 25 + 6 * 49 / 4 * 0.25 + 6 * 9 * 49 * 0.0625 / 16
    assert pytest.approx(math.sqrt(printed)) == c.L_Kd
    # Lemma 4 with K = 3: 2μL − μ² = 12, K⁴/L⁴ = 81/256.
    printed = 2 + 6 * 9 * 25 * 3 / 12 + 6 * 49 * 0.25 * 3 / 12 + 6 * 9 * 49 * 81 / 256 * 0.0625
    assert pytest.approx(math.sqrt(printed)) == c.L_Ks(3)
    with pytest.raises(ValueError, match=r"mu_g=3 must be positive and at most L_g=2"):
        theory.Constants(3, 2, 1, 1, 1, 1)


@pytest.mark.parametrize("terms", [1, 5, 30])
def test_the_estimate_changes_as_lemma_4_says_and_more_than_lemma_2(terms):
    """(22) of f = y²/2 and g = μy²/2 − Cxy is −(K/L) C (1−μ/L)^k y: its mean square over k by enumeration."""
    for mu, L, C in ((1.0, 1.0, 0.7), (0.2, 1.0, 1.0), (0.5, 4.0, 3.0)):
        c = theory.Constants(mu, L, C_gxy=C, L_fx=0.0, L_fy=1.0, C_fy=0.0)
        slopes = terms / L * C * (1 - mu / L) ** np.arange(terms)
        square = np.mean(slopes**2)  # of the difference at two points y, per their squared distance
        assert square <= c.L_Ks(terms) ** 2
        if mu == L and terms == 30:
            assert square > c.L_Kd**2  # so (13) is not for SVR-INTERACT's estimate
    # With a curved g the constant grows as K², and α, of order 1/L_K², falls by its square.
    curved = theory.Constants(0.5, 1.0, C_gxy=1.0, L_fx=1.0, L_fy=1.0, C_fy=1.0, L_gxy=0.5, L_gyy=1.0)
    assert pytest.approx(math.sqrt(2 + 24 + 6 + 96)) == curved.L_Kd
    assert pytest.approx(math.sqrt(2 + 8 * terms + 2 * terms + 6 * terms**4)) == curved.L_Ks(terms)


def test_step_sizes_of_svr_interact_follow_lemma_4():
    c = theory.Constants(0.5, 1.0, C_gxy=1.0, L_fx=1.0, L_fy=1.0, C_fy=1.0, L_gxy=0.5, L_gyy=1.0)
    few, many = (theory.svr_interact_step_sizes(c, 5, 0.5, terms)["beta"] for terms in (20, 40))
    assert few / many == pytest.approx((c.L_Ks(40) / c.L_Ks(20)) ** 2) == pytest.approx(16, rel=0.01)
    small = theory.Constants(0.5, 1.0, C_gxy=1.0, L_fx=0.0, L_fy=1.0, C_fy=1.0)
    assert small.L_Ks(1) < small.L_Kd  # few terms: full gradients, which (13) is for, are the less smooth ones
    one, two = (theory.svr_interact_step_sizes(small, 5, 0.5, terms) for terms in (1, 2))
    assert one == two


def test_interact_step_sizes_by_hand():
    """μ = 1, L = 2, C = 2, L_fy = 1: L_y = 2, L_f = 2, L_ℓ = 6, L_K² = 24, β ≤ ⅓, r = 2/27."""
    sizes = theory.interact_step_sizes(QUADRATIC, 5, 0.5)
    assert sizes["beta"] == pytest.approx(1 / 3)
    r = 2 / 27
    by_hand = [
        1 / 24, math.sqrt(0.5 / 10) / (4 * math.sqrt(24)), 1 / 2.5, 0.25 / (32 * 24), 2.5 / (4 * 36),
        9 * r**2 * 2.5 / (32 * 4 * (1 + 1 / r) * 4), (1 - r) * (1 + r) * r * 0.25 / (32 * 4 * 3 * 24 / 3),
        0.5 / (4 * math.sqrt(24)), 1.0, 0.25 / 2,
    ]  # fmt: skip
    assert sizes["alpha"] == pytest.approx(min(by_hand))
    assert theory.interact_step_sizes(QUADRATIC, 5, 0.9)["alpha"] < sizes["alpha"]  # Remark 1: denser is faster
    with pytest.raises(ValueError, match=r"beta=1 must be positive and at most 0\.333"):
        theory.interact_step_sizes(QUADRATIC, 5, 0.5, beta=1)


def coefficients(c, m, rho, alpha, beta):
    """C₁ … C₅ of (20), from (14) to (19) with the Lipschitz constants of Lemma 1 and c₁ = c₂ = 1/λ − 1.

    ‖x⁺ − x‖² ≤ 8‖x − x̄‖² + 4α²‖u − ū‖² + 4α²m‖ū‖², as in (18); w is the weight of ‖y − y*‖² in the potential.
    """
    gap, both, r = 1 - rho, c.mu_g + c.L_g, beta * c.mu_g * c.L_g / (c.mu_g + c.L_g) / 3
    w = gap / (32 * (1 + 1 / r) * c.L_y**2)
    moved = (1 + 1 / r) * c.L_y**2 * w + alpha * c.L_Kd**2 / gap  # of ‖x⁺ − x‖²: (15) and, by (19), (17)
    return (
        -alpha / 2 + c.L_l * alpha**2 / 2 + 4 * alpha**2 * m * moved,
        alpha * c.L_l**2 / m - gap + 8 * moved,
        2 * alpha * c.L_f**2 / m + w * ((1 + r) ** 2 * (1 - 6 * r) - 1),
        (r - 1) * w * (1 + r) ** 2 * (2 * beta / both - beta**2) + alpha * c.L_Kd**2 * beta**2 / gap,
        alpha**2 / gap - alpha * gap + 4 * alpha**2 * moved,
    ), (gap, 3 * r * w)


def test_the_proof_of_theorem_1_goes_through_with_these_step_sizes():
    """C₁, C₄, C₅ ≤ 0, C₂ ≤ −(1−λ)/4 and C₃ ≤ −3r²(1−λ)/(32(1+r)L_y²), whatever the constants and the graph."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        sizes = 10 ** rng.uniform(-3, 3, 7)
        c = theory.Constants(sizes[0], sizes[0] * (1 + sizes[1]), *sizes[2:], L_gyy=float(rng.integers(2)))
        m, rho = int(rng.integers(1, 100)), 1 - 10 ** rng.uniform(-3, 0)
        steps = theory.interact_step_sizes(c, m, rho)
        found, (gap, least) = coefficients(c, m, rho, **steps)
        slack = np.array([0, -gap / 4, -least, 0, 0]) - found
        assert (slack >= -1e-9 * (np.abs(found) + gap + least)).all(), (c, m, rho, found)
        # The limit with L_ℓ² is needed for C₂, yet others are smaller: L_f ≤ L_K and r ≤ 1/12.
        assert steps["alpha"] < m * gap / (4 * c.L_l**2)
    # Of the printed limits, the one for C₂ has L_ℓ, and there is none for C₅: alone they leave both too large.
    flat = theory.Constants(1.0, 1.0, C_gxy=0.01, L_fx=0.01, L_fy=0.0, C_fy=0.0)
    steep = theory.Constants(1.0, 1.0, C_gxy=100.0, L_fx=0.1, L_fy=0.001, C_fy=0.0)
    for c, number, limit in ((flat, 4, 1 / (4 * flat.L_l)), (steep, 1, 2 * 0.1 / (4 * steep.L_l))):
        sizes = theory.interact_step_sizes(c, 2, 0.9)
        found, (gap, _) = coefficients(c, 2, 0.9, min(limit, 1.0), sizes["beta"])
        assert found[number] > (0 if number == 4 else -gap / 4)


def test_theorem_1_as_printed_is_false_without_a_limit_of_the_gap_squared():
    """f = ±x at two nodes, g = (y − y₀)²/2: ℓ = 0, and every constant in the printed limits of α but m and λ is 0."""
    M = np.array([[0.95, 0.05], [0.05, 0.95]])  # λ = 0.9
    c = theory.Constants(1.0, 1.0, C_gxy=0.01, L_fx=0.0, L_fy=0.0, C_fy=0.0)
    slopes = np.array([1.0, -1.0])

    def total(alpha):  # Σ 𝔐_t: ∇ℓ = 0 and y = y* throughout, and p does not change
        x, u, total = np.zeros(2), slopes, 0.0
        for _ in range(1000):
            total += np.sum((x - x.mean()) ** 2)
            x, u = M @ x - alpha * u, M @ u
        return total

    def allowed(alpha, beta):  # (𝔅₀ − ℓ*)/min{…} of Theorem 1
        r = beta / 2 / 3
        return alpha * np.sum(slopes**2) / min(0.1 / 4, 3 * r**2 * 0.1 / (32 * (1 + r) * 1e-4), alpha / 2)

    printed = min(1 / (2 * 0.1), 1.0)
    assert total(printed) > 6 * allowed(printed, 0.5)
    sizes = theory.interact_step_sizes(c, 2, 0.9)
    assert sizes == {"alpha": pytest.approx(0.005), "beta": 0.5}
    assert total(sizes["alpha"]) < allowed(**sizes)
    assert theory.svr_interact_step_sizes(c, 2, 0.9, 10)["alpha"] <= 0.005  # Theorem 3 is for this problem, too


def test_14_needs_the_square_of_l_once_it_is_a_lipschitz_constant():
    """ℓ₁ = Lx²/2 and ℓ₂ = −Lx²/2 at x = ±1: ℓ = 0, so that the left side of (14) is 0, and ū = L."""
    L, alpha = 4.0, 0.01
    descent = -(alpha / 2 - L * alpha**2 / 2) * L**2
    assert descent + alpha * L < 0 <= descent + alpha * L**2


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
        x, y = (np.asarray(leaf) for leaf in snapshot.nodes[:2])
        return sum(np.sum(part**2) for part in (x.mean(0) - a.mean((0, 1)), x - x.mean(0), y - x))

    method = db.interact(**sizes, hypergradient=db.hypergradient.exact())
    result = db.solve(problem, method, graph, steps=steps, eval_every=4, metrics=[measure, "interact"])
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
    assert result.trace["interact"][0] == pytest.approx(result.trace["measure"][0])  # all x_i are x̄
    # The metric of the library takes y* at x̄ instead of x_i, so that the last part is ‖y − x̄‖².
    x, y = (np.asarray(leaf) for leaf in result.nodes[:2])
    apart = np.sum((y - x.mean(0)) ** 2) - np.sum((y - x) ** 2)
    assert result.trace["interact"][-1] == pytest.approx(result.trace["measure"][-1] + apart)


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
    """With L_y = 2, L_f = 2 and L_ℓ = 6 as above, m = 5, λ = ½ and K = 10: L_K² = 6 · 4 · 10 / (2·2 − 1) = 80."""
    sizes = theory.svr_interact_step_sizes(QUADRATIC, 5, 0.5, 10)
    beta = min(1 / (768 * 80 * 3), 1.5 / (4096 * 80), 9 / 2, 8 / (24 * 80 * 3), 1.5 / (512 * 80), 1 / 6, 16 / 1.5)
    r, K = beta * 2 / 9, math.sqrt(80)
    by_hand = [
        1 / 48, r / (16 * 5 * 4 * (r + 1)), 1 / (8 * K * math.sqrt(5)), 1 / 2.5, 0.25 / (128 * 80),
        0.125 * 5 / (36 + 16 * 80 * 5), math.sqrt(0.1) / (16 * K), 288 * r * (1 + r) * 5 * 4 / (0.5 * 4),
        r * (1 + r) * 0.5 / (256 * 4 * 3 * 80 * beta), r * (1 + r) * 0.25 / (512 * 4 * 3 * 80 * beta),
        math.sqrt(0.5) / (8 * K), 0.25 / (16 * (1 + 1 / r) * 4), math.sqrt(0.5 / (64 * 80)), 128 / 0.5, 0.25 / 2,
    ]  # fmt: skip
    assert sizes == {"alpha": pytest.approx(min(by_hand)), "beta": pytest.approx(beta)}
    plain = theory.interact_step_sizes(QUADRATIC, 5, 0.5)
    assert sizes["alpha"] < plain["alpha"] and sizes["beta"] < plain["beta"]  # what noise costs
    with pytest.raises(ValueError, match=r"beta=1 must be positive and at most 4\.58e-06"):
        theory.svr_interact_step_sizes(QUADRATIC, 5, 0.5, 10, beta=1)


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
