"""Tabular and synthetic tasks: losses as printed, exact solutions, the heterogeneity dial, short runs that learn."""

import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data_files import use_folders, use_small, write
from sklearn.metrics import average_precision_score
from small_tasks import ends, snapshot_of, untested

import decibel as db
from decibel.tasks import auprc, hyperparameter_tuning, linear_regression, logistic_regression, policy_evaluation
from decibel.tasks.data import Dataset
from decibel.tasks.evaluation import average_precision

NODES = 4
RING = db.graphs.ring(NODES)
needs_data = pytest.mark.skipif(
    not os.environ.get("DECIBEL_DATA"), reason="DECIBEL_DATA is not set: it names the folder of real data"
)


def two_classes(samples: int = 240, seed: int = 0) -> Dataset:
    """A class that the first of six features all but decides."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(samples, 6)).astype(np.float32)
    labels = (inputs[:, 0] + 0.2 * rng.normal(size=samples) > 0).astype(np.int32)
    cut = samples * 3 // 4
    return Dataset(inputs[:cut], labels[:cut], inputs[cut:], labels[cut:], "two-classes", 2, ("0", "1"))


PAIR = two_classes()
SMALL = {"samples": 240, "features": 6, "informative": 2, "classes": 3}
MAKERS = {
    "linear": lambda **options: linear_regression(NODES, dimension=3, **{"samples": [10, 12, 10, 13], **options}),
    "logistic": lambda **options: logistic_regression(NODES, **{**SMALL, **options}),
    "target": lambda **options: policy_evaluation(NODES, **{"states": 12, "features": 3, **options}),
    "residual": lambda **options: policy_evaluation(NODES, form="residual", states=12, features=3, **options),
    "sampled": lambda **options: policy_evaluation(NODES, states=12, features=3, sweeps=[4, 5, 4, 5], **options),
    "tuning": lambda **options: hyperparameter_tuning(PAIR, NODES, **options),
    "auprc": lambda **options: auprc(PAIR, NODES, **{"anchors": 8, **options}),
    "log-loss": lambda **options: auprc(PAIR, NODES, objective="cross-entropy", **options),
}


def judged(task, method, *, steps: int, batch_size: int | None = None):
    """The first and the last row of a run judged by the task's own metrics."""
    result = db.solve(
        task.problem, method, RING, steps=steps, batch_size=batch_size, eval_every=steps, metrics=task.metrics
    )
    assert result.status == "completed"
    return ends(result)


def stacked(task, level: str) -> list:
    """Every node's samples without what pads them."""
    data = getattr(task.problem, level)
    return [
        jax.tree.map(lambda leaf, i=i, n=int(n): np.asarray(leaf[i, :n]), data.tree) for i, n in enumerate(data.counts)
    ]


@pytest.mark.parametrize("name", MAKERS)
def test_every_task_is_seeded_and_told_in_plain_types(name):
    first, again, other = MAKERS[name](seed=1), MAKERS[name](seed=1), MAKERS[name](seed=2)
    level = "upper_data" if first.problem.single_level else "lower_data"
    leaves = [jax.tree.leaves(getattr(task.problem, level).tree)[0] for task in (first, again, other)]
    assert np.array_equal(leaves[0], leaves[1])
    assert leaves[0].shape != leaves[2].shape or not np.array_equal(leaves[0], leaves[2])
    assert first.summary["seed"] == 1 and first.nodes == NODES
    assert all(type(leaf) in (str, int, float, bool) for leaf in jax.tree.leaves(dict(first.summary)))


# Exact solutions


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "residual", "sampled"])
def test_the_known_solution_is_stationary(name):
    task = MAKERS[name](heterogeneity="severe")
    x = jnp.asarray(task.truth.solution)
    assert np.abs(task.problem.hypergradient(x)).max() < 1e-9
    assert np.abs(task.problem.hypergradient(x + 1)).max() > 1e-3


