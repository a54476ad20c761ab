"""Bias: what batches of one sample change on average, as exact sums over samples, and where every method settles.

On a quadratic whose samples differ in all coefficients (`skewed_quadratic`) a step is a polynomial in the coefficients
of the samples that it draws. Three facts follow, and each is checked for every entry of the catalogue:

1. If no product holds the same draw twice, the step is affine in every draw: its mean over a draw is the step on the
   mean sample. A draw that meets itself, as in J z⁺ with a z⁺ that was made on the same sample, adds a covariance.
2. If the step on mean samples is affine in the state as well, means follow it: E[s⁺] = F(E[s]), exactly. Then the mean
   of a run with batches ends where a run with full batches ends.
3. Where that is follows from the method's definition: the solution, or the bias that is documented.

So nothing is sampled. What is right is right to rounding, and a planted fault is larger by five powers of ten or more.

Adaptive steps are no polynomials. If their sums of squares are large against those of one sample, as they are late in a
run, steps do not depend on the draw, and the facts hold for steps that differ by node and coordinate. `dsbo` and
`gossip-dsbo` multiply averages that depend on each other, so fact 2 fails for them, and 1 and 3 are checked. What
constant steps leave of both is measured by the last test.
"""

from __future__ import annotations

import inspect
from functools import cached_property, partial
from itertools import combinations, pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import skewed_quadratic as quadratic
from chosen_draws import HEADS, MEAN, SAMPLES, TAILS, draw_of, find_slots, key_of, named, node_of, words
from jax.flatten_util import ravel_pytree
from skewed_quadratic import BT, COMPLETE, DATA, GRAPH, NODES, H, settle

import decibel as db
from decibel.core._keys import key_per_seed
from decibel.engines._program import RunConfig
from decibel.strategies import STRATEGIES

RATES = dict(alpha=0.1, beta=0.3, gamma=0.3, theta=0.5)
RATE_OF = {"x": "alpha", "y": "beta", "z": "gamma"}
TERMS = 4
SCALE = 2.0
STRENGTH = 2.0
PROBABILITY = 0.25
SETTINGS = dict(
    terms=TERMS,
    scale=SCALE,
    smoothness=SCALE,
    convexity=0.5,
    strength=STRENGTH,
    probability=PROBABILITY,
    lower_steps=2,
    auxiliary_steps=2,
    period=2,
    relax=0.7,
    tau=0.8,
    decay=2.0,
    node_steps=(1.0, 0.5, 1.3, 0.8),
)
STEP = 5  # the step that is looked at; methods with full batches take one in every even step
CHUNK = 128  # states at a time, so that each method is compiled once
LARGE = 1e5  # the size of the directions of which sums of squares are made, against those of a sample
ROUNDING = 1e-11
ADAPTIVE_ROUNDING = 1e-8


@eqx.filter_jit
def stepped(program, k, state, vectors, keys):
    """(keys, entries) what step k makes of all that a run carries, given as vectors, with each key."""
    arrays, rest = eqx.partition(state, eqx.is_inexact_array)
    unravel = ravel_pytree(arrays)[1]

    def step(vector, key):
        keyed = eqx.tree_at(lambda program: program.key, program, key_of(key))
        new, _ = keyed.step(k, eqx.combine(unravel(vector), rest))
        return ravel_pytree(eqx.filter(new, eqx.is_inexact_array))[0]

    return jax.vmap(step)(vectors, keys)


def with_rates(program, rates):
    """With other step sizes, which are arguments of what is compiled."""

    def given(program):
        return [getattr(program.method, name) for name in rates]

    return eqx.tree_at(given, program, [jnp.asarray(value) for value in rates.values()]) if rates else program


