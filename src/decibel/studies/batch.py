"""Several seeds of one run in one compiled program: the key, the data and the start differ, the rest is shared."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core import _keys as keys
from ..core._ledger import Counts, StepCost
from ..core._vector import replicate
from ..engines._program import Program, RunConfig
from ..engines._simulator import Simulator
from ..graphs._graph import Levels
from ..methods._method import Method, State
from ..problem._problem import Problem
from ..problem._samples import NodeData, lay_out
from ..results.metrics import Snapshot


class ShapesDiffer(ValueError):
    """The seeds' problems do not fit into one program."""


class Seeds:
    """The runs of all seeds, side by side. A run that diverges keeps its last good state, and stays there."""

    def __init__(
        self, problems: list[Problem], method: Method, graphs: Levels, *, batch_size: int | None, seeds: list[int]
    ) -> None:
        stacked = stack_problems(problems)
        first = Simulator().start(problems[0], method, graphs, RunConfig(batch_size, seeds[0]))
        starts = [_start(problem, method, graphs.x.nodes, first.state) for problem in problems]
        self.program = replace(first.program, problem=stacked, key=keys.key_per_seed(seeds))
        self._own_data = stacked is not problems[0]
        # Problems of one shape share what is compiled to measure them.
        self.problems = problems if _alike(problems) else [_of_seed(stacked, i) for i in range(len(seeds))]
        self.state: State = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
        self.step = 0
        self.alive = np.ones(len(seeds), bool)

    def compile(self, length: int) -> tuple[Any, StepCost]:
        leaves, structure = jax.tree.flatten((self.program, self.state))
        kinds = tuple(jax.typeof(leaf) if eqx.is_array(leaf) else leaf for leaf in leaves)
        return _compile(structure, kinds, self._own_data, length)

    def advance(self, length: int) -> list[Counts | None]:
        """Moves on all that are alive and returns what it cost each; None for one that diverged."""
        chunk, page = self.compile(length)
        self.state, finite, repetitions = chunk(eqx.filter(self.program, eqx.is_array), self.state, np.int32(self.step))
        self.alive &= np.asarray(finite)
        self.step += length
        sums = [np.asarray(times, np.float64).reshape(len(self.alive), -1).sum(1) for times in repetitions]
        return [page.total(length, [s[i] for s in sums]) if ok else None for i, ok in enumerate(self.alive)]

    def snapshot(self, i: int) -> Snapshot:
        return Snapshot(self.problems[i], _pick(self.state, i))


def _start(problem: Problem, method: Method, nodes: int, like: State) -> State:
    y = None if problem.y0 is None else replicate(problem.y0, nodes)
    return method.start(replicate(problem.x0, nodes), y)._replace(links=like.links)


@jax.jit
def _pick(state: State, i: int) -> State:
    return jax.tree.map(lambda leaf: leaf[i], state)


@lru_cache(maxsize=16)
def _compile(structure: Any, kinds: tuple[Any, ...], own_data: bool, length: int) -> tuple[Any, StepCost]:
    """Ahead of time, so that compiling is never timed as running."""
    shapes = [_shape(kind) for kind in kinds]
    program, state = jax.tree.unflatten(structure, shapes)
    arrays, static = eqx.partition(program, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    # What is stacked has the axis of seeds first; the method, the network and shared data have none.
    along: Any = replace(program, problem=0 if own_data else None, method=None, exchange=None, nodes=None, key=0)
    pages: list[StepCost] = []

    def one(arrays: Program, state: State, first: Array) -> tuple[State, Array, list[Array]]:
        here = eqx.combine(arrays, static)
        pages.append(here.costs(state))
        new, finite, repetitions = here.chunk(state, first, length)
        return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, state), finite, repetitions

    every = jax.vmap(one, in_axes=(along, 0, None))
    first = jax.ShapeDtypeStruct((), jnp.int32)
    compiled = jax.jit(every, donate_argnums=1).lower(arrays, state, first).compile()
    return compiled, pages[0]


def _shape(kind: Any) -> Any:
    if hasattr(kind, "shape") and hasattr(kind, "dtype"):
        return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=getattr(kind, "weak_type", False))
    return kind


def stack_problems(problems: list[Problem]) -> Problem:
    """One problem whose arrays have a leading axis of seeds; the first itself where all are the same object."""
    if all(problem is problems[0] for problem in problems):
        return problems[0]
    bare = [problem.on_data(None, None) for problem in problems]
    upper = _stack_data([problem.upper_data for problem in problems])
    shared = all(problem.lower_data is problem.upper_data for problem in problems)
    lower = upper if shared else _stack_data([problem.lower_data for problem in problems])
    structures = {jax.tree.structure(problem) for problem in bare}
    if len(structures) > 1:
        raise ShapesDiffer("the problems of the seeds differ in structure.")
    stacked = jax.tree.map(_stack, *bare)
    return stacked.on_data(upper, lower)


def _alike(problems: list[Problem]) -> bool:
    kinds = [(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf for leaf in jax.tree.leaves(problems[0])]
    return all(
        jax.tree.structure(problem) == jax.tree.structure(problems[0])
        and [(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf for leaf in jax.tree.leaves(problem)] == kinds
        for problem in problems[1:]
    )


def _of_seed(stacked: Problem, i: int) -> Problem:
    return jax.tree.map(lambda leaf: leaf[i] if eqx.is_array(leaf) else leaf, stacked)


def _stack(*leaves: Any) -> Any:
    if not eqx.is_array(leaves[0]):
        if any(leaf is not leaves[0] and leaf != leaves[0] for leaf in leaves):
            raise ShapesDiffer("the problems of the seeds differ in a setting.")
        return leaves[0]
    if len({(leaf.shape, leaf.dtype) for leaf in leaves}) > 1:
        raise ShapesDiffer("the problems of the seeds differ in shape.")
    return jnp.stack(leaves)


def _stack_data(many: list[NodeData | None]) -> NodeData | None:
    """The nodes of all seeds laid out together, so that one plan of the exact mean serves every seed."""
    given = [data for data in many if data is not None]
    if len(given) < len(many):
        return None
    seeds, nodes = len(given), given[0].nodes
    counts = np.stack([np.asarray(data.counts) for data in given])  # (seeds, nodes)
    most = int(counts.max())
    trees = [_repeat(data, most) for data in given]
    if len({(jax.tree.structure(tree), tuple(a.shape for a in jax.tree.leaves(tree))) for tree in trees}) > 1:
        raise ShapesDiffer("the samples of the seeds differ in shape.")
    flat = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees)
    laid = lay_out(flat, counts.ravel())
    fold: Any = lambda leaf: None if leaf is None else leaf.reshape(seeds, nodes, *leaf.shape[1:])  # noqa: E731
    return NodeData(
        jax.tree.map(fold, laid.tree), fold(laid.counts), fold(laid.offsets), fold(laid.weights), laid.part_sizes,
        laid.samples_per_node,
    )  # fmt: skip


def _repeat(data: NodeData, most: int) -> Any:
    """Leaves (nodes, most, ...), a short node repeating its own samples."""
    have = jax.tree.leaves(data.tree)[0].shape[1]
    if have == most:
        return data.tree
    index = np.arange(most)[None] % np.asarray(data.counts)[:, None]
    return jax.tree.map(lambda leaf: leaf[np.arange(data.nodes)[:, None], index], data.tree)
