"""Directions whose samples are clipped and whose sums have noise: what a step learns of its samples, and nothing else.

The reference is plain NumPy: a linear model's gradients, sample by sample.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel.core._ledger import Ledger
from decibel.engines._program import Program, RunConfig
from decibel.network._in_memory import InMemory
from decibel.oracles._eval_config import EvalConfig
from decibel.oracles._records import PrivateOracle, RecordNoise, Records, SeededNoise, clipped

NODES, CLIP = 3, 0.7
RING = db.graphs.ring(NODES)
PRIVATE = db.privacy.records(CLIP, 2.0)
QUADRATIC = random_quadratic(NODES)


class Silent(RecordNoise):
    """Clips as the simulator does, and adds nothing; remembers what was asked."""

    def __init__(self, records=PRIVATE):
        super().__init__(records)
        self.asked = []

    def sum_of_clipped(self, release, rows, used):
        return SeededNoise(self.records).sum_of_clipped(release, rows, used)

    def __call__(self, step, release, sums, keys):
        self.asked.append(release)
        return sums


class Deaf(Silent):
    """Gives the same numbers whatever the samples are."""

    def __call__(self, step, release, sums, keys):
        return jax.vmap(lambda key: jax.random.normal(key, sums.shape[1:], sums.dtype))(keys)


def line(x, batch):
    return 0.5 * jnp.mean((batch["a"] @ x - batch["b"]) ** 2)


def upper(x, y, batch):
    return line(x, batch) + 0.5 * jnp.mean((batch["a"] @ y - 1) ** 2)


def lower(x, y, batch):
    return 0.5 * jnp.mean((batch["a"] @ y - batch["b"] * jnp.sum(x)) ** 2) + 0.05 * jnp.sum(y**2)


def samples(counts, seed=0, entries=4):
    rng = np.random.default_rng(seed)
    return [{"a": rng.normal(size=(n, entries)), "b": 3 * rng.normal(size=n)} for n in counts]


def problem(counts=(5, 5, 5), seed=0, dtype=jnp.float64, form="shared"):
    x0 = jnp.zeros(4, dtype)
    if form == "single":
        return db.Problem(line, upper_data=samples(counts, seed), x0=x0)
    data = {"upper_data": samples(counts, seed), "lower_data": samples(counts, seed + 100)}
    return db.Problem(upper, lower, **data, x0=x0, y0=x0, personal=form == "personal")


def oracle(noise, made, batch_size=None, *, k=0, shuffle_once=False):
    config = EvalConfig(shuffle_once=shuffle_once)
    return PrivateOracle(
        made, jnp.arange(NODES), jax.random.key(0), batch_size, Ledger(), k=k, config=config, noise=noise
    )


def cut(rows, clip=CLIP):
    """The sum of rows, each cut to the norm."""
    return sum(row * min(1.0, clip / max(np.linalg.norm(row), 1e-300)) for row in rows)


def point(seed=1):
    rng = np.random.default_rng(seed)
    return [db.Vector(jnp.asarray(rng.normal(size=(NODES, 4)))) for _ in range(3)]


@pytest.mark.slow_except("counts0")
@pytest.mark.parametrize("counts", [(5, 5, 5), (4, 7, 9)])
def test_every_sum_is_that_of_clipped_samples(counts):
    """Of the gradients of f together, of that of g, and of both products together."""
    noise, (x, y, z), made = Silent(db.privacy.records(CLIP, 1.0, products=0.2)), point(), problem(counts)

    @jax.jit
    def directions():
        here = oracle(noise, made).draw().at(x, y)
        return here.fx, here.fy, here.v, here.jacobian(z), here.hessian(z)

    found = directions()
    for node, (f, g) in enumerate(zip(samples(counts), samples(counts, 100), strict=True)):
        X, Y, Z = (np.asarray(vector.tree[node]) for vector in (x, y, z))
        one = np.ones(4)
        both = [np.r_[a * (a @ X - b), a * (a @ Y - 1)] for a, b in zip(f["a"], f["b"], strict=True)]
        v = [a * (a @ Y - b * X.sum()) + 0.1 * Y for a, b in zip(g["a"], g["b"], strict=True)]
        products = [np.r_[-b * (a @ Z) * one, a * (a @ Z) + 0.1 * Z] for a, b in zip(g["a"], g["b"], strict=True)]
        expected = np.r_[cut(both), cut(v), cut(products, 0.2)] / counts[node]
        np.testing.assert_allclose(np.concatenate([part.tree[node] for part in found]), expected, atol=1e-12)
    assert [(release.level, release.clip) for release in noise.asked] == [(0, CLIP), (1, CLIP), (1, 0.2)]


@pytest.mark.slow
def test_batches_are_slots_of_a_pass():
    """Step k takes the samples of its slot, and of no other: a pass has each once."""
    made, seen = problem((6, 6, 6), form="single"), []
    for k in range(3):
        noise, x = Silent(), point()[0]
        found = oracle(noise, made, 2, k=jnp.int32(k), shuffle_once=True).draw().at(x).fx.tree
        (release,) = noise.asked
        slot = release.batch_of_step(k)
        for node, f in enumerate(samples((6, 6, 6))):
            a, b = (f[name][2 * slot : 2 * slot + 2] for name in "ab")
            rows = [c * (c @ np.asarray(x.tree[node]) - d) for c, d in zip(a, b, strict=True)]
            np.testing.assert_allclose(found[node], cut(rows) / 2, atol=1e-12)
        seen.append(slot)
    assert release.batches_per_epoch == 3 and sorted(seen) == [0, 1, 2]


def test_clipped_rows_are_no_longer_than_the_clip():
    rows = jnp.asarray([[3e200, 4e200], [3e-200, 4e-200], [0.3, 0.4], [0, 0], [jnp.nan, 1], [jnp.inf, 1]])
    expected = [[0.6, 0.8], [3e-200, 4e-200], [0.3, 0.4], [0, 0], [0, 0], [0, 0]]
    np.testing.assert_allclose(clipped(rows, 1.0), expected, rtol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_noise_is_as_large_as_it_says_and_never_twice_the_same(dtype):
    """A flat loss: all that moves x is the noise, new at every node, sum and step."""
    zero = jnp.zeros(2000, dtype)
    flat = db.Problem(lambda x, batch: 0.0 * x.sum(), upper_data=np.zeros((NODES, 5)), x0=zero)
    options = {"metrics": [], "privacy": PRIVATE}

    def alone(steps):
        return db.solve(flat, db.dsgd(alpha=1.0), db.graphs.isolated(NODES), steps=steps, **options).nodes.x

    once, twice = np.asarray(alone(1)), np.asarray(alone(2))
    moves = np.concatenate([once, twice - once])
    np.testing.assert_allclose(moves.std(1), 2.0 * CLIP / 5, rtol=0.08)
    assert np.abs(np.corrcoef(moves) - np.eye(2 * NODES)).max() < 0.12  # 2,000 entries: five deviations
    made = oracle(SeededNoise(PRIVATE), problem((1, 1, 1)))
    keys = [made.keys(made.next_release(made.draw(), 0, 1.0)) for _ in range(3)]
    assert len({np.asarray(jax.random.key_data(key)).tobytes() for keys in keys for key in keys}) == 9


NAMES = [name for name, entry in db.CATALOG.items() if not entry.mixture and not entry.kind.centralized]
QUICK = [("sparkle-ed", "full"), ("ed", "shuffled"), ("gt-hsgd", "full")]
CASES = QUICK + [
    case for place, name in enumerate(NAMES) if (case := (name, ("full", "shuffled")[place % 2])) not in QUICK
]


@pytest.mark.slow_except("ed-shuffled")
@pytest.mark.parametrize(("name", "batches"), CASES, ids=["-".join(case) for case in CASES])
def test_a_step_learns_of_its_samples_by_the_sums_alone(name, batches):
    """With the same sums, other data give the same state, bit for bit; or the method raises when it is traced."""
    entry, states = db.CATALOG[name], []
    config = RunConfig(2, sampling="shuffle-once") if batches == "shuffled" else RunConfig()
    for seed in (0, 1):
        made = problem(seed=seed, form=entry.form)
        network = InMemory.with_links(levels := db.Levels(x=RING), config.link_faults(jnp.arange(NODES)))
        network = network if any(row.needs_links for row in entry().strategies.values()) else InMemory.of(levels)
        config = config._replace(privacy=PRIVATE)
        program = Program.of(made, entry(), network, jnp.arange(NODES), config, record_noise=Deaf())
        try:
            state, step = program.initial_state(), jax.jit(lambda k, state: program.step(k, state)[0])  # noqa: B023
            for k in range(3):
                state = step(jnp.int32(k), state)
        except ValueError as error:
            assert "privacy=db.privacy.records(...)" in str(error)
            assert name not in ("ed", "gt", "gt-hsgd", "sparkle-ed", "sparkle-gt", "d-soba", "sparkle-ada-ed")
            return
        states.append(jax.tree.leaves(state))
    for a, b in zip(*states, strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.abs(states[0][0]).max() > 0


@pytest.mark.slow
def test_little_noise_and_a_wide_clip_change_nothing():
    made = QUADRATIC.problem(samples=4)
    options = {"steps": 300, "metrics": [], "eval_every": 300}
    method = db.sparkle("ed", alpha=0.05, beta=0.1, gamma=0.1)
    plain = db.solve(made, method, RING, **options)
    private = db.solve(made, method, RING, privacy=db.privacy.records(1e3, 1e-6), **options)
    np.testing.assert_allclose(private.x, plain.x, atol=3e-3)
    noisy = db.solve(made, method, RING, privacy=PRIVATE, **options)
    assert np.abs(noisy.x - plain.x).max() > 1e-3


def solve(method=None, made=None, **options):
    method = method or db.sparkle("ed", alpha=0.1, beta=0.1, gamma=0.1)
    return db.solve(made or problem(), method, RING, steps=1, metrics=[], **{"privacy": PRIVATE} | options)


RATES = {"alpha": 0.1, "beta": 0.1, "gamma": 0.1}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: db.privacy.records(0, 1), "clip=0 must be a positive number: give the largest norm"),
        (lambda: db.privacy.records(1, float("nan")), "noise=nan must be a positive number"),
        (lambda: db.privacy.records(1, 1e-7), "noise=1e-07 must be at least 1e-06"),
        (lambda: db.privacy.records(1, 1, products=-1), "products=-1 must be a positive number"),
        (lambda: solve(batch_size=2), "every record in one batch of a pass.*sampling='shuffle-once'"),
        (lambda: solve(batch_size=6, sampling="shuffle-once"), "batch_size=6 is more than the 5 samples"),
        (lambda: solve(db.sparkle("ed", hypergradient=db.hypergradient.penalty(), **RATES)), "what one record adds"),
        (lambda: solve(db.sparkle("ed", local_steps=3, **RATES)), "loop or branch.*without local steps"),
        (lambda: solve(db.CATALOG["dama"](), problem()), "loop or branch inside a step"),
        (lambda: solve(db.interact(alpha=0.1, beta=0.1), problem(form="personal")), "what one record adds"),
    ],
)
def test_raises_in_a_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_privacy_is_a_setting_of_records():
    with pytest.raises(TypeError, match=r"privacy=2.0 must be db\.privacy\.records"):
        solve(privacy=2.0)
    assert Records(CLIP, 2.0, CLIP) == PRIVATE
