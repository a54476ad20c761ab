"""A limit on what a link may carry: no change where nobody lies, and the documented bounds where somebody does.

Limits, attacks and the steps in which somebody lies are arguments of compiled programs, which many tests share.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from liars import ATTACKS, Lie, LyingSimulator
from quadratics import Quadratic, random_quadratic
from wave_reference import wave as by_waves

import decibel as db
from decibel.methods._single_level import SingleLevel
from decibel.network._clip import clamped, clip
from decibel.network._incidence import slots
from decibel.network._limited import sizes_by_graph
from decibel.strategies import STRATEGIES
from decibel.strategies._limited import takes_limit, with_limit

NODES, LIAR, ALPHA, INFINITY = 8, 3, 0.3, float("inf")
CHUNK = 50  # the steps of a compiled program
HONEST = [node for node in range(NODES) if node != LIAR]
QUADRATIC = random_quadratic(NODES, p=4, seed=1, spread=4.0)
TORUS = db.graphs.torus(2, 4)
RATES = {"x": 0.03, "y": 0.1, "z": 0.1}
DIRECTION = np.random.default_rng(5).normal(size=4)
DIRECTION /= np.linalg.norm(DIRECTION)
FLATTEST = np.linalg.eigh(QUADRATIC.R[HONEST].mean(0))[1][:, 0]
NEVER = db.faults.drop(links=[(0, 1)], during=(10**6, 10**6 + 1))  # so that the simulator goes link by link
LOST = db.faults.drop(0.3, one_way=True)
edge_ed, wave = db.strategies.edge_ed, db.strategies.wave
both = pytest.mark.parametrize("limited", [edge_ed, wave], ids=["edge-ed", "wave"])


def lie(name, first=0, last=10**9, names=tuple(ATTACKS)):
    direction = FLATTEST if name == "flattest" else DIRECTION
    attacks = tuple(ATTACKS[attack] for attack in names)
    which, first, last = map(jnp.int32, (names.index(name), first, last))
    return Lie(LIAR, attacks, jnp.asarray(direction), which, first, last)


NOBODY = lie("huge", last=0)
ON_ANY_LEVEL = "flip", "huge"  # the attacks that ask for no one level's size
NOBODY_ON_ANY = lie("huge", last=0, names=ON_ANY_LEVEL)


def within(limited, limit):
    """With a limit that is an argument of the program: its name would be another for each."""
    return replace(limited(1.0), limit=limit)


def engine_of(lie):
    return db.Simulator() if lie is None else LyingSimulator(lie=lie)


def single(strategy, lie=NOBODY, *, graph=TORUS, steps=1500, alpha=ALPHA, dtype=jnp.float64, **options):
    method = SingleLevel(alpha, 1.0, db.strategies.strategy(strategy))
    options = {"metrics": [], "eval_every": CHUNK, "engine": engine_of(lie)} | options
    return db.solve(QUADRATIC.single(dtype=dtype), method, graph, steps=steps, **options)


def sparkle(strategy, lie=None, *, steps=200, dtype=jnp.float64, updates="simultaneous", graph=TORUS, **options):
    rates = {"alpha": RATES["x"], "beta": RATES["y"], "gamma": RATES["z"]}
    method = db.sparkle(strategy, **rates, updates=updates)
    options = {"metrics": [], "eval_every": min(steps, CHUNK), "engine": engine_of(lie)} | options
    return db.solve(QUADRATIC.problem(dtype=dtype), method, graph, steps=steps, **options)


def sizes(result, column=1):
    """By level, how large the flows are at most: so far, or in the last step (column 0)."""
    return {level: float(found[..., column].max()) for _, level, found in sizes_by_graph(result.state.link_memory)}


@functools.cache
def limit(limited):
    return 1.2 * sizes(single(within(limited, INFINITY)))["x"]


def own_distances(x):
    return np.linalg.norm(x - QUADRATIC.e, axis=-1)


def distances(x):
    """Of honest nodes from the solution of their own mean problem."""
    theirs = Quadratic(*(part[HONEST] for part in QUADRATIC)).single_solution()
    return np.linalg.norm(x[..., HONEST, :] - theirs, axis=-1)


def clipped(F, bound):
    """By the norm of each row, in NumPy, with a rescaling of its own."""
    scale = np.abs(F).max(-1, keepdims=True)
    norm = np.linalg.norm(np.divide(F, scale, where=scale > 0, out=np.zeros_like(F)), axis=-1, keepdims=True)
    longer = (scale > bound / np.maximum(norm, 1)) & (scale > 0)
    return np.where(longer, F / np.where(longer, scale, 1) * (bound / np.maximum(norm, 1)), F), longer[..., 0]


def reference(limited, *arguments):
    """Every iterate by level, and which honest links were cut, in plain NumPy."""
    return (edge_reference if limited is edge_ed else wave_reference)(*arguments)


def edge_reference(directions, rates, limits, lie, steps, widths):
    """F_ij ← clip((F_ij − F_ji)/2 + w_ij (φ_j − φ_i)) by link and level; every iterate, and which honest links
    were cut."""
    W = TORUS.matrix.toarray()
    i, j = np.nonzero(W - np.diag(np.diag(W)))
    back = np.asarray([np.flatnonzero((i == b) & (j == a))[0] for a, b in zip(i, j, strict=True)])
    levels, from_liar, honest = sorted(widths), j == LIAR, (i != LIAR) & (j != LIAR)
    told = jax.jit(lambda *rows: lie.instead(*rows))
    sums = lambda F: np.stack([F[i == node].sum(0) for node in range(NODES)])  # noqa: E731
    s = {level: np.zeros((NODES, widths[level])) for level in levels}
    F = {level: np.zeros((len(i), widths[level])) for level in levels}
    path, saturated = [], set()
    for k in range(steps):
        d = directions(s)
        half = {level: s[level] - rates[level] * d[level] for level in levels}
        φ = {level: half[level] + sums(F[level]) for level in levels}
        own = np.concatenate([φ[level][i] for level in levels] + [F[level] for level in levels], 1)
        received = own[back]
        received[from_liar] = told(jnp.int32(k), received[from_liar], own[from_liar])
        parts = np.split(received, np.cumsum([widths[level] for level in levels] * 2)[:-1], 1)
        for level, theirs, other in zip(levels, parts, parts[len(levels) :], strict=False):
            raw = W[i, j][:, None] * (theirs - φ[level][i]) + 0.5 * (F[level] - other)
            F[level], longer = clipped(raw, rates[level] * limits[level])
            saturated |= set(np.flatnonzero(longer & honest))
        s = {level: half[level] + sums(F[level]) for level in levels}
        path.append(s)
    return {level: np.stack([s[level] for s in path]) for level in levels}, saturated


def wave_reference(directions, rates, limits, lie, steps, widths):
    """z_ij ← ρ_ij s_i + clip(z_ij − ρ_ij s_i), the levels of a node in one vector."""
    levels, path, saturated = sorted(widths), [], set()
    ends = np.cumsum([widths[level] for level in levels])[:-1]
    rowwise = jax.jit(lambda *rows: lie.instead(*rows))

    def told(k, i, j, q, own):
        return np.asarray(rowwise(jnp.int32(k), q, own)) if j == LIAR else q

    def cut(i, j, flow):
        parts = []
        for level, part in zip(levels, np.split(flow, ends), strict=True):
            part, longer = clipped(part, rates[level] * limits[level])
            parts.append(part)
            if longer and LIAR not in (i, j):
                saturated.add((i, j))
        return np.concatenate(parts)

    def step(i, s):  # of the node at its own point, as every node at that point
        parts = [np.tile(part, (NODES, 1)) for part in np.split(s, ends)]
        d = directions(dict(zip(levels, parts, strict=True)))
        return np.concatenate([rates[level] * d[level][i] for level in levels])

    start = np.zeros((NODES, sum(widths.values())))
    by_waves(step, start, TORUS.W, steps, told=told, cut=cut, path=path)
    return dict(zip(levels, np.split(np.stack(path), ends, -1), strict=True)), saturated


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::decibel.DelayWarning")
def test_a_node_cuts_when_it_has_finished_whatever_is_late():
    """As the reference does, message by message, with a limit that is reached."""
    B, counts = 4.0, []

    def cut(i, j, flow):
        flow, longer = clipped(flow, ALPHA * B)
        counts.append(longer)
        return flow

    faults = [db.faults.slow(0, 3), db.faults.late(1)]
    found = single(wave(B), None, faults=faults, steps=60, eval_every=60).nodes.x
    expected = by_waves(
        lambda i, s: ALPHA * QUADRATIC.R[i] @ (s - QUADRATIC.e[i]),
        np.zeros((NODES, 4)),
        TORUS.W,
        60,
        ends=lambda k, i: i > 0 or (k + 1) % 3 == 0,
        delay=lambda k, i, j: 1,
        cut=cut,
    )
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert 0.1 < np.mean(counts) < 0.9


class TestCut:
    cut = staticmethod(jax.jit(clip))

    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
    def test_norms_never_exceed_the_limit(self, dtype):
        rng, info = np.random.default_rng(0), np.finfo(dtype)
        scales = 10.0 ** np.linspace(np.log10(info.tiny), np.log10(info.max) - 1, 60)
        F = np.asarray(rng.normal(size=(60, 7)) * scales[:, None], dtype)
        F[0] = 0
        F[-1] = info.max / 8
        found, size = map(np.asarray, self.cut(F, dtype(0.5), dtype(3.0)))
        assert np.isfinite(found).all() and np.isfinite(size).all()
        norms = np.linalg.norm(found.astype(np.longdouble), axis=1)
        whole = np.linalg.norm(F.astype(np.longdouble), axis=1)
        assert norms.max() <= 1.5 * (1 + 4 * info.eps)
        np.testing.assert_array_equal(found[whole < 1.49], F[whole < 1.49])  # to the last bit
        np.testing.assert_allclose(norms[whole > 1.5], 1.5, rtol=8 * info.eps)
        np.testing.assert_array_equal(self.cut(-F, dtype(0.5), dtype(3.0))[0], -found)
        small = whole < info.max / 8
        np.testing.assert_allclose(size[small], whole[small] / 0.5, rtol=8 * info.eps, atol=4 * info.tiny)

    def test_the_difference_of_the_largest_numbers_does_not_overflow(self):
        largest = np.finfo(np.float32).max
        rows = np.asarray([[largest, -largest], [np.inf, 1.0]], np.float32)

        @jax.jit
        def cut(rows):
            return clip(clamped(rows) - clamped(-rows), jnp.float32(1.0), jnp.float32(3.0))

        flow, size = cut(rows)
        assert np.isfinite(flow).all() and np.isfinite(size).all() and np.linalg.norm(flow, axis=1).max() < 3.001

    def test_a_step_size_of_zero_lets_nothing_through(self):
        found, size = self.cut(np.ones((2, 3)) * [[0.0], [1.0]], np.zeros(()), np.asarray(3.0))
        assert not np.asarray(found).any() and float(size[0]) == 0 and float(size[1]) > 1e300


@pytest.mark.slow_except("wave-exact")
@pytest.mark.parametrize(
    ("updates", "dtype", "faults"),
    [("simultaneous", jnp.float64, None), ("alternating", jnp.float32, LOST)],
    ids=["exact", "alternating in float32 with losses"],
)
@both
def test_nothing_changes_where_nobody_lies(limited, updates, dtype, faults):
    """The same numbers, to the last bit, as without a limit, with 1.2 times the largest flow."""
    same = {"dtype": dtype, "updates": updates, "faults": faults}
    plain = sparkle(limited(1.0).name.partition(" ")[0], **same)
    measured = sparkle(within(limited, dict.fromkeys("xyz", INFINITY)), NOBODY_ON_ANY, **same)
    wide = {level: 1.2 * size for level, size in sizes(measured).items()}
    for other in (measured, sparkle(within(limited, wide), NOBODY_ON_ANY, **same)):
        for a, b in zip(jax.tree.leaves(plain.nodes), jax.tree.leaves(other.nodes), strict=True):
            np.testing.assert_array_equal(a, b)
        assert plain.trace["rounds"][-1] == other.trace["rounds"][-1]
        assert plain.trace["bytes"][-1] == other.trace["bytes"][-1]
    for level in "xyz":  # so that the lines above say something
        low = sparkle(within(limited, wide | {level: 0.4 * wide[level]}), NOBODY_ON_ANY, **same)
        assert not np.array_equal(plain.nodes.x, low.nodes.x)


@both
def test_a_limit_does_not_depend_on_the_step_size(limited):
    found = [sizes(single(within(limited, INFINITY), alpha=alpha, steps=2000), 0)["x"] for alpha in (0.05, 0.3)]
    np.testing.assert_allclose(*found, rtol=1e-6)
    own = QUADRATIC.single_solution()
    gradients = np.einsum("nij,nj->ni", QUADRATIC.R, own - QUADRATIC.e)
    # A node's flows sum up to its gradient at the solution.
    assert max(np.linalg.norm(gradients, axis=1) / TORUS.degrees) <= found[0] * (1 + 1e-6)


@both
def test_too_low_a_limit_biases_and_flows_still_cancel(limited):
    result = single(within(limited, 0.5 * limit(limited) / 1.2))
    assert np.abs(np.asarray(result.nodes.x) - QUADRATIC.single_solution()).max() > 0.1
    if limited is edge_ed:
        F = np.asarray(result.state.link_memory[0][0][0].per_link.flows.vectors).reshape(-1, 4)
        np.testing.assert_array_equal(F, -F[slots(TORUS).reverse])
    gradients = np.einsum("nij,nj->ni", QUADRATIC.R, np.asarray(result.nodes.x) - QUADRATIC.e)
    assert np.abs(gradients.sum(0)).max() < 1e-9 < np.abs(gradients).max()


@both
class TestOneLiarOfEightOnATorus:
    @pytest.mark.slow_except("flattest-edge-ed", "huge-edge-ed", "flattest-wave")
    @pytest.mark.parametrize("name", ATTACKS)
    def test_within_the_documented_bounds(self, limited, name):
        """And the recursion is the one that is documented: NumPy's, written by hand, finds the same."""
        B, steps = limit(limited), 10 * CHUNK if limited is edge_ed else 4 * CHUNK
        result = single(within(limited, B), lie(name), steps=steps)
        assert result.status == "completed" and all(
            np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(result.state)
        )
        directions = lambda s: {"x": np.einsum("nij,nj->ni", QUADRATIC.R, s["x"] - QUADRATIC.e)}  # noqa: E731
        path, saturated = reference(limited, directions, {"x": ALPHA}, {"x": B}, lie(name), steps, {"x": 4})
        np.testing.assert_allclose(np.asarray(result.nodes.x)[HONEST], path["x"][-1][HONEST], atol=1e-9)
        curvature = np.linalg.eigvalsh(QUADRATIC.R)
        assert ALPHA * curvature.max() <= 1
        μ, k = curvature[:, 0], np.arange(1, steps + 1)[:, None]
        bound = (1 - ALPHA * μ) ** k * own_distances(np.zeros((NODES, 4))) + TORUS.degrees * B / μ
        assert (own_distances(path["x"]) <= bound * (1 + 1e-12))[:, HONEST].all()
        bound = TORUS.degrees[LIAR] * B / (np.linalg.eigvalsh(QUADRATIC.R[HONEST].mean(0))[0] * len(HONEST))
        far = distances(path["x"][-1]).max()
        assert saturated or far <= bound * (1 + 1e-9)
        # Neither bound is idle: the attack along the flattest direction takes all of the second.
        assert name != "flattest" or (not saturated and far > 0.99 * bound)

    @pytest.mark.slow
    def test_three_levels(self, limited):
        measured = sparkle(within(limited, dict.fromkeys("xyz", INFINITY)), NOBODY_ON_ANY)
        limits = {level: 1.2 * size for level, size in sizes(measured).items()}

        def directions(s):
            x, y, z = s["x"], s["y"], s["z"]
            return {"x": QUADRATIC.u(x, y, z), "y": QUADRATIC.v(x, y), "z": QUADRATIC.p(x, y, z)}

        for name in ("flip", "huge"):
            told = lie(name, names=ON_ANY_LEVEL)
            result = sparkle(within(limited, limits), told)
            path, _ = reference(limited, directions, RATES, limits, told, 200, {"x": 4, "y": 4, "z": 4})
            for level in "xyz":
                found = np.asarray(getattr(result.nodes, level))[HONEST]
                np.testing.assert_allclose(found, path[level][-1][HONEST], atol=1e-9)
            assert np.abs(path["x"]).max() < 1e3

    def test_without_a_limit_there_is_no_bound(self, limited):
        for name, far in (("huge", 1e290), ("flattest", 1e5)):
            unlimited = single(limited(1.0).name.partition(" ")[0], lie(name), steps=CHUNK)
            assert np.abs(np.asarray(unlimited.nodes.x)[HONEST]).max() > far

    @pytest.mark.slow_except("wave")
    def test_in_single_precision(self, limited):
        result = single(within(limited, limit(limited)), lie("huge"), dtype=jnp.float32, steps=500)
        μ = np.linalg.eigvalsh(QUADRATIC.R)[:, 0]
        assert (own_distances(np.asarray(result.nodes.x)) <= TORUS.degrees * limit(limited) / μ * 1.001)[HONEST].all()

    def test_a_lie_that_ends_is_forgotten(self, limited):
        """All end at the full solution."""
        for name in ("huge", "flip", "flattest"):
            after = single(within(limited, limit(limited)), lie(name, first=100, last=200))
            np.testing.assert_allclose(after.nodes.x, np.tile(QUADRATIC.single_solution(), (NODES, 1)), atol=1e-9)


