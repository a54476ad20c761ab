"""Injected faults: links that fail, messages that are lost or late, nodes that pause, leave or are slow.

A fault has a time (`during` steps `(first, last + 1)`, or always), a target (`links`, `nodes`, or all) and a
probability per step. Both ends of a link draw the same faults from the run's key, so nothing extra is sent, and
simulator and cluster see the same faults. A failed link contributes no flow at either end: both nodes keep its weight
for themselves, and the mixing matrix stays doubly stochastic. Only with `drop(one_way=True)` can the two ends disagree.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..core import _keys as keys
from ..core._numbers import is_number
from ..graphs._graph import Levels

__all__ = ["Fault", "drop", "late", "leave", "pause", "slow"]

Link = tuple[int, int]
Steps = tuple[int, int]
FOREVER = 2**31 - 1
FAULT_STREAM = 2**31  # beyond every step, so that no batch shares a key with a fault


class Fault(eqx.Module):
    """Base class of faults; `drop`, `late`, `pause`, `leave` and `slow` construct them."""

    probability: float | Array
    during: Steps = eqx.field(static=True)

    @property
    @abstractmethod
    def nodes_named(self) -> Iterable[int]: ...

    def _occurs_at(self, k: Array, key: Array, *numbers: Array) -> Array:
        """Whether it occurs at step k, for each of these node or link indices."""
        for number in numbers:
            key = keys.fold_in_each(key, number)
        draw = jax.vmap(lambda each_key: jax.random.uniform(each_key, dtype=jnp.float32))
        chance = draw(key.reshape(-1)).reshape(key.shape)
        return (self.during[0] <= k) & (k < self.during[1]) & (chance < jnp.asarray(self.probability, jnp.float32))


class LinkFault(Fault):
    """A fault of links: all of them, or those given."""

    links: tuple[Link, ...] | None = eqx.field(static=True)

    @property
    def nodes_named(self) -> Iterable[int]:
        return [node for link in self.links or () for node in link]

    def occurs(self, k: Array, key: Array, a: Array, b: Array) -> Array:
        occurs = self._occurs_at(k, key, jnp.minimum(a, b), jnp.maximum(a, b))
        return occurs & _links_contain(self.links, a, b)


class Drop(LinkFault):
    """The link is down, both ways."""


class Lose(LinkFault):
    """A message is lost one way, and neither end knows."""

    def occurs_to_message(self, k: Array, key: Array, receiver: Array, sender: Array) -> Array:
        return self._occurs_at(k, key, receiver, sender) & _links_contain(self.links, receiver, sender)


class Late(LinkFault):
    """Both ends of the link use what they exchanged `least` to `delay` steps ago."""

    delay: int = eqx.field(static=True)
    least: int = eqx.field(static=True)

    def steps(self, k: Array, key: Array, a: Array, b: Array) -> Array:
        """How many steps the links between a and b are late at step k."""
        delay = jnp.int32(self.delay)
        if self.least < self.delay:
            delay_keys = jax.random.fold_in(key, 1)
            for node_id in (jnp.minimum(a, b), jnp.maximum(a, b)):
                delay_keys = keys.fold_in_each(delay_keys, node_id)

            def draw(delay_key: Array) -> Array:
                return jax.random.randint(delay_key, (), self.least, self.delay + 1, jnp.int32)

            delay = jax.vmap(draw)(delay_keys.reshape(-1)).reshape(delay_keys.shape)
        return jnp.where(self.occurs(k, key, a, b), delay, 0)


class NodeSetFault(Fault):
    """A fault of all nodes, or of those given."""

    nodes: tuple[int, ...] | None = eqx.field(static=True)

    @property
    def nodes_named(self) -> Iterable[int]:
        return self.nodes or ()

    def restrict_to_nodes(self, occurs: Array, node_ids: Array) -> Array:
        """`occurs` at the fault's nodes, and False elsewhere."""
        return occurs if self.nodes is None else occurs & jnp.isin(node_ids, jnp.asarray(self.nodes, jnp.int32))


class NodeFault(NodeSetFault):
    """A fault that keeps nodes from taking part."""

    def occurs(self, k: Array, key: Array, node_ids: Array) -> Array:
        return self.restrict_to_nodes(self._occurs_at(k, key, node_ids), node_ids)


class Pause(NodeFault):
    """The node neither computes nor communicates, and keeps its state."""


class Leave(NodeFault):
    """As a pause, and the node's neighbours reset the state of their links to it."""


class Slow(NodeSetFault):
    """A step of the node takes several steps of others; `probability` is one over their number, or over its mean."""

    factor: float = eqx.field(static=True)
    random: bool = eqx.field(static=True)

    def applies(self, k: Array, node_ids: Array) -> Array:
        return self.restrict_to_nodes((self.during[0] <= k) & (k < self.during[1]), node_ids)

    def finishes(self, k: Array, key: Array, node_ids: Array) -> Array:
        """Whether the node ends a computation in step k, which it began at its current point."""
        if self.random:
            return self._occurs_at(k, key, node_ids)
        return jnp.full(node_ids.shape, (k - self.during[0] + 1) % int(self.factor) == 0)


