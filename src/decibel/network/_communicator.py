"""A step's communication: runs the levels' moves in lockstep, and counts and exchanges their messages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
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
from ._messages import ASK_DAMPING, Message, Plain, as_message
from ._network import Network

# A strategy's move of one level: it yields messages, is sent what the level receives, and returns its new state.
Move = Generator[PyTree, PyTree, PyTree]
T = TypeVar("T")
Branch: TypeAlias = Callable[[T, Array, "Communicator"], T]  # of an operand, the index of a loop, and the network


class Communicator:
    """One step's communication: advances levels, counts what they send, and passes on what links remember.

    A method receives it as `network`. Call it with the levels' moves, which strategies make; those in one call share
    their messages:

        x, y = network(x=strategy(x, u, α), y=strategy(y, v, β))

    Args:
        network: how messages are exchanged.
        step: the iteration.
        link_memories: what links remembered after the previous step, by exchange; None if the step is only traced for
            shapes, so that nothing is sent.
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
        self._previous_link_memories = link_memories
        self._ledger = ledger
        self._cost_outside_loops = ledger.step_cost
        self._noise_keys = NoiseKeys()
        self._moves_before: Array | None = None
        self.link_memories: tuple[ExchangeMemory, ...] = ()  # after each exchange of the step so far

    def flow(self, messages: dict[str, PyTree]) -> dict[str, PyTree]:
        """Sends every level's message and returns what the level receives: δ(m) = Σ_j w_ij (m_j − m_i) for plain
        vectors.

        This is one exchange, or the several rounds of an accelerated graph. Levels on other graphs then share its first
        round.
        """
        sent = {level: as_message(message) for level, message in messages.items()}
        gossip = {level: self._network.gossip_of(level) for level in sent}
        if not any(gossip.values()):
            return self.exchange_round(sent)
        return self._in_lockstep({level: in_rounds(sent[level], gossip[level]) for level in sent}, self.exchange_round)

    def exchange_round(self, sent: dict[str, Message]) -> dict[str, PyTree]:
        """Sends one round of messages, counts it, and returns what each level receives."""
        size = sum(message.bytes(self._network.fanout(level)) for level, message in sent.items())
        self._ledger.add(rounds=1, bytes=size)
        exchange_index = len(self.link_memories)
        if self._previous_link_memories is None:
            received = {level: message.placeholder() for level, message in sent.items()}
            link_memory = self._network.first_link_memory(self._step, exchange_index, sent)
        else:
            interval = self._common_interval(sent)
            exchange_count = None if interval == 1 else self._step // interval
            phase_count = self._step if exchange_count is None else exchange_count
            if self._moves_before is not None:
                phase_count = self._moves_before
            received, link_memory = self._network.exchange(
                self._step,
                exchange_index,
                sent,
                self._previous_link_memories[exchange_index] if self._previous_link_memories else None,
                noise_keys=self._noise_keys,
                exchange_count=exchange_count,
                phases=self._network.phases(phase_count, self._key),
            )
        is_repeated = self._ledger.step_cost is not self._cost_outside_loops
        if is_repeated and any(message.is_random for message in sent.values()):
            raise ValueError(
                "the method repeats exchanges inside a step, where a random code would draw the same noise again: "
                "choose a single-loop method, or a code that draws nothing, such as top_k."
            )
        if is_repeated and jax.tree.leaves(link_memory):
            raise ValueError(
                "the method repeats exchanges inside a step, where links cannot remember what they carried: choose a "
                "single-loop method, or leave out late links, codes and edge-ed."
            )
        self.link_memories = (*self.link_memories, link_memory)
        return received

    def __call__(self, moves_before: Array | None = None, /, **moves: Move) -> Any:
        """Runs the levels' moves in lockstep; returns their new values, in order (bare if there is one).

        Args:
            moves_before: in a loop inside a step, how often these levels have moved so far: `k * times + j` if every
                step has as many moves. Each then has its own phase of a changing graph.
            **moves: by level.
        """
        self._moves_before = moves_before
        new_values: dict[str, PyTree] = {}
        for interval in sorted({self._interval(level) for level in moves}):
            same_interval = {level: move for level, move in moves.items() if self._interval(level) == interval}
            new_values |= self._in_lockstep(same_interval, self.flow)
        self._moves_before = None
        return next(iter(new_values.values())) if len(new_values) == 1 else tuple(new_values[level] for level in moves)

    def cond(self, choice: Array, on_true: Branch[T], on_false: Branch[T], operand: T) -> T:
        """Runs `on_true` or `on_false` as the last part of a step, and counts the one that runs.

        `on_false` may leave out the last exchanges of the step; their links then keep their memories. These are two
        loops of which one runs once and the other not at all, since `lax.cond` would copy its whole operand. Batches
        and noise are to be drawn with `oracle.inside(loop_index)`, or XLA draws them before the loops, in every step.

        Args:
            choice: a traced boolean, the same at all nodes.
            on_true: runs if it is true. It is called with `operand`, the index of its loop and the network to use; it
                makes every exchange of the step.
            on_false: runs if it is false, and is called in the same way.
            operand: the first argument of both.
        """
        previous = self._previous_link_memories
        if previous is None:
            return on_true(operand, jnp.int32(0), self)
        earlier_memories = self.link_memories
        num_earlier = len(earlier_memories)

        def loop_body(branch: Branch[T]) -> Callable[[Array, PyTree], PyTree]:
            def run(loop_index: Array, carried: PyTree) -> PyTree:
                operand, last_memories = carried
                inner = Communicator(
                    self._network,
                    depend_on(loop_index, self._step),
                    (*previous[:num_earlier], *last_memories) if previous else (),
                    self._ledger,
                    self.intervals,
                    self._key,
                )
                inner.link_memories = earlier_memories
                inner._noise_keys = NoiseKeys(self._noise_keys)
                operand = branch(operand, loop_index, inner)
                made = inner.link_memories[num_earlier:]
                return operand, (*made, *last_memories[len(made) :]) if previous else ()

            return run

        runs_true = choice.astype(jnp.int32)
        carried = (operand, previous[num_earlier:])
        carried = self._ledger.loop(runs_true, loop_body(on_true), carried)
        operand, last_memories = self._ledger.loop(1 - runs_true, loop_body(on_false), carried)
        self.link_memories = (*earlier_memories, *last_memories)
        return operand

    def damping(self, level: str) -> float:
        """κ of Exact Diffusion on the graph of a level: 1 where it never changes."""
        return self._network.damping(level)

    def _interval(self, level: str) -> int:
        return self.intervals.get(level, 1)

    def _common_interval(self, levels: Iterable[str]) -> int:
        """The interval of levels that share an exchange: `__call__` has grouped them by it."""
        (interval,) = {self._interval(level) for level in levels}
        return interval

    def _in_lockstep(
        self, moves: dict[str, Move], send: Callable[[dict[str, PyTree]], dict[str, PyTree]]
    ) -> dict[str, PyTree]:
        """Runs the moves until all have returned; returns their new values. `send` gets what all unfinished moves
        yield."""
        unfinished = dict(moves)
        replies = dict.fromkeys(moves)
        new_values: dict[str, PyTree] = {}
        while unfinished:
            messages = {}
            for level, move in tuple(unfinished.items()):
                try:
                    message = move.send(replies[level])
                    while message is ASK_DAMPING:
                        message = move.send(self.damping(level))
                    messages[level] = message
                except StopIteration as stop:
                    new_values[level] = stop.value
                    del unfinished[level]
            if messages:
                replies = send(messages)
        return new_values


def in_rounds(message: Message, gossip: Gossip | None) -> Move:
    """(W̃ − I) m in the rounds of `gossip`, from sums of flows, whose mean over nodes stays zero."""
    if gossip is None:
        return (yield message)
    if not isinstance(message, Plain):
        raise ValueError(
            f"{type(message).__name__} messages treat each link separately: use a graph that is not accelerated."
        )

    def scale(factor: float, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)

    def add(a: PyTree, b: PyTree) -> PyTree:
        return jax.tree.map(jnp.add, a, b)

    previous_sum = scale(0.0, message.content)
    flow_sum = scale(gossip.scale, (yield message))
    for ω in gossip.weights:
        δ = yield Plain(add(message.content, flow_sum))
        next_sum = add(scale(ω, add(flow_sum, scale(gossip.scale, δ))), scale(1 - ω, previous_sum))
        previous_sum = flow_sum
        flow_sum = next_sum
    return scale(gossip.share, flow_sum)