class Trial:
    """A method on the quadratic: what a step makes of a vector of all that is carried, with chosen draws.

    Args:
        method: the method.
        cubic: whether g has its cubic term, so that H depends on y.
        horizon: look at the state that many steps after the draws; the steps between take mean samples.
        steps: the steps of a period, over which the mean of a run is followed.
        coin: whether random bits that are no batch decide a coin, and not the length of a series.
        exempt: whether variables are left out of what is compared, and only carries and memories are.
    """

    def __init__(self, method, *, cubic=False, horizon=1, steps=(STEP,), coin=False, exempt=False):
        self.method = method
        self.cubic = cubic
        self.horizon = horizon
        self.steps = steps
        self.coin = coin
        self.program, self.state = self._started(cubic=cubic)
        self.rates = {name: float(getattr(method, name)) for name in RATES if hasattr(method, name)}
        paths = jax.tree_util.tree_leaves_with_path(eqx.filter(self.state, eqx.is_inexact_array))
        names = [jax.tree_util.keystr(path).partition("[<flat")[0] for path, _ in paths]
        self.leaf = np.repeat(names, [leaf.size for _, leaf in paths])  # of every entry, such as ".x.carry[1]"
        self.variable = np.isin(self.leaf, [".x.s", ".y.s", ".z.s"])
        self.start = np.asarray(ravel_pytree(eqx.filter(self.state, eqx.is_inexact_array))[0])
        self.rng = np.random.default_rng(1)
        self._freeze()
        self.tolerance = ADAPTIVE_ROUNDING if self.fixed.any() else ROUNDING
        self.compared = ~(self.fixed | self.variable) if exempt else ~self.fixed
        self.point = np.where(self.fixed, self.start, self.rng.normal(size=len(self.start)))

    def _started(self, **options):
        """A program and its first state."""
        batch_size = None if self.method.name == "interact" else 1
        graph = COMPLETE if self.method.centralized else GRAPH
        problem = quadratic.problem(self.method.form, **options)
        run = db.Simulator().start(problem, self.method, db.Levels(x=graph), RunConfig(batch_size))
        # Integers number messages: links have exchanged one already, of zeros.
        state = jax.tree.map(lambda leaf: leaf if eqx.is_inexact_array(leaf) else jnp.ones_like(leaf), run.state)
        return run.program, state

    def _freeze(self):
        """Finds sums of squares, which are positive whatever is drawn. Makes them those of directions `LARGE` times as
        large as they are, times a number for each node and coordinate, and makes up for it in the step sizes."""
        states = self.rng.normal(size=(CHUNK, len(self.start))) * self.variable
        outputs = self(states, words(CHUNK, seed=1 + np.arange(CHUNK)))
        positive = (outputs >= 0).all(0) & outputs.any(0)
        leaves = [leaf for leaf in np.unique(self.leaf[~self.variable]) if positive[self.leaf == leaf].all()]
        self.fixed = np.isin(self.leaf, leaves)
        if not leaves:
            return
        factors = FACTORS.get(self.method.name) or {RATE_OF[leaf[1]]: LARGE for leaf in leaves}
        still = {name: 0.0 for name in RATE_OF.values() if name in self.rates and name not in factors}
        larger = with_rates(self._started(factor=LARGE)[0], still)
        values = self(self.start, words(1, seed=1), program=larger)[0]
        for leaf in leaves:
            entries = self.leaf == leaf
            if (values[entries] == 1).all():  # the number of steps; Adam's first second moment is a hundredth
                factors[RATE_OF[leaf[1]]] = LARGE / 10
                values[entries] = 1e6
            else:
                values[entries] = np.median(values[entries]) * self.rng.uniform(1, 2, entries.sum())
        self.start = np.where(self.fixed, values, self.start)
        self.rates |= {name: factor * self.rates[name] for name, factor in factors.items()}
        self.program = with_rates(self.program, {name: self.rates[name] for name in factors})

    def __call__(self, vectors, keys, k=STEP, program=None):
        """(keys, entries) after step k."""
        vectors = np.broadcast_to(vectors, (len(keys), len(self.start)))
        outputs = []
        for begin in range(0, len(keys), CHUNK):
            rows = np.arange(begin, begin + CHUNK) % len(keys)
            chunk = stepped(program or self.program, jnp.int32(k), self.state, vectors[rows], keys[rows])
            outputs.append(np.asarray(chunk))
        return np.concatenate(outputs)[: len(keys)]

    def of(self, vector, level):
        """(nodes, entries) every node's x, y or z."""
        return vector[self.leaf == f".{level}.s"].reshape(NODES, -1)

    # Means over draws

    def values(self, count, k=STEP, **given):
        """(count, entries) what is compared at the horizon, with these draws in step k, which uses all that it may."""
        all_used = TAILS if self.coin else TERMS - 1
        vectors = self(self.point, words(count, other=all_used, **given), k)
        for later in range(1, self.horizon):
            vectors = self(vectors, words(count, other=all_used), k + later)
        return vectors[:, self.compared]

    @cached_property
    def slots(self):
        """All that a step draws, of all nodes."""
        return find_slots(self.values)

    def excess(self, groups, *, seed=0):
        """(groups,) the mean over samples that all slots of a group hold, less what the mean sample gives. A group of
        two is a planted fault: two draws that are the same. Other slots hold the mean or, with a seed, any samples."""
        a = np.repeat([group[0] for group in groups], SAMPLES)
        b = np.repeat([group[-1] for group in groups], SAMPLES)
        samples = np.tile(np.arange(SAMPLES), len(groups))
        outputs = self.values(len(a), slot_a=a, sample_a=samples, slot_b=b, sample_b=samples, seed=seed)
        outputs = outputs.reshape(len(groups), SAMPLES, -1)
        return np.abs(outputs[:, :MEAN].mean(1) - outputs[:, MEAN]).max(1)

    def added(self, pairs):
        """(pairs,) whether two slots are only ever added: F(a, b) = F(a, ·) + F(·, b) − F(·, ·). If so, the mean does
        not depend on how they are drawn together, and no mean over draws can tell whether they are the same."""
        a = np.repeat([pair[0] for pair in pairs], SAMPLES**2)
        b = np.repeat([pair[1] for pair in pairs], SAMPLES**2)
        of_a, of_b = np.tile(np.indices((SAMPLES, SAMPLES)).reshape(2, -1), len(pairs))
        outputs = self.values(len(a), slot_a=a, sample_a=of_a, slot_b=b, sample_b=of_b)
        outputs = outputs.reshape(len(pairs), SAMPLES, SAMPLES, -1)
        together = outputs - outputs[:, MEAN:] - outputs[:, :, MEAN:] + outputs[:, MEAN:, MEAN:]
        return np.abs(together).max((1, 2, 3)) < self.tolerance

    # Where the mean goes

    @cached_property
    def outcomes(self):
        """[(bits, probability)] of what is drawn besides batches: the length of a series, or a coin."""
        lengths = [(length, 1 / TERMS) for length in range(TERMS)]
        drawn = [(HEADS, PROBABILITY), (TAILS, 1 - PROBABILITY)] if self.coin else lengths
        outputs = self(self.point, words(len(drawn), other=[bits for bits, _ in drawn]))
        return drawn if np.ptp(outputs, axis=0).any() else [(0, 1.0)]

    def mean(self, vectors, nonlinear=()):
        """The mean of what a period makes of vectors, by facts 1 and 2: on mean samples. What slots that are not affine
        add to it is summed over them, as they are in different nodes and so only added."""
        for k in self.steps:
            on_mean = 0.0
            for bits, probability in self.outcomes:
                on_mean = on_mean + probability * self(vectors, words(len(vectors), other=bits), k)
            moved = on_mean
            for slot in nonlinear:
                keys = [words(len(vectors), slot_a=slot, sample_a=sample) for sample in range(MEAN)]
                moved = moved + sum(self(vectors, key, k) for key in keys) / MEAN - on_mean
            vectors = np.where(self.fixed, self.start, moved)
        return vectors

    def limit(self, nonlinear=(), *, passes=8, width=1e-3):
        """Where means settle, from the start: at the limit of the affine model around the last one, until it stays. If
        the mean is affine in the state, the first pass is exact."""
        vector = self.start
        free = np.flatnonzero(~self.fixed)
        for _ in range(passes):
            shifts = np.zeros((1 + len(free), len(vector)))
            shifts[1:, free] = width * np.eye(len(free))
            base, *moved = self.mean(vector + shifts, nonlinear)[:, free]
            slope = (np.array(moved) - base).T / width
            affine = np.zeros((len(free) + 1, len(free) + 1))
            affine[:-1, :-1] = slope
            affine[:-1, -1] = base - slope @ vector[free]
            affine[-1, -1] = 1
            last = vector
            vector = last.copy()
            with np.errstate(over="ignore", invalid="ignore"):  # where they do not settle
                vector[free] = (np.linalg.matrix_power(affine, 2**15) @ np.append(last[free], 1))[:-1]
            if np.abs(vector - last).max() < 1e-9:
                break
        assert np.abs(self.mean(vector[None], nonlinear) - vector).max() < 1e-7, "means do not settle"
        return vector


