"""Names that the shell completes, so that completing loads no JAX; a test compares them with the library."""

from __future__ import annotations

from collections.abc import Callable, Iterable

STRATEGIES = ("ed", "extra", "gt", "semi-gt", "non-gt", "diffusion", "consensus")
METHODS = (
    *(f"sparkle-{lower}" for lower in STRATEGIES),
    *(f"sparkle-{lower}-{upper}" for lower in STRATEGIES for upper in STRATEGIES if lower != upper),
    "sparkle-edge-ed", "d-soba", "d-soba-fo", "soba", "gossip-dsbo", "dbsa", "double-loop-dsgd", "ma-dsbo",
    "ma-dsbo-gt", "dsbo", "mdbo", "vrdbo", "slam", "spdb", "interact", "svr-interact", "gt-dsgd", "d-sgd-bilevel",
    "lopa", "lopa-gt", "dsgd", "ed", "extra", "gt", "gnsd",
)  # fmt: skip
TASKS = (
    "auprc", "domain_reweighting", "hyperparameter_tuning", "label_cleaning", "linear_regression",
    "logistic_regression", "meta_learning", "personalization", "policy_evaluation", "speech",
)  # fmt: skip
GRAPHS = (
    "ring", "path", "star", "complete", "hypercube", "exponential", "one_peer_exponential", "isolated", "torus", "grid",
    "erdos_renyi", "geometric", "adjusted_ring",
)  # fmt: skip
LOGS = ("jsonl", "tensorboard", "wandb", "mlflow")
SIZES = ("smoke", "small", "full")


def completing(names: Iterable[str]) -> Callable[[str], list[str]]:
    known = tuple(names)

    def complete(incomplete: str) -> list[str]:
        return [name for name in known if name.startswith(incomplete)]

    return complete
