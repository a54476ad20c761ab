"""The tasks with networks: losses, features and guards by hand, and short runs on tiny data that improve."""

import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel.tasks import domain_reweighting, features, meta_learning, networks, personalization, speech
from decibel.tasks.data import Dataset, Recordings
from decibel.tasks.domain_reweighting import Mixture, SimplexMixture

CLASSES, FEATURES, RATE = 4, 6, 8_000


def blobs(samples: int = 400, seed: int = 0) -> Dataset:
    """Four clouds, well apart."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, samples).astype(np.int32)
    inputs = (3 * np.eye(CLASSES, FEATURES)[labels] + rng.normal(size=(samples, FEATURES))).astype(np.float32)
    cut = samples * 3 // 4
    return Dataset(inputs[:cut], labels[:cut], inputs[cut:], labels[cut:], "blobs", CLASSES, tuple("abcd"))


def tones(speakers: int = 3, takes: int = 6, seed: int = 0) -> Recordings:
    """Two "digits", a rising and a falling tone of unequal length, at every speaker's own pitch."""
    rng = np.random.default_rng(seed)
    waveforms, names = [], []
    for speaker in range(speakers):
        for digit in range(2):
            for take in range(takes):
                time = np.arange(rng.integers(700, 1_100)) / RATE
                sweep = (1 if digit else -1) * 4_000 * (time - time.mean())
                phase = 2 * np.pi * np.cumsum(1_000 + 300 * speaker + sweep) / RATE
                wave = np.sin(phase) + 0.05 * rng.normal(size=len(time))
                waveforms.append((0.5 * wave).astype(np.float32))
                names.append((digit, f"speaker {speaker}", take))
    digit, speaker, index = zip(*names, strict=True)
    return Recordings(tuple(waveforms), np.array(digit, np.int32), np.array(speaker), np.array(index, np.int32), RATE)


def texts(seed: int = 0) -> dict[str, list[str]]:
    rng = np.random.default_rng(seed)
    return {
        "count": ["one two three four five six"] * 150,
        "rhyme": ["tick tock goes the clock"] * 150,
        "noise": ["".join(rng.choice(list("abcdefghijkl"), 30)) for _ in range(150)],
    }


BLOBS, TONES, TEXTS = blobs(), tones(), texts()
SMALL_MODEL = dict(context=8, width=8, layers=1, heads=2, windows=100, validation=9, test=12, regularization=1e-3)


def finite(tree) -> bool:
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


def differs(a, b) -> bool:
    return any(bool((x != y).any()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def node_batch(data, node: int):
    return jax.tree.map(lambda leaf: leaf[node, : int(data.counts[node])], data.tree)


def second_derivatives(task):
    """Jacobian and Hessian of g times ones, and the Hessian by differences, at one node and a point off the start."""
    g, batch = task.problem.lower, node_batch(task.problem.lower_data, 0)
    shift = lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape)  # noqa: E731
    x, y = jax.tree.map(shift, task.problem.x0), jax.tree.map(shift, task.problem.y0)

    @jax.jit
    def differentiate(y):
        slope, pull = jax.vjp(lambda x, y: jax.grad(g, 1)(x, y, batch), x, y)
        return slope, pull(jax.tree.map(jnp.ones_like, y))

    ahead, behind = (differentiate(jax.tree.map(lambda leaf: leaf + h, y))[0] for h in (1e-5, -1e-5))  # noqa: B023
    differences = jax.tree.map(lambda a, b: (a - b) / 2e-5, ahead, behind)
    return *differentiate(y)[1], differences


def assert_second_derivatives(task):
    jacobian, hessian, differences = second_derivatives(task)
    assert finite(jacobian) and networks.square(jacobian) > 0
    for exact, near in zip(jax.tree.leaves(hessian), jax.tree.leaves(differences), strict=True):
        np.testing.assert_allclose(exact, near, rtol=1e-5, atol=1e-6)


def ends(result):
    return ({name: result.trace[name][row] for name in result.trace} for row in (0, -1))


# Personalised classification


def test_personal_loss_by_hand():
    task = personalization(BLOBS, 4, per_node=20, hidden=3, regularization=0.01)
    rng = np.random.default_rng(1)
    x = [{"weight": rng.normal(size=(FEATURES, 3)), "bias": rng.normal(size=3)}]
    y = {"weight": rng.normal(size=(3, CLASSES)), "bias": rng.normal(size=CLASSES)}
    inputs, labels = rng.normal(size=(5, FEATURES)), rng.integers(0, CLASSES, 5)
    hidden = 1 / (1 + np.exp(-(inputs @ x[0]["weight"] + x[0]["bias"])))
    logits = hidden @ y["weight"] + y["bias"]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(5), labels]
    expected = losses.mean() + 0.01 * ((y["weight"] ** 2).sum() + (y["bias"] ** 2).sum())
    batch = jnp.asarray(inputs), jnp.asarray(labels)
    assert task.problem.upper is task.problem.lower
    assert task.problem.lower(x, y, batch) == pytest.approx(expected, rel=1e-12)
    together = personalization(BLOBS, 4, per_node=20, hidden=3, regularization=0.01, shared=True)
    assert together.problem.single_level
    assert together.problem.upper({"shared": x, "personal": y}, batch) == pytest.approx(expected, rel=1e-12)


