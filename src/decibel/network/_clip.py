"""Clipped flows: a bound on the influence of a malicious neighbour.

A node adds the accumulated flow of a link to its own step, so a neighbour that sends wrong numbers for long enough can
move it anywhere. Clipping the difference of each step would not help, since small errors add up. Here the norm of the
flow itself is clipped, at each end and before it is used. Below the limit nothing changes, to the last bit.

A limit is in the units of directions: the size of a flow is its norm divided by the level's step size, since
s − d + Σ_j F_ij = s when Σ_j F_ij is the step d.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core._types import PyTree, Scalar
from ..core._vector import flatten, nonzero_divisor

Limit = Scalar | Mapping[str, Scalar]  # for every level, or by level
Sizes = dict[str, Array]  # by level, (*slots, 2) the size of flows before they are clipped: now, and the largest so far


def no_sizes(content: Mapping[str, PyTree], F: Array) -> Sizes:
    """Sizes before the first step."""
    return {level: jnp.zeros((*F.shape[:-1], 2), F.dtype) for level in content}


def clip_levels(
    F: Array, content: Mapping[str, PyTree], within: Mapping[str, tuple[Scalar, Limit]], sizes: Sizes
) -> tuple[Array, Sizes]:
    """(*slots, entries) the flows of all levels, clipped to limit times step size, and their sizes before."""
    levels = sorted(content)  # as content is flattened
    ends = np.cumsum([flatten(content[level])[0].shape[1] for level in levels])[:-1].tolist()
    parts, after = [], {}
    for level, part in zip(levels, jnp.split(F, ends, -1), strict=True):
        rate, limit = within[level]
        if isinstance(limit, Mapping):
            if level not in limit:
                raise ValueError(f"limit lacks level {level}: add it, or give one number for all.")
            limit = limit[level]
        part, size = clip(part, jnp.asarray(rate, F.dtype), jnp.asarray(limit, F.dtype))
        parts.append(part)
        after[level] = jnp.stack([size, jnp.maximum(size, sizes[level][..., 1])], -1)
    return jnp.concatenate(parts, -1), after


def clip(F: Array, rate: Array, limit: Array) -> tuple[Array, Array]:
    """F with no row's norm above rate · limit, and the norms divided by the rate.

    Nothing overflows for entries up to an eighth of the largest number, and no inverse vanishes.
    """
    most = jnp.finfo(F.dtype).max
    entry = jnp.abs(F).max(-1)
    shares = F / nonzero_divisor(entry)[..., None]
    norm = jnp.maximum(jnp.sqrt(jnp.square(shares).sum(-1)), 1)  # in units of the largest entry
    allowed = rate * limit / norm
    clipped = jnp.where((entry > allowed)[..., None], shares * allowed[..., None], F)
    # With a step size of zero every flow is too large.
    size = jnp.where(rate > 0, entry * norm / nonzero_divisor(rate), jnp.where(entry > 0, most, 0))
    return clipped, jnp.minimum(size, most)


def clamped(rows: Array) -> Array:
    """Received rows, limited so that no flow computed from them is too large for `clip`."""
    most = float(jnp.finfo(rows.dtype).max) / 16
    return jnp.clip(rows, -most, most)
