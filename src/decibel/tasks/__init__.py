"""Benchmark problems on real and synthetic data: each function returns a `Task`, a problem with its own metrics."""

from typing import TYPE_CHECKING

from ..core._names import unknown_name
from . import data, decoder, partition
from .auprc import auprc
from .hyperparameter import hyperparameter_tuning
from .label_cleaning import label_cleaning
from .language_model import language_model
from .linear_regression import linear_regression
from .logistic_regression import logistic_regression
from .meta_learning import meta_learning
from .personalization import personalization
from .policy_evaluation import policy_evaluation
from .task import Task

__all__ = [
    "Task",
    "auprc",
    "data",
    "decoder",
    "hyperparameter_tuning",
    "label_cleaning",
    "language_model",
    "linear_regression",
    "logistic_regression",
    "meta_learning",
    "partition",
    "personalization",
    "policy_evaluation",
]

if not TYPE_CHECKING:  # which knows the names
    __getattr__ = unknown_name("db.tasks", __all__)
