"""db.theory: values by hand, orderings, advice that fits its budget and runs, and transients of made-up curves."""

import re
from pathlib import Path

import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel import theory
from decibel.algorithms.catalog import MIXES

g = db.graphs
SIZES = (16, 36, 64)
ROOT = Path(__file__).parent.parent


# Values at hand-computed points: n = 8, 1 − ρ = 1/2 and 1/8.


def test_dsoba_by_hand():
    assert theory.dsoba(8, 0.5) == 512 * 16
    assert theory.dsoba(8, 0.5, heterogeneity=3.0) == 512 * 9 * 16
    assert theory.dsoba(8, 0.5, heterogeneity=0.0) == 512 * 4
    assert theory.dsoba(8, 0.5, heterogeneity=0.1) == 512 * 4  # b²/(1−ρ)² is below one


@pytest.mark.parametrize("lower", ["ed", "extra"])
@pytest.mark.parametrize("upper", ["ed", "extra", "gt", "semi-gt", "non-gt"])
def test_exact_strategies_below_give_the_cube(lower, upper):
    assert theory.sparkle(8, 0.5, lower=lower, upper=upper) == 512 * 4
    assert theory.sparkle(8, 0.875, lower=lower, upper=upper) == 512 * 64


@pytest.mark.parametrize("lower", ["gt", "semi-gt", "non-gt"])
@pytest.mark.parametrize("upper", ["ed", "gt"])
def test_tracking_below_adds_a_term(lower, upper):
    assert theory.sparkle(8, 0.875, lower=lower, upper=upper) == 512 * 64  # 8 · 8^(8/3) = 2048 is less
    # n = 2, 1 − ρ = 1/64: n³/(1−ρ)² = 8 · 4096 and n/(1−ρ)^(8/3) = 2 · 65536.
    assert theory.sparkle(2, 1 - 1 / 64, lower=lower, upper=upper) == pytest.approx(2 * 65536)
    assert theory.sparkle(2, 1 - 1 / 64, lower="ed", upper=lower) == 8 * 4096


def test_levels_by_hand():
    # n = 16, 1 − ρ_y = 1/2: x is free down to 1 − ρ_x = 1/8, where n²·8² = n³·2².
    assert theory.sparkle(16, 1 - 1 / 8, 0.5) == 16**3 * 4
    assert theory.sparkle(16, 1 - 1 / 16, 0.5) == 16**2 * 256
    assert theory.sparkle(16, 0.5, 1 - 1 / 8) == 16**3 * 64


def test_other_methods():
    assert theory.transient("dsgd", 8, 0.5) == theory.transient("d-soba", 8, 0.5) == theory.dsoba(8, 0.5)
    assert theory.transient("d-soba-fo", 8, 0.5, heterogeneity=2.0) == theory.dsoba(8, 0.5, 2.0)
    assert theory.transient("ed", 8, 0.5) == theory.transient("extra", 8, 0.5) == 512 * 4
    assert theory.transient("gt", 2, 1 - 1 / 64) == pytest.approx(2 * 65536)
    assert theory.transient("gossip-dsbo", 8, 0.5) == 512 * 16
    assert theory.transient("mdbo", 8, 0.5) == 512 * 256


def test_made_methods_and_names_agree():
    made = db.sparkle("extra", upper="semi-gt", alpha=0.1, beta=0.1, gamma=0.1)
    assert theory.transient(made, 9, g.ring(9)) == theory.transient("sparkle-extra-semi-gt", 9, g.ring(9))


def test_graph_rho_and_levels_agree():
    ring, torus = g.ring(16), g.torus(4)
    assert theory.transient("sparkle-gt", 16, ring) == theory.sparkle(16, ring.rho, lower="gt")
    levels = db.Levels(x=ring, y=torus)
    assert theory.transient("sparkle-ed", 16, levels) == theory.sparkle(16, ring.rho, torus.rho)
    assert theory.transient("sparkle-ed", 16, db.Levels(torus, torus, ring)) == theory.sparkle(16, torus.rho, ring.rho)
    assert theory.transient("d-soba", 16, levels) == theory.dsoba(16, ring.rho)  # the smallest gap decides


# Orderings.


@pytest.mark.parametrize("nodes", SIZES)
@pytest.mark.parametrize("method", ["d-soba", "sparkle-ed", "sparkle-gt", "sparkle-ed-gt", "ed", "mdbo"])
def test_sparser_graphs_take_longer(method, nodes):
    rows = int(nodes**0.5)
    networks = (g.complete(nodes), g.exponential(nodes), g.torus(rows), g.ring(nodes))
    orders = [theory.transient(method, nodes, graph) for graph in networks]
    assert orders == sorted(orders) and (len(set(orders)) == 4 or nodes == 16)


