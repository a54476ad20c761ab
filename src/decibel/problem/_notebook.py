"""A problem in a notebook."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from ..core._html import table
from ..core._types import PyTree
from ._samples import NodeData
from ._streams import StreamData


def describe(form: str, nodes: int | None, starts: dict[str, PyTree], data: dict[str, PyTree]) -> str:
    """HTML: the form, the nodes, and the shapes of variables and of data."""
    rows: list[tuple[str, str]] = [("form", form), ("nodes", "not known yet" if nodes is None else str(nodes))]
    rows += [(name, _variable(tree)) for name, tree in starts.items() if tree is not None]
    rows += [(name, _samples(held)) for name, held in data.items() if held is not None]
    return table("Problem", rows)


def _variable(tree: PyTree) -> str:
    leaves = jax.tree.leaves(tree)
    entries, arrays = sum(math.prod(jnp.shape(leaf)) for leaf in leaves), len(leaves)
    return f"{entries:,} entries in {arrays} {'array' if arrays == 1 else 'arrays'}, {jnp.result_type(*leaves)}"


def _samples(data: PyTree) -> str:
    if isinstance(data, StreamData):
        shapes = ", ".join(f"{leaf.dtype}{list(leaf.shape[1:])}" for leaf in jax.tree.leaves(data.sample))
        return f"read from {type(data.host).__name__.lower()}, a sample {shapes}"
    if not isinstance(data, NodeData):
        return f"a {type(data).__name__}"
    shapes = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(data.tree))
    return f"(nodes, samples, …) {shapes}"
