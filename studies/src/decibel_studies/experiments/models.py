"""Parts of the models that nodes share in part, and keep in part."""

from __future__ import annotations

from jax import Array

from ..type_aliases import PyTree, Snapshot

Layer = dict[str, Array]


def affine(layer: Layer, inputs: Array) -> Array:
    return inputs @ layer["weight"] + layer["bias"]


def models_of_nodes(snapshot: Snapshot) -> tuple[PyTree, PyTree]:
    """Every node's shared and personal part, leaves (nodes, ...), also where the problem has one level."""
    nodes = snapshot.nodes
    return (nodes.x["shared"], nodes.x["personal"]) if snapshot.problem.single_level else (nodes.x, nodes.y)
