"""The network of a silo without a common clock: messages are sent before a step, and used after what it computes."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...core._types import PyTree
from ...methods._method import State
from ...network._links import LinkMemory, Received, Transport
from ...network._messages import Message, by_kind
from ...network._wave import Wave
from ._async_site import AsyncSite
from ._host_callback import call
from ._wire import Wire


class AsyncWire(Wire):
    """An exchange only takes what has come; `waves` are what a site sends for it before the step."""

    def transport(self, step: Array, number: int, graph: int, after: PyTree = None) -> Transport:
        return super().transport(step, number, graph)._replace(links=partial(self._collect, step, number, graph, after))

    def _collect(self, step: Array, number: int, graph: int, after: PyTree, q: Array) -> Received:
        """The newest messages, as late as possible: the call takes what is computed `after` them, and so follows it."""
        self.privacy.expect(None)
        self.site.expect(q.dtype, q.shape[-1:])
        slots = len(self.others[graph])
        shapes = (
            jax.ShapeDtypeStruct((slots, q.shape[-1]), q.dtype),
            jax.ShapeDtypeStruct((slots,), bool),
            jax.ShapeDtypeStruct((slots,), jnp.int32),
        )
        ask = partial(self._call_site, (number, graph))
        found = call(ask, shapes, step, *jax.tree.leaves(after), in_place=self.site.in_place)
        return Received(*(part[None] for part in found))

    def _call_site(self, at: tuple[int, int], out: tuple[np.ndarray, np.ndarray, np.ndarray], *_: np.ndarray) -> None:
        site = self.site
        assert isinstance(site, AsyncSite)
        with site.failing_later():
            site.collect(site.places.index(at), out)
            return
        for part in out:
            part[...] = 0

    def waves(self, step: Array, state: State, levels: list[tuple[str, ...]]) -> list[Array]:
        """(slots, entries) what goes to every neighbour, for the levels of each exchange of a step, by graph."""
        return [
            message.reflected(self._channel(step, number, graph), memory)[2][0]
            for number, graph, message, memory in self._links(state, levels)
        ]

    def at(self, state: State, levels: list[tuple[str, ...]]) -> list[tuple[int, int]]:
        """The number of the exchange and of the graph of each of them."""
        return [(number, graph) for number, graph, _, _ in self._links(state, levels)]

    def changes(self, before: State, after: State, levels: list[tuple[str, ...]]) -> list[Array]:
        """(slots,) by how much a step changed any entry of what each link holds."""
        both = zip(self._links(before, levels), self._links(after, levels), strict=True)
        moved = [there[3].by_link.z - here[3].by_link.z for here, there in both]
        return [jnp.abs(z).max(-1, initial=0)[0].astype(jnp.float32) for z in moved]

    def _links(self, state: State, levels: list[tuple[str, ...]]) -> list[tuple[int, int, Wave, LinkMemory]]:
        found: list[tuple[int, int, Wave, LinkMemory]] = []
        for number, names in enumerate(levels):
            messages: dict[str, Message] = {level: Wave(getattr(state, level).s) for level in names}
            for graph, here in enumerate(self._by_graph(messages)):
                for message in by_kind(here):
                    assert isinstance(message, Wave)
                    found.append((number, graph, message, state.links[number][graph][0]))
        return found
