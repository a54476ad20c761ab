"""db.theory: values by hand and from the theorems, orderings, and the papers' tables."""

import re

import numpy as np
import pytest

import decibel as db
from decibel import theory
from decibel.solver._complexity import RIVALS as TABLED
from decibel.solver._complexity import ROWS

g = db.graphs
DIFFERENCES = db.sparkle("ed", alpha=0.1, beta=0.1, gamma=0.1, hypergradient=db.hypergradient.difference(1e-3))


# Values at hand-computed points: n = 8, 1 − ρ = 1/2 and 1/8.


def test_dsoba_by_hand():
    def dsoba(rho, **options):
        return theory.transient("d-soba", 8, rho, **options)

    assert dsoba(0.5) == 512 * 16
    assert dsoba(0.5, heterogeneity=3.0) == 512 * 81 * 16
    assert dsoba(0.875, heterogeneity=2.0) == 512 * 16 * 4096
    assert dsoba(0.5, heterogeneity=0.0) == 512 * 4
    assert dsoba(0.5, heterogeneity=0.7) == 512 * 4  # b⁴/(1−ρ)² = 0.96 is below one, b²/(1−ρ)² is not


def test_spdb_is_the_fourth_power_on_every_graph():
    assert theory.transient("spdb", 8, 0.5) == theory.transient("spdb", 8, 0.999) == 8**4
    for graph in (g.ring(9), g.complete(9), g.star(9)):
        assert theory.transient("spdb", 9, graph) == theory.transient(db.spdb(alpha=0.1, beta=0.1), 9, graph) == 9**4


def test_other_methods():
    assert theory.transient("dsgd", 8, 0.5) == theory.transient("d-soba", 8, 0.5) == 512 * 16
    assert theory.transient("d-soba-fo", 8, 0.5, heterogeneity=2.0) == 512 * 16 * 16
    assert theory.transient("ed", 8, 0.5) == theory.transient("extra", 8, 0.5) == pytest.approx(512 * 4)
    assert theory.transient("gt", 2, 1 - 1 / 64) == pytest.approx(2 * 65536)
    assert theory.transient("gossip-dsbo", 8, 0.5) == pytest.approx(512 * 16)
    assert theory.transient("mdbo", 8, 0.5) == 512 * 256


def test_made_methods_and_names_agree():
    made = db.sparkle("extra", upper="semi-gt", alpha=0.1, beta=0.1, gamma=0.1)
    assert theory.transient(made, 9, g.ring(9)) == theory.transient("sparkle-extra-semi-gt", 9, g.ring(9))


def test_graph_rho_and_levels_agree():
    ring, torus = g.ring(16), g.torus(4)
    assert theory.transient("sparkle-gt", 16, ring) == theory.sparkle(16, ring.rho, lower="gt").transient
    levels = db.Levels(x=ring, y=torus)
    assert theory.transient("sparkle-ed", 16, levels) == theory.sparkle(16, ring.rho, torus.rho).transient
    swapped = db.Levels(torus, torus, ring)
    assert theory.transient("sparkle-ed", 16, swapped) == theory.sparkle(16, torus.rho, ring.rho).transient
    assert theory.transient("d-soba", 16, levels) == theory.transient("d-soba", 16, ring)  # the smallest gap decides


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
        (lambda: theory.transient("penalty-ed", 8, 0.5), "'penalty-ed' has no published transient (no theorem covers"),
        (lambda: theory.transient("penalty-gt", 8, 0.5), "no theorem covers the penalty form): choose SPARKLE"),
        (lambda: theory.transient(DIFFERENCES, 8, 0.5), "no theorem covers SPARKLE with gradient differences"),
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
    """Gossip-DSBO's (5): α = C₀ √(K/T), β = γ = c √(K/T)."""
    for nodes, steps in ((5, 500), (20, 2_000), (7, 70_000)):
        root = (nodes / steps) ** 0.5
        expected = {"alpha": 0.1 * root, "beta": 2.0 * root, "theta": 2.0 * root}
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


