"""A language model from nodes with text of their own kind, and the mixture of kinds that it is trained with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..methods._method import Rate
from ..methods._sparkle import Sparkle, sparkle
from ..oracles.hypergradient import penalty
from ..problem import prox, sources
from ..problem._problem import Problem
from ..results.metrics import Snapshot
from . import partition
from .decoder import SIZES, Attention, Decoder, Shape, start_decoder, token_losses
from .task import Task
from .texts import Text, find_texts
from .tokens import BPE, tokenizer

AT_ONCE = 32  # windows that are evaluated together
PARTS = {"train": 0.8, "validation": 0.1, "test": 0.1}  # of a domain's text, in its order
SOFTMAX_ALPHA = 0.5


class DecoderLosses(eqx.Module):
    """How a decoder is computed."""

    compute: str | None = eqx.field(static=True, default=None)
    attention: Attention = eqx.field(static=True, default="xla")
    remat: bool = eqx.field(static=True, default=False)

    def of_tokens(self, y: Decoder, windows: Array) -> Array:
        """(batch, time) nats."""
        return token_losses(y, windows, compute=self.compute, attention=self.attention, remat=self.remat)

    def losses(self, y: Decoder, windows: Array) -> Array:
        """(batch,) nats a token."""
        return self.of_tokens(y, windows).mean(1)

    def of_many(self, y: Decoder, windows: Array) -> Array:
        """(windows,) nats a token, a few at a time."""
        return jax.lax.map(lambda window: self.losses(y, window[None])[0], windows, batch_size=AT_ONCE)


class OnSimplex(eqx.Module):
    """x is the mixture."""

    def __call__(self, x: Array) -> Array:
        return x


class Softmax(eqx.Module):
    """p = (1 − ε) softmax(x) + ε / domains: no domain's share ever falls below ε / domains."""

    floor: float

    def __call__(self, x: Array) -> Array:
        return (1 - self.floor) * jax.nn.softmax(x) + self.floor / x.size

    def point(self, shares: np.ndarray) -> np.ndarray:
        """The x whose mixture these shares are, where each is above the floor."""
        bare = shares - self.floor / len(shares)
        if not (bare > 1e-9).all():
            raise ValueError(f"start has a share of at most floor / domains = {self.floor / len(shares):g}: raise it.")
        return np.log(bare) - np.log(bare).mean() if np.ptp(bare) else np.zeros(len(bare))  # exactly, if uniform


class TargetText(eqx.Module):
    """f: mean loss a token on a node's sample of the target, minus τ · entropy of the mixture."""

    model: DecoderLosses
    entropy: float
    mixture: OnSimplex | Softmax

    def __call__(self, x: Array, y: Decoder, windows: Array) -> Array:
        loss = self.model.losses(y, windows).mean().astype(x.dtype)
        return loss - self.entropy * _entropy(self.mixture(x)) if self.entropy else loss


class MixedText(eqx.Module):
    """g: a node's part of Σ_d p_d · mean loss a token of domain d, plus C/2 ‖y‖², with p the mixture."""

    model: DecoderLosses
    decay: float
    mixture: OnSimplex | Softmax

    def __call__(self, x: Array, y: Decoder, batch: dict[str, Array]) -> Array:
        losses = self.model.losses(y, batch["windows"]).astype(x.dtype)
        loss = (batch["factor"] * self.mixture(x)[batch["domain"]] * losses).mean()
        return loss + 0.5 * self.decay * _square(y) if self.decay else loss


