"""The papers' experiments, each run by one command, with its claims tested."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..core._names import hint

if TYPE_CHECKING:
    from .study import Study

NAMES: tuple[str, ...] = (
    "sparkle/linear-regression",
    "sparkle/hyper-cleaning",
    "sparkle/mixed-strategies",
    "sparkle/topology-per-level",
    "sparkle/policy-evaluation",
    "dsoba/logistic",
    "dsoba/topology",
    "dsoba/speedup",
    "gossip/hyperparameter",
    "gossip/mdp",
    "spdb/personal-mnist",
    "spdb/personal-speech",
    "spdb/annealing",
    "spdb/speedup",
    "interact/meta-learning",
    "interact/edges",
    "interact/auprc",
    "interact/auprc-tasks",
    "apps/mixtures",
    "apps/mixtures-network",
    "systems/gossip-vs-allreduce",
    "adaptive/language-model",
    "adaptive/label-cleaning",
    "adaptive/ten-tasks",
)


def find(name: str) -> Study[Any]:
    """A study by its name."""
    if name not in NAMES:
        raise ValueError(f"study {name!r} is not known: {hint(name, NAMES)}")
    return import_module("." + name.replace("/", "_").replace("-", "_"), __name__).STUDY
