"""Every node's data on the device where the node runs, built only by the process that owns it."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from ...core._types import PyTree
from ...problem._problem import Data, Problem
from ...problem._samples import as_float, count_nodes, lay_out, stack_nodes, validate_finite
from ...problem._streams import Samples, StreamData, are_sources, host_counts, host_of, stream_data


def place_problem(problem: Problem, nodes: int, by_node: NamedSharding, starts: tuple[PyTree, ...]) -> Problem:
    """The problem with data by node, and x0 and y0 sharded by `starts`.

    Data given as functions are built for local nodes only.
    """

    def place(data: Data, argument: str) -> Samples:
        if callable(data):
            return _build(data, argument, problem, nodes, by_node)
        return spread(data.spread_by(by_node) if isinstance(data, StreamData) else data, by_node)

    def fields(problem: Problem) -> tuple[PyTree, ...]:
        return (problem.x0, problem.y0)[: len(starts)]

    placed = jax.tree.map(spread, fields(problem), starts)
    return eqx.tree_at(fields, problem.map_data(place), placed)


def local_nodes(nodes: int, by_node: NamedSharding) -> list[int]:
    """The nodes on this process's devices, in order."""
    spans = by_node.addressable_devices_indices_map((nodes,)).values()
    return sorted({node for span in spans if span for node in range(*span[0].indices(nodes))})


def _build(
    function: Callable[[int], PyTree], argument: str, problem: Problem, nodes: int, by_node: NamedSharding
) -> Samples:
    local = local_nodes(nodes, by_node)
    built = [function(node) for node in local]
    if are_sources(built, argument):
        host = host_of(dict(zip(local, built, strict=True)), argument, problem.dtype)
        data = stream_data(host, np.arange(nodes), _shared(host_counts(host, nodes)))
        return spread(data.spread_by(by_node), by_node)
    per_node, local_counts = count_nodes(built, argument)
    counts = np.zeros(nodes, np.int32)
    counts[local] = local_counts
    counts = _shared(counts)
    tree = stack_nodes(per_node, local_counts, int(counts.max()))
    validate_finite(tree, argument)
    rows = {node: row for row, node in enumerate(local)}

    def distribute(leaf: np.ndarray) -> jax.Array:
        leaf = as_float(leaf, problem.dtype)

        def on_device(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            return leaf[[rows[node] for node in range(*index[0].indices(nodes))]]

        return jax.make_array_from_callback((nodes, *leaf.shape[1:]), by_node, on_device)

    laid = lay_out(jax.tree.map(distribute, tree), counts)
    return eqx.tree_at(
        lambda data: (data.counts, data.offsets, data.weights),
        laid,
        spread((laid.counts, laid.offsets, laid.weights), by_node),
        is_leaf=lambda leaf: leaf is None,
    )


def _shared(counts: np.ndarray) -> np.ndarray:
    """Every node's number of samples, from those of the local nodes; nothing else is shared."""
    if jax.process_count() == 1:
        return counts
    return np.asarray(multihost_utils.process_allgather(counts)).sum(0)


def spread(tree: PyTree, sharding: NamedSharding) -> PyTree:
    """Arrays that every process holds, laid out over the devices of all of them."""

    def lay(leaf: PyTree) -> PyTree:
        if not eqx.is_array(leaf):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(lay(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(lay, tree)
