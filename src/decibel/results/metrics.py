"""Metrics: functions from a `Snapshot` of a run to a number, or to a dictionary of numbers.

`solve(..., metrics=[...])` takes functions, or names of `METRICS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, SupportsFloat, TypeAlias, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from ..core._json import Row
from ..core._ledger import COSTS
from ..core._names import accepts, hint
from ..core._types import PyTree
from ..core._vector import Vector, max_or_nan
from ..graphs._graph import Graph
from ..methods._method import State
from ..problem import _exact as exact
from ..problem._problem import Problem
from ..problem._stream_trace import pop_source_error, streams_of
from ..problem._streams import StreamData
from ..problem.prox import Prox
from ..strategies._table import Level

__all__ = [
    "COSTS",
    "LABELS",
    "METRICS",
    "Nodes",
    "Snapshot",
    "consensus",
    "distance",
    "evaluate",
    "interact",
    "invariant",
    "kkt_residual",
    "lagrangian",
    "lower",
    "lower_error",
    "resolve",
    "stationarity",
    "upper",
]

LABELS = {
    "step": "iterations",
    "samples": "samples per node",
    "gradients": "gradients per node",
    "hvps": "Hessian-vector products per node",
    "jvps": "Jacobian-vector products per node",
    "rounds": "communication rounds",
    "bytes": "bytes sent per node",
    "seconds": "seconds",
    "stationarity": "stationarity ‖∇Φ(x̄)‖²",
    "kkt_residual": "KKT residual ‖x̄ − prox(x̄ − ∇Φ(x̄))‖",
    "lower_error": "lower error (1/N) Σ‖yᵢ − y*(x̄)‖²",
    "distance": "distance (1/N) Σ‖xᵢ − x*‖²",
    "upper": "upper loss f",
    "lower": "lower loss g",
    **{f"consensus_{level}": f"consensus error of {level}" for level in "xyz"},
    **{f"invariant_{level}": f"drift of the carry of {level}" for level in "xyz"},
}

Measured: TypeAlias = SupportsFloat | Mapping[str, SupportsFloat]
Metric: TypeAlias = Callable[["Snapshot"], Measured]


class Nodes(NamedTuple):
    """Every node's copy of each level, with leaves (nodes, ...).

    Attributes:
        x: the upper level.
        y: the lower level; None if the method has none.
        z: the auxiliary level; None if the method has none.
    """

    x: PyTree
    y: PyTree = None
    z: PyTree = None


class Snapshot(NamedTuple):
    """The state of a run at one step, which metrics are functions of.

    Attributes:
        problem: the problem that is solved.
        state: the method's state.
    """

    problem: Problem
    state: State

    @property
    def x(self) -> PyTree:
        """The average of x over nodes."""
        return self.state.x.s.mean()

    @property
    def y(self) -> PyTree:
        """The average of y over nodes, or every node's y if the lower level is personal; None for a single level."""
        if self.state.y is None:
            return None
        return self.state.y.s.tree if self.problem.personal else self.state.y.s.mean()

    @property
    def nodes(self) -> Nodes:
        """Every node's copies."""
        return Nodes(*(None if level is None else level.s.tree for level in self.state[:3]))


def consensus(level: str) -> Callable[[Snapshot], Float[Array, ""]]:
    """The consensus error 1/N Σ_i ‖s_i − s̄‖² of one level.

    Args:
        level: `"x"`, `"y"` or `"z"`.
    """

    def measure(snapshot: Snapshot) -> Float[Array, ""]:
        s = _level(snapshot, level).s
        return _spread(s, s.mean())

    measure.__name__ = f"consensus_{level}"
    return measure


def invariant(level: str) -> Callable[[Snapshot], Float[Array, ""]]:
    """The largest entry of the mean over nodes of a strategy's carry, which is zero up to rounding errors.

    Args:
        level: `"x"`, `"y"` or `"z"`, with a strategy that has a carry.
    """

    def measure(snapshot: Snapshot) -> Float[Array, ""]:
        drift = _level(snapshot, level).carry[0].mean()
        return max_or_nan(jnp.stack([max_or_nan(jnp.abs(leaf)) for leaf in jax.tree.leaves(drift)]))

    measure.__name__ = f"invariant_{level}"
    return measure


def upper(snapshot: Snapshot) -> Float[Array, ""]:
    """f over all samples, at the averages of x and y."""
    return exact.upper_mean(snapshot.problem, snapshot.x, snapshot.y)


