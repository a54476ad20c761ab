"""`solve`: one compilation, reproducible, independent of how it is cut into chunks, and honest when it breaks."""

from __future__ import annotations

from dataclasses import fields

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic

import decibel as db
from decibel.engines._program import RunConfig
from decibel.engines._run import compile_chunk

QUADRATIC = random_quadratic(5, p=2, q=3)
PROBLEM = QUADRATIC.problem(samples=4)
RING = db.graphs.ring(5)


def method(alpha=0.05, lower="ed"):
    return db.sparkle(lower, alpha=alpha, beta=0.1, gamma=0.1, theta=0.5)


def solve(problem=PROBLEM, how=None, graph=RING, **options):
    return db.solve(problem, how or method(), graph, **{"steps": 20, "progress": False, "metrics": [], **options})


@pytest.fixture(scope="module")
def noisy():
    """A problem whose samples differ, so that draws matter."""
    data = {"a": np.random.default_rng(0).normal(size=(5, 9, 2))}

    def loss(x, batch):
        return jnp.mean(jnp.sum((x - batch["a"]) ** 2, 1))

    return db.Problem(loss, upper_data=data, x0=jnp.zeros(2))


def test_runs_repeat_by_seed_and_differ_by_seed(noisy):
    draw = lambda **options: np.asarray(solve(noisy, db.ed(alpha=0.05), batch_size=2, **options).nodes.x)  # noqa: E731
    np.testing.assert_array_equal(draw(seed=3), draw(seed=3))
    assert np.abs(draw(seed=3) - draw(seed=4)).max() > 1e-3
    full = [np.asarray(solve(noisy, db.ed(alpha=0.05), seed=seed).nodes.x) for seed in (3, 4)]
    np.testing.assert_array_equal(*full)  # without batches there is nothing to draw


def test_chunks_do_not_change_the_numbers(noisy):
    runs = [solve(noisy, db.ed(alpha=0.05), batch_size=2, eval_every=every, steps=21) for every in (4, 100)]
    assert [list(run.trace["step"])[-2:] for run in runs] == [[20, 21], [0, 21]]
    np.testing.assert_allclose(*(run.nodes.x for run in runs), rtol=1e-13)
    for column in ("samples", "bytes"):
        assert runs[0].trace[column][-1] == runs[1].trace[column][-1]


def test_one_compilation_per_run_and_none_for_new_step_sizes():
    compiled = []
    listen = lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None  # noqa: E731
    solve(steps=33, eval_every=11)  # whatever is compiled once per process
    before = compile_chunk.cache_info()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        solve(how=method(alpha=0.01), steps=44, eval_every=11)
        reused = compile_chunk.cache_info()
        assert reused.misses == before.misses and not compiled
        solve(how=method(lower="gt"), steps=44, eval_every=11)
        assert compile_chunk.cache_info().misses == before.misses + 1
        assert len(compiled) == 1
    finally:
        jax.monitoring.clear_event_listeners()


@pytest.mark.slow_except("simulator")
@pytest.mark.parametrize("engine", [db.Simulator(), db.Cluster(devices=1)], ids=["simulator", "cluster"])
def test_a_step_is_traced_once_per_compiled_length(engine):
    """What it costs comes from that trace, too."""
    traced = []

    class Observed(type(method())):
        def step(self, k, state, oracle, network):
            traced.append(k)
            return super().step(k, state, oracle, network)

    plain = method()
    observed = Observed(**{field.name: getattr(plain, field.name) for field in fields(plain)})
    result = solve(how=observed, steps=25, eval_every=10, engine=engine)
    assert len(traced) == 2  # chunks of ten and of five
    assert result.trace.last["rounds"] == 25


def test_the_state_is_donated_and_the_data_are_arguments():
    big = random_quadratic(5, p=2, q=3).problem(samples=2000)
    run = db.Simulator().start(big, method(), db.Levels(x=RING), RunConfig(8))
    before = jax.tree.leaves(run.state)
    assert run.advance(2) is not None and run.step == 2
    assert all(leaf.is_deleted() for leaf in before)

    arrays, static = eqx.partition(run.program, eqx.is_array)

    def chunk(arrays, state):
        return eqx.combine(arrays, static).chunk(state, jnp.int32(0), 2, [])

    closed = jax.make_jaxpr(chunk)(arrays, run.state)
    assert sum(np.size(const) for const in closed.consts) < 100 < 5 * 2000


def _explosive(alpha):
    return solve(how=db.sparkle("diffusion", alpha=alpha, beta=0.1, gamma=0.1), steps=4000, eval_every=500)


def test_a_run_that_turns_non_finite_keeps_the_last_good_state():
    with pytest.warns(db.NonFiniteWarning, match="sparkle-diffusion diverged: non-finite values between steps") as seen:
        result = _explosive(3.0)
    assert len(seen) == 1 and "use smaller step sizes" in str(seen[0].message)
    assert result.status is db.Status.DIVERGED and result.step % 500 == 0 and result.step < 4000
    assert result.trace["step"][-1] == result.step and "diverged: non-finite" in repr(result)
    with pytest.warns(db.GrowthWarning, match="values grew"):  # which end before they are infinite
        good = solve(how=db.sparkle("diffusion", alpha=3.0, beta=0.1, gamma=0.1), steps=result.step, eval_every=500)
    assert good.status == "completed"
    np.testing.assert_array_equal(result.nodes.x, good.nodes.x)


