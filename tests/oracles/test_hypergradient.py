"""Local hypergradients against dense NumPy: what each computes, and what it says about its own error."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel import hypergradient
from decibel.core._ledger import Ledger
from decibel.core._vector import Vector
from decibel.oracles._oracle import Oracle
from decibel.oracles.hypergradient import DENSE_LIMIT, POWER_MARGIN, largest_curvature

NODES, P, Q = 5, 3, 4
QUADRATIC = random_quadratic(NODES, P, Q, seed=1)
PROBLEM = QUADRATIC.problem(personal=True)
RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(NODES, P)), RNG.normal(size=(NODES, Q))
FX, FY = QUADRATIC.fx(X, Y), QUADRATIC.fy(X, Y)
J = -QUADRATIC.B.transpose(0, 2, 1)
L = 3.0


def point(problem=PROBLEM, seed=0, batch_size=None, x=X, y=Y):
    nodes = jnp.arange(problem.nodes, dtype=jnp.int32)
    draw = Oracle(problem, nodes, jax.random.key(seed), batch_size, Ledger()).draw()
    return draw.at(Vector(jax.tree.map(jnp.asarray, x)), Vector(jax.tree.map(jnp.asarray, y)))


@eqx.filter_jit
def inverse(way, problem=PROBLEM, x=X, y=Y):
    """z of every node."""
    return way.inverse(point(problem, x=x, y=y)).tree


@eqx.filter_jit
def whole(way):
    """∇_x f − J z of every node."""
    return way(point()).tree


@eqx.filter_jit
def curvature(problem=PROBLEM, y=Y):
    return largest_curvature(point(problem, y=y).linearized())


def by_hand(z):
    return FX - np.einsum("npq,nq->np", J, z)


def series(terms, L=L, H=QUADRATIC.H):
    I = np.eye(H.shape[1])
    powers = [np.linalg.matrix_power(I - h / L, j) for h in H for j in range(terms)]
    return np.stack([sum(powers[i * terms : (i + 1) * terms]) / L for i in range(len(H))])


def apply(matrices, vectors):
    return np.einsum("nij,nj->ni", matrices, vectors)


def krylov(H, b, steps):
    """The minimizer of ½ zᵀHz − bᵀz over span{b, Hb, …, H^{steps−1} b}: what `steps` conjugate gradients reach."""
    basis = np.stack([np.linalg.matrix_power(H, j) @ b for j in range(steps)], 1)
    basis = np.linalg.qr(basis)[0]
    return basis @ np.linalg.solve(basis.T @ H @ basis, basis.T @ b)


SOLVED = np.linalg.solve(QUADRATIC.H, FY[..., None])[..., 0]
WAYS = {
    "exact": (hypergradient.exact(), SOLVED),
    "exact by conjugate gradients": (hypergradient.exact(dense_limit=0), SOLVED),
    "one step": (hypergradient.cg(1), [krylov(H, b, 1) for H, b in zip(QUADRATIC.H, FY, strict=True)]),
    "two steps": (hypergradient.cg(2), [krylov(H, b, 2) for H, b in zip(QUADRATIC.H, FY, strict=True)]),
    "all steps, exact": (hypergradient.cg(Q), SOLVED),
    "series": (hypergradient.neumann(5, L), apply(series(5), FY)),
    "series of a scale too small": (hypergradient.neumann(30, 0.5), apply(series(30, 0.5), FY)),
    "series to the end, exact": (hypergradient.neumann(80, L), SOLVED),
    "zero, as direct": (hypergradient.direct(), np.zeros_like(FY)),
}


@pytest.mark.parametrize("name", WAYS)
def test_each_way_has_its_z_and_knows_its_relative_residual(name):
    way, z = WAYS[name]
    np.testing.assert_allclose(whole(way), by_hand(z), rtol=1e-8, atol=1e-8)
    expected = np.linalg.norm(apply(QUADRATIC.H, z) - FY, axis=1) / np.linalg.norm(FY, axis=1)
    found = way.error(PROBLEM, X, Y)
    assert found.shape == (NODES,)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    trustworthy, useless = np.all(found < 1e-8), np.all(found > 0.99)
    assert trustworthy == ("exact" in name) and useless == ("direct" in name or "too small" in name)


@pytest.mark.slow
def test_exact_beyond_the_dense_limit():
    """By default a large y never forms its Hessian."""
    q = DENSE_LIMIT + 1
    scale = jnp.linspace(1.0, 3.0, q)
    problem = db.Problem(
        lambda x, y, batch: jnp.mean(batch) * jnp.sum(y) + jnp.sum(x**2),
        lambda x, y, batch: 0.5 * jnp.sum(scale * y**2) * jnp.mean(batch) - jnp.sum(y) * jnp.sum(x),
        upper_data=np.ones((2, 1)),
        lower_data=np.array([[1.0], [2.0]]),
        x0=jnp.ones(2),
        y0=jnp.ones(q),
        personal=True,
    )
    here = point(problem, x=np.ones((2, 2)), y=np.ones((2, q)))
    z = hypergradient.exact().inverse(here)
    np.testing.assert_allclose(z.tree, 1 / (np.array([[1.0], [2.0]]) * np.asarray(scale)), rtol=1e-9)
    assert here.ledger.step_cost.fixed["hvps"] == 0  # no Hessian matrix; products are counted as often as they ran
    (products,) = here.ledger.step_cost.repeated_parts
    assert products[1]["hvps"] == 1 and 5 < float(products[0]) < 80


def test_cg_stays_where_it_has_nothing_to_solve():
    """A node that is done, or whose ∇_y f vanishes, must not divide by zero while others go on."""
    y = Y.copy()
    y[2] = QUADRATIC.a[2]
    z = inverse(hypergradient.cg(9), y=y)
    np.testing.assert_array_equal(z[2], 0)
    np.testing.assert_allclose(z, apply(np.linalg.inv(QUADRATIC.H), QUADRATIC.fy(X, y)), atol=1e-9)


def test_randomized_neumann_is_one_term_of_the_series():
    """(K/L) (I − H/L)^k ∇_y f with k ~ U{0..K−1}: each result is one of K candidates, every k as often as the next, and
    the mean is the truncated series."""
    terms, seeds = 4, 600
    way = hypergradient.neumann(terms, L, randomized=True)
    x, y = Vector(jnp.asarray(X)), Vector(jnp.asarray(Y))

    def one(key):
        nodes = jnp.arange(NODES, dtype=jnp.int32)
        return way.inverse(Oracle(PROBLEM, nodes, key, None, Ledger()).draw().at(x, y)).tree

    found = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(5), seeds)))  # (seeds, nodes, q)
    factors = np.eye(Q) - QUADRATIC.H / L
    candidates = np.stack(
        [terms / L * apply(np.stack([np.linalg.matrix_power(F, k) for F in factors]), FY) for k in range(terms)]
    )
    gaps = np.abs(found[:, None] - candidates[None]).max(-1)  # (seeds, terms, nodes)
    np.testing.assert_allclose(gaps.min(1), 0, atol=1e-12)
    k = gaps.argmin(1)
    counts = np.stack([(k == j).mean(0) for j in range(terms)])
    assert np.abs(counts - 1 / terms).max() < 4 * np.sqrt(0.25 * 0.75 / seeds)
    assert np.mean(k[:, 0] == k[:, 1]) < 0.4  # nodes draw their own
    np.testing.assert_allclose(candidates.mean(0), apply(series(terms), FY), atol=1e-12)
    deviation = candidates.std(0) / np.sqrt(seeds)
    assert np.all(np.abs(found.mean(0) - apply(series(terms), FY)) < 5 * deviation + 1e-12)


def test_randomized_neumann_on_batches():
    """Independent samples in every factor, so that the expectation is the series in the mean Hessian."""
    samples, seeds, terms, L = 3, 4000, 3, 4.0
    many = [random_quadratic(2, P, Q, seed=seed) for seed in range(samples)]
    stack = lambda name: np.stack([getattr(one, name) for one in many], 1)  # noqa: E731
    base = many[0].problem(personal=True)
    problem = db.Problem(
        base.upper,
        base.lower,
        upper_data={name: stack(name)[:, :1] for name in "MaRe"},  # ∇_y f without noise
        lower_data={name: stack(name) for name in "HBc"},
        x0=base.x0,
        y0=base.y0,
        personal=True,
    )
    x, y = Vector(jnp.asarray(X[:2])), Vector(jnp.asarray(Y[:2]))
    way = hypergradient.neumann(terms, L, randomized=True)

    def one(key):
        return way.inverse(Oracle(problem, jnp.arange(2, dtype=jnp.int32), key, 1, Ledger()).draw().at(x, y)).tree

    found = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(6), seeds)))
    H = stack("H")
    fy = many[0].fy(X[:2], Y[:2])
    expected = apply(series(terms, L, H.mean(1)), fy)
    error = np.abs(found.mean(0) - expected)
    assert np.all(error < 5 * found.std(0) / np.sqrt(seeds))
    # One sample reused in all factors would have another mean, and this many seeds tell the two apart.
    reused = np.mean([apply(series(terms, L, H[:, s]), fy) for s in range(samples)], 0)
    assert np.abs(reused - expected).max() > 0


# SVR-INTERACT's estimator: (22) for each of |S| samples, averaged as in (23). g = ½ h y² − b x y, f = ½ (y − a)² + e x.

S, K = 23, 10
SAMPLES = {name: RNG.uniform(*span, size=6) for name, span in dict(h=(0.1, 1.0), b=(0.5, 2.0)).items()}
TARGETS = {"a": -1 + 0.2 * RNG.normal(size=5), "e": RNG.normal(size=5)}


SCALAR = db.Problem(
    lambda x, y, batch: jnp.sum(jnp.mean(0.5 * (y - batch["a"]) ** 2 + batch["e"] * x)),
    lambda x, y, batch: jnp.sum(jnp.mean(0.5 * batch["h"] * y**2 - batch["b"] * x * y)),
    upper_data={name: values[None] for name, values in TARGETS.items()},
    lower_data={name: values[None] for name, values in SAMPLES.items()},
    x0=jnp.zeros(1),
    y0=jnp.zeros(1),
    personal=True,
)


def estimate(way, ledger, key):
    """∇̄f at x = 0.3, y = 0.7 on a batch of |S|."""
    x, y = Vector(jnp.full((1, 1), 0.3)), Vector(jnp.full((1, 1), 0.7))
    oracle = Oracle(SCALAR, jnp.zeros(1, jnp.int32), key, S, ledger)
    return way(oracle.draw().at(x, y)).tree[0, 0]


def estimates(way, seeds):
    """(seeds,)"""
    return np.asarray(jax.jit(jax.vmap(partial(estimate, way, Ledger())))(jax.random.split(jax.random.key(7), seeds)))


def by_the_paper(seeds, L=1.0, rng=np.random.default_rng(8)):  # noqa: B008
    """The same in plain NumPy, sample by sample."""
    found = np.zeros(seeds)
    for seed in range(seeds):
        for _ in range(S):
            outer, inner = rng.integers(5), rng.integers(6)
            product = 0.7 - TARGETS["a"][outer]
            for _ in range(rng.integers(K)):
                product *= 1 - SAMPLES["h"][rng.integers(6)] / L
            found[seed] += (TARGETS["e"][outer] + K / L * SAMPLES["b"][inner] * product) / S
    return found


def test_the_mean_over_samples_is_the_series():
    """(23) on average: the truncated series in the mean Hessian."""
    found = estimates(hypergradient.neumann(K, 1.0, randomized=True, per_sample=True), 1_000)
    series = sum((1 - SAMPLES["h"].mean()) ** k for k in range(K))
    expected = TARGETS["e"].mean() + SAMPLES["b"].mean() * series * (0.7 - TARGETS["a"].mean())
    assert abs(found.mean() - expected) < 4 * found.std() / 1_000**0.5


@pytest.mark.slow
def test_every_sample_has_its_own_number_of_factors():
    """Mean and variance of (23) are those of the reference; one k for the whole batch is five times as noisy."""
    way = hypergradient.neumann(K, 1.0, randomized=True, per_sample=True)
    found, reference = estimates(way, 20_000), by_the_paper(4_000)
    error = np.hypot(found.std() / 20_000**0.5, reference.std() / 4_000**0.5)
    assert abs(found.mean() - reference.mean()) < 4 * error
    assert abs(found.std() / reference.std() - 1) < 0.06  # of 4,000 values the deviation is known to about 1.2 %
    single = estimates(hypergradient.neumann(K, 1.0, randomized=True), 4_000)
    assert abs(single.mean() - reference.mean()) < 4 * single.std() / 4_000**0.5
    assert single.std() > 3 * reference.std()


def test_what_a_random_series_costs_per_sample():
    """One gradient of f, one product with J, and on average (K − 1)/2 with H, each on a batch of its own."""
    ledger, way = Ledger(), hypergradient.neumann(K, 1.0, randomized=True, per_sample=True)
    jax.eval_shape(partial(estimate, way, ledger), jax.random.key(7))
    fixed, ((_, repeated),) = ledger.step_cost.fixed, ledger.step_cost.repeated_parts
    assert (fixed["samples"], fixed["gradients"], fixed["jvps"]) == (2 * S, 1, 1)
    assert (repeated["samples"], repeated["hvps"]) == (S, 1)


@pytest.mark.slow
def test_a_difference_has_one_scale():
    """L is estimated once for both points of a draw, on samples of its own, though H depends on the point."""
    quartic = lambda x, y, batch: jnp.sum(jnp.mean(batch["h"]) * y**4 - jnp.mean(batch["b"]) * x * y)  # noqa: E731
    problem = eqx.tree_at(lambda problem: problem.lower, SCALAR, quartic)
    x = Vector(jnp.full((1, 1), 0.3))
    at = lambda draw, y, way: float(way(draw.at(x, Vector(jnp.full((1, 1), y)))).tree[0, 0])  # noqa: E731
    draw = lambda: Oracle(problem, jnp.zeros(1, jnp.int32), jax.random.key(1), 2, Ledger()).draw()  # noqa: E731
    shared = draw()
    automatic = hypergradient.neumann(3)
    first, second = at(shared, 0.7, automatic), at(shared, 1.4, automatic)
    L = float(shared.scale[0])
    given = hypergradient.neumann(3, L)
    assert (first, second) == pytest.approx((at(draw(), 0.7, given), at(draw(), 1.4, given)), rel=1e-12)
    alone = draw()
    at(alone, 1.4, automatic)
    assert float(alone.scale[0]) == pytest.approx(4 * L)  # H = 12 h y²: a scale of its own would have been another


def test_the_scale_of_single_samples_bounds_each_of_them():
    """A series in single samples diverges where L bounds their mean only: here it bounds the largest."""
    x, y = Vector(jnp.full((1, 1), 0.3)), Vector(jnp.full((1, 1), 0.7))
    draw = Oracle(SCALAR, jnp.zeros(1, jnp.int32), jax.random.key(2), 60, Ledger()).draw()

    @jax.jit
    def both():
        here = draw.at(x, y)
        return largest_curvature(here, of_samples=True)[0], largest_curvature(here)[0]

    largest, of_mean = map(float, both())
    assert largest == pytest.approx(POWER_MARGIN * SAMPLES["h"].max()) and of_mean < largest


def test_automatic_scale_is_an_upper_bound():
    rng = np.random.default_rng(0)
    for q in (1, 40):
        H = []
        for _ in range(NODES):
            basis = np.linalg.qr(rng.normal(size=(q, q)))[0]
            H.append(basis * np.geomspace(1e-2, 10.0 ** rng.uniform(-2, 3), q) @ basis.T)
        zeros = np.zeros((NODES, q))
        quadratic = QUADRATIC._replace(H=np.stack(H), B=np.zeros((NODES, q, P)), c=zeros, M=np.stack(H), a=zeros)
        found = curvature(quadratic.problem(personal=True), np.ones((NODES, q)))
        top = np.array([np.linalg.eigvalsh(h)[-1] for h in H])
        assert np.all(found >= top) and np.all(found <= 3 * top), found / top


def test_automatic_scale_is_enough_where_its_start_is_badly_placed():
    """The top eigenvector is the coordinate in which the start is smallest, and the next eigenvalue is half as large:
    ten power steps then end below the top, but above half of it, and the series still converges."""
    q = 100
    spectrum = np.ones(q)
    spectrum[np.abs(np.cos(np.arange(q))).argmin()] = 1.9
    H, zeros = np.tile(np.diag(spectrum), (NODES, 1, 1)), np.zeros((NODES, q))
    quadratic = QUADRATIC._replace(H=H, B=np.zeros((NODES, q, P)), c=zeros, M=H, a=zeros)
    assert np.all(curvature(quadratic.problem(personal=True), np.ones((NODES, q))) > 0.7 * 1.9)


def test_automatic_scale_makes_the_series_converge():
    np.testing.assert_allclose(whole(hypergradient.neumann(200)), whole(hypergradient.exact()), atol=1e-8)
    first = inverse(hypergradient.neumann(1, randomized=True))  # k = 0
    np.testing.assert_allclose(first, FY / np.asarray(curvature())[:, None], atol=1e-12)


def test_error_at_a_common_point():
    common = hypergradient.neumann(5, L).error(PROBLEM, X[0], Y[0])
    tiled = hypergradient.neumann(5, L).error(PROBLEM, np.tile(X[0], (NODES, 1)), np.tile(Y[0], (NODES, 1)))
    np.testing.assert_allclose(common, tiled, rtol=1e-12)
    assert len(set(np.asarray(common).round(9))) == NODES  # nodes have their own Hessians


def test_error_of_a_noisy_inverse():
    """The residual is measured with all samples: an inverse of one sample's Hessian is not trustworthy."""
    rng = np.random.default_rng(4)
    H = np.eye(Q) * rng.uniform(0.5, 4.0, (NODES, 6, 1, 1))
    data = {name: np.repeat(getattr(QUADRATIC, name)[:, None], 6, 1) for name in "Bc"} | {"H": H}
    base = QUADRATIC.problem(personal=True, samples=6)
    start = dict(x0=base.x0, y0=base.y0, personal=True)
    noisy = db.Problem(base.upper, base.lower, upper_data=base.upper_data, lower_data=data, **start)
    way = hypergradient.exact()
    assert np.all(way.error(noisy, X, Y) < 1e-10)
    found = way.error(noisy, X, Y, batch_size=1, seed=3)
    possible = np.abs(H.mean(1)[:, 0, 0, None] / H[:, :, 0, 0] - 1)  # (nodes, samples)
    assert np.all(np.abs(possible - np.asarray(found)[:, None]).min(1) < 1e-10) and np.max(np.asarray(found)) > 0.1


