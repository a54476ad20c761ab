"""Statistics of a step: with batches of one sample, the mean of x in the long run is the solution, or the bias that a
method's documentation names.

Every sample has its own curvature, correlated with its own Jacobian. So a direction in which the samples of one batch
meet themselves (J z⁺ with a z⁺ that was made on the same samples) moves the fixed point, although its full-batch
trajectory is right. On such a quadratic all else is linear in what is drawn, so means are exact and only the length
of the run limits what is seen.
"""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel.engines._program import RunConfig
from decibel.methods._sparkle import Sparkle

NODES, SAMPLES, STEPS, BLOCKS = 24, 4, 60_000, 24
RATES = dict(alpha=0.1, beta=0.3, gamma=0.3, theta=0.5)
SCALE, TERMS = 2.0, 8
SERIES = dict(terms=TERMS, scale=SCALE)
STRENGTH = 2.0  # of penalties
ERRORS = 4.0  # standard errors: with all methods and both orders, chance exceeds it once in two hundred choices of seed
RING = db.graphs.ring(NODES)
RNG = np.random.default_rng(3)

# Per node and sample. g = ½ h y² − y (b x + c), f = ½ (y − a)² + ½ (x − e)²: H = h, J = −b.
CURVED = np.array([1.6, 1.4, 0.5, 0.5])
COUPLED = np.array([1.9, 1.2, 0.4, 0.5])
DATA = {
    "h": RNG.uniform(0.9, 1.1, (NODES, 1)) * CURVED,
    "b": RNG.uniform(0.8, 1.2, (NODES, 1)) * COUPLED,
    "c": 1.0 + 0.3 * RNG.normal(size=(NODES, 1)) + 0.5 * np.array([1.0, -1.0, 0.5, -0.5]),
    "a": -1.0 + 0.3 * RNG.normal(size=(NODES, SAMPLES)),
    "e": 0.5 * RNG.normal(size=(NODES, SAMPLES)),
}
h, b, c, a, e = (DATA[name].mean(1) for name in "hbcae")


def lower(x, y, batch):
    h, b, c = (jnp.mean(batch[name]) for name in "hbc")
    return jnp.sum(0.5 * h * y**2 - y * (b * x + c))


def upper(x, y, batch):
    return jnp.sum(jnp.mean(0.5 * (y - batch["a"][:, None]) ** 2, 0)) + upper_of_x(x, batch)


def upper_of_x(x, batch):
    return jnp.sum(jnp.mean(0.5 * (x - batch["e"][:, None]) ** 2, 0))


# Solutions by hand: with y*(x) = s x + t and k for b H⁻¹, the mean over nodes of x − e + k (s x + t − a) vanishes.


def root(k, s, t):
    return np.mean(e - k * (t - a)) / np.mean(1 + k * s)


def shared(k=None):
    """A lower level for all: s and t are those of the mean problem, and so is k unless each node has its own."""
    s, t = b.mean() / h.mean(), c.mean() / h.mean()
    return root(s if k is None else k, s, t)


def penalized(λ):
    """Of f(x, y) + λ (g(x, y) − g(x, z)), with y and z for all."""
    pull = λ * b.mean() / (h.mean() * (1 + λ * h.mean()))
    return (e.mean() + pull * (h.mean() * a.mean() - c.mean())) / (1 + pull * b.mean())


def personal(k=None):
    return root(b / h if k is None else k, b / h, c / h)


def series(curvature):
    """(1/L) Σ_{j<K} (1 − H/L)^j"""
    return sum((1 - curvature / SCALE) ** j for j in range(TERMS)) / SCALE


@cache
def problem(form):
    if form == "single":
        return db.Problem(upper_of_x, upper_data={"e": DATA["e"]}, x0=jnp.full(1, e.mean()))
    x0 = shared() if form == "shared" else personal()
    data = dict(upper_data={k: DATA[k] for k in "ae"}, lower_data={k: DATA[k] for k in "hbc"})
    start = dict(x0=jnp.full(1, x0), y0=jnp.full(1, (b.mean() * x0 + c.mean()) / h.mean()))
    return db.Problem(upper, lower, **start, personal=form == "personal", **data)


@eqx.filter_jit
def path(program, state, steps):
    """(steps,) the mean over nodes of x after every step."""

    def body(state, k):
        state, _ = program.step(k, state)
        return state, state.x.s.tree.mean()

    return jax.lax.scan(body, state, jnp.arange(steps, dtype=jnp.int32))[1]


def xs(method, steps, batch_size):
    graph = db.graphs.complete(NODES) if method.centralized else RING
    run = db.Simulator().start(problem(method.form), method, db.Levels(x=graph), RunConfig(batch_size))
    return np.asarray(path(run.program, run.state, steps))


def limit(method, steps=4_000):
    """Where full batches lead, which other tests compare with references: the bias that is documented."""
    return xs(method, steps, None)[-1]