def test_callbacks_see_every_row_and_may_stop():
    rows = []

    def watch(step, row):
        rows.append((step, row["bytes"]))
        return "not True"

    solve(callbacks=[watch], eval_every=5)
    assert [step for step, _ in rows] == [0, 5, 10, 15, 20] and rows[-1][1] == 4 * rows[1][1] > 0
    last = []
    result = solve(callbacks=[lambda step, row: step >= 10, lambda step, row: last.append(step)], eval_every=5)
    assert result.step == 10 and last == [0, 5, 10] and result.status == "stopped"


class Stops(db.Callback):
    """Stops at step 10, and says why."""

    reason = "the callback has seen enough"

    def __call__(self, step, row):
        return step >= 10


class Spent(db.Run):
    """A run that ends itself at step 10."""

    @property
    def end_reason(self):
        return "the budget is spent" if self.step >= 10 else ""


class Spending(db.Simulator):
    def start(self, *arguments):
        run = super().start(*arguments)
        run.__class__ = Spent
        return run


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ({"callbacks": [Stops()]}, db.Status.STOPPED, "the callback has seen enough"),
        ({"callbacks": [Stops()], "steps": 10}, db.Status.COMPLETED, "the callback has seen enough"),
        ({"engine": Spending()}, db.Status.STOPPED, "the budget is spent"),
        (
            {"engine": Spending(), "callbacks": [Stops()]},
            db.Status.STOPPED,
            "the callback has seen enough; the budget is spent",
        ),
    ],
    ids=["callback", "callback at the last step", "run", "both at once"],
)
def test_a_result_says_why_it_ended(options, status, message):
    result = solve(eval_every=5, **options)
    assert (result.status, result.message, result.trace.last["step"]) == (status, message, 10)


class Largest(eqx.Module):
    scale: float

    def __call__(self, snapshot):
        return self.scale * jnp.abs(snapshot.x).max()


def test_metrics_by_name_by_function_and_by_module():
    def first_entry(snapshot):
        assert snapshot.nodes.x.shape == (5, 2) and snapshot.y.shape == (3,)
        return snapshot.x[0]

    metrics = ["consensus_x", "upper", "stationarity", "lower_error", first_entry, Largest(2.0)]
    metrics.append(lambda snapshot: {"one": 1, "two": 2.0})
    result = solve(metrics=metrics, eval_every=20)
    trace, q = result.trace, QUADRATIC
    x, y = np.asarray(result.x), np.asarray(result.y)
    names = ["step", "consensus_x", "upper", "stationarity", "lower_error", "first_entry", "largest", "one", "two"]
    assert set(names) < set(trace) and trace["one"].tolist() == [1, 1]
    np.testing.assert_allclose(trace["first_entry"][-1], x[0])
    np.testing.assert_allclose(trace["largest"][-1], 2 * np.abs(x).max())
    np.testing.assert_allclose(trace["consensus_x"][-1], ((result.nodes.x - x) ** 2).sum(1).mean())
    upper = [
        (y - a) @ M @ (y - a) / 2 + (x - e) @ R @ (x - e) / 2 for M, a, R, e in zip(q.M, q.a, q.R, q.e, strict=True)
    ]
    np.testing.assert_allclose(trace["upper"][-1], np.mean(upper))
    best = q.lower_solution(x)
    np.testing.assert_allclose(trace["lower_error"][-1], ((result.nodes.y - best) ** 2).sum(1).mean())
    everywhere = np.tile(best, (5, 1))
    z = np.linalg.solve(q.H.mean(0), q.fy(None, everywhere).mean(0))
    gradient = q.u(np.tile(x, (5, 1)), everywhere, np.tile(z, (5, 1))).mean(0)
    np.testing.assert_allclose(trace["stationarity"][-1], (gradient**2).sum(), rtol=1e-6)


def test_two_nameless_functions_are_two_columns_or_a_refusal():
    """Silence would drop what the user asked to see."""
    try:
        trace = solve(metrics=[lambda snapshot: 1.0, lambda snapshot: 2.0], eval_every=20).trace
    except ValueError as refusal:
        assert "name" in str(refusal)
        return
    assert {1.0, 2.0} <= {float(trace[name][-1]) for name in trace}


def test_a_metric_may_not_take_the_name_of_a_cost():
    """Or the trace would show the cost under the user's name, or the reverse."""

    def seconds(snapshot):
        return -1.0

    try:
        trace = solve(metrics=[seconds], eval_every=20).trace
    except ValueError as refusal:
        assert "seconds" in str(refusal)
        return
    assert trace["seconds"][-1] == -1.0


def test_the_default_metrics_are_the_cheap_ones():
    costs = {"step", "samples", "gradients", "hvps", "jvps", "rounds", "bytes", "seconds"}
    assert set(solve(metrics=[]).trace) == costs
    default = solve(metrics=None, eval_every=20).trace
    assert set(default) == costs | {"consensus_x", "consensus_y", "consensus_z", "upper", "lower"}


def test_the_result():
    result = solve(metrics=["consensus_x"], eval_every=4)
    np.testing.assert_allclose(result.x, result.nodes.x.mean(0), rtol=1e-14)
    np.testing.assert_allclose(result.y, result.nodes.y.mean(0), rtol=1e-14)
    assert "sparkle-ed, completed at step 20" in repr(result)
    figure = result.plot("consensus_x", against="bytes")
    (axis,) = figure.axes
    np.testing.assert_allclose(axis.lines[0].get_xydata(), np.c_[result.trace["bytes"], result.trace["consensus_x"]])
    assert axis.get_xlabel() == "bytes sent per node" and axis.get_yscale() == "log"
    assert len(result.plot().axes) == 1
    with pytest.raises(ValueError, match="nothing to plot"):
        solve(metrics=[]).plot()
