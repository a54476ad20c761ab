"""The language model: decoder, tokens and texts by hand, exact shares, streams that resume, runs that stay finite."""

import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decibel as db
from decibel.tasks import decoder, texts
from decibel.tasks.decoder import Shape, start_decoder
from decibel.tasks.language_model import DecoderLosses, Softmax
from decibel.tasks.tokens import BPE, tokenizer

SHAPE = Shape(8, 2, 2, 8)
RNG = np.random.default_rng(0)
TEXTS = {
    "count": b"one two three four five six. " * 120,
    "rhyme": b"tick tock goes the clock, and " * 90,
    "noise": bytes(RNG.integers(97, 123, 2_400).tolist()),
}
OPTIONS = dict(size=SHAPE, target={"count": 2, "rhyme": 1}, windows=200, validation=6, test=12, floor=0.15)


def task_of(**more):
    return db.tasks.language_model(TEXTS, **{**OPTIONS, **more})


@pytest.fixture(scope="module")
def streamed():
    return task_of()


def test_the_decoder_reads_only_the_past():
    weights, tokens = start_decoder(SHAPE, 16, 0), jnp.asarray([[1, 2, 3, 4, 5, 6]])
    run = jax.jit(decoder.decode)
    before, after = run(weights, tokens), run(weights, tokens.at[0, 3].set(9))
    np.testing.assert_allclose(before[:, :3], after[:, :3], atol=1e-12)
    assert (np.abs(before[:, 3:] - after[:, 3:]).max(-1) > 1e-6).all()
    shares = jax.nn.softmax(before)
    by_hand = -jnp.log(shares[0, jnp.arange(5), tokens[0, 1:]])
    np.testing.assert_allclose(jax.jit(decoder.token_losses)(weights, tokens)[0], by_hand, rtol=1e-10)


def test_positions_are_relative():
    """Rotated queries and keys meet at an angle that depends on their distance alone."""
    turns = decoder._turns(6, 4)
    q, k = RNG.normal(size=(2, 4))
    spun = lambda v: decoder._rotate(jnp.broadcast_to(v, (1, 6, 1, 4)), turns)[0, :, 0]  # noqa: E731
    scores = np.asarray(spun(q) @ spun(k).T)
    for distance in range(-5, 6):
        assert np.ptp(np.diagonal(scores, distance)) < 1e-12


