"""A step's communication: runs the levels' moves in lockstep, and counts and exchanges their messages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from ..core import _keys as keys
from ..core._ledger import Ledger, depend_on
from ..core._types import PyTree
from ..graphs._graph import Gossip
from ._links import ExchangeMemory, NoiseKeys
from ._messages import DAMPING, Message, Plain, as_message
from ._network import Network

Move = Generator[PyTree, PyTree, PyTree]  # of a level, which a strategy makes
T = TypeVar("T")
Branch: TypeAlias = Callable[[T, Array], T]


class Communicator:
    """One step's communication: advances levels, counts what they send, and passes on what links remember.

    A method receives it as `network`. Call it with the levels' moves, which strategies make; those in one call share
    their messages:

        x, y = network(x=strategy(x, u, α), y=strategy(y, v, β))

    Args:
        network: how messages are exchanged.
        step: the iteration.
        link_memories: what links remember, by exchange; None where a step is only traced for shapes.
        ledger: counts what is sent.
        intervals: for levels that do not move in every step, the number of steps from one move to the next. Levels that
            do not move together in every step share no messages, and each has its own phase on a changing graph.
        key: the run's key, from which phases in random order are drawn; None is that of seed 0.
    """

    intervals: Mapping[str, int] = MappingProxyType({})

    def __init__(
        self,
        network: Network,
        step: Array,
        link_memories: tuple[ExchangeMemory, ...] | None,
        ledger: Ledger,
        intervals: Mapping[str, int] = MappingProxyType({}),
        key: Array | None = None,
    ) -> None:
        self.intervals = intervals
        self._key = keys.key(0) if key is None else key
        self._network = network
        self._step = step
        self._before = link_memories
        self._ledger = ledger
        self._outermost = ledger.step_cost
        self._noise_keys = NoiseKeys()
        self._moves_before: Array | None = None
        self.link_memories: tuple[ExchangeMemory, ...] = ()  # after each exchange of the step so far

    def flow(self, messages: dict[str, PyTree]) -> dict[str, PyTree]:
        """What every level receives for its message, δ(m) = Σ_j w_ij (m_j − m_i) for plain vectors: one exchange, or
        the rounds of an accelerated graph, in which levels without one share the first."""
        sent = {level: as_message(message) for level, message in messages.items()}
        gossip = {level: self._network.gossip_of(level) for level in sent}
        if not any(gossip.values()):
            return self.exchange(sent)
        return self._in_lockstep({level: in_rounds(sent[level], gossip[level]) for level in sent}, self.exchange)

    def exchange(self, sent: dict[str, Message]) -> dict[str, PyTree]:
        """One round of messages."""
        size = sum(message.bytes(self._network.fanout(level)) for level, message in sent.items())
        self._ledger.add(rounds=1, bytes=size)
        number = len(self.link_memories)
        (every,) = {self._interval(level) for level in sent}
        exchange_count = None if every == 1 else self._step // every
        if self._before is None:  # a trace for shapes
            received = {level: message.placeholder() for level, message in sent.items()}
            after = self._network.first_link_memory(self._step, number, sent)
        else:
            before = self._before[number] if self._before else None
            count = self._step if exchange_count is None else exchange_count
            phases = self._network.phases(count if self._moves_before is None else self._moves_before, self._key)
            received, after = self._network.exchange(
                self._step, number, sent, before, self._noise_keys, exchange_count, phases
            )
        repeated = self._ledger.step_cost is not self._outermost
        if repeated and any(message.is_random for message in sent.values()):
            raise ValueError(
                "the method repeats exchanges inside a step, where a random code would draw the same noise again: "
                "choose a single-loop method, or a code that draws nothing, such as top_k."
            )
        if jax.tree.leaves(after) and repeated:
            raise ValueError(
                "the method repeats exchanges inside a step, where links cannot remember what they carried: choose a "
                "single-loop method, or leave out late links, codes and edge-ed."
            )
        self.link_memories = (*self.link_memories, after)
        return received

    def __call__(self, moves_before: Array | None = None, /, **moves: Move) -> Any:
        """Runs the levels' moves in lockstep; returns their new values, in order (bare if there is one).

        Args:
            moves_before: in a loop inside a step, how often these levels have moved so far: `k * times + j` if every
                step has as many moves. Each then has its own phase of a changing graph.
            **moves: by level.
        """
        self._moves_before = moves_before
        done: dict[str, PyTree] = {}
        for every in sorted({self._interval(level) for level in moves}):
            together = {level: move for level, move in moves.items() if self._interval(level) == every}
            done |= self._in_lockstep(together, self.flow)
        self._moves_before = None
        return next(iter(done.values())) if len(done) == 1 else tuple(done[level] for level in moves)

    def either(self, choice: Array, on_true: Branch[T], on_false: Branch[T], operand: T) -> T:
        """One of two ways through the last part of a step, counted by the ledger.

        From some exchange on, one of them may leave out what the other exchanges. Links then keep their state. What a
        branch leaves as it is costs nothing: these are two loops, one of which runs once, since `lax.cond` would copy
        its whole operand. Batches and noise are to be drawn with `oracle.inside(loop)`, or XLA draws them before the
        loops, in every step.

        Args:
            choice: a traced boolean, the same at all nodes.
            on_true: called with `operand` and the index of a loop if it is true; it has every exchange of the step.
            on_false: called with them if it is false.
            operand: the first argument of both.
        """
        if self._before is None:  # a trace for shapes
            return on_true(operand, jnp.int32(0))
        done, before, step = self.link_memories, self._before, self._step
        outermost, noise_keys = self._outermost, self._noise_keys
        carried = (operand, before[len(done) :])

        def branch(function: Branch[T]) -> Callable[[Array, PyTree], PyTree]:
            def run(loop: Array, carried: PyTree) -> PyTree:
                operand, remaining = carried
                self._step = depend_on(loop, step)
                self.link_memories = done
                self._before = (*before[: len(done)], *remaining) if before else ()
                self._outermost, self._noise_keys = self._ledger.step_cost, NoiseKeys(noise_keys)
                new = function(operand, loop)
                exchanged = len(self.link_memories) - len(done)
                after = (*self.link_memories[len(done) :], *remaining[exchanged:]) if before else ()
                return new, after

            return run

        chosen = choice.astype(jnp.int32)
        carried = self._ledger.loop(chosen, branch(on_true), carried)
        operand, remaining = self._ledger.loop(1 - chosen, branch(on_false), carried)
        self.link_memories, self._before, self._step = (*done, *remaining), before, step
        self._outermost, self._noise_keys = outermost, noise_keys
        return operand

    def damping(self, level: str) -> float:
        """κ of Exact Diffusion on the graph of a level: 1 where it never changes."""
        return self._network.damping(level)

    def _interval(self, level: str) -> int:
        return self.intervals.get(level, 1)

    def _in_lockstep(
        self, moves: dict[str, Move], send: Callable[[dict[str, PyTree]], dict[str, PyTree]]
    ) -> dict[str, PyTree]:
        waiting = dict(moves)
        replies = dict.fromkeys(moves)
        done: dict[str, PyTree] = {}
        while waiting:
            messages = {}
            for level, move in tuple(waiting.items()):
                try:
                    message = move.send(replies[level])
                    messages[level] = move.send(self.damping(level)) if message is DAMPING else message
                except StopIteration as stop:
                    done[level] = stop.value
                    del waiting[level]
            if messages:
                replies = send(messages)
        return done


def in_rounds(message: Message, gossip: Gossip | None) -> Move:
    """(W̃ − I) m in the rounds of `gossip`, from sums of flows, whose mean over nodes stays zero."""
    if gossip is None:
        return (yield message)
    if not isinstance(message, Plain):
        raise ValueError(
            f"{type(message).__name__} messages treat each link separately: use a graph that is not accelerated."
        )

    def weighed(factor: float, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)

    def total(a: PyTree, b: PyTree) -> PyTree:
        return jax.tree.map(jnp.add, a, b)

    before = weighed(0.0, message.content)
    moved = weighed(gossip.scale, (yield message))
    for ω in gossip.weights:
        δ = yield Plain(total(message.content, moved))
        after = total(weighed(ω, total(moved, weighed(gossip.scale, δ))), weighed(1 - ω, before))
        before, moved = moved, after
    return weighed(gossip.share, moved)