# The entries

# Steps by other powers of the sums of squares than −1/2.
FACTORS = {
    "d-adast": {"alpha": LARGE**1.2, "beta": LARGE**0.8},
    "adasdbo": {"alpha": LARGE**2, "beta": LARGE, "gamma": LARGE},
}
OPTIONS = {
    # What ∇_y g draws is in h after two steps and in x after three. After four, what J draws meets itself by way of x.
    "gossip-dsbo": dict(horizon=3),
    "dama": dict(coin=True),
    "proxskip": dict(coin=True),
    "svr-interact": dict(steps=(STEP - 1, STEP)),
    "prometheus": dict(steps=(STEP - 1, STEP)),
    "duet": dict(steps=(10**6,)),  # where nothing is left of its ridge
    "normalized-dsvrbgd": dict(exempt=True),  # steps of a fixed length are no polynomials
    "lopa": dict(cubic=True),
    "lopa-gt": dict(cubic=True),
}
SPECIAL = {"ahead": dict(beta=0.1), "c2dfb": dict(beta=0.1, gamma=0.1)}  # which need shorter steps to settle
SINGLES = [name for name, entry in db.CATALOG.items() if not entry.mixture]
AROUND = [name for name in STRATEGIES if name != "local"]
MIXTURES = list(pairwise([*AROUND, AROUND[0]]))  # every strategy once below and once above