def test_ed_never_forgets_a_single_message():
    once = single("ed", lie("push", first=100, last=101), faults=NEVER)
    assert np.abs(np.asarray(once.nodes.x) - QUADRATIC.single_solution()).max() > 10


@pytest.mark.slow
def test_waves_in_code_have_the_bound():
    """Bytes at random, also where a message has its base and acknowledgement; every other one has a base of zero, so
    that it can be read."""

    def noise(step, row, own, v):
        drawn = jax.random.bits(jax.random.fold_in(jax.random.key(7), step), row.shape, row.dtype)
        return jnp.where((step % 2 == 0) & (jnp.arange(row.shape[-1]) < 4), 0, drawn)

    B = limit(wave)
    honest, result = (
        single(db.privacy.quantize(wave(B), 4), told) for told in (None, Lie(LIAR, (noise,), jnp.zeros(4)))
    )
    np.testing.assert_allclose(honest.nodes.x, np.tile(QUADRATIC.single_solution(), (NODES, 1)), atol=1e-9)
    μ = np.linalg.eigvalsh(QUADRATIC.R)[:, 0]
    assert (own_distances(np.asarray(result.nodes.x)) <= TORUS.degrees * B / μ * (1 + 1e-9))[HONEST].all()
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(result.state))
    assert sizes(result)["x"] > 1e100