@pytest.mark.parametrize("nodes", SIZES)
def test_correction_never_takes_longer(nodes):
    for graph in (g.complete(nodes), g.exponential(nodes), g.ring(nodes)):
        ed, gt, plain = (theory.transient(m, nodes, graph) for m in ("sparkle-ed", "sparkle-gt", "d-soba"))
        assert ed <= gt <= plain
        assert ed == theory.transient("d-soba", nodes, graph, heterogeneity=0.0)


@pytest.mark.parametrize("method", ["d-soba", "sparkle-ed", "sparkle-gt", "sparkle-gt-ed", "gt", "gossip-dsbo"])
def test_orders_grow_with_nodes_and_rho(method):
    rhos, counts = np.linspace(0, 0.999, 40), range(1, 200, 7)
    along_rho = [theory.transient(method, 20, rho) for rho in rhos]
    along_nodes = [theory.transient(method, nodes, 0.9) for nodes in counts]
    assert np.all(np.diff(along_rho) > 0) and np.all(np.diff(along_nodes) > 0)


def test_lazy_metropolis_keeps_the_gap_the_page_states():
    for graph in (g.ring(50), g.path(50), g.star(50), g.torus(5), g.geometric(40, 0.3), g.erdos_renyi(40, 0.1)):
        assert graph.spectral_gap >= 1 / (71 * graph.nodes**2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: theory.transient("slam", 8, 0.5), "slam"),
        (lambda: theory.transient("sparkle-diffusion", 8, 0.5), "diffusion"),
        (lambda: theory.transient("sparkle-edd", 8, 0.5), "did you mean"),
        (lambda: theory.transient("d-soba", 8, 1.0), "rho=1.0"),
        (lambda: theory.transient("d-soba", 8, g.ring(9)), "9"),
        (lambda: theory.transient("d-soba", 0, 0.5), "nodes=0"),
        (lambda: theory.sparkle(8, 0.5, lower="edd"), "did you mean 'ed'"),
    ],
)
def test_refusals(call, words):
    with pytest.raises((ValueError, KeyError), match=re.escape(words)):
        call()


# The advisor.


@pytest.mark.parametrize("nodes", [2, 3, 7, 16, 30])
@pytest.mark.parametrize("degree", [2, 3, 4, 6, 8])
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


@pytest.mark.parametrize("nodes", [9, 16, 36])
def test_x_is_sparser_at_no_loss(nodes):
    advice = theory.advise(nodes)
    x, y = advice.graphs.x, advice.graphs.y
    assert y.rho == 0 and x.degrees.max() < y.degrees.max()
    assert 1 / x.spectral_gap <= nodes**0.5 / y.spectral_gap * (1 + 1e-9)
    assert advice.transient == pytest.approx(theory.sparkle(nodes, y.rho)) == nodes**3


def test_more_budget_never_hurts():
    orders = [theory.advise(36, degree=degree).transient for degree in range(2, 36)]
    assert np.all(np.diff(orders) <= 0)
    sizes = [theory.advise(36, bytes_per_step=b, dimension=(10, 30)) for b in (600, 1_000, 2_000, 5_000, 20_000)]
    assert np.all(np.diff([advice.transient for advice in sizes]) <= 0)


@pytest.mark.parametrize("form", ["shared", "personal", "single"])
@pytest.mark.parametrize("heterogeneous", [True, False])
def test_advice_runs_and_bytes_are_the_ledgers(form, heterogeneous):
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
    result = db.solve(problem, method, advice.graphs, steps=2, eval_every=1, metrics=[])
    assert result.stopped is None


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


def test_candidates_with_a_negative_eigenvalue_become_lazy():
    thirds = g.ring(8, weights="metropolis")
    advice = theory.advise(8, candidates=[thirds])
    assert advice.graphs.y == thirds.lazy()
    db.solve(random_quadratic(8).problem(), advice.make(), advice.graphs, steps=1, metrics=[])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"degree": 1}, "one_peer_exponential"),
        ({"bytes_per_step": 100}, "dimension"),
        ({"bytes_per_step": 10, "dimension": (3, 4)}, "at least 88"),  # 2 neighbours · 4 bytes · (3 + 2 · 4)
        ({"personal": True, "second_derivatives": False}, "second derivatives"),
        ({"personal": True, "single": True}, "personal"),
        ({"candidates": [g.ring(5)]}, "10 nodes"),
    ],
)
def test_advice_refuses(options, words):
    with pytest.raises(ValueError, match=words):
        theory.advise(10, **options)


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


# The page.


def test_the_page_lists_the_catalogue():
    text = (ROOT / "docs" / "which-method.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (\d) \| (.+?) \|", text, re.MULTILINE)
    listed = {name: (entry.form, str(entry.loops), entry.sends) for name, entry in db.CATALOG.items()}
    mixtures = [f"sparkle-{lower}-{upper}" for lower in MIXES for upper in MIXES if lower != upper]
    assert {name: tuple(rest) for name, *rest in rows} == {n: v for n, v in listed.items() if n not in mixtures}
