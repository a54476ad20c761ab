"""How one node's variables are split over several devices."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ...core._numbers import validate_count
from ...core._types import PyTree
from ...core._vector import Vector
from ...methods._method import State

AXIS, SHARD = "nodes", "shard"  # of the mesh: nodes, whose exchanges are written by hand, and parts of a node


@dataclass(frozen=True)
class Shards:
    """How each node's x and y are split over several devices of a `Cluster`.

    Whatever is shaped like x or y (their carries, averages and trackers, and z) is split in the same way. A leaf
    without a specification is split along its largest axis that is divisible by `count` (the first, if several are
    equally large). A leaf with fewer than `smallest` entries stays whole on each device.

    Args:
        count: the number of devices per node.
        x: `jax.sharding.PartitionSpec`s over the axis `"shard"`, in the structure of `x0` or of a part of it. The spec
            of a subtree applies to all its leaves. None applies the rule to all leaves.
        y: the same for `y0`.
        smallest: leaves with fewer entries are not split by the rule.
    """

    count: int
    x: PyTree = None
    y: PyTree = None
    smallest: int = 4096

    def __post_init__(self) -> None:
        for name, value in (("shard", self.count), ("smallest", self.smallest)):
            validate_count(name, value)

    def layout(self, x0: PyTree, y0: PyTree | None) -> ShardLayout:
        """How x and y lie on the devices."""
        if y0 is None and self.y is not None:
            raise ValueError("Shards(y=...) needs a lower level, and the problem has none: leave out y.")
        levels = (("x", x0, self.x), ("y", y0, self.y))
        return ShardLayout(self.count, tuple(self._split(*level) for level in levels if level[1] is not None))

    def _split(self, level: str, start: PyTree, specs: PyTree) -> LevelSplit:
        paths, structure = jax.tree_util.tree_flatten_with_path(start)
        leaves = {_name(path): jnp.shape(leaf) for path, leaf in paths}
        specified = jax.tree_util.tree_flatten_with_path(
            specs, is_leaf=lambda node: node is None or isinstance(node, P)
        )[0]
        chosen: dict[str, int | None] = {}
        for path, spec in specified if specs is not None else ():
            part = _name(path)
            inside = [name for name in leaves if not part or name == part or name.startswith(f"{part}/")]
            if not inside:
                names = ", ".join(map(repr, leaves))
                raise ValueError(f"Shards({level}=...) has a spec for {part!r}, which {level}0 lacks: it has {names}.")
            if spec is not None:
                chosen |= {name: self._axis(f"Shards({level}=...) at {name!r}", spec, leaves[name]) for name in inside}
        axes = tuple(chosen[name] if name in chosen else self._rule(shape) for name, shape in leaves.items())
        return LevelSplit(structure, tuple(leaves.values()), axes if self.count > 1 else (None,) * len(axes))

    def _rule(self, shape: tuple[int, ...]) -> int | None:
        sizes = [size if size % self.count == 0 else 0 for size in shape]
        return sizes.index(max(sizes)) if math.prod(shape) >= self.smallest and any(sizes) else None

    def _axis(self, argument: str, spec: object, shape: tuple[int, ...]) -> int | None:
        if not isinstance(spec, P):
            raise TypeError(f"{argument} is a {type(spec).__name__}: give a jax.sharding.PartitionSpec, or None.")
        entries = [entry[0] if isinstance(entry, tuple) and len(entry) == 1 else entry for entry in spec]
        if any(entry not in (None, SHARD) for entry in entries) or entries.count(SHARD) > 1:
            raise ValueError(f"{argument} is {tuple(spec)}: name the axis {SHARD!r} once, or not at all.")
        if SHARD not in entries:
            return None
        axis = entries.index(SHARD)
        if axis >= len(shape) or shape[axis] % self.count:
            raise ValueError(
                f"{argument} is {tuple(spec)}, and {shape} is not divisible by {self.count} there: choose another axis."
            )
        return axis


class LevelSplit(NamedTuple):
    """The variable of one level: its structure, and of each leaf the shape and the axis that is split, if any."""

    structure: Hashable
    shapes: tuple[tuple[int, ...], ...]
    axes: tuple[int | None, ...]

    def fits(self, leaves: Sequence[jax.Array], structure: Hashable) -> bool:
        """Whether leaves are shaped like this variable, behind the axis of nodes and any others."""
        if structure != self.structure:
            return False
        pairs = zip(leaves, self.shapes, strict=True)
        return all(leaf.ndim > len(shape) and leaf.shape[leaf.ndim - len(shape) :] == shape for leaf, shape in pairs)


class ShardLayout(NamedTuple):
    """The devices of the parts of a node's vectors: a `Vector` shaped like x or y is split like it, nothing else is."""

    shards: int
    levels: tuple[LevelSplit, ...]

    def starts(self, mesh: Mesh) -> tuple[PyTree, ...]:
        """The shardings of x0 and y0."""

        def start(split: LevelSplit) -> PyTree:
            shardings = [NamedSharding(mesh, _spec((), axis)) for axis in split.axes]
            return jax.tree.unflatten(split.structure, shardings)

        return tuple(map(start, self.levels))

    def specs(self, tree: PyTree, *first: str) -> PyTree:
        """The spec of every leaf of a tree of vectors; `first` is that of the axis of nodes."""
        specs: list[P] = []
        for part in jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Vector)):
            specs += self._of(part) if isinstance(part, Vector) else [P(*first)]
        return jax.tree.unflatten(jax.tree.structure(tree), [P(*first, *spec[1:]) if first else spec for spec in specs])

    def link_specs(self, links: PyTree, *first: str) -> PyTree:
        """The specs of the state of links: buffers, whose last axis holds one part after the other."""

        def spec(leaf: jax.Array) -> P:
            if self.shards == 1:
                return P(*first)
            axes = (*first, *(None,) * leaf.ndim)[: leaf.ndim - 1]
            return P(*axes, SHARD)

        return jax.tree.map(spec, links)

    def shardings(self, state: State, mesh: Mesh) -> State:
        """The shardings of a state, or of its shapes."""
        specs = self.specs(state._replace(link_memory=()), AXIS)._replace(
            link_memory=self.link_specs(state.link_memory, AXIS)
        )
        return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)

    def local(self, tree: PyTree) -> PyTree:
        """The shapes of a tree of vectors at one of the devices."""

        def cut(leaf: jax.Array, spec: P) -> jax.ShapeDtypeStruct:
            parts = [self.shards if name == SHARD else 1 for name in (*spec, *(None,) * leaf.ndim)]
            shape = tuple(size // part for size, part in zip(leaf.shape, parts, strict=False))
            return jax.ShapeDtypeStruct(shape, leaf.dtype)

        return jax.tree.map(cut, tree, self.specs(tree))

    def _of(self, vector: Vector) -> list[P]:
        leaves, structure = jax.tree.flatten(vector.tree)
        for split in self.levels:
            if split.fits(leaves, structure):
                before = [leaf.ndim - len(shape) for leaf, shape in zip(leaves, split.shapes, strict=True)]
                return [_spec((None,) * n, axis) for n, axis in zip(before, split.axes, strict=True)]
        return [P() for _ in leaves]


def _spec(before: tuple[None, ...], axis: int | None) -> P:
    return P() if axis is None else P(*before, *(None,) * axis, SHARD)


def _name(path: tuple[object, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def manual(spec: P) -> P:
    """The part of a spec that is written by hand: the axis of nodes."""
    return P(*(name if name == AXIS else None for name in spec))
