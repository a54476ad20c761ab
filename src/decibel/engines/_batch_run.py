"""Several runs in one compiled program: keys, step sizes, data and starts may differ, the rest is shared."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core import _keys as keys
from ..core._convolutions import compile_step
from ..core._ledger import Counts, StepCost
from ..core._types import PyTree
from ..core._vector import replicate
from ..graphs._graph import Graph, GraphSequence, Levels
from ..methods._method import Method, State
from ..problem._problem import Problem
from ..problem._samples import NodeData, lay_out
from ..problem._stream_trace import pop_source_error, validate_indexed
from ..problem._streams import Samples, StreamData
from ..results.metrics import Snapshot
from ._program import Program, RunConfig
from ._run import Compiled, leaf_shapes, leaf_types, split_arrays_and_static
from ._simulator import Simulator


class ShapesDiffer(ValueError):
    """The problems of the runs do not fit into one program."""


class BatchRun:
    """Several runs in one compiled program on the simulator.

    Args:
        problems: one for each run; the same object where all runs have the same data.
        method: the method of all runs.
        graph: a graph, or a graph per level, of all runs.
        batch_size: samples per node, level and step; None uses all samples.
        seeds: one for each run.
        rates: step sizes of the method that differ between runs, each with a value for every run.
        keep_finite: whether a run that diverges keeps its last finite state, which takes memory for the states before
            each chunk; otherwise it continues with NaN.

    Attributes:
        problems: the problem of each run.
        program: what is compiled; its problem has a leading axis of runs where the data differ.
        state: the current state, whose leaves have a leading axis of runs.
        step: the steps done so far.
        alive: for each run whether its state is still finite.

    Raises:
        ValueError: if the method does not fit, or the problems differ in more than the values of their arrays.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        method: Method,
        graph: Graph | GraphSequence | Levels,
        *,
        batch_size: int | None,
        seeds: Sequence[int],
        rates: Mapping[str, Sequence[float]] | None = None,
        keep_finite: bool = True,
    ) -> None:
        graphs = graph if isinstance(graph, Levels) else Levels(x=graph)
        bound = {id(problem): problem.bind(graphs.nodes) for problem in problems}
        problems = [bound[id(problem)] for problem in problems]
        for problem in bound.values():
            if problem.nodes != graphs.nodes:
                raise ValueError(
                    f"graph has {graphs.nodes} nodes but the data have {problem.nodes}: give equal numbers."
                )
            method.validate(problem, graphs, batch_size)
            validate_indexed(problem, "a run beside others")
        stacked = stack_problems(problems)
        first = Simulator().start(problems[0], method, graphs, RunConfig(batch_size=batch_size, seed=seeds[0]))
        states = {id(problem): _initial_state(problem, method, graphs.nodes, first.state) for problem in problems}
        initial_states = [states[id(problem)] for problem in problems]
        self.program = replace(first.program, problem=stacked, key=keys.key_per_seed(seeds))
        self.rates = {name: jnp.asarray(values) for name, values in (rates or {}).items()}
        self._own_data = stacked is not problems[0]
        # Problems of one shape share what is compiled to measure them.
        self.problems = problems if _alike(problems) else [_of_run(stacked, i) for i in range(len(seeds))]
        self.state: State = jax.tree.map(lambda *leaves: jnp.stack(leaves), *initial_states)
        self.step = 0
        self._keep_finite = keep_finite
        self.alive = np.ones(len(seeds), bool)

    def compile(self, length: int) -> Compiled:
        """Compiles a chunk of that many steps, unless it is compiled already."""
        leaves, structure = jax.tree.flatten((self.program, self.rates, self.state))
        return _compile(structure, leaf_types(leaves), self._own_data, self._keep_finite, length)

    def advance(self, length: int) -> list[Counts | None]:
        """Moves all runs on by that many steps.

        Returns:
            The cost of each run by column; None for a run that diverged.
        """
        compiled = self.compile(length)
        arrays = eqx.filter(self.program, eqx.is_array)
        first = np.int32(self.step)
        self.state, alive, repetitions = compiled.chunk(arrays, self.rates, self.state, self.alive, first)
        self.alive = np.array(alive)
        for problem in self.problems:
            if (error := pop_source_error(problem)) is not None:
                raise error
        self.step += length
        sums = [np.asarray(times, np.float64).reshape(len(self.alive), -1).sum(1) for times in repetitions]
        cost = compiled.step_cost
        return [cost.total(length, [s[i] for s in sums]) if ok else None for i, ok in enumerate(self.alive)]

    def snapshot(self, i: int) -> Snapshot:
        """The problem and the state of run i, for metrics."""
        return Snapshot(self.problems[i], _pick(self.state, i))


def _initial_state(problem: Problem, method: Method, nodes: int, like: State) -> State:
    y = None if problem.y0 is None else replicate(problem.y0, nodes)
    return method.start(replicate(problem.x0, nodes), y)._replace(link_memory=like.link_memory)