def drop(
    probability: float = 1.0,
    *,
    links: Sequence[Link] | None = None,
    during: Steps | None = None,
    one_way: bool = False,
) -> Fault:
    """Links that fail, independently in every step.

    Args:
        probability: that a link fails in a step.
        links: pairs of nodes; None is all links.
        during: `(first step, step after the last)`; None is the whole run.
        one_way: lose single messages instead. The two directions of a link fail independently in every exchange, its
            ends do not know what was lost, and only the strategies `"edge-ed"`, `"wave"` and `"push-pull"` stay exact.
    """
    return (Lose if one_way else Drop)(_valid_probability(probability), _valid_during(during), _valid_links(links))


def late(
    delay: int | tuple[int, int],
    probability: float = 1.0,
    *,
    links: Sequence[Link] | None = None,
    during: Steps | None = None,
) -> Fault:
    """Links that are late: both ends use what they exchanged `delay` steps ago, or nothing in the first steps.

    The strategies `"wave"` and `"edge-ed"` ignore messages older than the last one used, since each message replaces
    earlier ones.

    Args:
        delay: in steps; a pair `(least, most)` draws one for each link and step.
        probability: that a link is late in a step.
        links: pairs of nodes; None is all links.
        during: `(first step, step after the last)`; None is the whole run.
    """
    least, most = delay if isinstance(delay, tuple) and len(delay) == 2 else (delay, delay)
    if not (isinstance(least, int) and isinstance(most, int) and 1 <= least <= most):
        raise ValueError(
            f"delay={delay!r} must be a number of steps, an integer of at least 1, or a pair such as (1, 5)."
        )
    return Late(_valid_probability(probability), _valid_during(during), _valid_links(links), most, least)


def pause(nodes: Sequence[int] | int | None = None, *, probability: float = 1.0, during: Steps | None = None) -> Fault:
    """Nodes that neither compute nor communicate for a while and then continue from their last state, as stragglers do.

    Args:
        nodes: their indices; None is all nodes.
        probability: that a node pauses in a step.
        during: `(first step, step after the last)`; None is the whole run.
    """
    return Pause(_valid_probability(probability), _valid_during(during), _as_nodes(nodes))


def leave(nodes: Sequence[int] | int, *, during: Steps) -> Fault:
    """Nodes that leave and come back.

    With the strategy `"edge-ed"` their neighbours drop the flows stored for their links, so that the remaining nodes
    converge to their own exact solution. With other strategies the carries keep the contribution of the absent nodes,
    which biases the solution.

    Args:
        nodes: their indices.
        during: `(first step away, first step back)`.
    """
    return Leave(1.0, _valid_during(during), _as_nodes(nodes))


def slow(
    nodes: Sequence[int] | int | None, factor: float, *, random: bool = False, during: Steps | None = None
) -> Fault:
    """Nodes that compute more slowly than others; the trace has a column `simulated_time`.

    The unit of time is a step of a node that is not slow. With `"wave"` on every level no node waits. An iteration of
    the run is then one unit of time. A slow node moves at the end of its computation, from the point at which it began,
    while others continue with its newest message. All other methods wait in every iteration for the slowest node, so
    this fault changes their simulated time but no number. If several apply to a node, the last one counts.

    Args:
        nodes: their indices; None is all nodes.
        factor: how long a step takes; an integer unless `random`.
        random: whether computing times are random, with `factor` as their mean: a computation then ends in each unit of
            time with the same probability.
        during: `(first step, step after the last)`; None is the whole run.
    """
    long_enough = is_number(factor) and 1 <= factor < float("inf")
    if not long_enough or not (random or factor == int(factor)):
        raise ValueError(
            f"factor={factor!r} must be an integer of at least 1, such as 10, or any number of at least 1 with "
            "random=True."
        )
    return Slow(1 / factor, _valid_during(during), _as_nodes(nodes), float(factor), bool(random))


F = TypeVar("F", bound=Fault)


