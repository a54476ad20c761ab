"""Problems of every form: what a loss gets to see, exact means over unequal nodes, and exact derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from quadratics import random_quadratic

import decibel as db
from decibel.problem import _exact as exact
from decibel.problem._samples import index_below, node_data, random_order

COUNTS = [5, 1, 8, 3, 12, 6]
NODES = len(COUNTS)
RING = db.graphs.ring(NODES)
QUADRATIC = random_quadratic(NODES)
x_point = jnp.asarray([0.3, -1.2, 0.7])


def unequal(seed=0):
    """One pytree per node: features, labels, and the owner's number."""
    rng = np.random.default_rng(seed)
    return [
        {"a": rng.normal(size=(n, 3)), "b": rng.normal(size=n), "owner": np.full(n, i)} for i, n in enumerate(COUNTS)
    ]


def logistic(x, batch):
    return jnp.mean(jnp.log(1 + jnp.exp(-batch["b"] * (batch["a"] @ x)))) + 0.1 * jnp.sum(x**2)


def ridge(x, y, batch):
    return jnp.mean((batch["a"] @ y - batch["b"]) ** 2) + jnp.sum(jnp.exp(x) * y**2)


def single(data, loss=logistic, **options):
    return db.Problem(loss, upper_data=data, x0=jnp.zeros(3), **options)


def run(problem, method, graph=None, **options):
    options = dict(steps=1, metrics=[], progress=False) | options
    return db.solve(problem, method, graph, **options)


# What a loss sees


def test_full_batch_mean_over_unequal_nodes():
    data = unequal()
    x = np.asarray(x_point)

    def gradient(node):
        slope = -node["b"] / (1 + np.exp(node["b"] * (node["a"] @ x)))
        return (slope[:, None] * node["a"]).mean(0) + 0.2 * x

    value = np.mean([np.log(1 + np.exp(-n["b"] * (n["a"] @ x))).mean() + 0.1 * (x**2).sum() for n in data])
    problem = single(data)
    found, slope = jax.jit(jax.value_and_grad(lambda x: exact.upper_mean(problem, x, None)))(x_point)
    np.testing.assert_allclose(found, value, rtol=1e-13)
    np.testing.assert_allclose(slope, np.mean([gradient(node) for node in data], axis=0), rtol=1e-12)
    # And what one step of a run does with it, at every node.
    problem = db.Problem(logistic, upper_data=data, x0=x_point)
    moved = run(problem, db.dsgd(alpha=0.5), db.graphs.isolated(NODES)).nodes.x
    np.testing.assert_allclose(moved, [x - 0.5 * gradient(node) for node in data], rtol=1e-12)


@pytest.mark.parametrize("counts", [[1, 2], [7, 7, 7], [1, 64, 33], [3, 3, 10, 1]])
def test_parts_of_a_full_batch_cover_every_sample_once(counts):
    data = node_data([{"sample": np.arange(n, dtype=float)} for n in counts], "data", jnp.float64)
    batch = jax.jit(lambda data: data.full())(data)
    seen = np.zeros((len(counts), max(counts)))
    weights = np.ones((len(counts), 1)) if batch.weights is None else np.asarray(batch.weights)
    for k, part in enumerate(batch.parts):
        samples = np.asarray(part["sample"], int)
        for node in range(len(counts)):
            np.add.at(seen[node], samples[node], weights[node, k] / samples.shape[1])
    for node, n in enumerate(counts):
        np.testing.assert_allclose(seen[node, :n], 1 / n, rtol=1e-12)
        assert not seen[node, n:].any()


def _watched(seen):
    def loss(x, batch):
        jax.debug.callback(lambda owner, b: seen.append((np.array(owner), np.array(b))), batch["owner"], batch["b"])
        return logistic(x, batch)

    return loss


@pytest.mark.parametrize("batch_size", [None, 40])
def test_a_loss_sees_its_own_node_and_no_padding(batch_size):
    """Every array a loss is called with is looked at: one owner, and only that owner's samples."""
    data, seen = unequal(), []
    run(single(data, _watched(seen)), db.dsgd(alpha=0.1), RING, steps=3, batch_size=batch_size)
    jax.effects_barrier()
    assert {int(owner[0]) for owner, _ in seen} == set(range(NODES))
    for owner, b in seen:
        assert len(set(owner.tolist())) == 1
        assert set(b.tolist()) <= set(data[int(owner[0])]["b"].tolist())
        assert batch_size is None or len(b) == batch_size
    largest = max(len(b) for _, b in seen)
    assert largest <= (batch_size or max(COUNTS))


