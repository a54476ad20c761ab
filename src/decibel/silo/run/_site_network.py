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
from ..protocol._payload_layout import Layout, layout_of
from ..protocol._site import Site
from ._host_callback import call_site
from ._privacy_budget import PrivacyAccountant


class SiteNetwork(Network):
    """Fills the slots of this site's node from its neighbours' sites, by calls from inside the compiled step."""

    site: Site = eqx.field(static=True)
    # For each graph, and for each of its phases; −1 where there is no neighbour, or where the link rests
    neighbour_of_slot: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    neighbour_of_slot_by_phase: tuple[tuple[tuple[int, ...], ...], ...] = eqx.field(static=True)
    privacy: PrivacyAccountant = eqx.field(static=True)

    @classmethod
    def of(cls, site: Site, graphs: Levels, faults: LinkFaults, privacy: PrivacyAccountant) -> SiteNetwork:
        distinct, graph_of = graphs.distinct()
        pairs = [_links(graph, site.number) for graph in distinct]
        links = tuple(links for links, _ in pairs)
        neighbours = tuple(neighbours for _, neighbours in pairs)
        by_phase = tuple(_by_phase(*pair) for pair in pairs)
        return cls(
            graph_of, links, faults, site, neighbours, by_phase, privacy, changes=tuple(map(Changes.of, distinct))
        )

    def fanout_on(self, graph: int) -> Fanout:
        in_a_phase = float(np.mean([_count(phase) for phase in self.neighbour_of_slot_by_phase[graph]]))
        return Fanout(in_a_phase, in_a_phase, float(_count(self.neighbour_of_slot[graph])))

    def mix(self, phase: Array, graph: int, messages: dict[str, Message]) -> dict[str, PyTree]:
        raise NotImplementedError("a site's messages go link by link")

    def rows(self, phase: Array, graph: int, buffer: Array) -> Received:
        self.privacy.expect_plain_message()
        return self._exchange(phase, graph, buffer[0])

    def link_rows(self, phase: Array, graph: int, buffer: Array) -> Received:
        return self.rows(phase, graph, buffer)

    def encode_rows(self, step: Array, codec: ConcatCodec, new: Array, keys: Array, secrets: Array) -> Array:
        """Privacy noise is drawn on the host, from the operating system's cryptographic randomness."""
        if not isinstance(codec.code, Noisy):
            self.privacy.expect_plain_message()
            return super().encode_rows(step, codec, new, keys, secrets)
        self.privacy.expect_messages(codec.code.noise, len(codec.widths))
        size = sum(codec.code.bytes(width, codec.dtype) for width in codec.widths)
        shape = jax.ShapeDtypeStruct((1, size), np.uint8)
        # It takes the step's number, so that the step has begun.
        return call_site(self.site, partial(self._encode_with_noise_on_host, codec), (shape,), step, new)[0]

    def coded_rows(
        self, phase: Array, graph: int, sent: Array, own: Array, codec: ConcatCodec, decode: Callable[[Array], Array]
    ) -> Array:
        """Encoded messages are checked twice: their floats on arrival, and all decoded values before they are used.

        They go to the neighbours of all phases, who hold copies.
        """
        has_neighbour = (np.asarray(self.neighbour_of_slot[graph]) >= 0)[None, :, None]
        received = self._exchange(phase, graph, sent[0], layout_of(codec), jnp.isfinite(own).all(), to_all=True)
        rows = jnp.where(has_neighbour, decode(received.rows), 0)
        finite = jnp.isfinite(rows).all((0, 2))

        def reject(rows: Array) -> Array:
            shape = jax.ShapeDtypeStruct(finite.shape, bool)
            (kept,) = call_site(self.site, partial(self._reject_on_host, graph), (shape,), finite)
            return jnp.where(kept[None, :, None], rows, 0)

        return jax.lax.cond(finite.all(), lambda rows: rows, reject, rows)

    def _exchange(
        self, phase: Array, graph: int, rows: Array, layout: Layout = None, *finite: Array, to_all: bool = False
    ) -> Received:
        slots = len(self.neighbour_of_slot[graph])
        by_phase = (self.neighbour_of_slot[graph],) if to_all else self.neighbour_of_slot_by_phase[graph]
        self.site.expect(rows.dtype, rows.shape[-1:], layout)
        if any(self._resting(neighbours) for neighbours in by_phase):
            self.site.expect_empty(rows.dtype)
        shapes = shapes_received(slots, rows)
        # The phase is made from the step's number, which comes from the call that begins the step: it orders the calls.
        parts = call_site(self.site, partial(self._exchange_on_host, by_phase, layout), shapes, phase, rows, *finite)
        return Received(*(part[None] for part in parts))

    def _exchange_on_host(
        self,
        by_phase: tuple[tuple[int, ...], ...],
        layout: Layout,
        out: tuple[np.ndarray, np.ndarray, np.ndarray],
        phase: np.ndarray,
        rows: np.ndarray,
        *finite: np.ndarray,
    ) -> None:
        assert isinstance(self.site, LockstepSite)
        neighbours = by_phase[int(phase) % len(by_phase)]
        self.site.exchange(neighbours, rows, layout, out, resting=self._resting(neighbours), finite=all(finite))

    def _resting(self, addressed: tuple[int, ...]) -> tuple[int, ...]:
        """The neighbours, on any graph, whose links rest while vectors go to the addressed ones."""
        return tuple(sorted({other for slots in self.neighbour_of_slot for other in slots} - {*addressed, -1}))

    def _encode_with_noise_on_host(
        self, codec: ConcatCodec, out: tuple[np.ndarray, ...], k: np.ndarray, new: np.ndarray
    ) -> None:
        out[0][0] = self.privacy.release(codec, new[0])

    def _reject_on_host(self, graph: int, out: tuple[np.ndarray, ...], finite: np.ndarray) -> None:
        self.site.reject([other for other, good in zip(self.neighbour_of_slot[graph], finite, strict=True) if not good])


def shapes_received(slots: int, row: Array) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The shapes of what an exchange fills in by slot: the row, whether it has arrived, and the status of the link."""
    return (
        jax.ShapeDtypeStruct((slots, row.shape[-1]), row.dtype),
        jax.ShapeDtypeStruct((slots,), bool),
        jax.ShapeDtypeStruct((slots,), jnp.int32),
    )


def _count(neighbours: tuple[int, ...]) -> int:
    return sum(other >= 0 for other in neighbours)


def _by_phase(links: Links, neighbours: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The neighbour of each slot in each phase; −1 where its link rests."""
    weights = np.asarray(links.weights).reshape(len(neighbours), -1)
    return tuple(
        tuple(other if weight != 0 else -1 for other, weight in zip(neighbours, weights_of_phase, strict=True))
        for weights_of_phase in weights.T.tolist()
    )


def _links(graph: Graph | GraphSequence, number: int) -> tuple[Links, tuple[int, ...]]:
    slots = slots_of_node(graph, number)
    neighbour_of_slot = tuple(int(other) if other != number else -1 for other in slots.neighbours)
    neighbours = jnp.asarray(slots.shaped(slots.neighbours), jnp.int32)
    weights = jnp.asarray(slots.shaped(slots.weights))
    return Links(neighbours, weights, Sums(slots.width, slots.overflow)), neighbour_of_slot