def test_linear_regression_as_printed():
    task = MAKERS["linear"](regularization=0.3)
    a, b = stacked(task, "lower_data")[1]
    x, y = np.random.default_rng(0).normal(size=(2, 3))
    upper = np.mean([((m @ y - v) ** 2).sum() for m, v in zip(a, b, strict=True)])
    lower = np.mean([((m @ y - x) ** 2).sum() for m in a]) + 0.3 * (y**2).sum()
    assert task.problem.upper(x, y, (a, b)) == pytest.approx(upper)
    assert task.problem.lower(x, y, (a, b)) == pytest.approx(lower)


def test_policy_evaluation_as_printed():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=3), rng.normal(size=12)
    target, residual = MAKERS["target"](discount=0.7), MAKERS["residual"](discount=0.7, regularization=0.4)
    truth = target.truth
    phi, p, r = truth.features, truth.transition, truth.rewards[2]
    bellman = np.array([sum(p[s, t] * (r[s, t] + 0.7 * phi[t] @ x) for t in range(12)) for s in range(12)])
    weights, sweep = stacked(target, "upper_data")[2], stacked(target, "lower_data")[2]
    assert target.problem.upper(x, y, weights) == pytest.approx(((phi @ x - y) ** 2).sum() / 24)
    assert target.problem.lower(x, y, sweep) == pytest.approx(((y - bellman) ** 2).sum())
    assert residual.problem.upper(x, y, weights) == pytest.approx((y**2).sum() / 24 + 0.2 * (x**2).sum())
    assert residual.problem.lower(x, y, sweep) == pytest.approx(((y - (phi @ x - bellman)) ** 2).sum())
    assert np.allclose(p.sum(1), 1) and ((p > 0).sum(1) == 5).all()


def test_both_forms_of_policy_evaluation_have_one_solution():
    target, residual = MAKERS["target"](regularization=0.2), MAKERS["residual"](regularization=0.2)
    np.testing.assert_allclose(target.truth.solution, residual.truth.solution, rtol=1e-12)


def test_a_linear_value_function_is_found_and_sampling_approaches_it():
    task = MAKERS["target"](misfit=0.0)
    np.testing.assert_allclose(task.truth.features @ task.truth.solution, task.truth.value, atol=1e-10)
    few, many = (policy_evaluation(NODES, states=12, features=3, sweeps=n, noise=0.0).truth for n in (5, 2_000))
    gaps = [np.linalg.norm(truth.solution - truth.expected) for truth in (few, many)]
    assert gaps[1] < 0.2 * gaps[0]


# The dial


def test_the_dial_spreads_the_nodes_of_linear_regression():
    def spread(h):
        targets = MAKERS["linear"](heterogeneity=h).truth.targets
        return np.square(targets - targets.mean(0)).sum()

    assert spread(0.0) == pytest.approx(0, abs=1e-20)
    assert spread("severe") == pytest.approx(100 * spread("mild")) == pytest.approx(4 * spread(0.5))


def test_the_dial_spreads_rewards_and_leaves_the_answer():
    mild, severe = (MAKERS["target"](heterogeneity=h).truth for h in (0.1, 2.0))
    np.testing.assert_allclose(mild.solution, severe.solution, rtol=1e-9)
    assert severe.rewards.std(0).mean() == pytest.approx(20 * mild.rewards.std(0).mean())


def test_words_and_numbers_deal_classes_unevenly():
    skew = {h: MAKERS["logistic"](heterogeneity=h).partition.skew for h in (None, "mild", "severe", 0.1)}
    assert skew[None] < skew["mild"] < skew["severe"] == skew[0.1]


# Short runs


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch_size"), [("linear", 4), ("sampled", 3), ("residual", None)])
def test_synthetic_tasks_approach_the_solution(name, batch_size):
    method = db.sparkle("ed", alpha=0.1, beta=0.1, gamma=0.1, theta=0.5)
    first, last = judged(MAKERS[name](), method, steps=300, batch_size=batch_size)
    assert last["distance"] < 0.05 * first["distance"]


