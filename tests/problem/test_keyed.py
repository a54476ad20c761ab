"""Losses that use random numbers: the same everywhere, other ones everywhere, and none in evaluation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel.core._ledger import Ledger
from decibel.core._vector import replicate
from decibel.oracles._eval_config import EvalConfig, Products
from decibel.oracles._oracle import Oracle
from decibel.problem._keyed import takes_key

NODES, SIZE = 8, 5
RNG = np.random.default_rng(3)
INPUTS, TARGETS = RNG.normal(size=(NODES, 12, SIZE)), RNG.normal(size=(NODES, 12))
RING = db.graphs.ring(NODES)


def dropped(inputs, key):
    """Dropout of a third of the entries."""
    if key is None:
        return inputs
    return jnp.where(jax.random.bernoulli(key, 2 / 3, inputs.shape), 1.5 * inputs, 0.0)


def lower(x, y, batch, *, key=None):
    inputs, targets = batch
    return jnp.mean((jnp.tanh(dropped(inputs, key) @ y) - targets) ** 2) + jnp.sum(jnp.exp(x) * y**2)


def upper(x, y, batch, key=None):
    inputs, targets = batch
    return jnp.mean((dropped(inputs, key) @ y - targets) ** 2)


def bilevel(f, g):
    data = INPUTS, TARGETS
    return db.Problem(f, g, upper_data=data, lower_data=data, x0=jnp.zeros(SIZE), y0=jnp.ones(SIZE))


def solve(problem, **options):
    method = db.sparkle("ed", alpha=0.05, beta=0.1, gamma=0.1)
    settings = {"steps": 12, "batch_size": 3, "seed": 2, "metrics": [], "eval_every": 12} | options
    return db.solve(problem, method, RING, **settings)


def nodes(result):
    return np.concatenate([np.asarray(result.nodes.x), np.asarray(result.nodes.y)], axis=1)


KEYED, PLAIN = bilevel(upper, lower), bilevel(lambda x, y, b: upper(x, y, b), lambda x, y, b: lower(x, y, b))


class TestRuns:
    def test_the_same_run_has_the_same_numbers_and_another_seed_others(self):
        one, same, other = (nodes(solve(KEYED, seed=seed)) for seed in (2, 2, 3))
        np.testing.assert_array_equal(one, same)
        assert np.abs(other - one).max() > 1e-3

    @pytest.mark.slow
    def test_metrics_and_exact_solutions_use_none(self):
        x = jnp.linspace(0.0, 0.4, SIZE)
        np.testing.assert_array_equal(KEYED.hypergradient(x), PLAIN.hypergradient(x))
        names = ["upper", "lower"]
        first = [solve(p, steps=1, eval_every=1, metrics=names).trace for p in (KEYED, PLAIN)]
        assert all(first[0][name][0] == first[1][name][0] for name in names)
        assert all(first[0][name][1] != first[1][name][1] for name in names)  # the step itself used one

    @pytest.mark.parametrize("make", [db.Problem.minimax, None], ids=["minimax", "compositional"])
    def test_other_forms_pass_the_key_on(self, make):
        def objective(x, y, batch, *, key=None):
            return lower(x, -y, batch, key=key) - jnp.sum(y**2)

        def inner(x, batch, *, key=None):
            return jnp.mean(dropped(batch[0], key), 0) + x

        start = {"x0": jnp.zeros(SIZE), "y0": jnp.ones(SIZE)}
        data = INPUTS, TARGETS
        if make:
            made = make(objective, data=data, **start)
        else:
            made = db.Problem.compositional(upper, inner, upper_data=data, lower_data=data, **start)
        assert made.takes_keys == (True, True)
        point, batch = (start["x0"], start["y0"]), (INPUTS[0], TARGETS[0])
        for loss in (made.upper, made.lower):
            values = [float(loss(*point, batch, key=key)) for key in (None, *jax.random.split(jax.random.key(0)))]
            assert len(set(values)) == 3


def oracle(problem, step=0, batch_size=3, numbers=range(NODES)):
    key = jax.random.fold_in(jax.random.key(7), step)
    return Oracle(problem, jnp.asarray(list(numbers), jnp.int32), key, batch_size, Ledger())


@pytest.mark.parametrize("batch_size", [3, None])
def test_keys_differ_by_node_step_level_and_draw(batch_size):

    @jax.jit
    def of_step(step):
        one = oracle(KEYED, step, batch_size)
        draw = one.draw()
        draws = [draw, one.draw(1), one.draw_all(), draw.again(0), draw.again(5)]
        fresh = draw.fresh_lower(0)
        assert fresh.upper_batch is draw.upper_batch
        batches = [fresh.lower_batch, *(batch for other in draws for batch in (other.upper_batch, other.lower_batch))]
        return jnp.concatenate([jax.random.key_data(batch.keys) for batch in batches])

    keys = np.concatenate([of_step(step) for step in range(2)])
    assert len(np.unique(keys, axis=0)) == len(keys) == 2 * NODES * 11


def test_keys_do_not_depend_on_the_other_nodes():
    @jax.jit
    def keys():
        draws = [oracle(KEYED, numbers=some).draw() for some in (range(NODES), [6])]
        return [jax.random.key_data(draw.lower_batch.keys) for draw in draws]

    all_nodes, alone = keys()
    np.testing.assert_array_equal(all_nodes[6], alone[0])


def test_losses_without_a_key_have_none():
    draw = oracle(PLAIN).draw()
    assert draw.upper_batch.keys is None and draw.lower_batch.keys is None
    assert draw.again(0) is not draw and oracle(PLAIN, batch_size=None).draw_all().again(0)._is_deterministic


def test_every_part_of_a_full_batch_has_its_own():
    """Nodes of unequal size are evaluated in parts."""

    def noise(x, batch, *, key=None):
        return jax.random.normal(key) if key is not None else jnp.mean(batch)

    problem = db.Problem(noise, upper_data=[np.ones(4), np.ones(7)], x0=jnp.zeros(1))
    batch = jax.jit(lambda: oracle(problem, batch_size=None, numbers=[0, 1]).draw().upper_batch)()
    assert len(batch.parts) > 1
    parts = jnp.arange(len(batch.parts))

    @jax.jit
    @jax.vmap
    def both(one):
        values = jax.vmap(lambda k: jax.random.normal(jax.random.fold_in(one.keys, k)))(parts)
        return one.mean(noise, jnp.zeros(1)), one.weights @ values

    np.testing.assert_allclose(*both(batch), rtol=1e-12)


class TestDifferences:
    """What is subtracted is evaluated with the same randomness."""

    @pytest.mark.slow
    @pytest.mark.parametrize("chunk", [pytest.param(None, marks=pytest.mark.slow), 3])
    def test_products_by_differences_are_those_of_the_same_dropout(self, chunk):
        x, y, z = (replicate(jnp.asarray(RNG.normal(size=SIZE)), NODES) for _ in range(3))

        @jax.jit
        def products():
            one = oracle(KEYED)
            one.config = EvalConfig(node_chunk=chunk)
            draw = one.draw()
            points = draw.at(x, y, Products()), draw.at(x, y, Products(difference=1e-4)), one.draw(1).at(x, y)
            return {name: [getattr(point, name)(z).tree for point in points] for name in ("hessian", "jacobian")}

        for name, (wanted, found, other) in products().items():
            assert np.abs(found - wanted).max() < 1e-3 * np.abs(wanted).max()
            assert name == "jacobian" or np.abs(other - wanted).max() > 0.05 * np.abs(wanted).max()

    @pytest.mark.slow
    def test_spider_keeps_the_noise_of_its_start(self):
        """f = ½‖x − b‖² + u·x with u of the key: the changes have no noise, so x goes to b − u₀ and stays there."""
        target = RNG.normal(size=(1, 4, SIZE))

        def noisy(x, batch, *, key=None):
            push = 0.0 if key is None else jax.random.normal(key, (SIZE,)) @ x
            return 0.5 * jnp.mean(jnp.sum((x - batch) ** 2, -1)) + push

        problem = db.Problem(noisy, upper_data=target, x0=jnp.zeros(SIZE))
        one = oracle(problem, batch_size=None, numbers=[0])
        u0 = jax.random.normal(one.draw_all().upper_batch.keys[0], (SIZE,))
        spider = db.estimators.spider(10**6)

        def directions(draw, point):
            return draw.at(point).fx

        @jax.jit
        def step(k, x, memory):
            d, memory = spider(k, memory, x, oracle(problem, k, None, [0]), directions)
            return x - 0.6 * d, memory

        x = replicate(jnp.zeros(SIZE), 1)
        memory = spider.start(x, directions(one.draw_all(), x))
        for k in range(25):
            x, memory = step(jnp.int32(k), x, memory)
        np.testing.assert_allclose(x.tree[0], target[0].mean(0) - u0, atol=1e-8)

    @pytest.mark.slow
    def test_the_penalty_does_not_amplify_noise(self):
        """g = ½‖y‖² + u·y: in p = λ(∇g(y) − ∇g(ỹ)) − ∇f the noise u cancels, whatever λ."""

        def g(x, y, batch, *, key=None):
            return 0.5 * jnp.sum(y**2) + (0.0 if key is None else jax.random.normal(key, (SIZE,)) @ y) + 0 * jnp.sum(x)

        def f(x, y, batch):
            return jnp.sum(y) + jnp.sum(x)

        problem = db.Problem(f, g, upper_data=INPUTS, lower_data=INPUTS, x0=jnp.zeros(SIZE), y0=jnp.ones(SIZE))
        z = replicate(jnp.asarray(RNG.normal(size=SIZE)), NODES)
        y = replicate(jnp.ones(SIZE), NODES)
        _, v, p = db.hypergradient.penalty(1e4).directions(oracle(problem).draw(), y, y, z)
        np.testing.assert_allclose(p.tree, z.tree - 1.0, atol=1e-9)
        assert np.abs(v.tree - y.tree).min() > 1e-6  # and v has it


@pytest.mark.slow
def test_records_have_a_key_each():
    """Private directions are sums over records, each with a randomness of its own, and not those of evaluation."""
    loud = db.privacy.records(clip=1e3, noise=1e-6)
    options = {"privacy": loud, "batch_size": None, "steps": 3, "eval_every": 3}
    with_key, without = (nodes(solve(made, **options)) for made in (KEYED, PLAIN))
    assert np.abs(with_key - without).max() > 0.02  # far beyond the noise
    np.testing.assert_array_equal(with_key, nodes(solve(KEYED, **options)))


class TestAugment:
    def test_every_sample_has_its_own_transformation(self):
        seen = []

        def loss(x, batch):
            seen.append(batch)
            return jnp.mean(batch * x)

        shifted = db.augment(loss, lambda sample, key: sample + jax.random.normal(key, sample.shape))
        batch = jnp.zeros((50, 3))
        shifted(1.0, batch, key=jax.random.key(0))
        assert len(np.unique(seen[-1])) == 150
        shifted(1.0, batch, key=None)
        np.testing.assert_array_equal(seen[-1], batch)

    def test_a_loss_with_a_key_gets_one_of_its_own(self):
        given = []

        def loss(x, y, batch, *, key=None):
            given.append(key)
            return jnp.mean(batch) * x * y

        key = jax.random.key(1)
        augmented = db.augment(loss, lambda sample, key: sample)
        augmented(1.0, 1.0, jnp.ones((2, 1)), key=key)
        assert given[0] is not None and not np.array_equal(*map(jax.random.key_data, (given[0], key)))
        augmented(1.0, 1.0, jnp.ones((2, 1)))
        assert given[1] is None


class TestWrongUses:
    def test_a_loss_that_cannot_be_evaluated_without_a_key(self):
        def always(x, batch, key):
            return jnp.mean(batch) * x[0] + jax.random.normal(key)

        with pytest.raises(ValueError, match=r"upper\(x, batch, key=key\) fails .* with key=None, evaluation, it must"):
            db.Problem(always, upper_data=np.ones((2, 3)), x0=jnp.zeros(1))

    def test_what_takes_a_key(self):
        assert takes_key(lower) and takes_key(upper) and not takes_key(lambda x, **key: x)