def lower(snapshot: Snapshot) -> Float[Array, ""]:
    """g over all samples, at the averages of x and y."""
    return exact.lower_mean(snapshot.problem, snapshot.x, snapshot.y)


def stationarity(snapshot: Snapshot) -> Float[Array, ""]:
    """‖∇Φ(x̄)‖², with the lower level solved exactly."""
    return _bilevel_errors(snapshot)[0]


def kkt_residual(snapshot: Snapshot) -> Float[Array, ""]:
    """‖x̄ − prox(x̄ − ∇Φ(x̄))‖ with the proximal map of `prox_x`, at a step of 1 and with the lower level solved exactly.

    It is zero where x̄ is stationary under the problem's constraints and terms, where ‖∇Φ‖ need not be, and equals ‖∇Φ‖
    without them. Nodes with terms of their own have the map of the average term, which is known for terms of one kind.
    """
    term, x = _common_term(snapshot.problem), snapshot.x
    step = jax.tree.map(jnp.subtract, x, _exact_gradient(snapshot)[0])
    return jnp.sqrt(_square(jax.tree.map(jnp.subtract, x, step if term is None else term(step, 1.0))))


def lower_error(snapshot: Snapshot) -> Float[Array, ""]:
    """The lower-level error 1/N Σ_i ‖y_i − y*(x̄)‖², with y_i*(x̄) if the lower level is personal."""
    return _bilevel_errors(snapshot)[1]


def interact(snapshot: Snapshot) -> Float[Array, ""]:
    """INTERACT's measure 𝔐 = ‖∇Φ(x̄)‖² + Σ_i ‖x_i − x̄‖² + Σ_i ‖y_i − y*(x̄)‖² (sums, as printed in (11)).

    Differs from the paper: y* is taken at x̄, where the line below (14) has x_i; at consensus they are the same.

    References:
        Liu et al., INTERACT: Achieving Low Sample and Communication Complexities in Decentralized Bilevel Learning over
        Networks, 2022.
    """
    gradient, gap = _bilevel_errors(snapshot)
    nodes = jax.tree.leaves(snapshot.nodes.x)[0].shape[0]
    return gradient + nodes * (consensus("x")(snapshot) + gap)


class Distance(eqx.Module):
    """1/N Σ_i ‖x_i − x*‖² from a known solution."""

    solution: PyTree

    def __call__(self, snapshot: Snapshot) -> dict[str, Float[Array, ""]]:
        return {"distance": _spread(snapshot.state.x.s, self.solution)}


def distance(solution: PyTree) -> Distance:
    """The metric 1/N Σ_i ‖x_i − x*‖², the distance from a known solution.

    Args:
        solution: x*, a pytree shaped like `x0`.
    """
    return Distance(jax.tree.map(jnp.asarray, solution))


def lagrangian(graph: Graph, alpha: float) -> Metric:
    """The metric ‖∇L‖² + ‖Ax‖² of SPDB's Theorem 1, the residual of its KKT conditions: stationarity and consensus.

    L(x, λ) = 1/n Σ_i ℓ_i(x_i) + ⟨λ, Ax⟩ with ℓ_i(x) = f_i(x, y_i*(x)) and A the incidence matrix of the graph. Aᵀλ is
    what EXTRA and Exact Diffusion carry, over −nα. It is zero only where all x_i are one stationary point of Φ, and
    needs every node's lower solution. For a personal lower level or a single one.

    Args:
        graph: that of the run.
        alpha: the constant step size of x.

    References:
        Lu et al., Decentralized Bilevel Optimization for Personalized Client Learning, 2022.
    """
    ends = jnp.asarray(np.array(graph.edges).reshape(-1, 2))

    @eqx.filter_jit
    def measure(problem: Problem, level: Level) -> Float[Array, ""]:
        x = level.s.tree
        slopes = exact.node_gradients(problem, x, exact.default_tolerance(x))
        pull = jax.tree.map(lambda slope, carry: (slope - carry / alpha) / graph.nodes, slopes, level.carry[0].tree)
        return _square(pull) + _square(jax.tree.map(lambda leaf: leaf[ends[:, 0]] - leaf[ends[:, 1]], x))

    def kkt_of_lagrangian(snapshot: Snapshot) -> Float[Array, ""]:
        if not snapshot.state.x.carry or snapshot.problem.form == "shared":
            raise ValueError("metric lagrangian needs EXTRA or ED on x and no shared lower level: use stationarity.")
        return measure(snapshot.problem, snapshot.state.x)

    return kkt_of_lagrangian


