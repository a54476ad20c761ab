"""The advisor's answers fit their budget and run; transients of made-up curves; the page."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel import theory

g = db.graphs
ROOT = Path(__file__).parents[2]


# The advisor.


@pytest.mark.parametrize(("nodes", "degree"), [(2, 2), (3, 4), (7, 3), (16, 2), (16, 6), (30, 8)])
def test_degree_is_obeyed(nodes, degree):
    advice = theory.advise(nodes, degree=degree)
    assert advice.graphs.nodes == nodes
    assert max(advice.graphs.x.degrees.max(), advice.graphs.y.degrees.max()) <= degree
    for graph in (advice.graphs.x, advice.graphs.y):
        assert graph.connected and graph.symmetric and graph.lambda_min > -1 / 3
        assert graph == g.from_matrix(graph.W)  # checked again from scratch
    assert advice.transient == theory.transient(advice.method, nodes, advice.graphs)


def test_y_gets_the_largest_gap():
    families = [g.ring(16), g.torus(4), g.path(16), g.star(16), g.exponential(16)]
    for degree in (2, 4, 7, 15):
        advice = theory.advise(16, degree=degree, candidates=families)
        best = max(graph.spectral_gap for graph in families if graph.degrees.max() <= degree)
        assert advice.graphs.y.spectral_gap == best


@pytest.mark.parametrize("nodes", [9, 16])
def test_x_is_sparser_at_no_loss(nodes):
    advice = theory.advise(nodes)
    x, y = advice.graphs.x, advice.graphs.y
    assert y.rho == 0 and x.degrees.max() < y.degrees.max()
    assert 1 / x.spectral_gap <= nodes**0.5 / y.spectral_gap * (1 + 1e-9)
    assert advice.transient == pytest.approx(theory.sparkle(nodes, y.rho).transient) == pytest.approx(nodes**3)


def test_more_budget_never_hurts():
    orders = [theory.advise(16, degree=degree).transient for degree in (2, 3, 4, 6, 9, 15)]
    assert np.all(np.diff(orders) <= 0)
    sizes = [theory.advise(16, bytes_per_step=b, dimension=(10, 30)) for b in (600, 1_000, 2_000, 5_000)]
    assert np.all(np.diff([advice.transient for advice in sizes]) <= 0)


@pytest.mark.slow_except("True-shared", "False-single")
@pytest.mark.parametrize("form", ["shared", "personal", "single"])
@pytest.mark.parametrize("heterogeneous", [True, False])
def test_bytes_of_advice_are_the_ledgers(form, heterogeneous):
    nodes, (p, q) = 6, (3, 4)
    quadratic = random_quadratic(nodes, p, q)
    problem = quadratic.single() if form == "single" else quadratic.problem(personal=form == "personal")
    advice = theory.advise(
        nodes,
        bytes_per_step=400,
        dimension=(p, q),
        itemsize=8,
        personal=form == "personal",
        single=form == "single",
        heterogeneous=heterogeneous,
    )
    method = advice.make()
    assert method.name == advice.method and form == method.form and db.CATALOG[advice.method].form == form
    cost = db.cost(problem, method, advice.graphs)
    assert cost["bytes"] == advice.bytes_per_step <= 400  # equal, since every node has as many neighbours


def test_settings_can_be_changed():
    advice = theory.advise(8, degree=2)
    assert advice.make(alpha=0.01).settings["alpha"] == 0.01
    assert advice.make().settings["beta"] == advice.settings["beta"]


def test_reasons_are_sentences():
    for options in ({}, {"degree": 3}, {"personal": True}, {"second_derivatives": False}, {"heterogeneous": False}):
        advice = theory.advise(12, **options)
        assert all(reason[0].isupper() and reason.endswith(".") for reason in advice.reasons)
        assert str(advice).startswith(advice.method)
    assert theory.advise(12, second_derivatives=False).method == "d-soba-fo"


def test_a_personal_lower_level_has_a_transient():
    families = [g.ring(12), g.exponential(12), g.torus(3, 4), g.star(12)]
    advice = theory.advise(12, personal=True, candidates=families)
    assert advice.method == "spdb" and advice.transient == theory.transient("spdb", 12, advice.graphs) == 12**4
    assert advice.graphs.x.spectral_gap == max(graph.spectral_gap for graph in families)
    assert "n⁴" in advice.reasons[-1] and not any("published" in reason for reason in advice.reasons)
    alike = theory.advise(12, personal=True, heterogeneous=False, candidates=families)
    assert alike.transient is None and alike.graphs == advice.graphs
    assert alike.reasons[-1] == "No transient is published for d-sgd-bilevel, so the largest spectral gap decides."


def test_candidates_with_a_negative_eigenvalue_become_lazy():
    thirds = g.ring(8, weights="metropolis")
    advice = theory.advise(8, candidates=[thirds])
    assert advice.graphs.y == thirds.lazy()
    db.cost(random_quadratic(8).problem(), advice.make(), advice.graphs)  # it fits


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"degree": 1}, "at most 1 neighbours: allow more, or take db.theory.plans"),
        ({"candidates": [g.random_matchings(10)]}, "no undirected candidate that stays the same has 10 nodes"),
        ({"bytes_per_step": 100}, "dimension"),
        ({"bytes_per_step": 10, "dimension": (3, 4)}, "at least 88"),  # 2 neighbours · 4 bytes · (3 + 2 · 4)
        ({"personal": True, "second_derivatives": False}, "second derivatives"),
        ({"personal": True, "single": True}, "personal"),
        ({"candidates": [g.ring(5)]}, "10 nodes"),
    ],
)
def test_advice_errors(options, words):
    with pytest.raises(ValueError, match=words):
        theory.advise(10, **options)


def test_advice_counts_the_rounds_of_an_accelerated_graph():
    options = {"dimension": (3, 4)}
    one, four = (theory.advise(8, candidates=[graph], **options) for graph in (g.ring(8), g.ring(8).accelerated(4)))
    assert four.bytes_per_step == 4 * one.bytes_per_step
    cost = db.cost(random_quadratic(8, 3, 4).problem(dtype=jnp.float32), four.make(), four.graphs)
    assert cost["bytes"] == four.bytes_per_step


def test_theorems_of_damped_strategies_need_a_graph_that_stays():
    pairs = g.random_matchings(8)
    with pytest.raises(ValueError, match="theorems for 'ed' are for a W that never changes, and random matchings does"):
        theory.transient("sparkle-ed", 8, pairs)
    assert theory.transient("sparkle-gt", 8, pairs) > 0


# The measured transient, on curves whose answer is known.


def trace(steps, values, column="stationarity"):
    return db.Trace({"step": steps, column: values})


STEPS = np.arange(0, 1001, 10)
FLOOR = 1 / (1 + STEPS)


def test_extra_error_dies_out():
    # ratio 1 + 10·2^(−k/100) falls to 2 at k = 100·log₂ 10 = 332.2
    run = trace(STEPS, FLOOR * (1 + 10 * 0.5 ** (STEPS / 100)))
    assert theory.measured_transient(run, trace(STEPS, FLOOR)).step == 340
    assert theory.measured_transient(run, trace(STEPS, FLOOR), factor=6.0).step == 100
    assert theory.measured_transient(run, trace(STEPS, FLOOR), factor=11.0).step == 0


def test_last_excursion_counts():
    values = FLOOR.copy()
    values[40] *= 5
    spiked = trace(STEPS, values)
    assert theory.measured_transient(spiked, trace(STEPS, FLOOR)).step == 410
    assert theory.measured_transient(spiked, trace(STEPS, FLOOR), window=5).step == 0  # 5^(1/5) is below 2


def test_other_columns_and_other_steps():
    fine, coarse = np.arange(0, 501), np.arange(0, 1001, 50)
    reference = trace(coarse, 0.99**coarse, "upper")  # straight on the logarithmic scale
    run = trace(fine, 0.99**fine * np.where(fine < 123, 3.0, 1.9), "upper")
    assert theory.measured_transient(run, reference, "upper").step == 123
    reference = trace(np.arange(200, 400), 0.99 ** np.arange(200, 400), "upper")
    assert theory.measured_transient(run, reference, "upper").step == 200  # the first common step


def test_never():
    slow = theory.measured_transient(trace(STEPS, 3 * FLOOR), trace(STEPS, FLOOR))
    assert slow.step is None and "3 times" in slow.sentence and "1000" in slow.sentence
    values = FLOOR.copy()
    values[-1] = np.nan
    assert theory.measured_transient(trace(STEPS, values), trace(STEPS, FLOOR)).step is None
    assert "not finite" in theory.measured_transient(trace(STEPS, values), trace(STEPS, FLOOR)).sentence
    assert theory.measured_transient(trace(STEPS, FLOOR), trace(STEPS, values)).step is None
    assert theory.measured_transient(trace(STEPS + 5000, FLOOR), trace(STEPS, FLOOR)).step is None


def test_a_gap_of_nan_is_outside():
    values = FLOOR.copy()
    values[10] = np.nan
    assert theory.measured_transient(trace(STEPS, values), trace(STEPS, FLOOR)).step == 110


def test_zeros_are_fine_and_negatives_are_not():
    zeros = np.zeros(STEPS.size)
    assert theory.measured_transient(trace(STEPS, zeros), trace(STEPS, zeros)).step == 0
    with pytest.raises(ValueError, match="negative"):
        theory.measured_transient(trace(STEPS, -FLOOR), trace(STEPS, FLOOR))
    with pytest.raises(ValueError, match="factor"):
        theory.measured_transient(trace(STEPS, FLOOR), trace(STEPS, FLOOR), factor=0.5)
    with pytest.raises(KeyError, match="no column"):
        theory.measured_transient(trace(STEPS, FLOOR), trace(STEPS, FLOOR), "stationary")
