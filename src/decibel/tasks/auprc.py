"""Average precision (the area under the precision-recall curve) optimized itself, as a personal bilevel problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ..problem._problem import Problem
from ..results.metrics import Snapshot
from . import data
from .classification import Heterogeneity, alpha_of, find, spread, validate_binary
from .evaluation import AveragePrecision, Layers, average_precision, layers, predict
from .partition import Partition
from .task import Task

STEP_SIZES = {"alpha": 0.3, "beta": 0.1}

FLOOR = 1e-4  # of the start: what a precision is divided by at least
MOST_ANCHORS = 64
SURROGATES: dict[str, Callable[[Array, float], Array]] = {  # of the indicator that gap = score_s − score_e ≥ 0
    "squared-hinge": lambda gap, margin: jnp.square(jax.nn.relu(margin + gap)),
    "sigmoid": lambda gap, margin: jax.nn.sigmoid(gap / margin),
}


def score(x: Layers, inputs: Array, task: Array | int = 0) -> Array:
    return predict(x, inputs)[..., task]


class NegativePrecision(eqx.Module):
    """f: mean of −y_e1 / y_e2 over the batch's anchors e."""

    floor: float

    def __call__(self, x: Layers, y: Array, e: Array) -> Array:
        above = y[e]
        return -(above[:, 0] / jnp.maximum(above[:, 1], self.floor)).mean()


class Above(eqx.Module):
    """g: ½‖y‖² − Σ_e y_eᵀ h_e(x), so that y_e*(x) = h_e(x): how much of the positives, and of all samples, lies above
    anchor e, by a surrogate of the indicator."""

    anchors: Array  # (nodes, anchors, features): a node reads its own row only
    surrogate: Callable[[Array, float], Array]
    margin: float
    own_tasks: bool = eqx.field(static=True, default=False)

    def __call__(self, x: Layers, y: Array, batch: tuple[Array, Array, Array]) -> Array:
        inputs, labels, node = batch
        task = node[0] if self.own_tasks else 0
        gap = score(x, inputs, task) - score(x, self.anchors[node[0]], task)[:, None]  # (anchors, samples)
        count = self.surrogate(gap, self.margin)
        h = jnp.stack([(count * labels.astype(count.dtype)).mean(1), count.mean(1)], 1)
        return 0.5 * jnp.sum(jnp.square(y)) - jnp.sum(y * h)


def log_loss(x: Layers, batch: tuple[Array, Array]) -> Array:
    """f of the baseline: mean cross entropy."""
    inputs, labels = batch
    scores = score(x, inputs)
    return optax.sigmoid_binary_cross_entropy(scores, labels.astype(scores.dtype)).mean()


def own_log_loss(x: Layers, batch: tuple[Array, Array, Array]) -> Array:
    """The same, of the node's own task."""
    inputs, labels, node = batch
    scores = score(x, inputs, node[0])
    return optax.sigmoid_binary_cross_entropy(scores, labels.astype(scores.dtype)).mean()


class TaskPrecision(eqx.Module):
    """`average_precision`: of the averaged x on held-out samples, averaged over tasks; task i ranks class i first, by
    output i."""

    inputs: Array
    labels: Array

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        scores = predict(snapshot.x, self.inputs)
        tasks = jnp.arange(scores.shape[1], dtype=self.labels.dtype)

        def of_task(scores: Array, task: Array) -> Array:
            return average_precision(scores, (self.labels == task).astype(jnp.int32))

        return {"average_precision": jax.vmap(of_task, (1, 0))(scores, tasks).mean()}


