"""The network of a silo: this site's node here, and its neighbours at other sites."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decibel import Graph, GraphSequence, Levels, Network
from decibel.core import PyTree
from decibel.network import (
    Changes,
    ConcatCodec,
    Fanout,
    LinkFaults,
    Links,
    Message,
    Noisy,
    Received,
    Sums,
    slots_of_node,
)

from ..protocol._lockstep_site import LockstepSite
from ..protocol._payload_layout import Layout, in_code
from ..protocol._site import Site
from ._host_callback import ask
from ._privacy_budget import Privacy


class SiteNetwork(Network):
    """Fills the slots of this site's node from its neighbours' sites, by calls from inside the compiled step."""

    site: Site = eqx.field(static=True)
    others: tuple[tuple[int, ...], ...] = eqx.field(static=True)  # of each graph, by slot; −1 where there is none
    peers: tuple[tuple[tuple[int, ...], ...], ...] = eqx.field(static=True)  # the same by phase; −1 where a link rests
    privacy: Privacy = eqx.field(static=True)

    @classmethod
    def of(cls, site: Site, graphs: Levels, faults: LinkFaults, privacy: Privacy) -> SiteNetwork:
        distinct, graph_of = graphs.distinct()
        pairs = [_links(graph, site.number) for graph in distinct]
        links, others = tuple(links for links, _ in pairs), tuple(others for _, others in pairs)
        peers = tuple(_by_phase(*pair) for pair in pairs)
        return cls(graph_of, links, faults, site, others, peers, privacy, changes=tuple(map(Changes.of, distinct)))

    def fanout_on(self, graph: int) -> Fanout:
        peers = float(np.mean([_count(phase) for phase in self.peers[graph]]))
        return Fanout(peers, peers, float(_count(self.others[graph])))

    def mix(self, phase: Array, graph: int, messages: dict[str, Message]) -> dict[str, PyTree]:
        raise NotImplementedError("a site's messages go link by link")

    def rows(self, phase: Array, graph: int, buffer: Array) -> Received:
        self.privacy.expect(None)
        return self._exchange(phase, graph, buffer[0])

    def link_rows(self, phase: Array, graph: int, buffer: Array) -> Received:
        return self.rows(phase, graph, buffer)

    def encode_rows(self, step: Array, codec: ConcatCodec, new: Array, keys: Array, secrets: Array) -> Array:
        """Privacy noise is drawn on the host, from the operating system's cryptographic randomness."""
        if not isinstance(codec.code, Noisy):
            self.privacy.expect(None)
            return super().encode_rows(step, codec, new, keys, secrets)
        self.privacy.expect(codec.code.noise, len(codec.widths))
        size = sum(codec.code.bytes(width, codec.dtype) for width in codec.widths)
        shape = jax.ShapeDtypeStruct((1, size), np.uint8)
        # It takes the step's number, so that the step has begun.
        return ask(self.site, partial(self._release, codec), (shape,), step, new)[0]

    def coded_rows(
        self, phase: Array, graph: int, sent: Array, own: Array, codec: ConcatCodec, decode: Callable[[Array], Array]
    ) -> Array:
        """Encoded messages are checked twice: their floats on arrival, and all decoded values before they are used.

        They go to the neighbours of all phases, who hold copies.
        """
        there = (np.asarray(self.others[graph]) >= 0)[None, :, None]
        arrived = self._exchange(phase, graph, sent[0], in_code(codec), jnp.isfinite(own).all(), to_all=True)
        rows = jnp.where(there, decode(arrived.rows), 0)
        finite = jnp.isfinite(rows).all((0, 2))

        def reject(rows: Array) -> Array:
            shape = jax.ShapeDtypeStruct(finite.shape, bool)
            (kept,) = ask(self.site, partial(self._reject, graph), (shape,), finite)
            return jnp.where(kept[None, :, None], rows, 0)

        return jax.lax.cond(finite.all(), lambda rows: rows, reject, rows)

    def _exchange(
        self, phase: Array, graph: int, rows: Array, layout: Layout = None, *finite: Array, to_all: bool = False
    ) -> Received:
        slots = len(self.others[graph])
        peers = (self.others[graph],) if to_all else self.peers[graph]
        self.site.expect(rows.dtype, rows.shape[-1:], layout)
        if any(self._resting(phase) for phase in peers):
            self.site.expect_empty(rows.dtype)
        shapes = shapes_received(slots, rows)
        # The phase is made from the step's number, which comes from the call that begins the step: it orders the calls.
        parts = ask(self.site, partial(self._call, peers, layout), shapes, phase, rows, *finite)
        return Received(*(part[None] for part in parts))

    def _call(
        self,
        peers: tuple[tuple[int, ...], ...],
        layout: Layout,
        out: tuple[np.ndarray, np.ndarray, np.ndarray],
        phase: np.ndarray,
        rows: np.ndarray,
        *finite: np.ndarray,
    ) -> None:
        assert isinstance(self.site, LockstepSite)
        others = peers[int(phase) % len(peers)]
        self.site.exchange(others, rows, layout, out, resting=self._resting(others), finite=all(finite))

    def _resting(self, others: tuple[int, ...]) -> tuple[int, ...]:
        """The neighbours, on any graph, to whom nothing is sent where vectors go to those others."""
        return tuple(sorted({other for slots in self.others for other in slots} - {*others, -1}))

    def _release(self, codec: ConcatCodec, out: tuple[np.ndarray, ...], k: np.ndarray, new: np.ndarray) -> None:
        out[0][0] = self.privacy.release(codec, new[0])

    def _reject(self, graph: int, out: tuple[np.ndarray, ...], finite: np.ndarray) -> None:
        self.site.reject([other for other, good in zip(self.others[graph], finite, strict=True) if not good])


def shapes_received(slots: int, row: Array) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Of the rows that come by the slots, of whether each has come, and of the states of the links."""
    return (
        jax.ShapeDtypeStruct((slots, row.shape[-1]), row.dtype),
        jax.ShapeDtypeStruct((slots,), bool),
        jax.ShapeDtypeStruct((slots,), jnp.int32),
    )


def _count(others: tuple[int, ...]) -> int:
    return sum(other >= 0 for other in others)


def _by_phase(links: Links, others: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The other end of each slot's link in each phase; −1 where it rests."""
    weights = np.asarray(links.weights).reshape(len(others), -1)
    return tuple(
        tuple(other if weight != 0 else -1 for other, weight in zip(others, of_phase, strict=True))
        for of_phase in weights.T.tolist()
    )


def _links(graph: Graph | GraphSequence, number: int) -> tuple[Links, tuple[int, ...]]:
    slots = slots_of_node(graph, number)
    others = tuple(int(other) if other != number else -1 for other in slots.neighbours)
    neighbours, weights = (slots.shaped(table) for table in (slots.neighbours, slots.weights))
    return Links(jnp.asarray(neighbours, jnp.int32), jnp.asarray(weights), Sums(slots.width, slots.overflow)), others
