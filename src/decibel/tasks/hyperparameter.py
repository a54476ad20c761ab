"""Hyper-parameter tuning: one regularization coefficient per feature of a binary classifier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core._vector import min_or_nan
from ..problem import prox
from ..problem._problem import Problem
from ..results.metrics import Snapshot
from . import data
from .classification import (
    Heterogeneity,
    alpha_of,
    find,
    held_out,
    sample_counts,
    samples_by_node,
    split_over_nodes,
    standardized,
    validate_binary,
)
from .evaluation import Accuracy, Losses
from .task import Task

STEP_SIZES = {"alpha": 10.0, "beta": 0.3, "gamma": 0.3}

Batch = tuple[Array, Array]  # inputs (samples, features), labels 0 or 1 (samples,)
STEEPEST_BEND = 1 / (6 * 3**0.5)  # the largest −σ''
SURROGATES: dict[str, Callable[[Array], Array]] = {
    "sigmoid": lambda margin: jax.nn.sigmoid(-margin),
    "logistic": lambda margin: jax.nn.softplus(-margin),
}
MAPS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {  # and their inverses
    "identity": (lambda x: x, lambda c: c),
    "projection": (lambda x: x, lambda c: c),
    "softplus": (jax.nn.softplus, lambda c: c + jnp.log(-jnp.expm1(-c))),
    "exp": (jnp.exp, jnp.log),
}


def logits(y: Array, inputs: Array) -> Array:
    margin = inputs @ y
    return jnp.stack([jnp.zeros_like(margin), margin], -1)


class Fit(eqx.Module):
    """f: mean of the loss at the margin, wᵀy for label 1 and −wᵀy for label 0."""

    surrogate: Callable[[Array], Array]

    def __call__(self, x: Array, y: Array, batch: Batch) -> Array:
        inputs, labels = batch
        return self.surrogate((2 * labels - 1).astype(y.dtype) * (inputs @ y)).mean()


class RegularizedFit(eqx.Module):
    """g: the same + Σ_j c_j/2 y_j², with c = map(x) + ridge."""

    fit: Fit
    map: Callable[[Array], Array]
    ridge: float

    def __call__(self, x: Array, y: Array, batch: Batch) -> Array:
        return self.fit(x, y, batch) + 0.5 * jnp.sum((self.map(x) + self.ridge) * jnp.square(y))


class ValidationAccuracy(eqx.Module):
    """`validation_accuracy`: the share of validation samples that the averaged y puts on the right side, averaged over
    nodes; `least_coefficient`: the smallest c_j. Below zero, g has no minimum."""

    map: Callable[[Array], Array]
    ridge: float

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        y = snapshot.y

        def right(batch: Batch) -> Array:
            inputs, labels = batch
            return ((inputs @ y > 0) == (labels == 1)).mean(dtype=y.dtype)

        each = jax.vmap(lambda batch: batch.mean(right))(snapshot.problem.upper_data.full())
        least = min_or_nan(self.map(snapshot.x) + self.ridge)
        return {"validation_accuracy": each.mean(), "least_coefficient": least}


def hyperparameter_tuning(
    dataset: str | data.Dataset = "australian",
    nodes: int = 5,
    *,
    loss: Literal["sigmoid", "logistic"] = "sigmoid",
    positivity: Literal["softplus", "exp", "projection", "identity"] = "softplus",
    ridge: float = 0.01,
    strength: float = 1.0,
    heterogeneity: Heterogeneity = None,
    validation: float = 0.5,
    standardize: bool = True,
    seed: int = 0,
) -> Task:
    """Tunes a regularization coefficient for each entry of a linear classifier.

    Nodes agree on a linear classifier y and on coefficients c_j = map(x_j) + ridge:

        f_i(x, y) = mean ℓ(± wᵀy) on node i's validation samples
        g_i(x, y) = mean ℓ(± wᵀy) on its training samples + Σ_j c_j/2 y_j²

    With the sigmoid loss, g is strongly convex for certain only if every c_j exceeds `summary["convex_above"]`; less is
    often enough. Differs from the paper: the map, the ridge, and standardized features (it does not state its scaling).

    Args:
        dataset: a name that `decibel.tasks.data.load` knows, or a `Dataset`, with two classes.
        nodes: the number of nodes.
        loss: ℓ(m) = 1/(1 + e^m) of the margin m (`"sigmoid"`), as in the paper; or log(1 + e^−m) (`"logistic"`), which
            is convex.
        positivity: the map, or how c stays positive. `"softplus"` and `"exp"` keep every c_j above `ridge`.
            `"projection"` is c = x + ridge under the constraint x ≥ 0 (`prox_x`), for methods that take one.
            `"identity"` is as printed, and nothing keeps x_j positive: on australian, the paper's step sizes take it
            below zero, where g has no minimum.
        ridge: the fixed part of every coefficient.
        strength: c_j − ridge at the start.
        heterogeneity: α of the Dirichlet shares by class, `"mild"` (1), `"severe"` (0.1), or None: evenly, as in the
            paper.
        validation: the share of a node's samples used for f.
        standardize: scale every feature to mean 0 and standard deviation 1.
        seed: of the partition and the split.

    References:
        Yang, Zhang and Wang, Decentralized Gossip-Based Stochastic Bilevel Optimization over Communication Networks,
        2022.
    """
    for name, value, choices in (("loss", loss, SURROGATES), ("positivity", positivity, MAPS)):
        if value not in choices:
            raise ValueError(f"{name}={value!r} is not known: choose one of {', '.join(map(repr, choices))}.")
    if not strength > 0 or not ridge >= 0:
        raise ValueError(f"strength={strength} must be positive and ridge={ridge} not negative.")
    source = find(dataset)
    validate_binary(source)
    source = standardized(source) if standardize else source
    split = split_over_nodes(source.y_train, nodes, heterogeneity, validation, seed)
    size = source.x_train.shape[1]
    forward, inverse = MAPS[positivity]
    fit = Fit(SURROGATES[loss])
    problem = Problem(
        fit,
        RegularizedFit(fit, forward, ridge),
        upper_data=samples_by_node(source, split.validation),
        lower_data=samples_by_node(source, split.train),
        x0=inverse(jnp.full(size, strength, jnp.result_type(float))),
        y0=jnp.zeros(size),
        prox_x=prox.nonnegative() if positivity == "projection" else None,
    )
    summary = {
        "dataset": source.name,
        "features": size,
        "samples": sample_counts(source, split),
        "loss": loss,
        "coefficient": {"map": positivity, "ridge": ridge, "start": strength + ridge},
        "convex_above": _convex_above(loss, source, split.train.indices),
        "heterogeneity": {"dirichlet": alpha_of(heterogeneity)},
        "partition": split.train.describe(),
        "convention": "no intercept; label 1 is the positive class; features "
        + ("standardized" if standardize else "as they come"),
        "seed": seed,
    }
    metrics = Losses(fit), ValidationAccuracy(forward, ridge)
    if len(source.y_test):
        metrics = (*metrics, Accuracy(*held_out(source, problem.dtype), logits))
    return Task(
        problem,
        metrics,
        "hyperparameter-tuning",
        summary,
        split.train,
        step_sizes=STEP_SIZES,
    )


def _convex_above(loss: str, source: data.Dataset, parts: tuple[np.ndarray, ...]) -> float:
    """The coefficient above which the average of the g_i is strongly convex whatever y is."""
    if loss == "logistic":
        return 0.0
    grams = [source.x_train[part].T.astype(float) @ source.x_train[part] / len(part) for part in parts]
    return float(STEEPEST_BEND * np.linalg.eigvalsh(np.mean(grams, 0))[-1])