@pytest.mark.slow
def test_logistic_regression_learns():
    task = MAKERS["logistic"]()
    method = db.sparkle("ed", alpha=1.0, beta=0.3, gamma=0.3, theta=0.5)
    first, last = judged(task, method, steps=300, batch_size=8)
    assert last["validation_loss"] < 0.7 * first["validation_loss"]
    assert last["test_accuracy"] > 0.65 and last["node_accuracy"] > 0.6
    assert last["noise_strength"] > last["informative_strength"] + 0.5


def test_logistic_regression_as_printed():
    task = MAKERS["logistic"]()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=6), rng.normal(size=(6, 3))
    inputs, labels = rng.normal(size=(5, 6)), rng.integers(0, 3, 5)
    logits = inputs @ y
    losses = [np.log(np.exp(row).sum()) - row[label] for row, label in zip(logits, labels, strict=True)]
    penalty = sum(np.exp(x[j]) * y[j, c] ** 2 for j in range(6) for c in range(3)) / 18
    batch = jnp.asarray(inputs), jnp.asarray(labels)
    assert task.problem.upper(x, y, batch) == pytest.approx(np.mean(losses))
    assert task.problem.lower(jnp.asarray(x), jnp.asarray(y), batch) == pytest.approx(np.mean(losses) + penalty)


def test_logistic_regression_takes_digits():
    task = logistic_regression(10, dataset="digits", heterogeneity="severe")
    assert task.problem.y0.shape == (64, 10) and task.summary["samples"]["test"] == 359


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"positivity": "exp", "loss": "logistic"}])
def test_tuning_learns_and_starts_where_it_says(options):
    method = db.sparkle("ed", alpha=0.2, beta=0.5, gamma=0.5, theta=0.5)
    first, last = judged(MAKERS["tuning"](strength=0.5, **options), method, steps=100, batch_size=16)
    assert first["least_coefficient"] == pytest.approx(0.51)
    assert last["training_loss"] < first["training_loss"] and last["validation_loss"] < first["validation_loss"]
    assert last["validation_accuracy"] > 0.75 and last["test_accuracy"] > 0.75
    assert last["least_coefficient"] > 0


def test_tuning_as_printed():
    task = MAKERS["tuning"](positivity="identity", ridge=0.0)
    rng = np.random.default_rng(0)
    x, y, inputs, labels = rng.uniform(1, 2, 6), rng.normal(size=6), rng.normal(size=(5, 6)), rng.integers(0, 2, 5)
    loss = np.mean([1 / (1 + np.exp(w @ y * (1 if z else -1))) for w, z in zip(inputs, labels, strict=True)])
    batch = jnp.asarray(inputs), jnp.asarray(labels)
    assert task.problem.upper(x, jnp.asarray(y), batch) == pytest.approx(loss)
    assert task.problem.lower(jnp.asarray(x), jnp.asarray(y), batch) == pytest.approx(loss + (x * y**2).sum() / 2)


@pytest.mark.slow
def test_tuning_by_projection_keeps_every_nodes_coefficients():
    """x ≥ 0 where nothing keeps the printed x above zero, and the same losses otherwise."""
    free, kept = (MAKERS["tuning"](positivity=name, strength=0.2) for name in ("identity", "projection"))
    assert free.problem.prox_x is None and kept.summary["coefficient"]["map"] == "projection"
    method = db.sparkle("ed", alpha=0.5, beta=0.5, gamma=0.5)

    def run(task, steps):
        watch = lambda snapshot: {"least": snapshot.nodes.x.min(), "zeros": (snapshot.nodes.x == 0).sum()}  # noqa: E731
        return db.solve(task.problem, method, RING, steps=steps, eval_every=1, metrics=[*task.metrics, watch]).trace

    assert run(free, 15)["least"][-1] < 0  # and it diverges soon
    trace = run(kept, 45)
    assert min(trace["least"]) == 0 and trace["zeros"][-1] > 0 and min(trace["least_coefficient"]) >= 0.01
    assert trace["validation_loss"][-1] < trace["validation_loss"][0]
    with pytest.raises(ValueError, match="gossip-dsbo does not take prox_x"):
        method = db.gossip_dsbo(alpha=0.02, beta=0.1, theta=0.1, terms=2, smoothness=2.0, convexity=0.5)
        db.solve(kept.problem, method, RING, steps=1)