@pytest.mark.slow
@both
def test_the_table_of_the_docs(limited):
    """docs/evidence/malicious-members.md: how far honest nodes end from their solution."""
    alpha, first = (ALPHA, -6) if limited is edge_ed else (0.2, -3)
    μ = np.linalg.eigvalsh(QUADRATIC.R[HONEST].mean(0))[0]
    measured = {name: [] for name in ("bound", *ATTACKS)}
    for graph in (TORUS, db.graphs.complete(NODES), db.graphs.ring(NODES)):
        B = 1.2 * sizes(single(within(limited, INFINITY), graph=graph, steps=3000, alpha=alpha))["x"]
        measured["bound"].append(graph.degrees[LIAR] * B / (μ * len(HONEST)))
        for name in ATTACKS:
            result = single(within(limited, B), lie(name), graph=graph, steps=3000, alpha=alpha)
            measured[name].append(distances(np.asarray(result.nodes.x)).max())
    text = (Path(__file__).parents[2] / "docs" / "evidence" / "malicious-members.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    written = {
        row[0].strip("`"): list(map(float, row[-6:][first + 6 : first + 9]))
        for row in rows
        if row[0].strip("`") in measured
    }
    assert written == {name: pytest.approx(found, abs=0.01) for name, found in measured.items()}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (0.0, "limit=0.0 must be positive"),
        (float("nan"), "must be positive"),
        (True, "limit=True must be positive"),
        ("3", "limit='3' must be positive"),
        ({"x": 1.0, "y": -1.0}, "must be positive"),
        ({"w": 1.0}, "'w', which is no level"),
        ({}, "names no level"),
    ],
)
@both
def test_limits_that_are_none_raise(limited, given, sentence):
    with pytest.raises(ValueError, match=sentence):
        limited(given)