def test_nodes_see_mostly_their_own_label():
    task = personalization(BLOBS, 4, per_node=40, skew=0.95)
    for counts in (task.partition.counts, task.truth.counts):  # training, testing
        assert (np.diag(counts) >= 0.9 * counts.sum(1)).all()
    assert (np.diag(task.partition.counts) == 38).all()
    assert personalization(BLOBS, 4, per_node=None).partition.sizes[0] > 40


@pytest.mark.slow
def test_personalization_improves_with_own_and_with_shared_last_layers():
    options = dict(per_node=40, skew=0.7, hidden=8)
    graph = db.graphs.ring(4)
    task = personalization(BLOBS, 4, **options)
    personal = db.spdb(alpha=1.0, beta=1.0, hypergradient=db.hypergradient.direct())
    run = dict(steps=200, batch_size=16, eval_every=200)
    first, last = ends(db.solve(task.problem, personal, graph, metrics=task.metrics, **run))
    assert last["train_accuracy"] > 0.9 and last["test_accuracy"] > 0.85 > first["test_accuracy"]
    task = personalization(BLOBS, 4, **options, shared=True)
    first, last = ends(db.solve(task.problem, db.ed(alpha=1.0), graph, metrics=task.metrics, **run))
    assert last["test_accuracy"] > 0.85 and last["whole_accuracy"] > 0.85 > first["whole_accuracy"]


def test_personal_accuracy_by_hand():
    task = personalization(BLOBS, 4, per_node=20, skew=0.8, hidden=FEATURES)
    x = [{"weight": 20 * jnp.eye(FEATURES), "bias": jnp.full(FEATURES, -30.0)}]  # a unit fires above 1.5
    stack = lambda tree: jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), tree)  # noqa: E731
    y = stack({"weight": jnp.eye(FEATURES, CLASSES), "bias": jnp.zeros(CLASSES)})
    y["bias"] = y["bias"].at[jnp.arange(4), jnp.arange(4)].set(100.0)  # node i says i to everything
    snapshot = snapshot_of(task, stack(x), y)
    measured = eqx.filter_jit(task.metrics[0])(snapshot)
    assert measured["train_accuracy"] == pytest.approx(0.8)
    own = [(BLOBS.y_test[part] == node).mean() for node, part in enumerate(task.truth.indices)]
    assert measured["test_accuracy"] == pytest.approx(np.mean(own))
    assert measured["whole_accuracy"] == pytest.approx(0.25)


def snapshot_of(task, x, y):
    from decibel.core._vector import Vector
    from decibel.results.metrics import Snapshot

    method = db.spdb(alpha=1.0, beta=1.0)
    return Snapshot(task.problem, method.start(Vector(x), Vector(y)))


# Meta-learning


def test_tasks_have_their_own_classes_and_share_no_sample():
    task = meta_learning(BLOBS, 4, ways=2, samples=40)
    assert task.partition.sizes.tolist() == [20] * 4
    problem, seen = task.problem, set()
    for node, classes in enumerate(task.truth):
        assert set(np.flatnonzero(task.partition.counts[node])) <= set(classes)
        for data in (problem.upper_data, problem.lower_data):
            inputs, labels = node_batch(data, node)
            for sample, label in zip(np.asarray(inputs) + BLOBS.x_train.mean(0), labels, strict=True):
                place = np.flatnonzero((np.abs(BLOBS.x_train - sample) < 1e-5).all(1))
                assert BLOBS.y_train[place] == classes[int(label)]
                assert not seen & set(place)
                seen |= set(place)
    assert len(seen) == 4 * 40


@pytest.mark.slow
def test_meta_learning_improves():
    task = meta_learning(BLOBS, 4, ways=3, samples=60, hidden=(6, 6))
    method = db.interact(alpha=0.3, beta=0.5)
    result = db.solve(task.problem, method, db.graphs.ring(4), steps=60, eval_every=60, metrics=task.metrics)
    first, last = ends(result)
    assert last["test_accuracy"] > 0.85 > first["test_accuracy"]
    assert last["adapted_accuracy"] > 0.85
    assert_second_derivatives(task)