@jax.jit
def _pick(state: State, i: int) -> State:
    return jax.tree.map(lambda leaf: leaf[i], state)


@lru_cache(maxsize=16)
def _compile(
    structure: Hashable, types: tuple[PyTree, ...], own_data: bool, keep_finite: bool, length: int
) -> Compiled:
    """Compiles a chunk ahead of time, so that compiling is never timed as running."""
    program, rates, state = jax.tree.unflatten(structure, leaf_shapes(types))
    arrays, static = split_arrays_and_static(program)
    # What is stacked has the axis of runs first; the method, the network and shared data have none.
    along: PyTree = replace(program, problem=0 if own_data else None, method=None, network=None, node_ids=None, key=0)
    traced_costs: list[StepCost] = []

    def run(
        arrays: Program, rates: dict[str, Array], state: State, alive: Array, first: Array
    ) -> tuple[State, Array, list[Array]]:
        bound = eqx.combine(arrays, static)
        bound = replace(bound, method=replace(bound.method, **rates))
        new, finite, repetitions = bound.chunk(state, first, length, traced_costs)
        alive = alive & finite
        if keep_finite:
            new = jax.tree.map(lambda a, b: jnp.where(alive, a, b), new, state)
        return new, alive, repetitions

    every = jax.vmap(run, in_axes=(along, 0, 0, 0, None))
    first, alive = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct(program.key.shape[:1], bool)
    compiled = compile_step(every, 2, arrays, rates, state, alive, first)
    return Compiled.of(compiled, traced_costs[-1])


def stack_problems(problems: Sequence[Problem]) -> Problem:
    """One problem whose arrays have a leading axis of runs; the first problem itself if all are the same object."""
    if all(problem is problems[0] for problem in problems):
        return problems[0]
    bare = [problem.replace_data(None, None) for problem in problems]
    upper = _stack_data([problem.upper_data for problem in problems])
    shared = all(problem.lower_data is problem.upper_data for problem in problems)
    lower = upper if shared else _stack_data([problem.lower_data for problem in problems])
    structures = {jax.tree.structure(problem) for problem in bare}
    if len(structures) > 1:
        raise ShapesDiffer("the problems of the runs differ in structure.")
    stacked = jax.tree.map(_stack, *bare)
    return stacked.replace_data(upper, lower)


def _alike(problems: Sequence[Problem]) -> bool:
    def kinds(problem: Problem) -> tuple[Hashable, list[PyTree]]:
        leaves, structure = jax.tree.flatten(problem)
        return structure, [(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf for leaf in leaves]

    return all(kinds(problem) == kinds(problems[0]) for problem in problems[1:])


def _of_run(stacked: Problem, i: int) -> Problem:
    return jax.tree.map(lambda leaf: leaf[i] if eqx.is_array(leaf) else leaf, stacked)


def _stack(*leaves: PyTree) -> PyTree:
    if not eqx.is_array(leaves[0]):
        if any(leaf is not leaves[0] and leaf != leaves[0] for leaf in leaves):
            raise ShapesDiffer("the problems of the runs differ in a setting.")
        return leaves[0]
    if len({(leaf.shape, leaf.dtype) for leaf in leaves}) > 1:
        raise ShapesDiffer("the problems of the runs differ in shape.")
    return jnp.stack(leaves)


def _stack_data(parts: list[Samples | None]) -> NodeData | None:
    """The samples of all runs, laid out together so that one plan for exact means fits every run."""
    if any(isinstance(data, StreamData) for data in parts):
        raise ShapesDiffer("the problems of the runs differ, and some are streams.")
    in_memory = [data for data in parts if isinstance(data, NodeData)]
    if len(in_memory) < len(parts):
        return None
    runs, nodes = len(in_memory), in_memory[0].nodes
    counts = np.stack([np.asarray(data.counts) for data in in_memory])  # (runs, nodes)
    most = int(counts.max())
    trees = [_repeat(data, most) for data in in_memory]
    if len({(jax.tree.structure(tree), tuple(a.shape for a in jax.tree.leaves(tree))) for tree in trees}) > 1:
        raise ShapesDiffer("the samples of the runs differ in shape.")
    flat = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees)
    laid = lay_out(flat, counts.ravel())
    return jax.tree.map(lambda leaf: leaf.reshape(runs, nodes, *leaf.shape[1:]), laid)


def _repeat(data: NodeData, most: int) -> PyTree:
    """Leaves (nodes, most, ...), a short node repeating its own samples."""
    have = jax.tree.leaves(data.tree)[0].shape[1]
    if have == most:
        return data.tree
    index = np.arange(most)[None] % np.asarray(data.counts)[:, None]
    return jax.tree.map(lambda leaf: leaf[np.arange(data.nodes)[:, None], index], data.tree)