def test_g_is_strongly_convex_above_the_stated_coefficient():
    task = MAKERS["tuning"](positivity="identity", ridge=0.0)
    bound, batch = task.summary["convex_above"], task.problem.lower_data.full()

    def g(y):
        x = jnp.full(6, bound)
        return jax.vmap(lambda part: task.problem.lower_loss(x, y, part))(batch).mean()

    hessian = jax.jit(jax.hessian(g))
    for y in np.random.default_rng(0).normal(size=(10, 6)):
        assert jnp.linalg.eigvalsh(hessian(jnp.asarray(y)))[0] > 0


# Average precision


def test_average_precision_is_scikit_learns():
    rng = np.random.default_rng(0)
    for scores in (rng.normal(size=50), rng.integers(0, 5, 50).astype(float), np.zeros(50)):
        labels = rng.integers(0, 2, 50)
        ours = average_precision(jnp.asarray(scores), jnp.asarray(labels))
        assert ours == pytest.approx(average_precision_score(labels, scores), rel=1e-12)


@pytest.mark.slow_except("sigmoid")
@pytest.mark.parametrize("surrogate", ["squared-hinge", "sigmoid"])
def test_the_lower_level_of_auprc_counts_what_lies_above_an_anchor(surrogate):
    task = MAKERS["auprc"](surrogate=surrogate, margin=0.7)
    problem = task.problem
    weight = np.random.default_rng(0).normal(size=6)
    x = [{"weight": jnp.asarray(weight[:, None]), "bias": jnp.zeros(1)}]
    count = {
        "squared-hinge": lambda gap: max(0.0, 0.7 + gap) ** 2,
        "sigmoid": lambda gap: 1 / (1 + np.exp(-gap / 0.7)),
    }[surrogate]
    solution, precision = [], []
    for node, (inputs, labels, own) in enumerate(stacked(task, "lower_data")):
        assert (own == node).all()
        anchors = np.asarray(problem.lower.anchors[node])
        held = {tuple(row) for row in inputs[labels == 1]}
        for anchor in anchors:
            assert tuple(anchor) in held
            counts = np.array([count(weight @ (row - anchor)) for row in inputs])
            expected = (counts * labels).mean(), counts.mean()
            solution.append(expected)
            precision.append(expected[0] / expected[1])
    y = jnp.asarray(solution).reshape(NODES, 8, 2)
    slope = jax.jit(jax.vmap(jax.grad(problem.lower_loss, 1), (None, 0, 0)))(x, y, problem.lower_data.full())
    np.testing.assert_allclose(slope, 0, atol=1e-12)
    upper = jax.jit(jax.vmap(problem.upper, (None, 0, 0)))(x, y, problem.upper_data.tree)
    assert upper.mean() == pytest.approx(-np.mean(precision))


@pytest.mark.slow
@pytest.mark.parametrize("surrogate", ["squared-hinge", "sigmoid"])
def test_auprc_learns_to_rank(surrogate):
    task = MAKERS["auprc"](surrogate=surrogate)
    first, last = judged(task, db.interact(alpha=0.3, beta=0.5), steps=60)
    assert first["average_precision"] == pytest.approx(task.summary["chance"])
    assert last["average_precision"] > 0.85
    _, stochastic = judged(task, db.gt_dsgd(alpha=0.1, beta=0.3), steps=150, batch_size=16)
    assert stochastic["average_precision"] > 0.85


