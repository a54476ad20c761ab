"""The papers' experiments, each run by one command, with its claims tested."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .testbed.study import Study

__version__ = "0.1.0"

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
SIZES = ("smoke", "small", "full")


def find(name: str) -> Study[Any]:
    """A study by its name."""
    if name not in NAMES:
        near = get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(NAMES)}."
        raise ValueError(f"study {name!r} is not known: {hint}")
    module = name.replace("/", "_").replace("-", "_")
    return import_module(f".experiments.{module}", __name__).STUDY