class HeldOut(eqx.Module):
    """How well the average of the nodes' models predicts text, in nats a token, and the mixture it was trained with.

    - `validation_loss`, `test_loss`: of the target, on the nodes' own sample of it and on one that no node has.
    - `loss_NAME`: of every domain, on text that no node has; `weight_NAME`: its share in the mixture.
    - `entropy` of the mixture, in nats; `node_spread`: how far apart the nodes' x are, at most.
    """

    model: DecoderLosses
    validation: Array
    test: Array
    unseen: Array  # (domains, windows, tokens)
    domains: tuple[str, ...] = eqx.field(static=True)
    mixture: OnSimplex | Softmax = OnSimplex()

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        spread = jnp.ptp(snapshot.nodes.x, axis=0).max()
        return {**self.measured(snapshot.x, snapshot.y), "node_spread": spread}

    def measured(self, x: Array, y: Decoder) -> dict[str, Array]:
        """Of a point x and a model."""
        p = self.mixture(x)
        parts = [self.validation, self.test, *self.unseen]
        losses = self.model.of_many(y, jnp.concatenate(parts))
        ends = np.cumsum([len(part) for part in parts])
        validation, test, *unseen = (part.mean() for part in jnp.split(losses, ends[:-1].tolist()))
        return {
            "validation_loss": validation,
            "test_loss": test,
            **{f"loss_{name}": loss for name, loss in zip(self.domains, unseen, strict=True)},
            **{f"weight_{name}": p[d] for d, name in enumerate(self.domains)},
            "entropy": _entropy(p),
        }


def mixture_method(
    *,
    alpha: Rate = 0.01,
    beta: Rate = 2e-3,
    gamma: Rate = 2e-3,
    theta: Rate = 0.1,
    strength: float = 10.0,
    upper_every: int = 1,
) -> Sparkle:
    """SPARKLE's penalty form with Adam's steps below and Exact Diffusion, projected, above."""
    return sparkle(
        "adam-ed",
        "ed",
        alpha=alpha,
        beta=beta,
        gamma=gamma,
        theta=theta,
        hypergradient=penalty(strength),
        upper_every=upper_every,
    )


