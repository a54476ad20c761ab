"""A byte-level language model from nodes with one text domain each, and step sizes that fall to zero.

A step size is a number of the compiled program, so that runs which differ in it alone are compiled once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decibel import Problem
from decibel.tasks import Task, data
from decibel.tasks.decoder import Decoder, Shape, start_decoder, token_losses

from ..type_aliases import Snapshot
from .transformer import BYTES, text_windows

AT_ONCE = 32  # windows that are evaluated together
SYNTHETIC = {"counting": ["one two three four five six. " * 200], "vowels": ["a e i o u. " * 300]}
Compute = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Sizes:
    """Of the decoder and of its text. `compute`: the type of matrix products."""

    domains: tuple[str, ...] = data.DOMAINS
    context: int = 128
    width: int = 256
    layers: int = 6
    heads: int = 8
    compute: Compute | None = "bfloat16"
    windows: int = 24_000  # at each node; shorter texts are repeated
    test: int = 128  # of each domain

    @property
    def sizes(self) -> Sizes:
        """These alone, of a set-up that has more."""
        return Sizes(**{each.name: getattr(self, each.name) for each in fields(Sizes)})


class Falling(eqx.Module):
    """From `rate` to zero after `steps` steps."""

    rate: float
    steps: int = eqx.field(static=True)

    def __call__(self, k: Array) -> Array:
        return self.rate * jnp.clip(1 - jnp.asarray(k, float) / self.steps, 0, 1)


class NextByte(eqx.Module):
    """Mean loss of windows (batch, bytes), or (batch, domains, bytes), in nats per byte."""

    compute: Compute | None = eqx.field(static=True)

    def __call__(self, weights: Decoder, windows: Array) -> Array:
        return self.of_each(weights, windows.reshape(-1, windows.shape[-1])).mean()

    def of_each(self, weights: Decoder, windows: Array) -> Array:
        return token_losses(weights, windows, compute=self.compute).mean(1)

    def of_many(self, weights: Decoder, windows: Array) -> Array:
        """The mean over windows (count, bytes), a few at a time."""
        return jax.lax.map(lambda one: self.of_each(weights, one[None])[0], windows, batch_size=AT_ONCE).mean()


class HeldOut(eqx.Module):
    """Nats per byte over all domains, on text that no node has.

    - `test_loss`: of the average of the nodes' models; `node_test_loss`: of each node's model, on average.
    - `train_loss`: of the average, on the nodes' own text.
    """

    loss: NextByte
    test: Array  # (windows, bytes)
    train: Array

    def __call__(self, snapshot: Snapshot) -> dict[str, Array]:
        return {
            "test_loss": self.loss.of_many(snapshot.x, self.test),
            "node_test_loss": jax.lax.map(lambda x: self.loss.of_many(x, self.test), snapshot.nodes.x).mean(),
            "train_loss": self.loss.of_many(snapshot.x, self.train),
        }


@cache
def texts(domains: tuple[str, ...]) -> Mapping[str, list[str]]:
    known = SYNTHETIC if set(domains) <= set(SYNTHETIC) else data.load_text(list(domains))
    return {name: list(known[name]) for name in domains}


def text_nodes(sizes: Sizes, *, central: bool, seed: int) -> Task:
    """One domain at each node, or (`central`) all of them at one, whose samples have a window of each."""
    rng = np.random.default_rng(seed)
    pools = [text_windows(documents, sizes.context + 1, rng) for documents in texts(sizes.domains).values()]
    train = np.stack([pool["train"][np.arange(sizes.windows) % len(pool["train"])] for pool in pools])
    unseen = np.stack([pool["test"][: sizes.test] for pool in pools])
    loss = NextByte(sizes.compute)
    shape = Shape(sizes.width, sizes.layers, sizes.heads, sizes.context)
    problem = Problem(
        loss,
        upper_data=train.transpose(1, 0, 2)[None] if central else train,
        x0=start_decoder(shape, BYTES, seed),
    )
    own = train[:, : sizes.test].reshape(-1, train.shape[-1])
    measured = HeldOut(loss, jnp.asarray(unseen.reshape(-1, unseen.shape[-1])), jnp.asarray(own))
    weights = int(sum(leaf.size for leaf in jax.tree.leaves(problem.x0)))
    summary = {"domains": list(sizes.domains), "weights": weights, "windows": sizes.windows, "seed": seed}
    return Task(problem, (measured,), "text-nodes", summary)
