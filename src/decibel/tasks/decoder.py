"""A decoder for text in plain JAX: pre-norm, rotary positions, the embedding as last layer.

The scan over layers is unrolled: as a loop it would copy all that a gradient needs of a layer into stacked arrays and
out of them again, which takes longer on a GPU than the layer itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

__all__ = ["SIZES", "Decoder", "Shape", "decode", "start_decoder", "token_losses"]

Attention = Literal["xla", "cudnn"]


@dataclass(frozen=True)
class Shape:
    """The size of a decoder.

    Args:
        width: of the residual stream, a multiple of twice `heads`.
        layers: the number of blocks.
        heads: of the attention.
        context: the number of tokens that are read.
        remat: compute a layer's activations again for gradients, instead of keeping them.
    """

    width: int
    layers: int
    heads: int
    context: int
    remat: bool = False

    def __post_init__(self) -> None:
        if self.heads < 1 or self.width < 1 or self.width % (2 * self.heads):
            raise ValueError(
                f"width={self.width} must be a multiple of 2 · heads = {2 * self.heads}: change one of them."
            )
        if self.layers < 1 or self.context < 1:
            raise ValueError(f"layers={self.layers} and context={self.context} must be positive.")


# Weights with 256 tokens: 0.1, 0.6, 4.8, 10.7 and 85 million; GPT-2's 124 million have its vocabulary of 50,257.
SIZES = {
    "tiny": Shape(64, 2, 2, 64),
    "mini": Shape(128, 3, 4, 128),
    "small": Shape(256, 6, 8, 256),
    "medium": Shape(384, 6, 6, 256),
    "large": Shape(768, 12, 12, 512, remat=True),
}


class Decoder(TypedDict):
    """The weights of a decoder.

    Attributes:
        embed: (vocabulary, width), which is the last layer, too.
        blocks: weights of the layers, with an axis of layers first.
        scale: of the last norm.
    """

    embed: Array
    blocks: dict[str, Array]
    scale: Array


def start_decoder(shape: Shape, vocabulary: int, seed: int) -> Decoder:
    """Random weights of variance 1 / inputs, smaller where they add to the residual stream.

    Args:
        shape: of the decoder.
        vocabulary: the number of tokens.
        seed: of the weights.
    """
    rng = np.random.default_rng(seed)
    width = shape.width
    heads = shape.heads
    shrink = 2 * shape.layers

    def normal(*size: int, inputs: int) -> Array:
        # In single precision: large decoders would need much time and memory in double precision.
        return jnp.asarray(inputs**-0.5 * rng.standard_normal(size, np.float32), float)

    def stacked(*size: int, inputs: int) -> Array:
        return normal(shape.layers, *size, inputs=inputs)

    return {
        "embed": normal(vocabulary, width, inputs=width),
        "blocks": {
            "attend_scale": jnp.ones((shape.layers, width)),
            "qkv": stacked(width, 3, heads, width // heads, inputs=width),
            "out": stacked(heads, width // heads, width, inputs=shrink * width),
            "think_scale": jnp.ones((shape.layers, width)),
            "up": stacked(width, 4 * width, inputs=width),
            "down": stacked(4 * width, width, inputs=shrink * 4 * width),
        },
        "scale": jnp.ones(width),
    }


def decode(
    weights: Decoder, tokens: Array, *, compute: str | None = None, attention: Attention = "xla", remat: bool = False
) -> Array:
    """Logits (batch, time, vocabulary) of the next token, each from the tokens up to its own place.

    Args:
        weights: of the decoder.
        tokens: (batch, time).
        compute: the type of matrix products; norms and logits have that of the weights, which None takes for all.
        attention: `"xla"`, or `"cudnn"`, which is faster on GPUs in bfloat16 and has no second derivatives.
        remat: compute a layer's activations again for gradients.
    """
    wide = weights["embed"].dtype
    narrow = jnp.dtype(compute) if compute else wide
    embed = weights["embed"].astype(narrow)
    turns = _turns(tokens.shape[1], weights["blocks"]["qkv"].shape[-1])

    def block(h: Array, layer: dict[str, Array]) -> tuple[Array, None]:
        qkv, out, up, down = (layer[name].astype(narrow) for name in ("qkv", "out", "up", "down"))
        q, k, v = jnp.moveaxis(jnp.einsum("btw,wshd->btshd", _normalise(h, layer["attend_scale"]), qkv), 2, 0)
        q, k = _rotate(q, turns), _rotate(k, turns)
        with jax.numpy_dtype_promotion("standard"):  # scores are in single precision at least
            seen = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=attention)
        h = h + jnp.einsum("bthd,hdw->btw", seen, out)
        h = h + jax.nn.gelu(_normalise(h, layer["think_scale"]) @ up) @ down
        return h, None

    start = weights["embed"][tokens].astype(narrow)  # in this order its gradient, a sum over many places, is exact
    h, _ = jax.lax.scan(jax.checkpoint(block) if remat else block, start, weights["blocks"], unroll=True)
    return jnp.einsum("btw,vw->btv", _normalise(h, weights["scale"]), embed, preferred_element_type=wide)


def token_losses(
    weights: Decoder, windows: Array, *, compute: str | None = None, attention: Attention = "xla", remat: bool = False
) -> Array:
    """Cross entropy (batch, time), in nats, of a window's tokens from the second on.

    Args:
        weights: of the decoder.
        windows: (batch, time + 1) tokens.
        compute: as for `decode`.
        attention: as for `decode`.
        remat: as for `decode`.
    """
    tokens = windows.astype(jnp.int32)
    logits = decode(weights, tokens[:, :-1], compute=compute, attention=attention, remat=remat)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])


def _normalise(h: Array, scale: Array) -> Array:
    """Divided by the root of the mean square, which is computed in the type of the scale."""
    wide = h.astype(scale.dtype)
    size = jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + jnp.asarray(1e-6, wide.dtype))
    return (scale * wide * size).astype(h.dtype)


def _turns(time: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(time, 1, size / 2) cosines and sines of rotary positions."""
    angles = np.arange(time)[:, None] * 10_000.0 ** (-np.arange(0, size, 2) / size)
    return np.cos(angles)[:, None], np.sin(angles)[:, None]


def _rotate(h: Array, turns: tuple[np.ndarray, np.ndarray]) -> Array:
    cos, sin = (jnp.asarray(part, h.dtype) for part in turns)
    a, b = jnp.split(h, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