def language_model(
    domains: Mapping[str, Text] | Sequence[str] | None = None,
    nodes: int | None = None,
    *,
    size: str | Shape = "tiny",
    target: Mapping[str, float] | None = None,
    start: Mapping[str, float] | None = None,
    weights: Literal["simplex", "softmax"] = "simplex",
    tokens: Literal["bytes", "bpe"] = "bytes",
    vocabulary: int = 2048,
    windows: int = 1_000,
    validation: int = 64,
    test: int = 256,
    spread: Literal["domains", "iid"] = "domains",
    floor: float = 0.2,
    entropy: float = 0.0,
    decay: float = 0.0,
    compute: Literal["float32", "bfloat16"] | None = None,
    attention: Attention = "xla",
    streamed: bool = True,
    seed: int = 0,
) -> Task:
    """Learns in which proportions to train a language model on text of several kinds, which nodes hold.

    Nodes agree on a mixture x, which lies on the simplex with no share below ε / domains, and on a decoder y:

        f_i(x, y) = mean loss on node i's sample of the target − τ · entropy(x)
        1/N Σ_i g_i(x, y) = Σ_d x_d · mean loss on domain d's training text + C/2 ‖y‖²

    Losses are in nats a token. Every domain counts by its share x_d exactly, however its text is spread over nodes.
    Training text is streamed: the device holds the batches of a few steps. g is not convex in y; `task.method()` is the
    penalty form with Adam's steps below.

    Args:
        domains: names of `decibel.tasks.data.load_text` or of text that every Python installation has (`"manual"`,
            `"docstrings"`, `"sources"`, `"tables"`, `"licences"`; None is these), or by name documents, bytes, or a
            file or a folder, as a `Path` or its name.
        nodes: the number of nodes; None is one per domain. Fewer nodes hold several domains each; of more, several
            share one.
        size: `"tiny"`, `"mini"`, `"small"`, `"medium"` or `"large"`: 0.1, 0.6, 4.8, 10.7 and 85 million weights with
            bytes; or a `decibel.tasks.decoder.Shape`.
        target: shares of the domains in the target; None is one half each of the first two.
        start: shares of the domains at the start; None is uniform.
        weights: what x is: `"simplex"`, the shares themselves, for methods that take a constraint (`prox_x`); or
            `"softmax"`, logits of the shares: p(x) = (1 − ε) softmax(x) + ε / domains, for any method.
        tokens: `"bytes"`, or `"bpe"`: frequent pairs of bytes become tokens, learned from this very text.
        vocabulary: the number of tokens of `"bpe"`.
        windows: training samples of context + 1 tokens per domain, fewer where its text is shorter.
        validation: samples of the target per node.
        test: samples of the target that no node has; of each domain there are a quarter as many.
        spread: `"domains"` gives every node its own domains, `"iid"` a part of all.
        floor: ε; no share falls below ε / domains.
        entropy: τ, a pull towards the uniform mixture; it needs a floor.
        decay: C.
        compute: the type of matrix products; None is that of the weights.
        attention: `"cudnn"` is faster on GPUs in bfloat16, and has no second derivatives.
        streamed: False copies all samples to the device.
        seed: of the samples and of the initial weights.
    """
    texts = find_texts(domains)
    names = tuple(texts)
    if len(names) < 2:
        raise ValueError(f"domains has {len(names)} domain: a mixture needs at least two.")
    if not 0 <= floor < 1:
        raise ValueError(f"floor={floor} must lie in [0, 1).")
    if entropy and not floor:
        raise ValueError("entropy has no gradient where a share is zero: give a floor, such as floor=0.2.")
    if spread not in ("domains", "iid"):
        raise ValueError(f"spread={spread!r} is not known: choose 'domains' or 'iid'.")
    if isinstance(size, str) and size not in SIZES:
        raise ValueError(f"size={size!r} is not known: choose one of {', '.join(map(repr, SIZES))}.")
    shape = SIZES[size] if isinstance(size, str) else size
    if weights not in ("simplex", "softmax"):
        raise ValueError(f"weights={weights!r} is not known: choose 'simplex' or 'softmax'.")
    aim = _shares(target or dict.fromkeys(names[:2], 1.0), names, "target")
    x0 = _shares(start or dict.fromkeys(names, 1.0), names, "start")
    least = floor / len(names)
    if x0.min() < least - 1e-9:
        raise ValueError(f"start has a share below floor / domains = {least:g}: raise it.")
    mixture = Softmax(floor) if weights == "softmax" else OnSimplex()
    if isinstance(mixture, Softmax):
        x0 = mixture.point(x0)
    nodes = len(names) if nodes is None else nodes
    code = tokenizer(tokens, list(texts.values()), vocabulary)
    rng = np.random.default_rng(seed)
    pools = {name: _windows(code.encode(text), shape.context + 1, rng) for name, text in texts.items()}

    counts = [min(windows, len(pools[name]["train"])) for name in names]
    train = np.concatenate([pools[name]["train"][:count] for name, count in zip(names, counts, strict=True)])
    domain = np.repeat(np.arange(len(names), dtype=np.int32), counts)
    held = (
        partition.by_group(domain, nodes, seed=seed) if spread == "domains" else partition.iid(domain, nodes, seed=seed)
    )
    # The mean over nodes of means over a node's samples becomes Σ_d x_d · mean over d by the factor N n_i / n_d.
    scale = nodes / np.asarray(counts, float)
    lower = [
        {"windows": train[part], "domain": domain[part], "factor": scale[domain[part]] * len(part)}
        for part in held.indices
    ]
    upper = _target(pools, names, aim, "validation", nodes, validation)
    model = DecoderLosses(compute, attention, shape.remat)
    problem = Problem(
        TargetText(model, float(entropy), mixture),
        MixedText(model, float(decay), mixture),
        upper_data=[sources.arrays(node_data) for node_data in upper] if streamed else upper,
        lower_data=[sources.arrays(node_data) for node_data in lower] if streamed else lower,
        x0=jnp.asarray(x0, float),
        y0=start_decoder(shape, code.size, seed),
        prox_x=None if weights == "softmax" else prox.simplex(floor=least),
    )
    unseen = np.stack(
        [_first(pools[name]["test"][::-1], _enough(pools, -(-test // 4)), "test", name) for name in names]
    )
    metric = HeldOut(
        model,
        jnp.asarray(np.concatenate(upper)),
        jnp.asarray(_target(pools, names, aim, "test", 1, test)[0]),
        jnp.asarray(unseen),
        names,
        mixture,
    )
    summary = {
        "domains": {name: len(text) for name, text in texts.items()},
        "target": dict(zip(names, aim.tolist(), strict=True)),
        "samples": dict(zip(names, counts, strict=True)),
        "target_samples": {"validation": nodes * validation, "test": test},
        "tokens": {"kind": tokens, "vocabulary": code.size, "a sample": shape.context + 1},
        "model": {"width": shape.width, "layers": shape.layers, "heads": shape.heads, "context": shape.context},
        "weights": int(sum(leaf.size for leaf in jax.tree.leaves(problem.y0))),
        "partition": held.describe(),
        "mixture": weights,
        "least_share": least,
        "entropy": entropy,
        "decay": decay,
        "seed": seed,
    }
    if isinstance(code, BPE):
        summary["tokens"]["bytes a token"] = float(
            np.mean(
                [len(text) / len(code.encode(text[:20_000])) * min(1, 20_000 / len(text)) for text in texts.values()]
            )
        )
    method = partial(mixture_method, alpha=SOFTMAX_ALPHA) if weights == "softmax" else mixture_method
    return Task(problem, (metric,), "language-model", summary, held, summary["target"], own_method=method)


def _target(
    pools: Mapping[str, dict[str, np.ndarray]], names: Sequence[str], aim: np.ndarray, part: str, nodes: int, count: int
) -> list[np.ndarray]:
    """For each node so many windows of the target, by the domains' shares."""
    each = [
        _first(pools[name][part], nodes * size, part, name).reshape(nodes, size, -1)
        for name, size in zip(names, _apportion(aim, count), strict=True)
        if size
    ]
    return list(np.concatenate(each, 1))


def _enough(pools: Mapping[str, dict[str, np.ndarray]], count: int) -> int:
    """Samples of each domain: as many as asked for, or as the shortest has."""
    return max(1, min(count, *(len(pool["test"]) for pool in pools.values())))


def _square(tree: Decoder) -> Array:
    return jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)]).sum()


def _entropy(p: Array) -> Array:
    """In nats."""
    return jax.scipy.special.entr(p).sum()


def _shares(requested: Mapping[str, float], names: tuple[str, ...], argument: str) -> np.ndarray:
    strangers = set(requested) - set(names)
    if strangers or min(requested.values(), default=-1) < 0 or not sum(requested.values()) > 0:
        raise ValueError(f"{argument}={dict(requested)} must give shares, not negative, to some of {', '.join(names)}.")
    shares = np.array([requested.get(name, 0.0) for name in names])
    return shares / shares.sum()


def _windows(text: np.ndarray, size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Each part of a text of tokens as shuffled windows (count, size) that do not overlap."""
    cuts = np.round(np.cumsum(list(PARTS.values()))[:-1] * len(text)).astype(int)
    parts = [part[: len(part) // size * size].reshape(-1, size) for part in np.split(text, cuts)]
    return {name: part[rng.permutation(len(part))] for name, part in zip(PARTS, parts, strict=True)}


def _first(pool: np.ndarray, count: int, argument: str, name: str) -> np.ndarray:
    if count > len(pool):
        raise ValueError(f"{argument} asks for {count} samples of {name}, whose text has {len(pool)}: ask for fewer.")
    return pool[:count]


def _apportion(shares: np.ndarray, count: int) -> np.ndarray:
    """Whole numbers near shares · count that sum to it (largest remainders)."""
    exact = shares * count
    counts = np.floor(exact).astype(int)
    counts[np.argsort(counts - exact, kind="stable")[: count - counts.sum()]] += 1
    return counts
