"""A step's communication: the levels' moves in lockstep, their messages counted and exchanged."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import jax
from jax import Array

from ..core._ledger import Ledger
from ..core._types import PyTree
from ._links import Draws, LinkStates
from ._messages import as_message
from ._network import Network


class Communicator:
    """One step's communication: moves levels on, counts what that sends, and hands on what links remember.

    A method receives it as `network`. Call it with the levels' moves, which strategies make; those in one call share
    their messages:

        x, y = network(x=strategy(x, u, α), y=strategy(y, v, β))
    """

    def __init__(
        self, network: Network, step: Array, link_states: tuple[LinkStates, ...] | None, ledger: Ledger
    ) -> None:
        self._network, self._step, self._before, self._ledger = network, step, link_states, ledger
        self._outermost = ledger.step_cost
        self._draws = Draws()
        self.link_states: tuple[LinkStates, ...] = ()  # after each exchange of the step so far

    def flow(self, messages: dict[str, PyTree]) -> dict[str, PyTree]:
        """One exchange: what every level receives for its message, δ(m) = Σ_j w_ij (m_j − m_i) for plain vectors."""
        sent = {level: as_message(message) for level, message in messages.items()}
        size = sum(message.bytes(self._network.copies(level)) for level, message in sent.items())
        self._ledger.add(rounds=1, bytes=size)
        number = len(self.link_states)
        if self._before is None:  # a trace for shapes
            received = {level: message.placeholder() for level, message in sent.items()}
            after = self._network.first_link_state(self._step, number, sent)
        else:
            before = self._before[number] if self._before else None
            received, after = self._network.exchange(self._step, number, sent, before, self._draws)
        repeated = self._ledger.step_cost is not self._outermost
        if repeated and any(message.draws for message in sent.values()):
            raise ValueError(
                "the method repeats exchanges inside a step, where a random code would draw the same noise again: "
                "choose a single-loop method, or a code that draws nothing, such as top_k."
            )
        if jax.tree.leaves(after) and repeated:
            raise ValueError(
                "the method repeats exchanges inside a step, where links cannot remember what they carried: choose a "
                "single-loop method, or leave out late links, codes and edge-ed."
            )
        self.link_states = (*self.link_states, after)
        return received

    def __call__(self, **moves: Generator[Any, Any, Any]) -> Any:
        """Runs the levels' moves in lockstep; returns their new values, in order (bare if there is one)."""
        names, waiting, replies, done = tuple(moves), dict(moves), dict.fromkeys(moves), {}
        while waiting:
            messages = {}
            for level, move in tuple(waiting.items()):
                try:
                    messages[level] = move.send(replies[level])
                except StopIteration as stop:
                    done[level] = stop.value
                    del waiting[level]
            if messages:
                replies = self.flow(messages)
        return done[names[0]] if len(names) == 1 else tuple(done[name] for name in names)