class FaultSchedule(eqx.Module):
    """All faults of a run, and the key of their chances."""

    faults: tuple[Fault, ...]
    key: Array

    @property
    def longest_delay(self) -> int:
        return max((fault.delay for fault in self._of(Late)), default=0)

    def is_down(self, k: Array, a: Array, b: Array) -> Array:
        """Whether the links between nodes a and b carry nothing at step k."""
        return _any([fault.occurs(k, key, a, b) for fault, key in self._keyed(k, Drop)], a)

    def is_lost(self, k: Array, exchange_index: int, receiver: Array, sender: Array) -> Array:
        """Whether the receiver misses what the sender sends in that exchange of step k."""
        keyed = [(fault, jax.random.fold_in(key, exchange_index)) for fault, key in self._keyed(k, Lose)]
        return _any([fault.occurs_to_message(k, key, receiver, sender) for fault, key in keyed], receiver)

    def delay(self, k: Array, a: Array, b: Array) -> Array:
        """How many steps late the links between a and b are."""
        delays = [fault.steps(k, key, a, b) for fault, key in self._keyed(k, Late)]
        return reduce(jnp.maximum, delays, jnp.zeros_like(a))

    def is_idle(self, k: Array, node_ids: Array) -> Array:
        """Whether the node takes no part in step k, since it pauses or has left."""
        return _any([fault.occurs(k, key, node_ids) for fault, key in self._keyed(k, NodeFault)], node_ids)

    def has_left(self, k: Array, node_ids: Array) -> Array:
        """Whether the node has left at step k, so that its neighbours reset their links to it."""
        return _any([fault.occurs(k, key, node_ids) for fault, key in self._keyed(k, Leave)], node_ids)

    def is_busy(self, k: Array, node_ids: Array) -> Array:
        """Whether the node is still computing at the end of step k."""
        is_busy = jnp.zeros(node_ids.shape, bool)
        for fault, key in self._keyed(k, Slow):
            is_busy = jnp.where(fault.applies(k, node_ids), ~fault.finishes(k, key, node_ids), is_busy)
        return is_busy

    def begins(self, k: Array, node_ids: Array) -> Array:
        """Whether the node begins to compute at step k, from its last state."""
        return (k == 0) | ~self.is_busy(k - 1, node_ids)

    @property
    def slows_nodes(self) -> bool:
        return bool(self._of(Slow))

    @property
    def stops_nodes(self) -> bool:
        """Whether nodes sometimes do not move."""
        return bool(self._of(NodeFault)) or self.slows_nodes

    def _of(self, kind: type[F]) -> list[F]:
        return [fault for fault in self.faults if isinstance(fault, kind)]

    def _keyed(self, k: Array, kind: type[F]) -> list[tuple[F, Array]]:
        step_key = jax.random.fold_in(self.key, k)
        return [
            (fault, jax.random.fold_in(step_key, i)) for i, fault in enumerate(self.faults) if isinstance(fault, kind)
        ]


def fault_schedule(faults: tuple[Fault, ...], seed: int) -> FaultSchedule:
    """The faults of a run with that seed; they have their own random stream."""
    return FaultSchedule(faults, jax.random.fold_in(keys.key(seed), FAULT_STREAM))


def as_faults(faults: Fault | Sequence[Fault] | None) -> tuple[Fault, ...]:
    """One fault, several or none."""
    if callable(faults) or not isinstance(faults, Fault | Iterable | None):
        what = "a function that is not called" if callable(faults) else f"a {type(faults).__name__}"
        raise TypeError(f"faults is {what}: give a fault such as db.faults.drop(0.2), or a list of them.")
    fault_tuple = () if faults is None else (faults,) if isinstance(faults, Fault) else tuple(faults)
    for fault in fault_tuple:
        if not isinstance(fault, Fault):
            raise TypeError(f"faults holds a {type(fault).__name__}: give faults such as db.faults.drop(0.2).")
    return fault_tuple


def validate_faults(faults: tuple[Fault, ...], graphs: Levels, one_way: Collection[str] = ()) -> None:
    """Raises ValueError if faults do not fit a graph; `one_way` are the levels that need no doubly stochastic W."""
    if not faults:
        return
    for level in ("x", "y", "z"):
        graph = getattr(graphs, level)
        if level not in one_way and not graph.symmetric:
            raise ValueError(
                f"faults need undirected graphs, and {graph.name} on level {level} is directed: choose an undirected "
                "graph, or the strategy 'push-pull'."
            )
    for fault in faults:
        for node in fault.nodes_named:
            if not 0 <= node < graphs.nodes:
                raise ValueError(f"faults name node {node}, but the graph has nodes 0 to {graphs.nodes - 1}.")


def _any(occurring: list[Array], like: Array) -> Array:
    return reduce(jnp.logical_or, occurring, jnp.zeros(like.shape, bool))


def _links_contain(links: tuple[Link, ...] | None, a: Array, b: Array) -> Array:
    if links is None:
        return jnp.ones(a.shape, bool)
    return _any([((a == i) & (b == j)) | ((a == j) & (b == i)) for i, j in links], a)


def _valid_probability(probability: float) -> float:
    if not is_number(probability) or not 0 <= probability <= 1:
        raise ValueError(f"probability={probability!r} must be a number from 0 to 1.")
    return float(probability)


def _valid_during(during: Steps | None) -> Steps:
    if during is None:
        return 0, FOREVER
    first, end = during
    if not (isinstance(first, int) and isinstance(end, int) and 0 <= first < end):
        raise ValueError(f"during={during!r} must be (first step, step after the last), such as (100, 200).")
    return first, end


def _valid_links(links: Sequence[Link] | None) -> tuple[Link, ...] | None:
    if links is None:
        return None
    for link in links:
        if len(link) != 2 or link[0] == link[1]:
            raise ValueError(f"links holds {link!r}: give pairs of different nodes, such as (0, 1).")
    return tuple((int(i), int(j)) for i, j in links)


def _as_nodes(nodes: Sequence[int] | int | None) -> tuple[int, ...] | None:
    return None if nodes is None else (nodes,) if isinstance(nodes, int) else tuple(int(node) for node in nodes)