def of_catalog(name, **more):
    entry = db.CATALOG[name]
    known = [key for key in inspect.signature(entry.make).parameters if key not in entry.variant.settings]
    return entry(**{key: value for key, value in (RATES | SETTINGS).items() if key in known} | more)


def expected(name, trial):
    """{level: (nodes, entries)} where the method settles, from its definition and the problem's coefficients."""
    rates = {level: trial.rates.get(rate) for level, rate in RATE_OF.items()}
    exact = dict.fromkeys("xyz", "exact")
    consensus = dict.fromkeys("xyz", "consensus")
    diffusion = dict.fromkeys("xyz", "diffusion")
    personal = dict.fromkeys("yz", "local")
    truncated = -BT @ quadratic.series(H, TERMS, SCALE)

    def sums(level):
        return GRAPH.W @ trial.start[trial.leaf == f".memory['{level}']"]

    match name:
        case "soba":
            return settle(quadratic.auxiliary(), exact, rates)
        case "d-soba" | "d-soba-fo":
            return settle(quadratic.auxiliary(), diffusion, rates)
        case "adasdbo":
            c = np.sqrt(np.maximum(sums("y"), sums("z")))
            shares = {"x": 1 / (np.sqrt(sums("x")) * c), "y": 1 / np.sqrt(sums("y")), "z": 1 / c}
            return settle(quadratic.auxiliary(), diffusion, {level: rates[level] * shares[level] for level in "xyz"})
        case "lopa":
            return settle(quadratic.auxiliary(), consensus | personal, rates)
        case "lopa-gt":
            return settle(quadratic.auxiliary(), exact | personal, rates)
        case "ma-dsbo":
            return settle(quadratic.auxiliary(), consensus, rates)
        case "ma-dsbo-gt":
            return settle(quadratic.auxiliary(), exact | {"x": "consensus"}, rates)
        case "dsbo":
            return quadratic.dsbo_limit(rates)
        case "gossip-dsbo":
            return quadratic.gossip_dsbo_limit(rates, RATES["theta"], TERMS, SCALE)
        case "mdbo" | "vrdbo" | "slam":  # every node's own inverse, with as many terms as it was given
            return settle(quadratic.implicit(truncated), exact, rates)
        case "dbsa" | "double-loop-dsgd":
            return settle(quadratic.implicit(truncated), consensus, rates)
        case "gt-dsgd" | "spdb":  # the right inverse, less the terms left out
            return settle(quadratic.implicit(truncated), exact | personal, rates)
        case "d-sgd-bilevel":
            return settle(quadratic.implicit(truncated), consensus | personal, rates)
        case "interact" | "svr-interact" | "prometheus":
            return settle(quadratic.implicit(-BT @ np.linalg.inv(H)), exact | personal, rates)
        case "dama":  # x follows ∇_x f alone, which is right for a minimax problem only
            return settle(quadratic.first_order(), exact, rates)
        case "d-adast":
            shares = {"x": np.maximum(sums("x"), sums("y")) ** -0.6, "y": sums("y") ** -0.4}
            return settle(quadratic.first_order(), diffusion, {level: rates[level] * shares[level] for level in "xy"})
        case "f2sa" | "dsgda-gt" | "c2dfb":
            return settle(quadratic.copies(STRENGTH), exact, rates)
        case "ahead":
            return settle(quadratic.copies(STRENGTH), consensus, rates | {"y": STRENGTH * rates["y"]})
        case "sun-dsbo":
            return settle(quadratic.envelope(STRENGTH, 1.0), exact, rates)
        case "penalty-ed" | "penalty-extra" | "penalty-gt":
            return settle(quadratic.penalty(1e3), exact, rates)
    # SPARKLE and methods of one level, by their strategies; all others are exact, and new ones must be.
    uncorrected = {name: "diffusion" for name in ("diffusion", "adam-diffusion", "push-sum")} | {
        "consensus": "consensus"
    }
    strategies = {level: strategy.name for level, strategy in trial.method.strategies.items()}
    for level, strategy in strategies.items():
        if strategy == "adam-diffusion":  # its steps are α/√v̂, with v̂ = 0.99 v where one sample adds nothing
            rates[level] = rates[level] / np.sqrt(0.99 * trial.start[trial.leaf == f".{level}.carry[1]"])
    kinds = {level: uncorrected.get(strategy, "exact") for level, strategy in strategies.items()}
    return settle(quadratic.single() if trial.method.form == "single" else quadratic.auxiliary(), kinds, rates)


