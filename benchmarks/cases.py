"""The problems that are timed: synthetic data of the shapes that matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

import decibel as db
from decibel.engines._program import RunConfig

# The matrix products of one step: how each pair is contracted, the sizes of its axes, and how many of them there are.
Products = tuple[dict[str, int], dict[str, int]]


@dataclass(frozen=True)
class Case:
    """A bilevel problem on a ring, as plain arrays."""

    name: str
    upper: Callable[..., Array]
    lower: Callable[..., Array]
    upper_data: tuple[Array, ...]  # leaves (nodes, samples, ...)
    lower_data: tuple[Array, ...]
    x0: Any
    y0: Any
    batch: int
    products: Callable[[bool], Products]  # of one step, parallel or sequential
    rates: tuple[float, float, float, float] = (0.05, 0.1, 0.1, 0.3)  # α, β, γ, θ
    kind: str = "regression"  # which losses these are, for programs that are not JAX's

    @property
    def dtype(self) -> np.dtype:
        return self.upper_data[0].dtype

    @property
    def nodes(self) -> int:
        return self.upper_data[0].shape[0]

    def method(self, updates: Literal["simultaneous", "alternating"] = "simultaneous") -> db.Method:
        """SPARKLE-ED with the step sizes of the case."""
        α, β, γ, θ = self.rates
        return db.sparkle("ed", alpha=α, beta=β, gamma=γ, theta=θ, updates=updates)

    def start(
        self, engine: db.Simulator | db.Cluster, updates: Literal["simultaneous", "alternating"] = "simultaneous"
    ) -> Any:
        """A run of it on the ring."""
        graphs = db.Levels(x=db.graphs.ring(self.nodes))
        return engine.start(self.problem(), self.method(updates), graphs, RunConfig(self.batch))

    def problem(self, personal: bool = False) -> db.Problem:
        return db.Problem(
            self.upper,
            self.lower,
            upper_data=self.upper_data,
            lower_data=self.lower_data,
            x0=self.x0,
            y0=self.y0,
            personal=personal,
        )


def regression(
    name: str, nodes: int, dimensions: int, batch: int, samples: int, dtype: type[np.floating] = np.float32
) -> Case:
    """Linear regression with a ridge weight per coordinate: x holds their logarithms, y the coefficients."""
    draw = np.random.default_rng(0)
    truth = draw.standard_normal(dimensions, dtype)

    def data() -> tuple[Array, Array]:
        a = draw.standard_normal((nodes, samples, dimensions), dtype)
        return jnp.asarray(a / dimensions**0.5), jnp.asarray(a @ truth / dimensions**0.5)

    def upper(x: Array, y: Array, sample: tuple[Array, Array]) -> Array:
        a, b = sample
        return 0.5 * jnp.mean(jnp.square(a @ y - b))

    def lower(x: Array, y: Array, sample: tuple[Array, Array]) -> Array:
        return upper(x, y, sample) + 0.5 * jnp.mean(jnp.exp(x) * jnp.square(y))

    def products(parallel: bool) -> Products:
        # a y and aᵀ r for ∇_y g and ∇_y f, and once more for H z
        return {"n": nodes, "b": batch, "d": dimensions}, {"nbd,nd->nb": 3, "nbd,nb->nd": 3}

    zeros = jnp.zeros(dimensions, dtype)
    return Case(name, upper, lower, data(), data(), zeros, zeros, batch, products)


def cleaning_losses(logits: Callable[..., Array]) -> tuple[Callable[..., Array], Callable[..., Array]]:
    """f and g of label cleaning, where x are the logits of the weights of training samples."""

    def losses(y: dict[str, Array], images: Array, labels: Array) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits(y, images), labels)

    def upper(x: Array, y: dict[str, Array], sample: tuple[Array, ...]) -> Array:
        return losses(y, *sample[:2]).mean()

    def lower(x: Array, y: dict[str, Array], sample: tuple[Array, ...]) -> Array:
        images, labels, number = sample
        ridge = sum(jnp.sum(jnp.square(leaf)) for leaf in y.values())
        return jnp.mean(jax.nn.sigmoid(x[number]) * losses(y, images, labels)) + 1e-3 * ridge

    return upper, lower


def label_cleaning(nodes: int = 10, batch: int = 50, samples: int = 50_000, hidden: int = 300) -> Case:
    """An MLP 784-hidden-10 trained on samples whose weights σ(x) are the upper variable."""
    draw, per_node = np.random.default_rng(0), samples // nodes

    def data(count: int) -> tuple[Array, Array]:
        labels = draw.integers(0, 10, (nodes, count)).astype(np.int32)
        images = draw.random((nodes, count, 784), np.float32) + 0.1 * labels[..., None]
        return jnp.asarray(images, jnp.float32), jnp.asarray(labels)

    def logits(y: dict[str, Array], images: Array) -> Array:
        return jnp.tanh(images @ y["w1"] + y["b1"]) @ y["w2"] + y["b2"]

    def products(parallel: bool) -> Products:
        # Five for a gradient, eight more for its pullback at z; in sequence, forward passes at y⁺ on two more batches
        # and a pullback at z⁺.
        counts = (3, 3, 4, 4, 4) if parallel else (6, 3, 8, 5, 4)
        pairs = ("nbi,nih->nbh", "nbi,nbh->nih", "nbh,nho->nbo", "nbo,nho->nbh", "nbh,nbo->nho")
        sizes = {"n": nodes, "b": batch, "i": 784, "h": hidden, "o": 10}
        return sizes, dict(zip(pairs, counts, strict=True))

    def init(*shape: int) -> Array:
        return jnp.asarray(draw.standard_normal(shape, np.float32) / shape[0] ** 0.5)

    numbers = jnp.arange(nodes * per_node, dtype=jnp.int32).reshape(nodes, per_node)
    y0 = {"w1": init(784, hidden), "b1": jnp.zeros(hidden), "w2": init(hidden, 10), "b2": jnp.zeros(10)}
    return Case(
        "MLP 784-300-10",
        *cleaning_losses(logits),
        data(1000),
        (*data(per_node), numbers),
        jnp.zeros(nodes * per_node),
        y0,
        batch,
        products,
        (1.0, 0.02, 0.02, 0.3),
        "label-cleaning",
    )
