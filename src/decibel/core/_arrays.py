"""NumPy arrays on the device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike


def on_device(values: ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """As `jnp.asarray`, which compiles a program for each new shape of NumPy array; this compiles none."""
    if not isinstance(values, np.ndarray):
        return jnp.asarray(values, dtype)
    return jax.device_put(values if dtype is None else values.astype(dtype), may_alias=False)