METRICS: dict[str, Metric] = {
    **{f"consensus_{level}": consensus(level) for level in "xyz"},
    **{f"invariant_{level}": invariant(level) for level in "xyz"},
    "upper": upper,
    "lower": lower,
    "stationarity": stationarity,
    "kkt_residual": kkt_residual,
    "lower_error": lower_error,
    "interact": interact,
}


# Metrics that use all samples at once, for the exact lower solution; those that compare nodes, which one site cannot.
ALL_AT_ONCE = ("stationarity", "kkt_residual", "lower_error", "interact")
COMPARE_NODES = ("consensus", "invariant", "stationarity", "kkt_residual", "lower_error", "interact")


def resolve(
    metrics: Sequence[str | Metric] | None, problem: Problem, state: State, *, alone: bool = False
) -> dict[str, Metric]:
    """The metrics of a run by column: names become functions.

    Args:
        metrics: names of `METRICS` or functions of a snapshot; None is an inexpensive default.
        problem: the problem of the run.
        state: a state of the run, which says what levels there are.
        alone: whether only one of several nodes runs here, so that nodes cannot be compared.

    Raises:
        ValueError: if a name is not known, or the metric does not fit the problem or the method.
    """
    if isinstance(metrics, str) or callable(metrics):
        raise TypeError(f"metrics={metrics!r} is a single metric: give a list, such as ['upper'].")
    if isinstance(metrics, Mapping):
        raise TypeError("metrics is a dictionary: give a list; a function may return a dictionary, to name values.")
    for name in metrics or ():
        if alone and isinstance(name, str) and name.startswith(COMPARE_NODES):
            raise ValueError(f"metric {name!r} needs the data of other sites: leave it out.")
    if metrics is None:
        levels = [level for level in "xyz" if getattr(state, level) is not None]
        shared = [] if alone else ["x"] if problem.personal else levels
        # Over a stream a loss is a pass over all samples, which is done where it is asked for.
        read = {
            "upper": isinstance(problem.upper_data, StreamData),
            "lower": isinstance(problem.lower_data, StreamData),
        }
        losses = ["upper", *(["lower"] if "y" in levels else [])]
        metrics = [*(f"consensus_{level}" for level in shared), *(name for name in losses if not read[name])]
    chosen: dict[str, Metric] = {}
    for metric in metrics:
        if not isinstance(metric, str) and not callable(metric):
            raise TypeError(f"metrics holds {metric!r}: give names or functions of a snapshot.")
        called = getattr(metric, "__name__", type(metric).__name__.lower())
        if not isinstance(metric, str) and not accepts(metric, None):
            raise TypeError(
                f"metric {called!r} is called as {called}(snapshot): give it one argument, with .x, .y, .nodes and "
                ".problem."
            )
        name = metric if isinstance(metric, str) else called
        if name in COSTS:
            raise ValueError(f"metrics holds one named {name!r}, which is a cost column: give it another __name__.")
        if name in chosen:
            raise ValueError(f"metrics holds two named {name!r}: leave one out, or give the function another __name__.")
        chosen[name] = _by_name(metric, problem, state) if isinstance(metric, str) else metric
    return chosen


def evaluate(metrics: dict[str, Metric], snapshot: Snapshot) -> Row:
    """A row of a trace: the values of metrics, by column.

    Those of this module and Equinox modules are computed in one compiled call, plain functions with concrete arrays.

    Args:
        metrics: by column, as `resolve` gives them.
        snapshot: of the run.
    """
    ours = {name: metric for name, metric in metrics.items() if _is_compiled(name, metric)}
    whole = any(name.startswith("invariant") for name in ours)
    values: dict[str, Measured] = _evaluate(ours, snapshot if whole else _positions(snapshot)) if ours else {}
    values |= {name: metric(snapshot) for name, metric in metrics.items() if name not in ours}
    jax.block_until_ready(list(values.values()))
    if (error := pop_source_error(snapshot.problem)) is not None:
        raise error
    columns: Row = {}
    for name in metrics:
        value = values[name]
        named = value if isinstance(value, Mapping) else {name: value}
        columns |= {key: _number(key, number) for key, number in named.items()}
    return columns


def _is_compiled(name: str, metric: Metric) -> bool:
    return METRICS.get(name) is metric or isinstance(metric, eqx.Module)


