"""The tasks' networks, as functions of plain pytrees. All have second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ..core._types import PyTree

Layer = dict[str, Array]
BYTES = 256


class Transformer(TypedDict):
    """Weights of a decoder over bytes."""

    embed: Array
    place: Array
    blocks: list[Layer]
    scale: Array


def affine(layer: Layer, inputs: Array) -> Array:
    return inputs @ layer["weight"] + layer["bias"]


def body(layers: Sequence[Layer], inputs: Array, activation: Callable[[Array], Array]) -> Array:
    """Affine layers with the activation after each of them: what a last layer reads."""
    for layer in layers:
        inputs = activation(affine(layer, inputs))
    return inputs


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Per sample, of integer labels."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def square(tree: PyTree) -> Array:
    """Σ of the squared entries."""
    return jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)]).sum()


def start_body(sizes: Sequence[int], rng: np.random.Generator) -> list[Layer]:
    """Random weights of variance 1 / inputs, zero biases."""
    return [{"weight": _normal(rng, shape, shape[0]), "bias": jnp.zeros(shape[1])} for shape in pairwise(sizes)]


def start_zero(inputs: int, outputs: int) -> Layer:
    return {"weight": jnp.zeros((inputs, outputs)), "bias": jnp.zeros(outputs)}


def start_identity(size: int) -> Layer:
    return {"weight": jnp.eye(size), "bias": jnp.zeros(size)}


def start_blstm(inputs: int, cells: int, rng: np.random.Generator) -> dict[str, Array]:
    """A bidirectional LSTM, leaves (2, ...) for forward and backward; the forget gates start open, with bias one."""
    return {
        "input": _normal(rng, (2, inputs, 4 * cells), inputs),
        "state": _normal(rng, (2, cells, 4 * cells), cells),
        "bias": jnp.asarray(np.tile(np.repeat([0.0, 1.0, 0.0, 0.0], cells), (2, 1))),  # gates: in, forget, out, new
    }


def blstm(layer: dict[str, Array], inputs: Array, lengths: Array) -> Array:
    """(batch, 2 cells) from (batch, time, features): the mean over a sequence's own steps of the states of both
    directions. What stands behind a sequence's length is never read."""
    there = jnp.arange(inputs.shape[1], dtype=lengths.dtype) < lengths[:, None]  # (batch, time)
    both = lambda steps: jnp.stack([steps, steps[:, ::-1]])  # noqa: E731
    totals = jax.vmap(_lstm)(layer, both(inputs), both(there))  # (2, batch, cells)
    return jnp.concatenate([*totals], -1) / jnp.maximum(lengths, 1)[:, None].astype(totals.dtype)


def _lstm(weights: dict[str, Array], inputs: Array, there: Array) -> Array:
    """(batch, cells): the sum of the states. A step that is not there leaves the state as it is and is not summed."""
    driven = jnp.moveaxis(inputs @ weights["input"] + weights["bias"], 1, 0)  # (time, batch, 4 cells)

    def step(carry: tuple[Array, Array, Array], now: tuple[Array, Array]) -> tuple[tuple[Array, Array, Array], None]:
        (h, c, total), (drive, here) = carry, now
        i, f, o, new = jnp.split(drive + h @ weights["state"], 4, axis=-1)
        c_next = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(new)
        h_next = jax.nn.sigmoid(o) * jnp.tanh(c_next)
        here = here[:, None]
        h, c = jnp.where(here, h_next, h), jnp.where(here, c_next, c)
        return (h, c, total + jnp.where(here, h, 0)), None

    rest = jnp.zeros((inputs.shape[0], weights["state"].shape[0]), driven.dtype)
    (_, _, total), _ = jax.lax.scan(step, (rest, rest, rest), (driven, there.T))
    return total


def start_transformer(width: int, layers: int, heads: int, context: int, rng: np.random.Generator) -> Transformer:
    """A decoder over bytes whose last layer is the embedding transposed; the number of heads is in the shapes."""

    def block() -> dict[str, Array]:
        shrink = 2 * layers  # so that the sum over the residual branches keeps its variance
        return {
            "attend_scale": jnp.ones(width),
            "qkv": _normal(rng, (3, width, heads, width // heads), width),
            "out": _normal(rng, (heads, width // heads, width), shrink * width),
            "think_scale": jnp.ones(width),
            "up": _normal(rng, (width, 4 * width), width),
            "down": _normal(rng, (4 * width, width), shrink * 4 * width),
        }

    return {
        "embed": _normal(rng, (BYTES, width), width),
        "place": _normal(rng, (context, width), width),
        "blocks": [block() for _ in range(layers)],
        "scale": jnp.ones(width),
    }


def transformer(weights: Transformer, tokens: Array) -> Array:
    """(batch, time, 256) logits of the next byte, each from the bytes up to its own place."""
    h = weights["embed"][tokens] + weights["place"][: tokens.shape[1]]
    for block in weights["blocks"]:
        h = h + _attend(block, _normalise(h, block["attend_scale"]))
        h = h + jax.nn.gelu(_normalise(h, block["think_scale"]) @ block["up"]) @ block["down"]
    return _normalise(h, weights["scale"]) @ weights["embed"].T


def next_byte_loss(weights: Transformer, windows: Array) -> Array:
    """(batch,) mean cross entropy, in nats a byte, of a window's bytes from the second on."""
    tokens = windows.astype(jnp.int32)
    return cross_entropy(transformer(weights, tokens[:, :-1]), tokens[:, 1:]).mean(1)


def _attend(block: dict[str, Array], h: Array) -> Array:
    q, k, v = jnp.einsum("btw,swhd->sbhtd", h, block["qkv"])
    time = np.arange(h.shape[1])
    scores = jnp.einsum("bhtd,bhsd->bhts", q, k) * q.shape[-1] ** -0.5
    shares = jax.nn.softmax(jnp.where(time[:, None] >= time, scores, -jnp.inf))
    return jnp.einsum("bhts,bhsd,hdw->btw", shares, v, block["out"])


def _normalise(h: Array, scale: Array) -> Array:
    return scale * h * jax.lax.rsqrt(jnp.mean(jnp.square(h), -1, keepdims=True) + 1e-6)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], inputs: int) -> Array:
    return jnp.asarray(rng.normal(scale=inputs**-0.5, size=shape))
