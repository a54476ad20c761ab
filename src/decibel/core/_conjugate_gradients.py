"""Conjugate gradients, for every node at once.

`lineax.CG` does not fit: where rounding errors keep float32 from its tolerance, it runs to `max_steps` or to NaN. Its
operator is one system; this one multiplies for all nodes and counts each product once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from ._vector import Vector, choose, dots, nonzero_divisor, scale_nodes

LOST = 1e6  # rounding errors dominate a squared residual that has grown to this many times the least one


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
    """Every node's z with H z = b, of the least residual that was reached.

    Ends once every node has ‖H z − b‖ ≤ tolerance ‖b‖, after `steps` steps, or when rounding errors dominate.
    """
    enough = tolerance**2 * b.squared_norms()

    def unfinished(carry: Carry) -> Bool[Array, ""]:
        j, _, _, _, rr, _, least = carry
        return (j < steps) & jnp.any((rr > enough) & (rr < LOST * least))

    def improve(carry: Carry) -> Carry:
        j, z, r, w, rr, best, least = carry
        hw = multiply(w)
        step = rr / nonzero_divisor(dots(w, hw))
        z, r = z + scale_nodes(step, w), r - scale_nodes(step, hw)
        new = r.squared_norms()
        w = r + scale_nodes(new / nonzero_divisor(rr), w)
        return j + 1, z, r, w, new, choose(new < least, z, best), jnp.minimum(new, least)

    rr = b.squared_norms()
    return loop(unfinished, improve, (jnp.int32(0), b.zeros(), b, b, rr, b.zeros(), rr))[5]
