"""A limit on what a link may carry: a bound on what a lying neighbour can do.

A node adds what a link has carried so far to its own step, so whoever sends wrong numbers for long enough moves it
anywhere, and clipping each step's difference would not help: sums of small lies are large. Here the flow itself is cut
to a Euclidean norm, at each end alone and before it is used. Below the limit nothing is changed, to the last bit.

A limit is in the units of directions: a flow is worth its norm divided by the level's step size, since s − d + Σ_j F_ij
stays where it is when Σ_j F_ij is the step d.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core._types import PyTree, Scalar
from ..core._vector import flatten, positive

Limit = Scalar | Mapping[str, Scalar]  # for every level, or by level
Sizes = dict[str, Array]  # by level, (*slots, 2) how large flows are before they are cut: now, and at most so far


def no_sizes(content: Mapping[str, PyTree], F: Array) -> Sizes:
    """Before the first step."""
    return {level: jnp.zeros((*F.shape[:-1], 2), F.dtype) for level in content}


def cut_levels(
    F: Array, content: Mapping[str, PyTree], within: Mapping[str, tuple[Scalar, Limit]], sizes: Sizes
) -> tuple[Array, Sizes]:
    """(*slots, entries) the flows of all levels, each cut to its limit times its step size, and how large they were."""
    levels = sorted(content)  # as content is flattened
    ends = np.cumsum([flatten(content[level])[0].shape[1] for level in levels])[:-1].tolist()
    parts, after = [], {}
    for level, part in zip(levels, jnp.split(F, ends, -1), strict=True):
        rate, limit = within[level]
        if isinstance(limit, Mapping):
            if level not in limit:
                raise ValueError(f"limit lacks level {level}: add it, or give one number for all.")
            limit = limit[level]
        part, size = cut(part, jnp.asarray(rate, F.dtype), jnp.asarray(limit, F.dtype))
        parts.append(part)
        after[level] = jnp.stack([size, jnp.maximum(size, sizes[level][..., 1])], -1)
    return jnp.concatenate(parts, -1), after


def cut(F: Array, rate: Array, limit: Array) -> tuple[Array, Array]:
    """F with no row's norm above rate · limit, and the norms divided by the rate. Up to an eighth of the largest number
    nothing overflows, nor does an inverse vanish."""
    most = jnp.finfo(F.dtype).max
    entry = jnp.abs(F).max(-1)
    shares = F / positive(entry)[..., None]
    norm = jnp.maximum(jnp.sqrt(jnp.square(shares).sum(-1)), 1)  # in units of the largest entry
    allowed = rate * limit / norm
    kept = jnp.where((entry > allowed)[..., None], shares * allowed[..., None], F)
    # With a step size of zero every flow is too large.
    size = jnp.where(rate > 0, entry * norm / positive(rate), jnp.where(entry > 0, most, 0))
    return kept, jnp.minimum(size, most)


def clamped(rows: Array) -> Array:
    """What is received, so that no flow that is made of it is too large to be `cut`."""
    most = float(jnp.finfo(rows.dtype).max) / 16
    return jnp.clip(rows, -most, most)
