"""Whose recursions these are: the library's own methods against published relatives, and where uncoordinated steps end.

Every identity is with an independent NumPy reference, written from its paper, to 1e-12.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import relatives_references as relatives
from credited_references import AdaGrad, aug_dgm, lt_admm, nids
from method_references import Nodes
from quadratics import random_quadratic
from scipy.optimize import lsq_linear

import decibel as db
from decibel.core._vector import Vector, scale_nodes
from decibel.methods._single_level import SingleLevel
from decibel.strategies import STRATEGIES
from decibel.strategies._adam import AdamTracking
from decibel.strategies._adaptive import AdaptiveDiffusion
from decibel.strategies._gt_ada import AdaptiveTracking
from decibel.strategies._local import with_local_steps

NODES, STEPS, CHUNK = 8, 30, 10  # the last: the steps of a compiled program, which many tests share
QUADRATIC = random_quadratic(NODES, seed=1, spread=2.0)
GRAPH = db.graphs.erdos_renyi(NODES, 0.5, seed=2)
W = GRAPH.W
START = np.tile([3.0, -2.0, 0.5], (NODES, 1))
SOLUTION = np.tile(QUADRATIC.single_solution(), (NODES, 1))
UNEVEN = np.random.default_rng(0).uniform(0.03, 0.27, NODES)
UNEVEN[:2] = 0.03, 0.27  # nine-fold


def gradient(x):
    return np.einsum("nij,nj->ni", QUADRATIC.R, x - QUADRATIC.e)


def loss(x, batch):
    R, e = batch["R"][0], batch["e"][0]
    return 0.5 * (x - e) @ (R @ (x - e))


def problem(prox=None):
    data = {"R": QUADRATIC.R[:, None], "e": QUADRATIC.e[:, None]}
    return db.Problem(loss, upper_data=data, x0=jnp.asarray(START[0]), prox_x=prox)


def run(mixing, steps=STEPS, rate=1.0, prox=None, **options):
    return solved(problem(prox), SingleLevel(rate, 1.0, mixing), steps, **options)


def solved(problem, method, steps=STEPS, graph=GRAPH, **options):
    return np.asarray(db.solve(problem, method, graph, steps=steps, eval_every=CHUNK, metrics=[], **options).nodes.x)


def same(found, expected, atol=1e-12):
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)
    assert np.ptp(np.asarray(expected), 0).max() > 1e-4  # nodes still differ


@cache
def with_fixed_steps(kind):
    """A class of strategies with AdaGrad's or Adam's form and constant steps, by node and coordinate."""

    class Fixed(kind):
        b: jax.Array = eqx.field(default=None)

        def next_scale(self, r, sums, floor=None):
            return Vector(jnp.broadcast_to(self.b, r.tree.shape)), sums

        def moments(self, carry, g, size):
            moments, m_hat, _ = super().moments(carry, g, size)
            return moments, m_hat, Vector(jnp.broadcast_to(self.b, g.tree.shape))

    return Fixed


def fixed(kind, base, steps):
    given = {field.name: getattr(base, field.name) for field in fields(base)}
    by_coordinate = np.broadcast_to(steps.reshape(NODES, -1), (NODES, 3))
    return with_fixed_steps(kind)(**given, b=jnp.asarray(1 / by_coordinate))


# Wave.


@pytest.mark.slow_except("all arrive-4", "some are lost-1")
@pytest.mark.parametrize("τ", [1, 4])
@pytest.mark.parametrize("lost", [False, True], ids=["all arrive", "some are lost"])
def test_wave_is_lt_admm(lost, τ):
    """With β = 1, relaxation ½ and ρ = 2w/τ of every link; a lost message leaves z as it is."""
    i, j = GRAPH.edges[0]
    faults = db.faults.drop(links=[(int(i), int(j))], during=(5, 15)) if lost else None
    ρ = 2 / τ * (W - np.diag(np.diag(W)))
    assert len(np.unique(ρ[ρ > 0].round(12))) > 2
    expected = lt_admm(
        lambda x: 0.2 * gradient(x),
        START,
        ρ,
        γ=1.0,
        β=1.0,
        relaxation=0.5,
        local_steps=τ,
        steps=STEPS,
        # A step of the library begins with the exchange that ends one of LT-ADMM; its first changes nothing.
        arrives=lambda k, a, b: not lost or {a, b} != {i, j} or not 5 <= k + 1 < 15,
    )
    same(run(with_local_steps(STRATEGIES["wave"], τ), rate=0.2, faults=faults), expected)


# Adaptive steps.


def test_ada_ed_with_constant_steps_is_nids_with_uncoordinated_steps():
    """On the links' weights w_ij min(1/α_i, 1/α_j)/c, which NIDS may be given: they fulfil its condition on W and c."""
    a = 1 / UNEVEN
    c = a.max()
    weights = W * np.minimum.outer(a, a) / c
    np.fill_diagonal(weights, 0)
    mixing = weights + np.diag(1 - weights.sum(1))
    root = np.sqrt(np.diag(UNEVEN))
    assert np.linalg.eigvalsh(c * root @ (np.eye(NODES) - mixing) @ root).max() <= 1
    expected = nids(gradient, START, mixing, Λ=UNEVEN, c=c, steps=STEPS)
    same(run(fixed(AdaptiveDiffusion, STRATEGIES["ada-ed"], UNEVEN)), expected)


