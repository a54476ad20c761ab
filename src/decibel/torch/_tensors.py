"""Between tensors of PyTorch and arrays of JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core._types import PyTree
from ._libraries import libraries


def is_tensor(leaf: object) -> bool:
    torch, _ = libraries()
    return isinstance(leaf, torch.Tensor)


def to_numpy(tensor: PyTree) -> np.ndarray:
    """The values of a tensor, which it may share."""
    torch, _ = libraries()
    values = tensor.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def to_array(tensor: PyTree, name: str) -> Array:
    """A copy, so that nothing changes with the tensor."""
    values = to_numpy(tensor)
    if values.dtype == np.float64 and not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        fix = 'call .float(), or jax.config.update("jax_enable_x64", True) first'
        raise ValueError(f"{name} is float64, which JAX has not enabled: {fix}.")
    return jnp.array(values)


def arrays(tree: PyTree, name: str) -> PyTree:
    """A pytree with its tensors as arrays of JAX, and what is NumPy's too."""
    return jax.tree.map(lambda leaf: to_array(leaf, name) if is_tensor(leaf) else jnp.asarray(leaf), tree)
