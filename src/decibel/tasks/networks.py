"""The tasks' networks, as functions of plain pytrees. All have second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ..core._types import PyTree

Layer = dict[str, Array]


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


def _normal(rng: np.random.Generator, shape: tuple[int, ...], inputs: int) -> Array:
    return jnp.asarray(rng.normal(scale=inputs**-0.5, size=shape))