def test_the_cross_entropy_baseline_shares_data_and_judge():
    ours, baseline = MAKERS["auprc"](), MAKERS["log-loss"]()
    assert baseline.problem.single_level and ours.problem.personal
    assert ours.partition.indices[0].tolist() == baseline.partition.indices[0].tolist()


@pytest.mark.slow
def test_the_cross_entropy_baseline_learns():
    _, last = judged(MAKERS["log-loss"](), db.ed(alpha=0.5), steps=100, batch_size=16)
    assert last["average_precision"] > 0.85


def three_classes(samples: int = 300, seed: int = 3) -> Dataset:
    """Images of two by three pixels, of which the first three tell the class."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(samples, 2, 3)).astype(np.float32)
    labels = inputs[:, 0].argmax(1).astype(np.int32)
    cut = samples * 2 // 3
    return Dataset(inputs[:cut], labels[:cut], inputs[cut:], labels[cut:], "three", 3, ("0", "1", "2"))


@pytest.mark.slow
def test_with_tasks_of_their_own_nodes_count_by_their_own_output():
    source = three_classes()
    task = auprc(source, 3, anchors=5, surrogate="sigmoid", own_tasks=True)
    problem, rng = task.problem, np.random.default_rng(0)
    x = [{"weight": jnp.asarray(rng.normal(size=(6, 3))), "bias": jnp.asarray(rng.normal(size=3))}]
    precision = []
    for node, (inputs, labels, own) in enumerate(stacked(task, "lower_data")):
        np.testing.assert_array_equal(labels, inputs[:, :3].argmax(1) == node)
        assert (own == node).all()
        weight = np.asarray(x[0]["weight"])[:, node]
        for anchor in np.asarray(problem.lower.anchors[node]):
            assert anchor[:3].argmax() == node
            counts = 1 / (1 + np.exp(-(inputs - anchor) @ weight))
            precision.append(((counts * labels).mean(), counts.mean()))
    y = jnp.asarray(precision).reshape(3, 5, 2)
    slope = jax.jit(jax.vmap(jax.grad(problem.lower_loss, 1), (None, 0, 0)))(x, y, problem.lower_data.full())
    np.testing.assert_allclose(slope, 0, atol=1e-6)
    (metric,) = task.metrics
    scores = source.x_test.reshape(-1, 6) @ np.asarray(x[0]["weight"]) + np.asarray(x[0]["bias"])
    expected = np.mean([average_precision_score(source.y_test == i, scores[:, i]) for i in range(3)])
    given = snapshot_of(task, jax.tree.map(lambda leaf: jnp.repeat(leaf[None], 3, 0), x))
    assert float(eqx.filter_jit(metric)(given)["average_precision"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_tasks_of_their_own_are_learned():
    source = three_classes()
    graph = db.graphs.complete(3)
    for objective, method, batch_size in (
        ("average-precision", db.interact(alpha=1.0, beta=0.5, hypergradient=db.hypergradient.cg(1)), None),
        ("cross-entropy", db.gt(alpha=0.5), 16),
    ):
        task = auprc(source, 3, anchors=5, surrogate="sigmoid", objective=objective, own_tasks=True)
        options = {"steps": 60, "eval_every": 60, "metrics": task.metrics, "batch_size": batch_size}
        trace = db.solve(task.problem, method, graph, **options).trace
        assert trace["average_precision"][0] == pytest.approx(task.summary["chance"], abs=0.01)
        assert trace["average_precision"][-1] > 0.85


def test_auprc_takes_a_hidden_layer():
    assert MAKERS["auprc"](hidden=5).summary["layers"] == [6, 5, 1]


# Real data


def rows(samples: int, features: int, seed: int) -> bytes:
    """A LIBSVM file in which the first feature tells the class."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(samples):
        inputs = rng.normal(size=features)
        pairs = " ".join(f"{j + 1}:{value:.4f}" for j, value in enumerate(inputs))
        lines.append(f"{'+1' if inputs[0] > 0 else '-1'} {pairs}")
    return ("\n".join(lines) + "\n").encode()