def test_the_network_of_gossip_dsbo_adds_its_samples():
    """Table 1 of Gossip-DSBO: 1/(Kε²) + K/((1−ρ)²ε), here 25 + 4 · 16 · 10; the log is of the lower samples."""
    assert theory.computation("gossip-dsbo", 4, 0.1, rho=0.75) == pytest.approx((25 + 640) * LOG)
    assert theory.communication("gossip-dsbo", 4, 0.1, (3, 5), rho=0.75) == pytest.approx((25 + 640) * (25 * LOG + 15))
    central = theory.computation("gossip-dsbo", 4, 0.1)
    assert central == pytest.approx(25 * LOG)  # the column with a central server
    # Theorem 5.1 needs so many steps: at them its two terms are ε or less, and at half of them one is not.
    for rho in (0.1, 0.9, 0.999):
        steps = theory.computation("gossip-dsbo", 4, 0.1, rho=rho) / LOG
        terms = np.array([[(4 * T) ** -0.5, 4 / (T * (1 - rho) ** 2)] for T in (steps, 0.49 * steps)])
        assert (terms[0] <= 0.1).all() and not (terms[1] <= 0.1).all()


RIVALS = {  # upper and lower samples at ε = 1/10, as both tables print them
    "bsa": (100, 1000 * LOG),
    "stocbio": (100, 100 * LOG),
    "alset": (100, 100 * LOG),
    "fednest": (100, 100 * LOG),
    "scgd, compositional": (1e4, 1e4),
    "nasa, compositional": (100, 100),
    "alset, compositional": (100, 100),
    "fednest, compositional": (100, 100),
    "ttsa": (10**2.5, 10**2.5),
    "mstsa": (100, 100),
    "stable": (100, 100),
    "sustain": (10**1.5, 10**1.5),
    "vrbo": (10**1.5, 10**1.5),
    "rsvrb": (10**1.5, 10**1.5),
    "itd-bio": (640, 640),
    "aid-bio": (640, 640),
}


def test_rivals_by_hand():
    found = {name: theory.rival_samples(name, 0.1, samples=64) for name in TABLED}
    assert found == {name: pytest.approx(expected) for name, expected in RIVALS.items()}
    with pytest.raises(ValueError, match="give samples"):
        theory.rival_samples("aid-bio", 0.1)
    with pytest.raises(ValueError, match=re.escape("name='also' is not a rival in the papers' tables")):
        theory.rival_samples("also", 0.1)


def test_rows_that_need_more():
    assert theory.asymptotic_rate("mdbo-theorem-1", 4, 100, rho=0.75) == pytest.approx(4 / 10)
    assert theory.computation("mdbo-theorem-1", 4, 0.1, rho=0.75) == pytest.approx(16 * 100 * LOG)
    assert theory.communication("mdbo-theorem-1", 4, 0.1, (3, 5), rho=0.75) == pytest.approx(16 * 100 * 8)
    assert theory.asymptotic_rate("interact", 4, 100) == theory.asymptotic_rate("svr-interact", 4, 100) == 1 / 100
    assert theory.computation("interact", 4, 0.1, samples=64) == pytest.approx(640)
    assert theory.computation("svr-interact", 4, 0.1, samples=64) == pytest.approx(80 * LOG + 64)
    assert theory.communication("interact", 4, 0.1, (3, 5)) == pytest.approx(30)
    assert theory.communication("sparkle-ed", 4, 0.1, (3, 5), sparsity=0.5) == pytest.approx(25 * 6.5)


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
        (lambda: theory.asymptotic_rate("penalty-ed", 4, 10), "none of the papers' tables"),
        (lambda: theory.asymptotic_rate(DIFFERENCES, 4, 10), "no theorem covers SPARKLE with gradient differences"),
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