TERMS = {
    "none": (None, lambda z, Λ: z),
    "l1": (db.prox.l1(0.4), lambda z, Λ: np.sign(z) * np.maximum(np.abs(z) - 0.4 * Λ[:, None], 0)),
    "by node": (
        db.prox.per_node([db.prox.l1(0.1 + 0.1 * i) for i in range(NODES)]),
        lambda z, Λ: np.sign(z) * np.maximum(np.abs(z) - (0.1 + 0.1 * np.arange(NODES)[:, None]) * Λ[:, None], 0),
    ),
}


@pytest.mark.slow_except("by node")
@pytest.mark.parametrize("term", TERMS)
def test_nids_with_a_step_for_each_node(term):
    prox, shrink = TERMS[term]
    method = db.nids(alpha=0.5, node_steps=2 * UNEVEN)
    found = solved(problem(prox), method)
    expected = nids(gradient, START, W, Λ=UNEVEN, c=1 / UNEVEN.max(), steps=STEPS, prox=lambda z: shrink(z, UNEVEN))
    same(found, expected)


@pytest.mark.slow
def test_nids_with_a_step_for_each_node_ends_at_the_solution_of_all():
    method = db.nids(alpha=1.0, node_steps=UNEVEN)
    found = solved(problem(), method, 3000, engine=db.Cluster(devices=4))
    np.testing.assert_allclose(found, SOLUTION, rtol=0, atol=1e-12)
    prox, _ = TERMS["by node"]
    x = START[0]
    for _ in range(3000):  # the terms' strengths are 0.45 on average
        x = x - 0.2 * gradient(np.tile(x, (NODES, 1))).mean(0)
        x = np.sign(x) * np.maximum(np.abs(x) - 0.2 * 0.45, 0)
    found = solved(problem(prox), method, 3000)
    np.testing.assert_allclose(found, np.tile(x, (NODES, 1)), rtol=0, atol=1e-12)


def test_steps_of_nodes_that_do_not_fit_are_rejected():
    with pytest.raises(ValueError, match="node_steps has 3 steps but the graph has 8 nodes"):
        db.solve(problem(), db.nids(alpha=0.1, node_steps=[1, 2, 3]), GRAPH, steps=1)
    for wrong in ([], [1.0, 0.0], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="must be positive numbers: give one for each node"):
            db.nids(alpha=0.1, node_steps=wrong)
    with pytest.raises(ValueError, match="makes steps of its own, which cannot be wrapped"):
        db.privacy.quantize(db.strategies.nids(UNEVEN))


def test_gt_ada_is_aug_dgm_with_adagrads_steps():
    same(run(STRATEGIES["gt-ada"], rate=0.3), aug_dgm(gradient, START, W, step=AdaGrad(0.3), steps=STEPS))


