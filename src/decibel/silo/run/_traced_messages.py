"""Finds what a step sends by tracing it without a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import Array

from decibel import Communicator, Ledger, Network, Program, State
from decibel.core import PyTree
from decibel.network import Message


class MessageRecorder(Communicator):
    """A communicator that exchanges nothing, and records what was to be sent."""

    def __init__(self, network: Network, intervals: Mapping[str, int]) -> None:
        super().__init__(network, jnp.int32(0), None, Ledger(), intervals)
        self.sent: list[dict[str, Message]] = []

    def exchange_round(self, sent: dict[str, Message]) -> dict[str, PyTree]:
        self.sent.append(sent)
        return {level: message.placeholder() for level, message in sent.items()}


def trace_messages(program: Program, state: State, look: Callable[[State, list[dict[str, Message]]], None]) -> None:
    """Calls `look` with the state before a step and the messages of each of its exchanges, by level; all are traced."""

    def step(k: Array, state: State) -> None:
        recorder = MessageRecorder(program.network, program.method.intervals)
        program.method.step(k, state, program.oracle(k, Ledger()), recorder)
        look(state, recorder.sent)

    jax.eval_shape(step, jnp.int32(0), state)
