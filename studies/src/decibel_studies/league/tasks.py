"""The tasks of the league: eight for each kind of lower level, all small and made without a download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import equinox as eqx
import numpy as np
from jax import Array

from decibel import Problem
from decibel.tasks import (
    Task,
    data,
    hyperparameter_tuning,
    label_cleaning,
    linear_regression,
    logistic_regression,
    meta_learning,
    partition,
    personalization,
    policy_evaluation,
)

from ..type_aliases import PyTree

NODES = 8


class UpperAlone(eqx.Module):
    """f(x0, ·) as a loss of one level."""

    loss: Callable[..., Array]
    x: PyTree

    def __call__(self, x: PyTree, batch: PyTree) -> Array:
        return self.loss(self.x, x, batch)


def single(make: Callable[..., Task], *, lower: bool, seed: int) -> Task:
    """One level of a task of two: the lower loss at x0, or the upper loss as a function of y."""
    task = make(seed=seed)
    problem = task.problem
    loss, samples = (problem.lower, problem.lower_data) if lower else (problem.upper, problem.upper_data)
    assert loss is not None
    alone = Problem(UpperAlone(loss, problem.x0), upper_data=samples, x0=problem.y0)
    return replace(task, problem=alone, step_sizes={"alpha": task.step_sizes["beta"]})


def personal(make: Callable[..., Task], *, seed: int) -> Task:
    """The same losses, and a lower level of each node's own."""
    task = make(seed=seed)
    p = task.problem
    alone = Problem(p.upper, p.lower, upper_data=p.upper_data, lower_data=p.lower_data, x0=p.x0, y0=p.y0, personal=True)
    return replace(task, problem=alone)


def tabular(make: Callable[..., Task], *, seed: int) -> Task:
    """A task on a small synthetic dataset of its own for every seed."""
    return make(data.synthetic(640, 8, 4, 3, seed=seed), seed=seed)


@lru_cache(maxsize=1)
def odd_digits() -> data.Dataset:
    """Odd against even digits, by the brightness of the sixteen squares of 2 × 2 pixels."""
    source = data.digits()
    return data.Dataset(
        _squares(source.x_train),
        (source.y_train % 2).astype(np.int32),
        _squares(source.x_test),
        (source.y_test % 2).astype(np.int32),
        "odd digits",
        2,
        ("even", "odd"),
    )


def _squares(images: np.ndarray) -> np.ndarray:
    return images.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16)


def skewed(*, seed: int) -> Task:
    """`logistic_regression` with nodes of one size that hold samples of one or two classes each."""
    task = _LOGISTIC(heterogeneity=None, seed=seed)
    source = data.synthetic(1_280, 16, 4, 3, seed=seed)
    split = partition.shards(source.y_train, NODES, per_node=2, seed=seed).split(
        train=0.5, validation=0.5, test=0.0, seed=seed
    )
    p = task.problem
    upper, lower = (
        [(source.x_train[places], source.y_train[places]) for places in held.indices]
        for held in (split.validation, split.train)
    )
    apart = Problem(p.upper, p.lower, upper_data=upper, lower_data=lower, x0=p.x0, y0=p.y0)
    return replace(task, problem=apart, partition=split.train)


def odd(make: Callable[..., Task], *, seed: int) -> Task:
    return make(odd_digits(), NODES, seed=seed)


_LINEAR = partial(linear_regression, NODES, samples=64)
_LOGISTIC = partial(logistic_regression, NODES, samples=1_280, features=16, informative=4, classes=3)
_POLICY = partial(policy_evaluation, NODES, states=20, features=5, sweeps=32)
_CLEANING = partial(tabular, partial(label_cleaning, nodes=NODES, heterogeneity=None))

_SHARED: dict[str, Callable[..., Task]] = {
    "linear regression": _LINEAR,
    "linear regression, severe": partial(_LINEAR, heterogeneity="severe"),
    "logistic regression": partial(_LOGISTIC, heterogeneity=None),
    "logistic regression, severe": skewed,
    "hyperparameters, odd digits": partial(odd, hyperparameter_tuning),
    "policy evaluation": partial(_POLICY, heterogeneity="mild"),
    "policy evaluation, severe": _POLICY,
    "label cleaning": _CLEANING,
}


@dataclass(frozen=True)
class Division:
    """The methods of one form compete on the same eight tasks; budgets are what `reference` spends in its
    iterations."""

    form: str
    reference: str
    tasks: dict[str, Callable[..., Task]]


DIVISIONS = {
    "shared": Division("shared", "sparkle-ed", _SHARED),
    "personal": Division(
        "personal",
        "spdb",
        {
            **{
                name: partial(personal, _SHARED[name])
                for name in (
                    "linear regression",
                    "linear regression, severe",
                    "logistic regression",
                    "logistic regression, severe",
                    "hyperparameters, odd digits",
                    "policy evaluation, severe",
                )
            },
            "meta-learning": partial(meta_learning, "digits", NODES, ways=3, samples=60, hidden=(8,)),
            "personalization": partial(personalization, "digits", NODES, per_node=60, hidden=8),
        },
    ),
    "single": Division(
        "single",
        "ed",
        {
            "linear regression": partial(single, _LINEAR, lower=False),
            "linear regression, severe": partial(single, _SHARED["linear regression, severe"], lower=False),
            "logistic regression": partial(single, _SHARED["logistic regression"], lower=True),
            "logistic regression, severe": partial(single, _SHARED["logistic regression, severe"], lower=True),
            "sigmoid loss, odd digits": partial(single, _SHARED["hyperparameters, odd digits"], lower=True),
            "policy evaluation": partial(single, _POLICY, lower=True),
            "wrong labels": partial(single, _CLEANING, lower=True),
            "network, digits": partial(personalization, "digits", NODES, per_node=60, hidden=8, shared=True),
        },
    ),
}