def _draws(steps=20, batch_size=50):
    """(level, node) -> samples drawn, by their number."""
    drawn = {}

    def watch(level):
        def take(owner, number):
            drawn.setdefault((level, int(owner[0])), []).append(np.array(number))

        return take

    def upper(x, y, batch):
        jax.debug.callback(watch("upper"), batch["owner"], batch["number"])
        return jnp.sum(x**2) + jnp.sum(y**2) + 0.0 * jnp.sum(batch["b"])

    def lower(x, y, batch):
        jax.debug.callback(watch("lower"), batch["owner"], batch["number"])
        return jnp.sum((y - x) ** 2) + 0.0 * jnp.sum(batch["b"])

    data = [node | {"number": np.arange(len(node["b"]))} for node in unequal()]
    problem = db.Problem(upper, lower, upper_data=data, lower_data=data, x0=jnp.zeros(3), y0=jnp.zeros(3))
    method = db.sparkle("ed", alpha=0.1, beta=0.1, gamma=0.1, updates="simultaneous")
    run(problem, method, RING, steps=steps, batch_size=batch_size)
    jax.effects_barrier()
    return drawn


def test_draws_are_uniform_fresh_and_independent():
    drawn = _draws()
    for (_, node), batches in drawn.items():
        counts = np.bincount(np.concatenate(batches), minlength=COUNTS[node])
        assert len(counts) == COUNTS[node]
        expected = counts.sum() / len(counts)
        # Six standard deviations of a multinomial count.
        assert np.abs(counts - expected).max() <= 6 * np.sqrt(expected)
    node = int(np.argmax(COUNTS))
    batches = {level: {tuple(batch) for batch in drawn[level, node]} for level in ("upper", "lower")}
    assert len(batches["upper"]) >= 20 and len(batches["lower"]) >= 20  # fresh in every step
    assert not batches["upper"] & batches["lower"]  # and the levels do not share their draws


def test_scaled_bits_are_exact():
    rng = np.random.default_rng(0)
    bits = np.concatenate([[0, 2**32 - 1], rng.integers(0, 2**32, 500)]).astype(np.uint32)
    for count in (1, 2, 3, 1000, 65536, 65537, 10**9, 2**31 - 1):
        expected = [int(b) * count >> 32 for b in bits]
        assert np.array_equal(index_below(jnp.asarray(bits), jnp.asarray(count, jnp.int32)), expected)


def test_the_order_of_a_short_node_begins_again():
    most, counts = max(COUNTS), np.asarray(COUNTS, np.int32)
    draw = jax.jit(random_order, static_argnums=3)
    orders = draw(jax.random.key(0), jnp.arange(NODES, dtype=jnp.int32), jnp.asarray(counts), most)
    for order, count in zip(np.asarray(orders), COUNTS, strict=True):
        assert sorted(order[:count]) == list(range(count))
        assert np.array_equal(order, np.resize(order[:count], most))


# The ways of giving data


def test_arrays_lists_and_functions_are_the_same_data():
    arrays = {"a": np.random.default_rng(0).normal(size=(4, 6, 3)), "b": np.ones((4, 6))}
    per_node = lambda i: {name: value[i] for name, value in arrays.items()}  # noqa: E731
    ways = [
        single(arrays),
        single([per_node(i) for i in range(4)]),
        single(per_node),
        single(per_node, nodes=4),
    ]
    assert [way.nodes for way in ways] == [4, 4, None, 4]
    found = [np.asarray(run(way, db.ed(alpha=0.1), db.graphs.ring(4), steps=3).nodes.x) for way in ways]
    assert np.abs(found[0]).max() > 1e-3
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    np.testing.assert_allclose(ways[3].hypergradient(x_point), ways[0].hypergradient(x_point), rtol=1e-14)
    with pytest.raises(ValueError, match=r"hypergradient needs the number of nodes: give Problem\(nodes=\.\.\.\)"):
        ways[2].hypergradient(x_point)