def _number(name: str, value: SupportsFloat) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        what = f"an array of shape {jnp.shape(cast(ArrayLike, value))}" if hasattr(value, "shape") else repr(value)
        raise ValueError(f"metric {name!r} returned {what}: return a number, or a dict of numbers by name.") from None


def _positions(snapshot: Snapshot) -> Snapshot:
    """Without carries and memory, so that all methods share what is compiled for the metrics."""

    def bare(level: Level | None) -> Level | None:
        return None if level is None else Level(level.s, ())

    x, y, z = snapshot.state[:3]
    return Snapshot(snapshot.problem, State(Level(x.s, ()), bare(y), bare(z)))


@eqx.filter_jit
def _evaluate(metrics: dict[str, Metric], snapshot: Snapshot) -> dict[str, Measured]:
    return {name: metric(snapshot) for name, metric in metrics.items()}


def _by_name(name: str, problem: Problem, state: State) -> Metric:
    if name not in METRICS:
        raise ValueError(f"metric {name!r} is not known: {hint(name, METRICS)}")
    kind, _, level = name.partition("_")
    if kind in ("consensus", "invariant") and getattr(state, level) is None:
        raise ValueError(f"metric {name!r} needs level {level}, which this method does not have: leave it out.")
    if kind == "invariant" and not getattr(state, level).carry:
        raise ValueError(f"metric {name!r} needs a strategy with a carry on level {level}: leave it out.")
    if name in ("lower", "lower_error", "interact") and problem.single_level:
        raise ValueError(f"metric {name!r} needs a lower level, which this problem does not have: leave it out.")
    if name in ALL_AT_ONCE and problem.prox_y is not None:
        raise ValueError(f"metric {name!r} needs the exact lower solution, which prox_y does not give: leave it out.")
    if name in ALL_AT_ONCE or name in ("upper", "lower"):
        _validate_streams(name, problem)
    if name == "kkt_residual":
        _common_term(problem)  # raises where there is none
    return METRICS[name]


def _validate_streams(name: str, problem: Problem) -> None:
    measured = problem.upper_data if name == "upper" else problem.lower_data
    for data in streams_of(problem):
        if name in ALL_AT_ONCE:
            raise ValueError(
                f"metric {name!r} needs all samples at once, and {data.host.argument} is a stream: measure 'upper' or "
                "'lower', which read it in passes, or leave it out."
            )
        if data is measured and data.host.ordered:
            raise ValueError(
                f"metric {name!r} is a mean over all samples, and {data.host.argument} has iterators: leave it out."
            )


def _level(snapshot: Snapshot, level: str) -> Level:
    return getattr(snapshot.state, level)


def _spread(s: Vector, centre: PyTree) -> Float[Array, ""]:
    around = Vector(jax.tree.map(lambda leaf, c: leaf - c.astype(leaf.dtype), s.tree, centre))
    return around.squared_norms().mean()


def _bilevel_errors(snapshot: Snapshot) -> tuple[Float[Array, ""], Float[Array, ""]]:
    gradient, solution = _exact_gradient(snapshot)
    return _square(gradient), jnp.zeros(()) if solution is None else _spread(snapshot.state.y.s, solution)


def _exact_gradient(snapshot: Snapshot) -> tuple[PyTree, PyTree]:
    """∇Φ(x̄), and y*(x̄); None for a single level."""
    problem, x = snapshot.problem, snapshot.x
    if problem.single_level:
        return jax.grad(lambda x: exact.upper_mean(problem, x, None))(x), None
    tolerance = exact.default_tolerance(x)
    solution, _ = exact.lower_solution(problem, x, tolerance)
    return exact.gradient_at(problem, x, solution, tolerance), solution


def _common_term(problem: Problem) -> Prox | None:
    """The proximal map of the average term of all nodes; None without terms."""
    term = problem.prox_x
    if term is None or term.nodes is None:
        return term
    average = term.average() if term.nodes == problem.nodes else None
    if average is None:
        raise ValueError(
            "metric 'kkt_residual' needs terms of one kind at all nodes, and prox_x has others: leave it out, or "
            "measure db.metrics.distance from a known solution."
        )
    return average


def _square(tree: PyTree) -> Float[Array, ""]:
    return jax.tree.reduce(jnp.add, jax.tree.map(lambda leaf: jnp.sum(jnp.square(leaf)), tree))