def auprc(
    dataset: str | data.Dataset = "a9a",
    nodes: int = 10,
    *,
    objective: Literal["average-precision", "cross-entropy"] = "average-precision",
    hidden: int = 0,
    anchors: int | None = None,
    surrogate: Literal["squared-hinge", "sigmoid"] = "squared-hinge",
    margin: float = 1.0,
    heterogeneity: Heterogeneity = None,
    own_tasks: bool = False,
    seed: int = 0,
) -> Task:
    """Maximizes average precision, the area under the precision-recall curve, with a personal lower level.

    Nodes agree on a scoring model x that ranks positives first:

        f_i(y) = −mean_e y_e1 / y_e2,    g_i(x, y) = ½‖y‖² − yᵀ h_i(x),    so that y_i*(x) = h_i(x)

    over anchors e, some of node i's positives. h_e counts, by a surrogate, the positives and all samples that score
    above e; their ratio is the precision at e, and f is minus the average precision. Differs from the papers: f
    averages over equally many anchors at every node, so that all y_i have one shape.

    Args:
        dataset: a name that `decibel.tasks.data.load` knows, or a `Dataset`, with two classes and a test part; class 1
            is positive. With `own_tasks` at least as many classes as nodes.
        nodes: the number of nodes.
        objective: `"cross-entropy"` is the baseline: the same model, nodes and metric with a single level.
        hidden: units of a hidden ReLU layer; 0 is the linear model, which starts at zero.
        anchors: positives of each node that f averages over; None takes as many as every node has, at most 64.
        surrogate: counts a sample that scores d above e as max(0, margin + d)² (`"squared-hinge"`), or as σ(d/margin)
            (`"sigmoid"`), which is closer to a count.
        margin: of the surrogate.
        heterogeneity: α of the Dirichlet shares by class, `"mild"` (1), `"severe"` (0.1), or None: evenly.
        own_tasks: every node has a task of its own, as in INTERACT's paper: node i tells class i from all others, by
            output i of a model that all share. Samples are spread evenly, and the metric is the mean over tasks.
        seed: of the partition, the anchors and the initial weights.

    References:
        Liu et al., INTERACT, 2022. Qi et al., Stochastic Optimization of Areas Under Precision-Recall Curves with
        Provable Convergence, 2021.
    """
    if objective not in ("average-precision", "cross-entropy"):
        raise ValueError(f"objective={objective!r} is not known: choose 'average-precision' or 'cross-entropy'.")
    if not margin > 0 or hidden < 0:
        raise ValueError(f"margin={margin} must be positive and hidden={hidden} not negative.")
    if surrogate not in SURROGATES:
        raise ValueError(f"surrogate={surrogate!r} is not known: choose one of {', '.join(map(repr, SURROGATES))}.")
    source = find(dataset, tested=True)
    if not own_tasks:
        validate_binary(source)
    elif not 1 < nodes <= source.classes or heterogeneity is not None:
        raise ValueError(
            f"own_tasks=True needs 2 to {source.classes} nodes, one for each class, and no heterogeneity: change "
            f"nodes={nodes} or heterogeneity={heterogeneity!r}."
        )
    held = spread(source.y_train, nodes, heterogeneity, seed)
    inputs = source.x_train
    dtype = jnp.result_type(float)
    sizes = [inputs.shape[1], *([hidden] if hidden else []), nodes if own_tasks else 1]
    x0 = layers(sizes, seed)
    positive = np.stack([source.y_train == (node if own_tasks else 1) for node in range(nodes)])
    chosen = _anchors(held, positive, anchors, seed) if objective == "average-precision" else None
    labels = positive.astype(np.int32) if own_tasks else np.broadcast_to(source.y_train, positive.shape)
    parts = [(inputs[part], labels[node][part]) for node, part in enumerate(held.indices)]
    placed = [(*part, np.full(len(part[1]), node, np.int32)) for node, part in enumerate(parts)]
    if chosen is None:
        loss, samples = (own_log_loss, placed) if own_tasks else (log_loss, parts)
        problem = Problem(loss, upper_data=samples, x0=x0)
    else:
        count, positives = chosen.shape[1], float(np.mean(positive))
        start = SURROGATES[surrogate](jnp.zeros((), dtype), margin)  # where all scores are equal
        problem = Problem(
            NegativePrecision(FLOOR * float(start)),
            Above(jnp.asarray(inputs[chosen], dtype), SURROGATES[surrogate], margin, own_tasks),
            upper_data=np.tile(np.arange(count, dtype=np.int32), (nodes, 1)),
            lower_data=placed,
            x0=x0,
            y0=jnp.tile(start * jnp.array([positives, 1.0], dtype), (count, 1)),
            personal=True,
        )
    summary = {
        "dataset": source.name,
        "objective": objective,
        "layers": sizes,
        "anchors": None if chosen is None else chosen.shape[1],
        "surrogate": {"name": surrogate, "margin": margin},
        "samples": {"train": int(held.sizes.sum()), "test": len(source.y_test)},
        "tasks": f"one of {nodes} for each node" if own_tasks else "one for all nodes",
        "chance": float(np.mean(source.y_test < nodes)) / nodes if own_tasks else float(np.mean(source.y_test)),
        "heterogeneity": {"dirichlet": alpha_of(heterogeneity)},
        "partition": held.describe(),
        "convention": f"class {'i' if own_tasks else 1} is positive; "
        "chance is the average precision of a random ranking",
        "seed": seed,
    }
    held_out = jnp.asarray(source.x_test, dtype), jnp.asarray(source.y_test)
    metric = TaskPrecision(*held_out) if own_tasks else AveragePrecision(*held_out, score)
    return Task(problem, (metric,), "auprc", summary, held, step_sizes=STEP_SIZES)


def _anchors(held: Partition, positive: np.ndarray, number: int | None, seed: int) -> np.ndarray:
    """(nodes, anchors) places of positives in the training part."""
    positives = [part[local[part]] for local, part in zip(positive, held.indices, strict=True)]
    fewest = min(map(len, positives))
    count = min(fewest, MOST_ANCHORS) if number is None else number
    if not 1 <= count <= fewest:
        raise ValueError(
            f"anchors={number} is too many: a node holds only {fewest} positives; use fewer nodes or "
            "anchors, or less heterogeneity."
        )
    return np.stack(
        [
            np.random.default_rng([seed, node]).choice(local, count, replace=False)
            for node, local in enumerate(positives)
        ]
    )
