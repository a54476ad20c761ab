"""Clipped flows: a bound on the influence of a malicious neighbour.

A node adds the accumulated flow of a link to its own step, so a neighbour that sends wrong numbers for long enough can
move it anywhere. Clipping the difference of each step would not help, since small errors add up. Here the norm of the
flow itself is clipped, at each end and before it is used. Below the limit nothing changes, to the last bit.

A limit is in the units of directions: the size of a flow is its norm divided by the level's step size, since
s − d + Σ_j F_ij = s when Σ_j F_ij is the displacement d.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core._types import PyTree, Scalar
from ..core._vector import flatten, nonzero_divisor

Limit = Scalar | Mapping[str, Scalar]  # for every level, or by level
# By level, (*slots, 2) the sizes of flows before they are clipped: [..., 0] of this step, [..., 1] the largest so far.
Sizes = dict[str, Array]


class FlowBound(NamedTuple):
    """The bound on the norm of a link's flow: the step size of the level, `rate`, times `limit`."""

    rate: Scalar
    limit: Limit


def no_sizes(content: Mapping[str, PyTree], F: Array) -> Sizes:
    """Sizes before the first step."""
    return {level: jnp.zeros((*F.shape[:-1], 2), F.dtype) for level in content}


def clip_levels(
    F: Array, content: Mapping[str, PyTree], flow_bounds: Mapping[str, FlowBound], sizes: Sizes
) -> tuple[Array, Sizes]:
    """(*slots, entries) the flows of all levels, clipped to their bounds, and the sizes that they had before."""
    levels = sorted(content)  # as content is flattened
    ends = np.cumsum([flatten(content[level])[0].shape[1] for level in levels])[:-1].tolist()
    clipped_parts = []
    new_sizes = {}
    for level, part in zip(levels, jnp.split(F, ends, -1), strict=True):
        rate, limit = flow_bounds[level]
        if isinstance(limit, Mapping):
            if level not in limit:
                raise ValueError(f"limit lacks level {level}: add it, or give one number for all.")
            limit = limit[level]
        clipped, size = clip(part, jnp.asarray(rate, F.dtype), jnp.asarray(limit, F.dtype))
        clipped_parts.append(clipped)
        new_sizes[level] = jnp.stack([size, jnp.maximum(size, sizes[level][..., 1])], -1)
    return jnp.concatenate(clipped_parts, -1), new_sizes


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
