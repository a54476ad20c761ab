"""Domain reweighting: learn in which proportions to train a language model on text of several kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..problem import prox
from ..problem._problem import Problem
from ..results.metrics import Snapshot
from . import data, partition
from .networks import Transformer, next_byte_loss, square, start_transformer
from .task import Task

STEP_SIZES = {"alpha": 0.03, "beta": 0.4, "gamma": 0.05}

SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}  # of a domain's text, in its order
Documents = Sequence[str]


class Mixture(eqx.Module):
    """p = (1 − ε) softmax(x) + ε / domains: no domain's share ever falls below ε / domains."""

    floor: float

    def __call__(self, x: Array) -> Array:
        return (1 - self.floor) * jax.nn.softmax(x) + self.floor / x.size

    def point(self, shares: np.ndarray) -> np.ndarray:
        """The x whose mixture these shares are, where each is above the floor."""
        bare = shares - self.floor / len(shares)
        if not (bare > 0).all():
            raise ValueError(f"start has a share of at most floor / domains = {self.floor / len(shares):g}: raise it.")
        return np.log(bare) - np.log(bare).mean() if np.ptp(bare) else np.zeros(len(bare))  # exactly, if uniform


class SimplexMixture(Mixture):
    """p = (1 − ε) x + ε / domains, for x on the simplex."""

    def __call__(self, x: Array) -> Array:
        return (1 - self.floor) * x + self.floor / x.size

    def point(self, shares: np.ndarray) -> np.ndarray:
        """The x whose mixture these shares are, where none is below the floor."""
        bare = (shares - self.floor / len(shares)) / (1 - self.floor)
        if not (bare >= -1e-9).all():
            raise ValueError(f"start has a share below floor / domains = {self.floor / len(shares):g}: raise it.")
        return np.maximum(bare, 0)


# What x is, and the constraint that it needs.
MIXTURES: dict[str, tuple[type[Mixture], prox.Prox | None]] = {
    "softmax": (Mixture, None),
    "simplex": (SimplexMixture, prox.simplex()),
}


def entropy_of(p: Array) -> Array:
    """In nats."""
    return jax.scipy.special.entr(p).sum()


class TargetLoss(eqx.Module):
    """f: mean loss a byte on a node's validation text, minus τ · entropy of the mixture."""

    mixture: Mixture
    entropy: float

    def __call__(self, x: Array, y: Transformer, windows: Array) -> Array:
        return next_byte_loss(y, windows).mean() - self.entropy * entropy_of(self.mixture(x))


class MixedLoss(eqx.Module):
    """g: a node's part of Σ_d p_d(x) · mean loss a byte of domain d, plus C‖y‖²."""

    mixture: Mixture
    regularization: float

    def __call__(self, x: Array, y: Transformer, batch: tuple[Array, Array, Array]) -> Array:
        windows, domain, factor = batch
        losses = factor * self.mixture(x)[domain] * next_byte_loss(y, windows)
        return losses.mean() + self.regularization * square(y)


class LanguageModel(eqx.Module):
    """How well the average of the nodes' models predicts the next byte of the target.

    - `validation_loss`: nats a byte on the nodes' validation text, without the entropy term.
    - `test_loss`, `test_perplexity`: on text of the same mix that no node has.
    """

    windows: Array

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        mean = lambda batch: batch.mean(lambda y, windows: next_byte_loss(y, windows).mean(), snapshot.y)  # noqa: E731
        test = next_byte_loss(snapshot.y, self.windows).mean()
        return {
            "validation_loss": jax.vmap(mean)(snapshot.problem.upper_data.full()).mean(),
            "test_loss": test,
            "test_perplexity": jnp.exp(test),
        }


class Weights(eqx.Module):
    """`weight_NAME` of every domain in the mixture, and its `entropy` in nats."""

    mixture: Mixture
    domains: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        p = self.mixture(snapshot.x)
        return {**{f"weight_{name}": p[d] for d, name in enumerate(self.domains)}, "entropy": entropy_of(p)}