# Where steps that differ from node to node end.


def by_coordinate(number):
    return np.random.default_rng(number).uniform(0.03, 0.27, (NODES, 3))


EXACT = {
    "ada-ed": (AdaptiveDiffusion, "ada-ed"),
    "aug-dgm": (AdaptiveTracking, "gt-ada"),
    "gt-adam, with momentum": (AdamTracking, "adam-gt"),
}


@pytest.mark.slow_except(*(f"{name}-by coordinate" for name in EXACT))
@pytest.mark.parametrize("steps", [UNEVEN, by_coordinate(3)], ids=["by node", "by coordinate"])
@pytest.mark.parametrize("name", EXACT)
def test_steps_applied_to_corrected_gradients_end_at_the_solution(name, steps):
    """Corrections in units of gradients do not see the steps: Σ ∇f_i = 0, for constant steps that differ nine-fold."""
    kind, base = EXACT[name]
    np.testing.assert_allclose(run(fixed(kind, STRATEGIES[base], steps), 2000), SOLUTION, rtol=0, atol=1e-12)


@pytest.mark.slow_except("ed")
@pytest.mark.parametrize("name", ["ed", "extra", "gt"])
def test_corrections_in_units_of_steps_end_at_a_weighted_solution(name):
    """A step D ∇f as a whole is corrected or tracked: Σ D_i ∇f_i = 0."""

    class Scaled(type(STRATEGIES[name])):
        def update(self, level, direction, rate):
            return (yield from super().update(level, scale_nodes(jnp.asarray(UNEVEN), direction), rate))

    base = STRATEGIES[name]
    found = run(Scaled(**{field.name: getattr(base, field.name) for field in fields(base)}), 2000)
    R, e = UNEVEN[:, None, None] * QUADRATIC.R, QUADRATIC.e
    weighted = np.linalg.solve(R.sum(0), np.einsum("nij,nj->i", R, e))
    np.testing.assert_allclose(found, np.tile(weighted, (NODES, 1)), rtol=0, atol=1e-12)
    assert np.abs(found - SOLUTION).max() > 0.05


def moving(k):
    """Between 0.03 and 0.27, never at rest."""
    return 0.03 + 0.24 * jnp.modf(0.618 * k.astype(float))[0]


@pytest.mark.slow
def test_steps_that_never_rest():
    """The correction must be in units of gradients; NIDS and ED carry steps, as they were when they were carried."""
    still = by_coordinate(4) / 0.27
    for kind, base in (EXACT["ada-ed"], EXACT["aug-dgm"]):
        found = run(fixed(kind, STRATEGIES[base], still), 2000, moving)
        np.testing.assert_allclose(found, SOLUTION, rtol=0, atol=1e-12)
    for mixing in (STRATEGIES["ed"], db.strategies.nids(UNEVEN / 0.27)):
        assert np.abs(run(mixing, 2000, moving) - SOLUTION).max() > 0.01


# The penalty form.

CURVED = Nodes(random_quadratic(6), 0.7, x0=np.array([0.5, -1.0, 2.0]), y0=np.array([1.0, 0.0, -0.5, 0.25]))
SIX = db.graphs.erdos_renyi(6, 0.5, seed=3)
STRENGTH = 20.0


@cache
def curved():
    return CURVED.problem()


