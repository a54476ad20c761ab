"""Conjugate gradients, for every node at once.

Not `lineax.CG`: in float32 it runs to `max_steps`, or to NaN, where rounding keeps it from its tolerance, also with the
tolerance floored; and its operator is one system, where this one multiplies for all nodes and counts each product once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from ._vector import Vector, choose, dots, each, positive

LOST = 1e6  # a squared residual that grew so far beyond the least will not come back


T = TypeVar("T")
While: TypeAlias = Callable[[Callable[[T], Array], Callable[[T], T], T], T]  # condition, body and start, as JAX's
# j, z, r, w, ‖r‖², the z of the least residual, and that residual squared
Carry: TypeAlias = tuple[Int[Array, ""], Vector, Vector, Vector, Float[Array, " nodes"], Vector, Float[Array, " nodes"]]


def conjugate_gradients(
    multiply: Callable[[Vector], Vector],
    b: Vector,
    steps: int,
    tolerance: float,
    loop: While[Carry] = jax.lax.while_loop,
) -> Vector:
    """Every node's z with H z = b: that of the least residual, once all have ‖H z − b‖ ≤ tolerance ‖b‖, or `steps` are
    done, or rounding errors dominate."""
    enough = tolerance**2 * b.squared_norms()

    def unfinished(carry: Carry) -> Bool[Array, ""]:
        j, _, _, _, rr, _, least = carry
        return (j < steps) & jnp.any((rr > enough) & (rr < LOST * least))

    def improve(carry: Carry) -> Carry:
        j, z, r, w, rr, best, least = carry
        hw = multiply(w)
        step = rr / positive(dots(w, hw))
        z, r = z + each(step, w), r - each(step, hw)
        new = r.squared_norms()
        w = r + each(new / positive(rr), w)
        return j + 1, z, r, w, new, choose(new < least, z, best), jnp.minimum(new, least)

    rr = b.squared_norms()
    return loop(unfinished, improve, (jnp.int32(0), b.zeros(), b, b, rr, b.zeros(), rr))[5]