def domain_reweighting(
    domains: Mapping[str, Documents] | Sequence[str] | None = None,
    nodes: int | None = None,
    *,
    target: Mapping[str, float] | None = None,
    start: Mapping[str, float] | None = None,
    context: int = 64,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    windows: int = 2_000,
    validation: int = 64,
    test: int = 512,
    weights: Literal["softmax", "simplex"] = "softmax",
    floor: float = 0.1,
    entropy: float = 0.0,
    regularization: float = 1e-4,
    seed: int = 0,
) -> Task:
    """Learns in which proportions to train a language model on several text domains.

    Nodes that hold different domains agree on a mixture p(x) = (1 − ε) softmax(x) + ε / domains and on a language model
    y, a small decoder-only transformer over bytes:

        f_i(x, y) = mean loss on node i's validation text, a sample of the target, − τ · entropy(p)
        1/N Σ_i g_i(x, y) = Σ_d p_d(x) · mean loss on domain d's training text + C‖y‖²

    g is not convex in y.

    Args:
        domains: names that `decibel.tasks.data.load_text` knows (None: all), or documents by name.
        nodes: the number of nodes; None is one per domain. Fewer nodes hold several domains each; of more, several
            share one.
        target: shares of the domains in the validation text; None is one half each of the first two.
        start: shares of the domains at the start, above the floor; None is uniform.
        context: bytes that the model reads.
        width: of the model.
        layers: of the model.
        heads: of the model.
        windows: training samples of `context` + 1 bytes per domain.
        validation: validation samples per node.
        test: test samples in all.
        weights: `"softmax"` of x; or `"simplex"`: p(x) = (1 − ε) x + ε / domains with x constrained to the simplex
            (`prox_x`), for methods that take one.
        floor: ε; no share falls below ε / domains.
        entropy: τ, a penalty towards the uniform mixture, which also keeps the softmax from saturating; on the simplex
            it needs a floor.
        regularization: C.
        seed: of the samples and the initial weights.
    """
    texts = data.load_text(domains) if domains is None or not isinstance(domains, Mapping) else dict(domains)
    names = tuple(texts)
    if len(names) < 2:
        raise ValueError(f"domains has {len(names)} domain: a mixture needs at least two.")
    if not 0 <= floor < 1:
        raise ValueError(f"floor={floor} must lie in [0, 1).")
    if width < 1 or heads < 1 or width % heads:
        raise ValueError(f"width={width} must be a multiple of heads={heads}.")
    aim = shares_of(target or dict.fromkeys(names[:2], 1.0), names, "target")
    if weights not in MIXTURES:
        raise ValueError(f"weights={weights!r} is not known: choose one of {', '.join(map(repr, MIXTURES))}.")
    if weights == "simplex" and entropy and not floor:
        raise ValueError("entropy has no gradient where a share is zero: give a floor, such as floor=0.1.")
    kind, constraint = MIXTURES[weights]
    mixture = kind(floor)
    x0 = mixture.point(shares_of(start or dict.fromkeys(names, 1.0), names, "start"))
    nodes = len(names) if nodes is None else nodes
    rng = np.random.default_rng(seed)
    pools = {name: text_windows(documents, context + 1, rng) for name, documents in texts.items()}

    domain = np.repeat(np.arange(len(names), dtype=np.int32), windows)
    tokens = np.concatenate([first(pools[name]["train"], windows, "windows", name) for name in names])
    assigned = partition.by_group(domain, nodes, seed=seed)
    wanted = apportion(aim, validation)
    checked = [
        first(pools[name]["validation"], nodes * count, "validation", name).reshape(nodes, count, context + 1)
        for name, count in zip(names, wanted, strict=True)
    ]
    unseen = [
        first(pools[name]["test"], count, "test", name) for name, count in zip(names, apportion(aim, test), strict=True)
    ]
    problem = Problem(
        TargetLoss(mixture, entropy),
        MixedLoss(mixture, regularization),
        upper_data=np.concatenate(checked, 1),
        # The mean over nodes of means over a node's samples becomes Σ_d p_d · mean over d by the factor N n_i / n_d.
        lower_data=[
            (tokens[part], domain[part], np.full(len(part), nodes * len(part) / windows)) for part in assigned.indices
        ],
        x0=jnp.asarray(x0, float),
        y0=start_transformer(width, layers, heads, context, np.random.default_rng(seed)),
        prox_x=constraint,
    )
    summary = {
        "domains": {name: len(_bytes(documents)) for name, documents in texts.items()},
        "target": dict(zip(names, aim.tolist(), strict=True)),
        "samples": {"train": len(tokens), "validation": nodes * validation, "test": test, "bytes": context + 1},
        "model": {"context": context, "width": width, "layers": layers, "heads": heads},
        "weights": int(sum(leaf.size for leaf in jax.tree.leaves(problem.y0))),
        "partition": assigned.describe(),
        "mixture": weights,
        "floor": floor,
        "entropy": entropy,
        "regularization": regularization,
        "seed": seed,
    }
    metrics = LanguageModel(jnp.asarray(np.concatenate(unseen))), Weights(mixture, names)
    return Task(problem, metrics, "domain-reweighting", summary, assigned, summary["target"], step_sizes=STEP_SIZES)


def shares_of(given: Mapping[str, float], names: tuple[str, ...], argument: str) -> np.ndarray:
    strangers = set(given) - set(names)
    if strangers or min(given.values(), default=-1) < 0 or not sum(given.values()) > 0:
        raise ValueError(f"{argument}={dict(given)} must give shares, not negative, to some of {', '.join(names)}.")
    shares = np.array([given.get(name, 0.0) for name in names])
    return shares / shares.sum()


def _bytes(documents: Documents) -> bytes:
    return "\n\n".join(documents).encode()


def text_windows(documents: Documents, size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Each part of the text as shuffled windows (count, size) that do not overlap."""
    return cut_windows(np.frombuffer(_bytes(documents), np.uint8), size, rng)


def cut_windows(text: np.ndarray, size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Each part of a text of tokens as shuffled windows (count, size) that do not overlap."""
    cuts = np.round(np.cumsum(list(SHARES.values()))[:-1] * len(text)).astype(int)
    whole = [part[: len(part) // size * size].reshape(-1, size) for part in np.split(text, cuts)]
    return {name: part[rng.permutation(len(part))] for name, part in zip(SHARES, whole, strict=True)}


def first(pool: np.ndarray, count: int, argument: str, name: str) -> np.ndarray:
    if count > len(pool):
        raise ValueError(f"{argument} asks for {count} samples of {name}, whose text has {len(pool)}: ask for fewer.")
    return pool[:count]


def apportion(shares: np.ndarray, count: int) -> np.ndarray:
    """Whole numbers near shares · count that sum to it (largest remainders)."""
    exact = shares * count
    whole = np.floor(exact).astype(int)
    whole[np.argsort(whole - exact, kind="stable")[: count - whole.sum()]] += 1
    return whole
