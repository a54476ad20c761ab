"""db.theory: values by hand and from the theorems, orderings, and the papers' tables."""

import re

import numpy as np
import pytest

import decibel as db
from decibel import theory
from decibel.methods._gossip_dsbo import gossip_rates
from decibel.solver._complexity import ROWS

g = db.graphs
SIZES = (16, 36, 64)


# Values at hand-computed points: n = 8, 1 − ρ = 1/2 and 1/8.


def test_dsoba_by_hand():
    assert theory.dsoba(8, 0.5) == 512 * 16
    assert theory.dsoba(8, 0.5, heterogeneity=3.0) == 512 * 81 * 16
    assert theory.dsoba(8, 0.875, heterogeneity=2.0) == 512 * 16 * 4096
    assert theory.dsoba(8, 0.5, heterogeneity=0.0) == 512 * 4
    assert theory.dsoba(8, 0.5, heterogeneity=0.7) == 512 * 4  # b⁴/(1−ρ)² = 0.96 is below one, b²/(1−ρ)² is not


def theorem_1(n, rho, b, T):
    """The terms of D-SOBA's Theorem 1 besides 1/√(nT)."""
    gap = 1 - rho
    first = rho ** (2 / 3) / (gap ** (1 / 3) * T ** (2 / 3))
    second = (rho * b / gap) ** (2 / 3) / T ** (2 / 3)
    return np.array([first, second, rho / (gap * T), 1 / T])


@pytest.mark.parametrize("n", [1, 2, 8, 50])
@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("b", [0.0, 0.1, 1.0, 3.0, 20.0])
def test_dsoba_is_where_theorem_1_reaches_the_rate(n, rho, b):
    # The returned order leaves the factor ρ⁴ of the two leading terms out. With it, the larger of them equals 1/√(nT);
    # later every term is below 1/√(nT), and earlier this one is not.
    T, leading = theory.dsoba(n, rho, b), slice(0, 2)
    reached = T * rho**4
    assert theorem_1(n, rho, b, reached)[leading].max() == pytest.approx(1 / np.sqrt(n * reached))
    assert theorem_1(n, rho, b, 0.9 * reached)[leading].max() > 1 / np.sqrt(n * 0.9 * reached)
    for later in (T, 10 * T, 1e6 * T):
        assert np.all(theorem_1(n, rho, b, later) <= (1 + 1e-9) / np.sqrt(n * later))


@pytest.mark.parametrize("b", [2.0, 3.0, 20.0])
def test_the_squared_heterogeneity_of_the_tables_is_too_early(b):
    n, rho = 16, 0.9
    printed = rho**4 * n**3 * b**2 / (1 - rho) ** 4
    assert theorem_1(n, rho, b, printed)[1] == pytest.approx(b ** (1 / 3) / np.sqrt(n * printed))


@pytest.mark.parametrize("n", [2, 8, 50])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.99])
def test_gossip_dsbo_is_where_theorem_5_1_reaches_the_rate(n, rho):
    T = theory.transient("gossip-dsbo", n, rho)
    assert n / (T * (1 - rho) ** 2) == pytest.approx(1 / np.sqrt(n * T))


def test_spdb_is_the_fourth_power_on_every_graph():
    assert theory.transient("spdb", 8, 0.5) == theory.transient("spdb", 8, 0.999) == 8**4
    for graph in (g.ring(9), g.complete(9), g.star(9)):
        assert theory.transient("spdb", 9, graph) == theory.transient(db.spdb(alpha=0.1, beta=0.1), 9, graph) == 9**4


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
        (lambda: theory.transient("slam", 8, 0.5), "method='slam' has no published transient"),
        (lambda: theory.transient("interact", 8, 0.5), "rate is 1/T"),
        (lambda: theory.transient("svr-interact", 8, 0.5), "rate is 1/T"),
        (lambda: theory.transient("gt-dsgd", 8, 0.5), "tables have none"),
        (lambda: theory.transient("spdb", 8, 1.0), "rho=1.0"),
        (lambda: theory.transient("spdb", 8, g.ring(9)), "9"),
        (lambda: theory.transient("sparkle-diffusion", 8, 0.5), "diffusion"),
        (lambda: theory.transient("sparkle-edd", 8, 0.5), "did you mean"),
        (lambda: theory.transient("d-soba", 8, 1.0), "rho=1.0"),
        (lambda: theory.transient("d-soba", 8, g.ring(9)), "9"),
        (lambda: theory.transient("d-soba", 0, 0.5), "nodes=0"),
        (lambda: theory.sparkle(8, 0.5, lower="edd"), "did you mean 'ed'"),
    ],
)
def test_errors(call, words):
    with pytest.raises((ValueError, KeyError), match=re.escape(words)):
        call()