@pytest.mark.slow
def test_less_memory_and_shorter_numbers_give_the_same_loss():
    weights, windows = start_decoder(SHAPE, 256, 0), jnp.asarray(RNG.integers(0, 256, (3, 9)), jnp.uint8)
    loss = lambda model: jax.jit(jax.value_and_grad(lambda y: model.losses(y, windows).mean()))(weights)  # noqa: E731
    with jax.numpy_dtype_promotion("standard"):  # JAX's own attention mixes types in its gradient
        models = DecoderLosses(), DecoderLosses(remat=True), DecoderLosses("bfloat16")
        (plain, slope), (again, same), (short, near) = map(loss, models)
    assert plain == pytest.approx(float(again), rel=1e-12) and short == pytest.approx(float(plain), rel=1e-2)
    assert short.dtype == plain.dtype == jnp.float64
    for a, b, c in zip(*map(jax.tree.leaves, (slope, same, near)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-14)
        np.testing.assert_allclose(a, c, atol=0.05 * float(jnp.abs(a).max()))


def merged_by_hand(text: bytes, merges: int) -> list[bytes]:
    """Pairs of words' pieces, counted from the start every time; of equally frequent ones the first by number wins."""
    from decibel.tasks.tokens import WORDS

    words = [[bytes([b]) for b in word] for word in WORDS.findall(text)]
    known, names = [], {bytes([b]): b for b in range(256)}
    for _ in range(merges):
        pairs = Counter(pair for word in words for pair in itertools.pairwise(word))
        count, (a, b) = max((count, (-names[a], -names[b])) for (a, b), count in pairs.items())
        if count < 2:
            break
        numbers = {number: name for name, number in names.items()}
        pair = numbers[-a], numbers[-b]
        known.append(pair[0] + pair[1])
        names.setdefault(known[-1], 256 + len(known) - 1)
        for word in words:
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == pair:
                    word[i : i + 2] = [known[-1]]
                i += 1
    return known


def test_pairs_are_learned_as_by_hand():
    text = TEXTS["count"] + TEXTS["rhyme"]
    learned = BPE.learn(text, 256 + 20)
    pieces = [learned.decode([256 + k]) for k in range(20)]
    assert pieces == merged_by_hand(text, 20)


@pytest.mark.parametrize("seed", range(3))
def test_tokens_give_the_text_back(seed):
    rng = np.random.default_rng(seed)
    text = bytes(rng.integers(0, 256, 500).tolist()) + "naïve café, 東京 and 1234567 \n\n x".encode()
    learned = BPE.learn(text + TEXTS["count"], 300)
    assert learned.decode(learned.encode(text)) == text
    assert len(learned.encode(TEXTS["count"])) < len(TEXTS["count"]) / 2


def test_a_vocabulary_is_learned_once(monkeypatch, tmp_path):
    monkeypatch.setattr("decibel.tasks.tokens.cache_folder", lambda: tmp_path)
    first = tokenizer("bpe", [TEXTS["count"]], 270)
    monkeypatch.setattr(BPE, "learn", lambda *_: pytest.fail("learned again"))
    assert tokenizer("bpe", [TEXTS["count"]], 270).merges == first.merges


def test_every_installation_has_text():
    for kind in ("manual", "tables", "licences"):
        assert len(texts.installed_text(kind)) > 50_000
    assert texts.find_texts({"own": ["a", "b"]})["own"] == b"a\n\nb"


def test_files_and_folders_are_read(tmp_path):
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "b.txt").write_text("second")
    found = texts.find_texts({"one": tmp_path / "a.txt", "all": tmp_path})
    assert found == {"one": b"first", "all": b"first\n\nsecond"}


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "spread"), [(None, "domains"), (2, "domains"), (5, "domains"), (2, "iid")])
def test_every_domain_counts_by_its_share(nodes, spread):
    """1/N Σ_i g_i = Σ_d x_d loss_d, however the text is spread over nodes, and although domains differ in length."""
    problem = task_of(nodes=nodes, spread=spread, streamed=False, windows=1_000).problem
    data, x = problem.lower_data, jnp.asarray([0.5, 0.2, 0.3])
    batches = [jax.tree.map(lambda leaf, n=n: leaf[n, : int(data.counts[n])], data.tree) for n in range(data.nodes)]
    together = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    losses = np.asarray(jax.jit(DecoderLosses().losses)(problem.y0, together["windows"]))
    domain, lower = together["domain"], jax.jit(problem.lower)
    assert len(set(np.bincount(domain).tolist())) > 1
    expected = sum(float(x[d]) * losses[domain == d].mean() for d in range(3))
    assert np.mean([lower(x, problem.y0, batch) for batch in batches]) == pytest.approx(expected, rel=1e-10)


RUN = dict(batch_size=2, eval_every=3, progress=False, metrics=["consensus_x"])