@pytest.mark.slow
def test_a_function_for_one_level_and_arrays_for_the_other():
    """The arrays tell how many nodes there are, so everything works."""
    data = unequal()
    problem = db.Problem(ridge, ridge, upper_data=data, lower_data=lambda i: data[i], x0=jnp.zeros(()), y0=jnp.zeros(3))
    both = db.Problem(ridge, ridge, upper_data=data, lower_data=data, x0=jnp.zeros(()), y0=jnp.zeros(3))
    method = db.sparkle("ed", alpha=0.1, beta=0.1, gamma=0.1)
    np.testing.assert_array_equal(run(problem, method, RING).nodes.y, run(both, method, RING).nodes.y)
    np.testing.assert_allclose(problem.solve_lower(jnp.zeros(())), both.solve_lower(jnp.zeros(())), rtol=1e-12)


def _in_pieces():
    """The quadratic, with x = {A, [b]} and y a tuple; and the way back to a vector."""
    flat = QUADRATIC.problem()

    def join(x):
        return jnp.concatenate([x["A"].reshape(-1), x["more"][0][None]])

    problem = db.Problem(
        lambda x, y, batch: flat.upper(join(x), jnp.concatenate(y), batch),
        lambda x, y, batch: flat.lower(join(x), jnp.concatenate(y), batch),
        upper_data=flat.upper_data,
        lower_data=flat.lower_data,
        x0={"A": jnp.zeros((2, 1)), "more": [jnp.zeros(())]},
        y0=(jnp.zeros(1), jnp.zeros(3)),
    )
    return problem, join


def test_pytrees_of_any_shape():
    problem, _ = _in_pieces()
    options = {"alpha": 0.05, "beta": 0.1, "gamma": 0.1, "theta": 1.0, "updates": "simultaneous"}
    found = run(problem, db.sparkle("ed", "gt", **options), RING, steps=5)
    x, y, _ = references.sparkle(QUADRATIC, "ed", "gt", RING.W, steps=5, **options)
    assert found.nodes.x["A"].shape == (NODES, 2, 1) and found.x["more"][0].shape == ()
    np.testing.assert_allclose(found.nodes.x["A"][..., 0], x[:, :2], atol=1e-12)
    np.testing.assert_allclose(found.nodes.y[1], y[:, 1:], atol=1e-12)


@pytest.mark.slow
def test_exact_derivatives_of_pytrees():
    problem, join = _in_pieces()
    x = QUADRATIC.solution()
    gradient = problem.hypergradient({"A": jnp.asarray(x[:2, None]), "more": [jnp.asarray(x[2])]})
    np.testing.assert_allclose(join(gradient), 0, atol=1e-9)
    assert problem.check().ok


# Exact derivatives


def test_shared_closed_forms():
    q, x = QUADRATIC, np.asarray(x_point)
    problem = q.problem()
    assert problem.form == "shared"
    y = q.lower_solution(x)
    np.testing.assert_allclose(problem.solve_lower(x_point), y, atol=1e-10)
    z = np.linalg.solve(q.H.mean(0), np.einsum("nij,nj->ni", q.M, y - q.a).mean(0))
    gradient = np.einsum("nij,nj->ni", q.R, x - q.e).mean(0) + q.B.mean(0).T @ z
    np.testing.assert_allclose(problem.hypergradient(x_point), gradient, atol=1e-9)
    np.testing.assert_allclose(problem.hypergradient(jnp.asarray(q.solution())), 0, atol=1e-9)


def test_personal_closed_forms():
    q, x = QUADRATIC, np.asarray(x_point)
    problem = q.problem(personal=True)
    assert problem.form == "personal"
    y = np.linalg.solve(q.H, (np.einsum("nij,j->ni", q.B, x) + q.c)[..., None])[..., 0]
    np.testing.assert_allclose(problem.solve_lower(x_point), y, atol=1e-10)
    gradient = q.local_hypergradient(np.tile(x, (NODES, 1)), y).mean(0)
    np.testing.assert_allclose(problem.hypergradient(x_point), gradient, atol=1e-9)
    np.testing.assert_allclose(problem.hypergradient(jnp.asarray(q.personal_solution())), 0, atol=1e-9)
    assert np.linalg.norm(q.personal_solution() - q.solution()) > 1e-2  # two different problems