# Step sizes of order √(N/T).


def test_rates_by_hand():
    assert theory.rates(16, 10_000, alpha=1.0) == {"alpha": pytest.approx(0.04)}
    made = theory.rates(4, 400, alpha=0.1, beta=2.0, gamma=3.0, theta=5.0)
    assert made == pytest.approx({"alpha": 0.01, "beta": 0.2, "gamma": 0.3, "theta": 0.5})
    assert theory.rates(4, 400, beta=50.0, theta=50.0) == pytest.approx({"beta": 5.0, "theta": 1.0})


def test_rates_fit_the_methods():
    sizes = theory.rates(8, 3_200, alpha=1.0, beta=2.0, gamma=2.0, theta=6.0)
    for method in (db.sparkle("ed", **sizes), db.dsoba(**sizes)):
        assert {name: method.settings[name] for name in sizes} == sizes
    assert db.ed(**theory.rates(8, 3_200, alpha=2.0)).settings["alpha"] == pytest.approx(0.1)


def test_gossip_rates_are_a_special_case():
    for nodes, steps in ((5, 500), (20, 2_000), (7, 70_000)):
        expected = gossip_rates(nodes, steps, scale=0.1, factor=2.0)
        assert theory.rates(nodes, steps, alpha=0.1, beta=2.0, theta=2.0) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: theory.rates(8, 100), "give alpha, beta, gamma or theta"),
        (lambda: theory.rates(8, 100, alpha=0.0), "alpha=0.0"),
        (lambda: theory.rates(8, 100, theta=float("nan")), "theta=nan"),
        (lambda: theory.rates(8, 0, alpha=1.0), "steps=0"),
        (lambda: theory.rates(0, 10, alpha=1.0), "nodes=0"),
    ],
)
def test_rates_errors(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


# The papers' tables: n = 4, T = 100, ε = 1/10, so 1/ε² = 100 and 1/(nε²) = 25; p = 3, q = 5.

LOG = np.log(10)
TABLE = {  # 1/rate, computation, communication
    "dsbo": (10, 1000, 100 * (15 * LOG + 50)),
    "ma-dsbo": (10, 100 * LOG, 100 * (5 * LOG + 3)),
    "slam": (20, 25 * LOG, 25 * 8),
    "mdbo": (20, 25 * LOG, 25 * 8),
    "gossip-dsbo": (20, 25 * LOG, 25 * (25 * LOG + 15)),
    "lopa": (10, 100, 100 * 8),
    "d-soba": (20, 25, 25 * 8),
    "sparkle-gt": (20, 25, 25 * 8),
    "sparkle-extra": (20, 25, 25 * 8),
    "sparkle-ed": (20, 25, 25 * 8),
    "sparkle-ed-gt": (20, 25, 25 * 8),
    "dsgd": (20, 25, 25 * 3),
    "ed": (20, 25, 25 * 3),
    "extra": (20, 25, 25 * 3),
    "gt": (20, 25, 25 * 3),
    "spdb": (20, 25 * LOG, 25 * 3),
}


@pytest.mark.parametrize("method", TABLE)
def test_tables_by_hand(method):
    rate, samples, numbers = TABLE[method]
    assert theory.asymptotic_rate(method, 4, 100) == pytest.approx(1 / rate)
    assert theory.computation(method, 4, 0.1) == pytest.approx(samples)
    assert theory.communication(method, 4, 0.1, (3, 5)) == pytest.approx(numbers)


def test_rows_that_need_more():
    assert theory.asymptotic_rate("mdbo-theorem-1", 4, 100, rho=0.75) == pytest.approx(4 / 10)
    assert theory.computation("mdbo-theorem-1", 4, 0.1, rho=0.75) == pytest.approx(16 * 100 * LOG)
    assert theory.communication("mdbo-theorem-1", 4, 0.1, (3, 5), rho=0.75) == pytest.approx(16 * 100 * 8)
    assert theory.asymptotic_rate("interact", 4, 100) == theory.asymptotic_rate("svr-interact", 4, 100) == 1 / 100
    assert theory.computation("interact", 4, 0.1, samples=64) == pytest.approx(640)
    assert theory.computation("svr-interact", 4, 0.1, samples=64) == pytest.approx(80 * LOG + 64)
    assert theory.communication("interact", 4, 0.1, (3, 5)) == pytest.approx(30)
    assert theory.communication("sparkle-ed", 4, 0.1, (3, 5), sparsity=0.5) == pytest.approx(25 * 6.5)


@pytest.mark.parametrize("method", ["d-soba", "d-soba-fo", "sparkle-non-gt-ed", "dsgd", "ed", "extra", "gt", "lopa"])
def test_one_sample_a_step_reaches_epsilon(method):
    for nodes, epsilon in ((1, 0.1), (10, 0.01), (4, 1e-4)):
        steps = round(theory.computation(method, nodes, epsilon))
        assert theory.asymptotic_rate(method, nodes, steps) == pytest.approx(epsilon, rel=0.01)


@pytest.mark.parametrize("method", [name for name in ROWS if "interact" not in name])
def test_orders_of_the_tables(method):
    few = theory.computation(method, 8, 1e-2, rho=0.5), theory.communication(method, 8, 1e-2, (3, 5), rho=0.5)
    many = theory.computation(method, 8, 1e-3, rho=0.5), theory.communication(method, 8, 1e-3, (3, 5), rho=0.5)
    assert all(np.array(many) > 99 * np.array(few))  # at least 1/ε²
    speedup = theory.asymptotic_rate(method, 4, 100, rho=0.5) / theory.asymptotic_rate(method, 16, 100, rho=0.5)
    assert speedup == pytest.approx(1 if method in ("dsbo", "ma-dsbo", "lopa", "mdbo-theorem-1") else 2)


def test_loopless_correction_needs_least():
    for method in ("dsbo", "ma-dsbo", "slam", "mdbo", "gossip-dsbo", "lopa", "d-soba"):
        assert theory.computation("sparkle-ed", 9, 1e-3) <= theory.computation(method, 9, 1e-3)
        sent = [theory.communication(name, 9, 1e-3, (20, 30)) for name in ("sparkle-ed", method)]
        assert sent[0] <= sent[1]


def test_tables_take_made_methods_and_cover_the_catalogue():
    made = db.sparkle("extra", upper="semi-gt", alpha=0.1, beta=0.1, gamma=0.1)
    assert theory.computation(made, 4, 0.1) == pytest.approx(25)
    assert set(ROWS) - set(db.CATALOG) == {"mdbo-theorem-1"}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: theory.asymptotic_rate("sparkle-edd", 4, 10), "did you mean 'sparkle-ed'"),
        (lambda: theory.computation("sparkle-diffusion", 4, 0.1), "sparkle-diffusion"),
        (lambda: theory.computation("gt-dsgd", 4, 0.1), "none of the papers' tables"),
        (lambda: theory.computation("d-soba", 4, 0.0), "epsilon=0.0"),
        (lambda: theory.computation("d-soba", 4, 1.5), "epsilon=1.5"),
        (lambda: theory.computation("interact", 4, 0.1), "give samples"),
        (lambda: theory.computation("interact", 4, 0.1, samples=0), "samples=0"),
        (lambda: theory.asymptotic_rate("mdbo-theorem-1", 4, 10), "give rho"),
        (lambda: theory.asymptotic_rate("mdbo-theorem-1", 4, 10, rho=1.0), "rho=1.0"),
        (lambda: theory.asymptotic_rate("ed", 4, 0), "steps=0"),
        (lambda: theory.asymptotic_rate("ed", 2.5, 10), "nodes=2.5"),
        (lambda: theory.communication("ed", 4, 0.1, (-1, 0)), "dimension=(-1, 0)"),
        (lambda: theory.communication("sparkle-ed", 4, 0.1, (1, 1), sparsity=0.0), "sparsity=0.0"),
    ],
)
def test_table_errors(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()
