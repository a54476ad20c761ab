"""A small decoder-only transformer over bytes, as a function of a plain pytree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

BYTES = 256
PARTS = {"train": 0.8, "validation": 0.1, "test": 0.1}  # of a text, in its order


class Transformer(TypedDict):
    """Weights of a decoder over bytes."""

    embed: Array
    place: Array
    blocks: list[dict[str, Array]]
    scale: Array


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
    """(batch,) mean cross entropy, in nats per byte, of a window's bytes from the second on."""
    tokens = windows.astype(jnp.int32)
    logits = transformer(weights, tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean(1)


def _attend(block: dict[str, Array], h: Array) -> Array:
    qkv = jnp.einsum("btw,swhd->sbhtd", h, block["qkv"])
    time = np.arange(h.shape[1])
    scores = jnp.einsum("bhtd,bhsd->bhts", qkv[0], qkv[1]) * qkv.shape[-1] ** -0.5
    shares = jax.nn.softmax(jnp.where(time[:, None] >= time, scores, -jnp.inf))
    return jnp.einsum("bhts,bhsd,hdw->btw", shares, qkv[2], block["out"])


def _normalise(h: Array, scale: Array) -> Array:
    return scale * h * jax.lax.rsqrt(jnp.mean(jnp.square(h), -1, keepdims=True) + 1e-6)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], inputs: int) -> Array:
    return jnp.asarray(rng.normal(scale=inputs**-0.5, size=shape))


def text_windows(documents: Sequence[str], size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Each part of a text as shuffled windows (count, size) of bytes that do not overlap."""
    text = np.frombuffer("\n\n".join(documents).encode(), np.uint8)
    ends = np.round(np.cumsum(list(PARTS.values()))[:-1] * len(text)).astype(int)
    whole = [part[: len(part) // size * size].reshape(-1, size) for part in np.split(text, ends)]
    return {name: part[rng.permutation(len(part))] for name, part in zip(PARTS, whole, strict=True)}