def test_trees():
    """y in pieces of different shapes gives the same z, in those pieces."""
    split = lambda y: {"a": y[:1], "b": y[1:].reshape(3, 1)}  # noqa: E731
    join = lambda tree: jnp.concatenate([tree["a"], tree["b"].ravel()])  # noqa: E731
    flat = PROBLEM
    trees = db.Problem(
        lambda x, y, batch: flat.upper(x["w"], join(y), batch),
        lambda x, y, batch: flat.lower(x["w"], join(y), batch),
        upper_data=flat.upper_data,
        lower_data=flat.lower_data,
        x0={"w": flat.x0},
        y0=split(flat.y0),
        personal=True,
    )
    x, y = {"w": X}, jax.vmap(split)(jnp.asarray(Y))
    for way in (hypergradient.exact(), hypergradient.cg(2)):
        z = inverse(way, trees, x, y)
        assert z["b"].shape == (NODES, 3, 1)
        np.testing.assert_allclose(jax.vmap(join)(z), inverse(way), rtol=1e-9, atol=1e-11)
    assert np.all(hypergradient.neumann(200).error(trees, x, y) < 1e-8)  # the automatic scale


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: hypergradient.cg(0), "steps=0"),
        (lambda: hypergradient.neumann(0), "terms=0"),
        (lambda: hypergradient.neumann(5, -1.0), "scale=-1.0"),
        (lambda: hypergradient.difference(0.0), "delta=0.0"),
    ],
)
def test_settings_raise_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()