@pytest.mark.slow_except("central-ed", "forward-gt")
@pytest.mark.parametrize("strategy", ["ed", "extra", "gt", "diffusion"])
@pytest.mark.parametrize("central", [False, True], ids=["forward", "central"])
def test_the_penalty_form_is_two_copies_with_equal_steps(central, strategy):
    """F2SA's copies on the network: one minimizes g, the other g + f/λ; centrally, g − f/λ and g + f/λ."""
    form = db.hypergradient.penalty(STRENGTH, central=central)
    method = db.sparkle(strategy, alpha=0.05, beta=0.1, gamma=0.1, hypergradient=form)
    found = db.solve(curved(), method, SIX, steps=STEPS, eval_every=STEPS, metrics=[]).nodes
    options = {"strategy": strategy, "alpha": 0.05, "strength": STRENGTH, "steps": STEPS}
    y, z = np.asarray(found.y), np.asarray(found.z)
    ahead, behind = y - z / STRENGTH, y + z / STRENGTH if central else y
    if central:
        expected = relatives.central_copies(CURVED, SIX.W, beta=0.1, **options)
    else:  # its steps on f + λ g are those on g + f/λ, divided by λ
        expected = relatives.copies(CURVED, SIX.W, beta=0.1 / STRENGTH, gamma=0.1, **options)
    for one, other in zip((found.x, ahead, behind), expected, strict=True):
        same(one, other)


def test_the_penalty_form_with_tracking_is_dsgda_gt():
    """Where γ = β: in other coordinates."""
    form = db.hypergradient.penalty(STRENGTH)
    ours = db.sparkle("gt", alpha=0.05, beta=0.1, gamma=0.1, hypergradient=form)
    theirs = db.dsgda_gt(alpha=0.05, beta=0.1 / STRENGTH, gamma=0.1, strength=STRENGTH)
    found, expected = (
        db.solve(curved(), method, SIX, steps=STEPS, eval_every=STEPS, metrics=[]).nodes for method in (ours, theirs)
    )
    same(found.x, expected.x)
    same(found.y, expected.z)
    same(found.y - found.z / STRENGTH, expected.y)


@pytest.mark.slow
def test_differences_round_less_than_copies():
    """The same method in float32: the distance from the penalized solution is at least ten times smaller."""
    flat = Nodes(random_quadratic(NODES), 0.0, x0=np.zeros(3), y0=np.zeros(4))
    expected, *_ = relatives.penalized_solution(flat, 1e3)
    form = db.hypergradient.penalty(1e3)
    given = flat.quadratic.problem(dtype=jnp.float32)
    given = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32) if hasattr(leaf, "dtype") else leaf, given)
    differences = db.sparkle("gt", alpha=0.1, beta=0.3, gamma=0.3, hypergradient=form)
    copies = db.dsgda_gt(alpha=0.1, beta=3e-4, gamma=0.3, strength=1e3)
    errors = []
    for method in (differences, copies):
        found = db.solve(given, method, db.graphs.ring(NODES), steps=3000, metrics=[]).nodes.x
        assert found.dtype == jnp.float32
        errors.append(np.abs(np.asarray(found) - expected).max())
    assert errors[0] < 3e-5 and errors[1] > 10 * errors[0]


# The limit on flows.


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wave", "edge_ed"])
def test_a_limit_on_flows_solves_the_problem_with_a_total_variation_penalty(name):
    """min Σ f_i(s_i) + B Σ_links |s_i − s_j|, by its dual, which is least squares over flows |F| ≤ B."""
    nodes, limit = 5, 0.3
    graph = db.graphs.path(nodes)
    a, c = np.linspace(0.6, 1.4, nodes), np.array([0.0, 0.1, 2.0, 1.7, 1.8])
    incidence = np.zeros((nodes, len(graph.edges)))
    for link, (i, j) in enumerate(graph.edges):
        incidence[[i, j], link] = 1, -1
    # a (s − c) = E F at the minimum, and F maximizes −½ |E F|²/a − c E F.
    dual = lsq_linear(incidence / np.sqrt(a)[:, None], -np.sqrt(a) * c, (-limit, limit), tol=1e-14)
    expected = c + incidence @ dual.x / a
    held = np.abs(np.diff(expected)) > 1e-6
    assert held.any() and not held.all()  # some links carry all they may, and others join their ends

    def squares(x, batch):
        return jnp.mean(0.5 * batch["a"] * (x - batch["c"]) ** 2)

    given = db.Problem(squares, upper_data={"a": a[:, None], "c": c[:, None]}, x0=jnp.asarray(0.0))
    method = SingleLevel(0.3, 1.0, getattr(db.strategies, name)(limit))
    found = solved(given, method, 4000, graph)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