@both
def test_a_level_without_a_limit_raises(limited):
    with pytest.raises(ValueError, match="limit lacks level z"):
        sparkle(limited({"x": 1.0, "y": 1.0}))


def test_which_strategies_take_a_limit():
    takes = {"diffusion", "consensus", "edge-ed", "wave"}
    assert {name for name, row in STRATEGIES.items() if takes_limit(row)} == takes
    assert takes_limit(db.privacy.quantize("wave", 4)) and not takes_limit(db.privacy.quantize("diffusion", 8))
    assert edge_ed(3.0).bounded and not edge_ed(INFINITY).bounded and not edge_ed({"x": 1.0, "y": INFINITY}).bounded


@pytest.mark.parametrize("name", ["diffusion", "consensus"])
class TestWhatRemembersNothing:
    def limited(self, name, limit):
        return replace(with_limit(STRATEGIES[name], 1.0), limit=limit)

    @pytest.mark.slow_except("diffusion")
    def test_nothing_changes_where_nobody_lies(self, name):
        plain, measured = single(name, None), single(self.limited(name, INFINITY))
        found = sizes(measured)["x"]
        wide, low = (single(self.limited(name, share * found)) for share in (1.2, 0.5))
        for other in (measured, wide):
            np.testing.assert_allclose(other.nodes.x, plain.nodes.x, atol=1e-12)
            assert plain.trace["rounds"][-1] == other.trace["rounds"][-1]
            assert plain.trace["bytes"][-1] == other.trace["bytes"][-1]
        assert np.abs(np.asarray(low.nodes.x - plain.nodes.x)).max() > 1e-3

    @pytest.mark.parametrize("attack", ["push", "huge", "flip"])
    def test_a_node_is_no_further_than_its_links_allow(self, name, attack):
        B, steps = 2.0, 400
        result = single(self.limited(name, B), lie(attack), steps=steps)
        μ = np.linalg.eigvalsh(QUADRATIC.R)[:, 0]
        bound = (1 - ALPHA * μ) ** steps * own_distances(np.zeros((NODES, 4))) + TORUS.degrees * B / μ
        assert (own_distances(np.asarray(result.nodes.x)) <= bound * (1 + 1e-9))[HONEST].all()


@pytest.mark.slow
def test_one_message_ends_no_run_of_a_loss_that_grows_faster_than_squares():
    """|x − a|⁴ is no longer finite where one message of 1e300 is taken; with a limit it is forgotten."""
    targets = np.random.default_rng(3).normal(size=(NODES, 1, 4))
    problem = db.Problem(lambda x, batch: ((x - batch) ** 4).sum(-1).mean(), upper_data=targets, x0=np.zeros(4))
    once = lie("huge", first=100, last=101)

    def run(strategy, told):
        options = {"steps": 2000, "eval_every": CHUNK, "metrics": [], "faults": NEVER, "engine": engine_of(told)}
        return db.solve(problem, SingleLevel(0.01, 1.0, strategy), TORUS, **options)

    with pytest.warns(UserWarning, match="diverged"):
        assert run(STRATEGIES["diffusion"], once).status == "diverged"
    limited = with_limit(STRATEGIES["diffusion"], 20.0)
    lied, honest = run(limited, once), run(limited, NOBODY)
    assert lied.status == "completed"
    np.testing.assert_allclose(lied.nodes.x, honest.nodes.x, atol=1e-3)
