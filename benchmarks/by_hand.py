"""SPARKLE-ED on a ring, written by hand as a bare `lax.scan`: what the library is measured against.

State: stacked arrays (x, c_x, y, c_y, z, c_z, r). The same samples are drawn as in the library: keys are folded with
step, draw and node, and an index is floor(bits · n / 2³²). In sequence v, H z and J z⁺ have a lower batch each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .cases import Case

FRESH = 2**28  # as the library numbers fresh lower batches
State = tuple[Any, ...]
add = lambda *trees: jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *trees)  # noqa: E731


def ring(s: Array) -> Array:
    return 0.25 * (jnp.roll(s, 1, 0) - s) + 0.25 * (jnp.roll(s, -1, 0) - s)


def start(case: Case) -> State:
    copy = lambda tree: jax.tree.map(lambda leaf: jnp.repeat(leaf[None], case.nodes, 0), tree)  # noqa: E731
    zero = lambda tree: copy(jax.tree.map(jnp.zeros_like, tree))  # noqa: E731
    return copy(case.x0), zero(case.x0), copy(case.y0), zero(case.y0), zero(case.y0), zero(case.y0), zero(case.x0)


def index(bits: Array, count: int) -> Array:
    """floor(bits · count / 2³²) for count < 2¹⁶, in 32 bits."""
    high, low = bits >> 16, bits & 0xFFFF
    return ((high * count + ((low * count) >> 16)) >> 16).astype(jnp.int32)


def draws(case: Case, key: Array, k: Any, parallel: bool) -> list[Array]:
    """(nodes, batch) random bits of step k: of the upper batch, then of one or three lower ones."""
    here = jax.random.fold_in(jax.random.fold_in(key, k), 0)

    def bits(key: Array) -> Array:
        own = lambda node: jax.random.bits(jax.random.fold_in(key, node), (2, case.batch), jnp.uint32)  # noqa: E731
        return jax.vmap(own)(jnp.arange(case.nodes))

    first = bits(here)
    fresh = [] if parallel else [bits(jax.random.fold_in(here, FRESH + i))[:, 1] for i in range(2)]
    return [first[:, 0], first[:, 1], *fresh]


def scan(case: Case, parallel: bool, length: int) -> Callable[..., State]:
    """`length` steps from step `first`, as a function of (key, upper data, lower data, rates, state, first)."""

    def rows(bits: Array, data: tuple[Array, ...]) -> tuple[Array, ...]:
        pick = jax.vmap(lambda leaf, i: leaf.at[i].get(mode="promise_in_bounds"))
        return tuple(pick(leaf, index(bits, data[0].shape[1])) for leaf in data)

    def gradients(x: Array, y: Any, batch: tuple[Array, ...]) -> tuple[Array, Any]:
        return jax.vmap(jax.grad(case.upper, (0, 1)))(x, y, batch)

    def curvature(x: Array, y: Any, batch: tuple[Array, ...]) -> tuple[Any, Callable]:
        return jax.vjp(lambda x, y: jax.vmap(jax.grad(case.lower, 1))(x, y, batch), x, y)

    def ed(s: Any, c: Any, rate: Array, d: Any) -> tuple[Any, Any]:
        φ = jax.tree.map(lambda s, c, d: s - rate * d + c, s, c, d)
        δ = jax.tree.map(ring, φ)
        return add(φ, δ), add(c, δ)

    def run(key: Array, upper: Any, lower: Any, rates: Array, state: State, first: Array) -> State:
        α, β, γ, θ = rates

        def step(state: State, k: Array) -> tuple[State, None]:
            x, cx, y, cy, z, cz, r = state
            first, *rest = draws(case, key, k, parallel)
            above, below = rows(first, upper), [rows(bits, lower) for bits in rest]
            v, pullback = curvature(x, y, below[0])
            if not parallel:
                y, cy = ed(y, cy, β, v)
                _, pullback = curvature(x, y, below[1])
            fx, fy = gradients(x, y, above)
            jz, hz = pullback(z)
            new_z, cz = ed(z, cz, γ, jax.tree.map(jnp.subtract, hz, fy))
            if not parallel:
                jz, _ = curvature(x, y, below[2])[1](new_z)
            r = (1 - θ) * r + θ * (fx - jz)
            new_x, cx = ed(x, cx, α, r)
            if parallel:
                y, cy = ed(y, cy, β, v)
            return (new_x, cx, y, cy, new_z, cz, r), None

        return jax.lax.scan(step, state, first + jnp.arange(length, dtype=jnp.int32))[0]

    return run