def long_run(method, steps=STEPS):
    """The mean of x over a long run with batches of one sample, and its standard error, from blocks of the run."""
    late = xs(method, steps, 1)[steps // 20 :]
    blocks = np.array([block.mean() for block in np.array_split(late, BLOCKS)])
    return blocks.mean(), blocks.std(ddof=1) / BLOCKS**0.5


def made(name, **more):
    """A method of the catalogue with this file's step sizes, and what else it takes."""
    entry = db.CATALOG[name]
    known = inspect.signature(entry.make).parameters
    inner = dict(lower_steps=3, auxiliary_steps=3, period=5, smoothness=SCALE, convexity=0.5)
    copies = dict(strength=STRENGTH, decay=2.0) | (dict(beta=0.1) if name == "ahead" else {})
    given = {key: value for key, value in (RATES | SERIES | inner | copies).items() if key in known}
    return entry(**given, **more)


CORRECTED = ("ed", "extra", "gt", "semi-gt", "non-gt", "edge-ed")
EXACT = [f"sparkle-{low}" if low == up else f"sparkle-{low}-{up}" for low in CORRECTED for up in CORRECTED]


def expected(name, method):
    """The solution; or what the documentation of the method says that it ends at instead."""
    match name:
        case "mdbo" | "vrdbo" | "slam":  # every node's own inverse, with as many terms as it was given
            return shared(b * series(h))
        case "gt-dsgd" | "spdb":  # the right inverse, less the terms left out
            return personal(b * series(h))
        case "d-sgd-bilevel":  # the same, and not tracked
            return limit(replace(method, hypergradient=db.hypergradient.neumann(**SERIES)))
        case "interact" | "svr-interact" | "prometheus" | "lopa-gt":
            return personal()
        case "dama":  # x follows ∇_x f alone, which is right for a minimax problem only
            return e.mean()
        case "soba" | "duet" | "dsvrbgd":
            return shared()
        case "f2sa" | "dsgda-gt" | "c2dfb":
            return penalized(STRENGTH)
    if method.form == "single":
        return e.mean() if name != "dsgd" else limit(method)
    return shared() if name in EXACT else limit(method)  # not corrected, or truncated


# INTERACT takes no batches; the mean of a step of fixed length, or of Adam's, is no step along the mean; and steps that
# shrink with the sums of squares remember where they started.
ADAM = ("adam-ed", "sparkle-adam-ed", "gt-adam", "dadam")
UNSEEN = ("interact", "normalized-dsvrbgd", "d-adast", "adasdbo", *ADAM)
# Mixtures differ in the strategies of their levels only: each strategy once above and once below.
AROUND = ("ed", "gt", "extra", "consensus", "diffusion", "non-gt", "semi-gt", "ed")
MIXTURES = [f"sparkle-{lower}-{upper}" for lower, upper in pairwise(AROUND)]
SEEN = [name for name, entry in db.CATALOG.items() if name not in UNSEEN and (not entry.mixture or name in MIXTURES)]


@pytest.mark.slow_except("sparkle-ed", "slam", "ed")
@pytest.mark.parametrize("name", SEEN)
def test_the_mean_of_x_is_where_it_is_said_to_be(name):
    steps = 1_500 if name == "double-loop-dsgd" else STEPS  # its t-th step takes t inner ones
    both = name.startswith("sparkle") and name != "sparkle-led"  # local steps have one order
    for updates in ("alternating", "simultaneous") if both else (None,):
        method = made(name, **({} if updates is None else {"updates": updates}))
        mean, error = long_run(method, steps)
        # A third of what samples that meet themselves would do; the growing loop's run is shorter.
        assert ERRORS * error < (0.02 if name == "double-loop-dsgd" else abs(shift()) / 3)
        assert abs(mean - expected(name, method)) < ERRORS * error, f"{name} {updates or ''}: {mean} ± {error}"


def shift():
    """How far x moves where v, H z and J z⁺ have the same samples: J z⁺ gains the covariance of b with what z⁺ lost,
    γ (h z − y⁺), in which y⁺ lost β (h y − b x − c). A node gets back W_ii of what it sends, (W²)_ii by two rounds."""
    once, twice = (np.linalg.matrix_power(RING.W, rounds)[0, 0] for rounds in (1, 2))
    γ, γβ = once * RATES["gamma"], twice * RATES["gamma"] * RATES["beta"]

    def with_b(name):
        return np.mean((DATA["b"] - b[:, None]) * (DATA[name] - DATA[name].mean(1, keepdims=True)))

    def u(x):  # affine
        y = (b.mean() * x + c.mean()) / h.mean()
        z = (y - a.mean()) / h.mean()
        own = γ * with_b("h") * z + γβ * (with_b("h") * y - with_b("b") * x - with_b("c"))
        return x - e.mean() + b.mean() * z - own

    return u(0.0) / (u(0.0) - u(1.0)) - shared()


class OneLowerBatch(Sparkle):
    """What must not be: v, H z and J z⁺ on the same samples."""

    def step(self, k, state, oracle, network):
        draw = oracle.draw()
        return super().step(k, state, _Same(oracle, draw), network)


class _Same:
    def __init__(self, oracle, draw):
        self.ledger, self.problem = oracle.ledger, oracle.problem
        draw.fresh_lower = lambda number: draw
        self.draw = lambda tag=0: draw


def test_samples_that_meet_themselves_are_seen():
    """The mutant ends where the formula of the bias has it, far outside of what the test above lets pass."""
    method = made("sparkle-ed", updates="alternating")
    mutant = OneLowerBatch(**{field.name: getattr(method, field.name) for field in fields(method)})
    mean, error = long_run(mutant)
    assert abs(mean - shared()) > 10 * error
    assert abs(mean - shared() - shift()) < ERRORS * error


@pytest.mark.slow
def test_an_inverse_of_a_batch_has_the_bias_that_is_documented():
    """E[J_ξ H_ξ⁻¹] takes the place of J H⁻¹, at every node."""
    k = (DATA["b"] / DATA["h"]).mean(1)
    assert abs(personal(k) - personal()) > 0.01
    for make in (db.gt_dsgd, db.spdb):
        mean, error = long_run(make(alpha=RATES["alpha"], beta=RATES["beta"], hypergradient=db.hypergradient.exact()))
        assert abs(mean - personal(k)) < ERRORS * error < abs(personal(k) - personal()) / 3