# Draws that might be the same for all that a mean can show: what they draw is added, and never multiplied. Besides
# these, the two levels of one draw are, in u = ∇_x f − J z and p = H z − ∇_y f.
HARMLESS = {
    # p = H z − ∇_y f adds what H and ∇_y f draw, and J, which multiplies both, has a draw of its own.
    "alternating": {("0 upper", "0 fresh 0 lower")},
    # z after two steps is (I − γ H₄) (z − γ (H₁ z − ∇_y f₁)) + γ ∇_y f₄, numbered by draws. H₁ and ∇_y f₄ are added,
    # and so are ∇_y f₁ and ∇_y f₄. ∇_x f₂ is added to J z, and has no z. y, made on 0 and 3, enters the first step on
    # z by ∇_y f₁ alone as long as H does not depend on y; see the test with one inner step for an H that does.
    "ma-dsbo": {
        ("1 lower", "4 upper"),
        ("1 upper", "4 upper"),
        *(("2 upper", f"{draw} {level}") for draw in (1, 4) for level in ("upper", "lower")),
        ("0 lower", "1 lower"),
        ("3 lower", "1 lower"),
    },
}


def check_draws(trial, harmless=()):
    """A step draws for itself, and for each node; it is affine in each draw; and were two of a node's draws the same,
    it would show, unless they are only added."""
    draws = {draw_of(slot) for slot in trial.slots}
    later = find_slots(partial(trial.values, k=STEP + 2))
    assert not draws & {draw_of(slot) for slot in later}, "two steps share a draw"
    of_a_node = {slot for slot in trial.slots if node_of(slot) == 1}
    assert len(trial.slots) == NODES * len(of_a_node), "nodes share a draw"
    for seed in (0, 1) if trial.slots else ():
        excess = trial.excess([(slot,) for slot in trial.slots], seed=seed)
        worst = named(trial.slots[excess.argmax()], STEP)
        assert excess.max() < trial.tolerance, f"what is drawn by {worst} meets itself: {excess.max():.2g}"
    pairs = list(combinations(of_a_node, 2))
    if not pairs:
        return
    added = trial.added(pairs)
    unseen = {frozenset((named(a, STEP), named(b, STEP))) for (a, b), adds in zip(pairs, added, strict=True) if adds}
    assert (trial.excess(pairs)[~added] > 100 * trial.tolerance).all(), "a planted fault is too small to be seen"
    levels = {frozenset((named(slot, STEP), named(slot ^ 1, STEP))) for slot in of_a_node}
    assert unseen - levels == {frozenset(pair) for pair in harmless}