@pytest.mark.slow
@pytest.mark.parametrize("personal", [False, True], ids=["shared", "personal"])
def test_hypergradient_against_finite_differences(personal):
    """Φ itself, differenced, where nothing is quadratic."""
    problem = references.Curved(QUADRATIC).problem(personal=personal)
    upper = jax.jit(lambda x, y: exact.upper_mean(problem, x, y))

    def Φ(x):
        return float(upper(x, problem.solve_lower(x)))

    gradient, h = np.asarray(problem.hypergradient(x_point)), 1e-5
    differences = [(Φ(x_point + h * e) - Φ(x_point - h * e)) / (2 * h) for e in jnp.eye(3)]
    np.testing.assert_allclose(gradient, differences, atol=1e-7)
    assert np.abs(gradient).max() > 0.1


def test_minimax():
    """f = ½ xᵀR x + yᵀB x − ½ yᵀH y with saddle point from one linear system."""
    q = QUADRATIC

    def objective(x, y, batch):
        H, B, c = (jnp.mean(batch[name], 0) for name in "HBc")
        return 0.5 * x @ x + y @ (B @ x + c) - 0.5 * y @ (H @ y)

    data = {name: getattr(q, name)[:, None] for name in "HBc"}
    problem = db.Problem.minimax(objective, data=data, x0=jnp.zeros(3), y0=jnp.zeros(4))
    H, B, c = q.H.mean(0), q.B.mean(0), q.c.mean(0)
    x = np.linalg.solve(np.eye(3) + B.T @ np.linalg.solve(H, B), -B.T @ np.linalg.solve(H, c))
    method = db.sparkle("ed", alpha=0.1, beta=0.2, gamma=0.2)
    np.testing.assert_allclose(run(problem, method, RING, steps=2000).x, x, atol=1e-9)


def test_compositional():
    """½ ‖h(x) − 1‖² with h the average of A_i x² + b_i: the gradient of the composition."""
    q = QUADRATIC
    data = {"A": q.B[:, None], "b": q.c[:, None]}
    problem = db.Problem.compositional(
        lambda x, y, batch: 0.5 * jnp.sum((y - 1.0) ** 2) + 0.5 * jnp.sum(x**2) + 0.0 * jnp.sum(batch["b"]),
        lambda x, batch: jnp.mean(batch["A"], 0) @ x**2 + jnp.mean(batch["b"], 0),
        upper_data=data,
        lower_data=data,
        x0=jnp.zeros(3),
        y0=jnp.zeros(4),
    )
    A, b, x = q.B.mean(0), q.c.mean(0), np.asarray(x_point)
    np.testing.assert_allclose(problem.solve_lower(x_point), A @ x**2 + b, atol=1e-10)
    gradient = 2 * x * (A.T @ (A @ x**2 + b - 1)) + x
    np.testing.assert_allclose(problem.hypergradient(x_point), gradient, atol=1e-9)


def test_solve_lower_says_where_it_cannot():
    flat = db.Problem(
        ridge, lambda x, y, batch: jnp.sum(y) + 0 * x, upper_data=unequal(), lower_data=unequal(),
        x0=jnp.zeros(()), y0=jnp.zeros(3),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"solve_lower stopped at a relative .* above tolerance=1e-10"):
        flat.solve_lower(jnp.zeros(()))


def _loss(x, y, batch):
    return jnp.mean((batch["a"] @ y - x) ** 2)


@pytest.mark.parametrize("given", ["arrays", "list", "function"])
def test_data_given_to_both_levels_are_held_once(given):
    a, config = np.ones((3, 4, 2)), []

    def own(node):
        config.append(node)
        return {"a": a[node]}

    data = {"arrays": {"a": a}, "list": [{"a": part} for part in a], "function": own}[given]
    problem = db.Problem(_loss, _loss, upper_data=data, lower_data=data, x0=0.0, y0=jnp.zeros(2)).bind(3)
    assert problem.lower_data is problem.upper_data and problem.lower_data.nodes == 3
    assert config == ([0, 1, 2] if given == "function" else [])
    arrays = jax.tree.leaves((problem.upper_data, problem.own_lower_data))
    assert sum(leaf.size for leaf in arrays) == a.size + 3  # and how many samples each node holds


def test_the_same_arrays_in_another_container_are_the_same_data_and_copies_are_not():
    a = np.ones((3, 4, 2))
    make = lambda lower: db.Problem(_loss, _loss, upper_data={"a": a}, lower_data=lower, x0=0.0, y0=jnp.zeros(2))  # noqa: E731
    assert make({"a": a}).own_lower_data is None
    apart = make({"a": a.copy()})
    assert apart.own_lower_data is apart.lower_data is not apart.upper_data