def same(a, b) -> bool:
    return all(bool((x == y).all()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.slow
def test_a_streamed_run_resumes_in_the_middle_of_an_epoch_bit_for_bit(streamed, tmp_path):
    """Samples are read in a shuffled order, of which a run of nine steps takes a part; step six is no end of one."""
    given = (streamed.problem, streamed.method(), db.graphs.ring(3))
    whole = db.solve(*given, steps=9, **RUN, sampling="shuffle-once")
    held = task_of(streamed=False).problem
    in_memory = db.solve(held, *given[1:], steps=9, **RUN, sampling="shuffle-once")
    db.solve(*given, steps=6, **RUN, sampling="shuffle-once", checkpoint=tmp_path)
    seen, again = [], {**RUN, "sampling": "shuffle-once", "checkpoint": tmp_path, "resume": True}
    rest = db.solve(*given, steps=9, **again, callbacks=[lambda step, row: seen.append(step)])
    assert same(whole.nodes, rest.nodes) and same(whole.nodes, in_memory.nodes)
    assert seen == [9]


@pytest.mark.slow
def test_short_runs_stay_finite_and_no_share_falls_below_its_floor(streamed):
    """Twenty seeds, with steps for x that take it to its floor at once."""

    def lowest(snapshot):
        return snapshot.nodes.x.min()

    method, graph, options = streamed.method(alpha=0.5), db.graphs.ring(3), {**RUN, "eval_every": 2}
    for seed in range(20):
        result = db.solve(streamed.problem, method, graph, steps=8, seed=seed, **{**options, "metrics": [lowest]})
        assert result.status is db.Status.COMPLETED and min(result.trace["lowest"]) >= 0.05 - 1e-12
        np.testing.assert_allclose(result.nodes.x.sum(1), 1, atol=1e-12)


@pytest.mark.slow
def test_what_the_target_lacks_loses_its_share():
    task = task_of(streamed=False)
    graph, options = db.graphs.complete(3), dict(steps=60, batch_size=8, eval_every=60, metrics=task.metrics)
    trace = db.solve(task.problem, task.method(alpha=0.03, beta=1e-2, gamma=1e-2), graph, **options).trace
    shares = [trace.last[f"weight_{name}"] for name in TEXTS]
    assert (
        sum(shares) == pytest.approx(1) and shares[2] < 0.25 and trace.last["test_loss"] < 0.8 * trace["test_loss"][0]
    )
    assert {"validation_loss", "entropy", "node_spread", *(f"loss_{name}" for name in TEXTS)} <= set(trace)


# A softmax instead of the simplex


def test_the_floor_holds_whatever_the_logits():
    mixture = Softmax(0.1)
    for x in ([1e4, 0.0, 0.0], [-1e4, 0.0, 1e4], [0.0, 0.0, 0.0]):
        p = np.asarray(mixture(jnp.asarray(x)))
        assert p.sum() == pytest.approx(1) and p.min() >= 0.1 / 3 - 1e-12
    shares = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(mixture(jnp.asarray(mixture.point(shares))), shares)


@pytest.mark.slow
def test_logits_stand_for_the_same_losses_as_their_shares():
    """f and g at x with the softmax are those at its mixture on the simplex, and the starts are the same mixture."""
    start = {"count": 0.5, "rhyme": 0.2, "noise": 0.3}
    simplex, softmax = (
        task_of(weights=weights, start=start, entropy=0.5, streamed=False).problem for weights in ("simplex", "softmax")
    )
    assert softmax.prox_x is None and simplex.prox_x is not None
    mixture = Softmax(OPTIONS["floor"])
    np.testing.assert_allclose(mixture(softmax.x0), simplex.x0, atol=1e-12)
    x = jnp.asarray([1.0, 0.0, -2.0])
    for name in ("upper", "lower"):
        data = getattr(softmax, f"{name}_data")
        batch = jax.tree.map(lambda leaf: leaf[0], data.tree)
        losses = [jax.jit(getattr(problem, name)) for problem in (softmax, simplex)]
        at_logits, at_shares = losses[0](x, softmax.y0, batch), losses[1](mixture(x), softmax.y0, batch)
        assert float(at_logits) == pytest.approx(float(at_shares), rel=1e-12)


@pytest.mark.slow
def test_logits_drop_what_the_target_lacks():
    task = task_of(weights="softmax", streamed=False)
    method = db.sparkle("ed", alpha=5.0, beta=0.5, gamma=0.1, theta=0.2, updates="simultaneous")
    options = dict(steps=60, batch_size=8, eval_every=60, metrics=task.metrics)
    trace = db.solve(task.problem, method, db.graphs.complete(3), **options).trace
    assert sum(trace.last[f"weight_{name}"] for name in TEXTS) == pytest.approx(1)
    assert 0.05 - 1e-12 <= trace.last["weight_noise"] < 0.25 and trace.last["test_loss"] < 0.9 * trace["test_loss"][0]
    assert trace["entropy"][0] == pytest.approx(np.log(3)) and trace.last["entropy"] < trace["entropy"][0]
    assert task.method().alpha > task_of(streamed=False).method().alpha, "logits move further than shares"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(floor=1.0), "floor=1.0"),
        (dict(weights="sphere"), "weights='sphere' is not known: choose 'simplex' or 'softmax'"),
        (dict(weights="softmax", start={"count": 0.9, "rhyme": 0.05, "noise": 0.05}), "share of at most floor"),
        (dict(target={"news": 1.0}), "target"),
        (dict(floor=0.0, entropy=0.1), "give a floor"),
        (dict(spread="even"), "spread='even'"),
        (dict(size="huge"), "size='huge'"),
        (dict(start={"count": 1}), "start has a share below"),
        (dict(tokens="words"), "tokens='words'"),
        (dict(tokens="bpe", vocabulary=10), "vocabulary=10"),
        (dict(validation=10_000), "validation asks for"),
    ],
)
def test_bad_input_gets_a_sentence(options, words):
    with pytest.raises(ValueError, match=words):
        task_of(**options)


def test_unknown_text_gets_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="at least two"):
        db.tasks.language_model({"one": ["text"]})
    with pytest.raises(ValueError, match="did you mean 'manual'"):
        texts.find_texts(["manul"])
    with pytest.raises(ValueError, match="holds no files"):
        texts.find_texts({"none": tmp_path / "missing"})
    with pytest.raises(ValueError, match="width=6"):
        Shape(6, 1, 2, 8)