def check_limit(trial, name=None):
    """Means settle where the definition has it."""
    limit = trial.limit()
    for level, values in expected(name, trial).items():
        np.testing.assert_allclose(trial.of(limit, level), values, atol=1e3 * trial.tolerance, rtol=0)


@pytest.mark.slow_except("sparkle-ed", "ma-dsbo")
@pytest.mark.parametrize("name", SINGLES)
def test_batches_move_no_mean(name):
    method = of_catalog(name, **SPECIAL.get(name, {}))
    trial = Trial(method, **OPTIONS.get(name, {}))
    check_draws(trial, HARMLESS.get("alternating" if trial.cubic else name.removesuffix("-gt"), ()))
    if name != "normalized-dsvrbgd":  # whose steps do not shrink
        check_limit(Trial(method) if trial.cubic else trial, name)


@pytest.mark.slow_except("diffusion-consensus")
@pytest.mark.parametrize(("lower", "upper"), MIXTURES, ids=map("-".join, MIXTURES))
def test_batches_move_no_mean_of_mixtures(lower, upper):
    """In the alternating order, which takes three lower batches. With the cubic term H depends on y, so that a draw for
    ∇_y g and H would meet itself as well."""
    method = db.sparkle(lower, upper, **RATES, updates="alternating")
    check_draws(Trial(method, cubic=True), HARMLESS["alternating"])
    check_limit(Trial(method))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ma-dsbo", "ma-dsbo-gt"])
def test_inner_steps_draw_apart_where_the_hessian_depends_on_y(name):
    """With one inner step of each kind the step is a polynomial of degree one in each draw also with the cubic term."""
    method = of_catalog(name, lower_steps=1, auxiliary_steps=1)
    check_draws(Trial(method, cubic=True), {("2 upper", "1 upper"), ("2 upper", "1 lower")})