# Speech


def test_spectrum_keeps_the_energy():
    frames = np.random.default_rng(0).normal(size=(4, 200))
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(200) / 200)
    energy = ((frames * hann) ** 2).sum(1)
    for size in (200, 255, 512):
        np.testing.assert_allclose(features.power_spectrum(frames, size).sum(1), size * energy)


def test_mel_filters_cover_the_spectrum():
    bands, size = 20, 1_024
    filters = features.mel_filters(bands, size, RATE)
    frequency, corner = np.arange(size // 2 + 1) * RATE / size, features.mel_centres(bands, RATE)
    inner = (frequency >= corner[1]) & (frequency <= corner[-2])
    np.testing.assert_allclose(filters.sum(0)[inner], 1)
    assert (filters >= 0).all() and (filters.max(1) > 0.8).all()
    np.testing.assert_allclose(features.from_mel(features.to_mel(frequency)), frequency, atol=1e-9)
    np.testing.assert_allclose(np.diff(features.to_mel(corner)), features.to_mel(np.array(4_000)) / 21)


@pytest.mark.parametrize("hertz", [300.0, 1_000.0, 2_500.0])
def test_a_pure_tone_lands_in_its_mel_band(hertz):
    tone = np.sin(2 * np.pi * hertz * np.arange(2_000) / RATE).astype(np.float32)
    spoken = features.log_mel(tone, RATE, bands=24)
    centres = features.mel_centres(24, RATE)[1:-1]
    assert spoken.shape == (1 + (2_000 - 200) // 80, 24)
    assert (spoken.argmax(1) == np.abs(features.to_mel(centres) - features.to_mel(np.array(hertz))).argmin()).all()
    louder = features.log_mel(2 * tone, RATE, bands=24)
    np.testing.assert_allclose(louder - spoken, 2 * np.log(2), atol=1e-4)


def test_features_of_odd_recordings():
    assert features.log_mel(np.zeros(10, np.float32), RATE).shape == (1, 40)
    assert finite(features.standardise(features.log_mel(np.zeros(1_000, np.float32), RATE)))
    moved = features.standardise(np.random.default_rng(0).normal(3, 2, size=(50, 4)))
    np.testing.assert_allclose(moved.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(moved.std(0), 1)
    padded, lengths = features.pad([np.ones((3, 2)), np.ones((9, 2))], 5)
    assert lengths.tolist() == [3, 5] and padded[0, 3:].sum() == 0 and padded[1].all()


def test_blstm_by_hand_and_blind_to_padding():
    rng = np.random.default_rng(0)
    layer = networks.start_blstm(3, 2, np.random.default_rng(0))
    inputs, lengths = rng.normal(size=(2, 6, 3)), np.array([6, 4], np.int32)

    def alone(weights, steps):
        """One direction, gate by gate."""
        sigmoid = lambda a: 1 / (1 + np.exp(-a))  # noqa: E731
        h, c, states = np.zeros(2), np.zeros(2), []
        for step in steps:
            i, f, o, new = np.split(step @ weights["input"] + h @ weights["state"] + weights["bias"], 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(new)
            h = sigmoid(o) * np.tanh(c)
            states.append(h)
        return np.mean(states, 0)

    forward, backward = ({name: np.asarray(leaf[way]) for name, leaf in layer.items()} for way in range(2))
    expected = [
        np.concatenate([alone(forward, own[:n]), alone(backward, own[:n][::-1])])
        for own, n in zip(inputs, lengths, strict=True)
    ]
    run = jax.jit(networks.blstm)
    np.testing.assert_allclose(run(layer, inputs, lengths), expected, rtol=1e-10)
    inputs[1, 4:] = 1e3
    np.testing.assert_allclose(run(layer, inputs, lengths), expected, rtol=1e-10)


@pytest.mark.slow
def test_speech_improves_and_transforms_become_personal():
    task = speech(TONES, bands=8, frames=12, hidden=4, held_out=2, regularization=1e-2)
    assert task.summary["samples"] == {"train": 24, "held out": 12} and task.nodes == 3
    method = db.spdb(alpha=1.0, beta=0.1, hypergradient=db.hypergradient.direct())
    result = db.solve(task.problem, method, db.graphs.complete(3), steps=60, eval_every=60, metrics=task.metrics)
    first, last = ends(result)
    assert first["error_rate"] == 0.5 and last["error_rate"] < 0.1
    assert last["heldout_loss"] < 0.6 * first["heldout_loss"]
    transform = result.nodes.y["weight"]
    assert differs(transform[0], transform[1]) and np.abs(transform - jnp.eye(8)).max() < 1
    assert_second_derivatives(task)


def test_speech_has_a_single_level_form():
    task = speech(TONES, bands=8, frames=12, hidden=4, held_out=2, shared=True)
    assert task.problem.single_level and set(task.problem.x0) == {"shared", "personal"}
    start = jnp.stack([jnp.eye(8)] * 3)
    assert (start == task.problem.x0["personal"]["weight"]).all()


# Domain reweighting


def test_transformer_reads_only_the_past():
    weights = networks.start_transformer(8, 2, 2, 6, np.random.default_rng(0))
    tokens = jnp.asarray([[1, 2, 3, 4, 5, 6]])
    changed = tokens.at[0, 3].set(9)
    run = jax.jit(networks.transformer)
    before, after = run(weights, tokens), run(weights, changed)
    np.testing.assert_allclose(before[:, :3], after[:, :3], atol=1e-12)
    assert (np.abs(before[:, 3:] - after[:, 3:]).max(-1) > 1e-6).all()
    shares = jnp.exp(before) / jnp.exp(before).sum(-1, keepdims=True)
    by_hand = -jnp.log(shares[0, jnp.arange(5), tokens[0, 1:]]).mean()
    assert jax.jit(networks.next_byte_loss)(weights, tokens.astype(jnp.uint8))[0] == pytest.approx(float(by_hand))


@pytest.mark.slow
def test_lower_losses_average_to_the_weighted_sum_over_domains():
    """1/N Σ_i g_i = Σ_d p_d loss_d + C‖y‖², also where one node holds two domains and another one."""
    task = domain_reweighting(TEXTS, 2, **SMALL_MODEL)
    problem, x = task.problem, jnp.asarray([0.3, -1.0, 0.5])
    batches = [node_batch(problem.lower_data, node) for node in range(2)]
    assert [len(windows) for windows, _, _ in batches] == [200, 100]
    windows, domain, _ = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    losses = np.asarray(jax.jit(networks.next_byte_loss)(problem.y0, windows))
    p = np.asarray(Mixture(0.1)(x))
    expected = sum(p[d] * losses[domain == d].mean() for d in range(3)) + 1e-3 * networks.square(problem.y0)
    lower = jax.jit(problem.lower)
    assert np.mean([lower(x, problem.y0, batch) for batch in batches]) == pytest.approx(float(expected))
    shared = domain_reweighting(TEXTS, 5, **SMALL_MODEL).problem.lower_data  # three of the nodes hold half a domain
    factors = [float(node_batch(shared, node)[2][0]) for node in range(5)]
    assert factors == [2.5, 2.5, 5.0, 2.5, 2.5]  # N n_i / n_d


def test_the_floor_holds_whatever_the_logits():
    mixture = Mixture(0.1)
    for x in ([1e4, 0.0, 0.0], [-1e4, 0.0, 1e4], [0.0, 0.0, 0.0]):
        p = np.asarray(mixture(jnp.asarray(x)))
        assert p.sum() == pytest.approx(1) and p.min() >= 0.1 / 3 - 1e-12
    shares = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(mixture(jnp.asarray(mixture.point(shares))), shares)
    with pytest.raises(ValueError, match="floor"):
        mixture.point(np.array([0.98, 0.01, 0.01]))


def test_the_entropy_term_pulls_back_from_a_corner():
    problem = domain_reweighting(TEXTS, 3, entropy=0.5, **SMALL_MODEL).problem
    batch = node_batch(problem.upper_data, 0)
    pull = jax.jit(jax.grad(problem.upper))(jnp.asarray([3.0, 0.0, -3.0]), problem.y0, batch)
    assert pull[0] > 0 > pull[2]  # f knows x through the entropy alone


@pytest.mark.slow
def test_reweighting_improves_and_drops_the_noise_down_to_the_floor():
    task = domain_reweighting(TEXTS, 3, target={"count": 2, "rhyme": 1}, **SMALL_MODEL)
    assert task.summary["target"] == {"count": 2 / 3, "rhyme": 1 / 3, "noise": 0.0}
    method = db.sparkle("ed", alpha=5.0, beta=0.5, gamma=0.1, theta=0.2, updates="simultaneous")
    graph = db.graphs.complete(3)
    result = db.solve(task.problem, method, graph, steps=150, batch_size=8, eval_every=75, metrics=task.metrics)
    first, last = ends(result)
    assert last["validation_loss"] < 0.6 * first["validation_loss"]
    assert last["test_perplexity"] == pytest.approx(np.exp(last["test_loss"]))
    weights = np.stack([result.trace[f"weight_{name}"] for name in TEXTS])
    np.testing.assert_allclose(weights.sum(0), 1)
    assert weights.min() >= 0.1 / 3 - 1e-12 and last["weight_noise"] < 0.1
    assert first["entropy"] == pytest.approx(np.log(3)) and last["entropy"] < first["entropy"]
    assert_second_derivatives(task)


@pytest.mark.slow
@pytest.mark.parametrize("start", [None, {"count": 0.5, "rhyme": 0.1, "noise": 0.4}], ids=["uniform", "given"])
def test_the_simplex_holds_at_every_node(start):
    """At every step; noise, which the target lacks, ends at the floor, exactly."""
    task = domain_reweighting(
        TEXTS, 3, target={"count": 2, "rhyme": 1}, start=start, weights="simplex", **SMALL_MODEL
    )  # fmt: skip
    first = list(start.values()) if start else [1 / 3] * 3
    np.testing.assert_allclose(SimplexMixture(0.1)(task.problem.x0), first, atol=1e-12)

    def simplex(snapshot):
        x = np.asarray(snapshot.nodes.x)
        return {"lowest": x.min(), "off": np.abs(x.sum(1) - 1).max()}

    method = db.sparkle("ed", alpha=0.5, beta=0.5, gamma=0.1, theta=0.2, updates="simultaneous")
    options = {"steps": 60, "batch_size": 8, "eval_every": 1, "metrics": [*task.metrics, simplex]}
    trace = db.solve(task.problem, method, db.graphs.complete(3), **options).trace
    assert min(trace["lowest"]) >= 0 and max(trace["off"]) < 1e-12
    assert trace["validation_loss"][-1] < 0.8 * trace["validation_loss"][0]
    weights = np.stack([trace[f"weight_{name}"] for name in TEXTS])
    np.testing.assert_allclose(weights.sum(0), 1, atol=1e-12)
    assert weights[2, -1] == pytest.approx(0.1 / 3)
    assert_second_derivatives(task)


# Refusals and real data


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: personalization(BLOBS, 4, hidden=0), "hidden=0"),
        (lambda: personalization(BLOBS, 4, per_node=10_000), "per_node=10000"),
        (lambda: meta_learning(BLOBS, 4, ways=5), "ways=5"),
        (lambda: meta_learning(BLOBS, 4, ways=2, samples=10_000), "samples=10000"),
        (lambda: meta_learning(BLOBS, 4, ways=2, hidden=()), "hidden"),
        (lambda: meta_learning(BLOBS, 4, ways=2, validation=0.0), "validation=0.0"),
        (lambda: speech(TONES, held_out=0), "held_out=0"),
        (lambda: speech(TONES, bands=0), "bands=0"),
        (lambda: domain_reweighting({"one": ["text"]}), "at least two"),
        (lambda: domain_reweighting(TEXTS, target={"news": 1.0}), "target"),
        (lambda: domain_reweighting(TEXTS, floor=1.0), "floor=1.0"),
        (lambda: domain_reweighting(TEXTS, width=8, heads=3), "heads=3"),
        (lambda: domain_reweighting(TEXTS, weights="sphere"), "'softmax', 'simplex'"),
        (lambda: domain_reweighting(TEXTS, weights="simplex", floor=0, entropy=0.1), "give a floor"),
        (lambda: domain_reweighting(TEXTS, weights="simplex", start={"count": 1}), "below floor"),
        (lambda: domain_reweighting(TEXTS, windows=10_000), "windows"),
    ],
)
def test_bad_input_gets_a_sentence(make, words):
    with pytest.raises(ValueError, match=words):
        make()


needs_data = pytest.mark.skipif("DECIBEL_DATA" not in os.environ, reason="DECIBEL_DATA is not set")


@needs_data
def test_the_papers_sizes_on_real_data():
    task = personalization("mnist")
    assert task.summary["layers"] == [784, 32, 10] and task.partition.sizes.tolist() == [128] * 10
    task = meta_learning("cifar10-subset", 10)
    assert task.summary["layers"] == [3072, 20, 20, 5] and task.summary["samples"] == {
        "train": 5000,
        "validation": 5000,
    }
    task = speech(frames=20, bands=8, hidden=4)
    assert task.nodes == 6 and task.summary["samples"] == {"train": 2700, "held out": 300}
    task = domain_reweighting(["wiki", "tinyshakespeare"], context=8, width=8, heads=2, layers=1)
    assert list(task.summary["domains"]) == ["wiki", "tinyshakespeare"]