@pytest.mark.slow
def test_named_sets_are_found_and_scaled(tmp_path, monkeypatch):
    folder, _ = use_folders(tmp_path, monkeypatch)
    use_small(monkeypatch, "australian", {"rows": 60})
    use_small(monkeypatch, "a9a", {"rows": 60}, {"rows": 30})
    for name, samples, features in (("australian", 60, 14), ("a9a", 60, 123), ("a9a.t", 30, 123)):
        write(folder / "libsvm" / name, rows(samples, features, samples))
    tuning = hyperparameter_tuning(nodes=3)
    assert tuning.summary["samples"] == {"train": 30, "validation": 30, "test": 0}
    inputs = np.concatenate([part[0] for level in ("lower_data", "upper_data") for part in stacked(tuning, level)])
    np.testing.assert_allclose(inputs.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(inputs.std(0), 1, atol=1e-6)
    assert logistic_regression(3, dataset="australian").summary["samples"]["test"] == 12
    assert auprc(nodes=3).summary["samples"] == {"train": 60, "test": 30}


@pytest.mark.slow
@needs_data
def test_australian_by_projection():
    """Coefficients end at the ridge, where the gradient is large and the KKT residual is not."""
    task = hyperparameter_tuning(positivity="projection")
    method = db.sparkle("ed", alpha=1.0, beta=0.5, gamma=0.5, theta=0.5)
    options = {"steps": 8_000, "eval_every": 8_000, "metrics": ["stationarity", "kkt_residual"]}
    result = db.solve(task.problem, method, db.graphs.ring(5), **options)
    assert (np.asarray(result.nodes.x) >= 0).all() and (result.x == 0).sum() >= 4
    first, last = result.trace["kkt_residual"]
    assert last < 1e-2 * first and result.trace.last["stationarity"] > 0.1


# Refusals


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("linear", {"heterogeneity": "wild"}, "'mild', 'severe'"),
        ("linear", {"heterogeneity": -1.0}, "not negative"),
        ("linear", {"samples": [3, 4]}, "one for each of 4 nodes"),
        ("linear", {"noise": -0.1}, "noise=-0.1"),
        ("logistic", {"heterogeneity": "wild"}, "'mild', 'severe'"),
        ("logistic", {"informative": 7}, "informative=7"),
        ("logistic", {"validation": 0.0}, "validation=0.0"),
        ("target", {"form": "value"}, "'target' or 'residual'"),
        ("target", {"discount": 1.0}, "discount=1.0"),
        ("target", {"features": 13}, "features=13"),
        ("target", {"sweeps": 0}, "sweeps=0"),
        ("tuning", {"loss": "hinge"}, "'sigmoid', 'logistic'"),
        ("tuning", {"positivity": "none"}, "'softplus'"),
        ("tuning", {"strength": 0.0}, "strength=0.0"),
        ("auprc", {"objective": "accuracy"}, "'cross-entropy'"),
        ("auprc", {"surrogate": "step"}, "'squared-hinge'"),
        ("auprc", {"anchors": 200}, "a node holds only"),
        ("auprc", {"margin": 0.0}, "margin=0.0"),
    ],
)
def test_bad_input_gets_a_sentence(name, options, words):
    with pytest.raises(ValueError, match=words):
        MAKERS[name](**options)


def test_sets_that_do_not_fit_raise():
    with pytest.raises(ValueError, match="has 3 classes"):
        hyperparameter_tuning(db.tasks.data.synthetic(90, 4, 2, 3), NODES)
    with pytest.raises(ValueError, match="no test part"):
        auprc(untested(PAIR), NODES)
    with pytest.raises(ValueError, match="own_tasks=True needs 2 to 3 nodes"):
        auprc(three_classes(), 4, own_tasks=True)