@pytest.mark.slow
def test_a_fault_has_the_size_of_its_covariance():
    """Were H z and J z⁺ on one draw at node i, u_i would gain the covariance of Bᵀ with what z⁺_i lost, w_ii γ H z_i.
    By ED every x⁺_m then moves by −w_mi α θ times that."""
    trial = Trial(of_catalog("sparkle-ed", updates="alternating"))
    of_node = {named(slot, STEP): slot for slot in trial.slots if node_of(slot) == 1}
    pair = (of_node["0 fresh 0 lower"], of_node["0 fresh 1 lower"])
    samples = np.arange(SAMPLES)
    outputs = trial.values(SAMPLES, slot_a=pair[0], sample_a=samples, slot_b=pair[1], sample_b=samples)
    gained = outputs[:MEAN].mean(0) - outputs[MEAN]
    i = 1
    z = trial.of(trial.point, "z")[i]
    deviations = {name: DATA[name][i, :MEAN] - DATA[name][i, MEAN] for name in "BH"}
    lost = RATES["gamma"] * GRAPH.W[i, i] * deviations["H"] @ z
    u = -np.einsum("sqp,sq->p", deviations["B"], lost) / MEAN
    shift = -RATES["alpha"] * RATES["theta"] * np.outer(GRAPH.W[:, i], u)
    assert np.abs(shift).max() > 1e-4
    np.testing.assert_allclose(trial.of(gained, "x"), shift, atol=ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slam", "gt-dsgd"])
def test_the_estimate_of_the_largest_curvature_has_a_draw_of_its_own(name):
    """L is no polynomial of what it is estimated from. Given that, the step is affine in all other draws."""
    trial = Trial(of_catalog(name, scale=None))
    excess = trial.excess([(slot,) for slot in trial.slots], seed=1)
    nonlinear = {named(slot, STEP) for slot, size in zip(trial.slots, excess, strict=True) if size > ROUNDING}
    assert nonlinear == {"0 fresh 2 lower"}


@pytest.mark.slow
@pytest.mark.parametrize("make", [db.gt_dsgd, db.spdb])
def test_an_inverse_of_a_batch_has_the_bias_that_is_documented(make):
    """E[J_ξ H_ξ⁻¹] takes the place of J H⁻¹, at every node."""
    trial = Trial(make(alpha=RATES["alpha"], beta=RATES["beta"], hypergradient=db.hypergradient.exact()))
    excess = trial.excess([(slot,) for slot in trial.slots])
    nonlinear = [slot for slot, size in zip(trial.slots, excess, strict=True) if size > ROUNDING]
    assert len(nonlinear) == NODES
    ratios = -np.swapaxes(DATA["B"], 2, 3) @ np.linalg.inv(DATA["H"])
    rates = {"x": RATES["alpha"], "y": RATES["beta"]}
    kinds = {"x": "exact", "y": "local"}
    biased = settle(quadratic.implicit(ratios[:, :MEAN].mean(1)), kinds, rates)["x"]
    assert np.abs(biased - settle(quadratic.implicit(ratios[:, MEAN]), kinds, rates)["x"]).max() > 0.01
    np.testing.assert_allclose(trial.of(trial.limit(nonlinear), "x"), biased, atol=1e-8)


@pytest.mark.parametrize("name", ["dsbo", "gossip-dsbo"])
def test_consensus_steps_leave_a_bias_in_proportion_to_them(name):
    """As docs/which-method.md has it, with full batches, the default step sizes and a tenth of them."""
    settings = dict(db.CATALOG[name].defaults)

    def distance(part):
        rates = {"x": part * settings["alpha"], "y": part * settings["beta"]}
        if name == "dsbo":
            limit = quadratic.dsbo_limit(rates)
        else:
            limit = quadratic.gossip_dsbo_limit(
                rates, part * settings["theta"], settings["terms"], settings["smoothness"]
            )
        solution = settle(quadratic.auxiliary(), dict.fromkeys("xyz", "exact"), {})
        return np.linalg.norm((limit["x"] - solution["x"]).mean(0))

    documented = {"dsbo": (0.037, 0.0059), "gossip-dsbo": (0.045, 0.0049)}
    np.testing.assert_allclose([distance(1.0), distance(0.1)], documented[name], rtol=0.02)
    assert distance(1e-5) < 1e-5


# What adaptive steps leave


@eqx.filter_jit
def means_of_runs(program, state, keys, steps):
    """(keys, entries) the mean of x over nodes and the last two thirds of a run with each key."""

    def of_run(key):
        keyed = eqx.tree_at(lambda program: program.key, program, key)

        def step(carried, k):
            state, total = carried
            state, _ = keyed.step(k, state)
            return (state, total + jnp.where(k >= steps // 3, state.x.s.tree.mean(0), 0.0)), None

        numbers = jnp.arange(steps, dtype=jnp.int32)
        return jax.lax.scan(step, (state, jnp.zeros(quadratic.P)), numbers)[0][1] / (steps - steps // 3)

    return jax.vmap(of_run)(keys)


def measured_bias(problem, method, steps, seeds):
    """The mean of x with batches of one sample, less the solution, and its standard error. SPARKLE-ED, which is
    unbiased, takes the same draws, so that its own error takes most of the noise away."""
    keys = key_per_seed(range(seeds))
    runs = []
    for compared in (method, db.sparkle("ed", alpha=0.1, beta=0.3, gamma=0.3)):
        run = db.Simulator().start(problem, compared, db.Levels(x=GRAPH), RunConfig(1))
        runs.append(np.asarray(means_of_runs(run.program, run.state, keys, steps)))
    difference = runs[0] - runs[1]
    return difference.mean(0), difference.std(0, ddof=1) / seeds**0.5


@pytest.mark.slow
def test_adam_leaves_a_bias_where_noise_is_skewed():
    """As docs/evidence/adaptive.md has it: steps are shorter where the last sample is large, and so on the side of the
    longer tail of the noise. Where both tails are the same there is no bias."""
    method = db.sparkle("adam-ed", alpha=0.05, beta=0.05, gamma=0.05)
    bias, error = measured_bias(quadratic.problem_with_outliers(mirrored=False), method, 8_000, 16)
    assert 5 * np.linalg.norm(error) < np.linalg.norm(bias) < 0.003
    bias, error = measured_bias(quadratic.problem_with_outliers(mirrored=True), method, 8_000, 16)
    assert np.linalg.norm(bias) < 4 * np.linalg.norm(error)
