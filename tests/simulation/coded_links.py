"""Links of a node without a common clock whose messages are in code: the product's `CodedWave`, compiled.

What is sent before a step and what is taken after it are one program each, for every code. All nodes have as many
slots, so that these programs serve them all; a slot of no neighbour has no weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from decibel.network._codecs import Code, Quantized, TopK
from decibel.network._coded_wave import HEADER_BYTES, CodedWave
from decibel.network._incidence import Sums
from decibel.network._links import Channel, LinkFaults, LinkMemory, Links, NoiseKeys, Received, Transport
from decibel.network.faults import fault_schedule

from .node import ENTRIES, Arrived
from .papers import MOST_SITES

SLOTS = MOST_SITES - 1
CODES: dict[str, Code] = {"largest": TopK(share=0.6, mixing=0.9), "4 bits": Quantized(bits=4, mixing=0.9)}


class Around(NamedTuple):
    """A node's number, (1, slots) the other ends and (1, slots, 1) the weights of its links, its step size, and the
    limit on flows."""

    number: np.ndarray
    neighbours: np.ndarray
    weights: np.ndarray
    rate: np.float32
    limit: np.float32


class CodedLinks:
    dtype = np.float32

    def __init__(
        self,
        levels: int,
        number: int,
        neighbours: Sequence[int],
        weights: Sequence[float],
        *,
        rate: float,
        limit: float,
        code: str,
    ) -> None:
        self._slots = len(neighbours)
        others = np.full((1, SLOTS), number, np.int32)
        others[0, : self._slots] = neighbours
        padded = np.zeros((1, SLOTS, 1), np.float32)
        padded[0, : self._slots, 0] = weights
        self._around = Around(np.array([number], np.int32), others, padded, np.float32(rate), np.float32(limit))
        self._programs = programs(code)
        self._at = np.int32(0), np.int32(0)  # the step, and the incarnation
        self._memories = [self._programs.begin(self._around, np.zeros(ENTRIES, np.float32)) for _ in range(levels)]
        self.read = [np.zeros((self._slots, ENTRIES), np.float32) for _ in range(levels)]  # what came last, decoded

    @property
    def leaves(self) -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self._memories)]

    @leaves.setter
    def leaves(self, leaves: list[np.ndarray]) -> None:
        self._memories = jax.tree.unflatten(jax.tree.structure(self._memories), leaves)

    @property
    def written(self) -> list[np.ndarray]:
        """By level, (slots, entries) what the messages that were sent last are to be read as."""
        return [
            np.asarray(memory.per_link.transport_state.sender.kept)[0, : self._slots, 0] for memory in self._memories
        ]

    def z(self, level: int) -> np.ndarray:
        return np.asarray(self._memories[level].per_link.z)[0, : self._slots]

    def flows(self, level: int, s: np.ndarray) -> np.ndarray:
        mine = 2 * self._around.weights[0, : self._slots] * s
        begun = np.asarray(self._memories[level].per_link.numbers)[0, : self._slots, :1] > 0
        return np.where(begun, self.z(level) - mine, 0)

    def waves(self, s: np.ndarray, step: int, incarnation: int) -> list[np.ndarray]:
        self._at = np.int32(step), np.int32(incarnation % (2**31 - 1) + 1)
        rows = []
        for level, one in enumerate(s):
            row, self._memories[level] = self._programs.post(self._around, one, self._memories[level], *self._at)
            rows.append(np.asarray(row)[0, : self._slots])
        return rows

    def take(self, level: int, s: np.ndarray, arrived: Arrived) -> None:
        padded = [np.zeros((1, SLOTS, *part.shape[1:]), part.dtype) for part in arrived]
        for wide, part in zip(padded, arrived, strict=True):
            wide[0, : self._slots] = part
        read, self._memories[level] = self._programs.take(
            self._around,
            s,
            self._memories[level],
            *self._at,
            Received(*padded),  # pyright: ignore[reportArgumentType]
        )
        self.read[level] = np.asarray(read)[0, : self._slots]


def number_of(row: np.ndarray) -> tuple[int, int]:
    """The number of a message, and the incarnation of its sender."""
    number, incarnation = np.frombuffer(row[HEADER_BYTES : HEADER_BYTES + 8].tobytes(), np.int32).tolist()
    return number, incarnation


class Programs(NamedTuple):
    begin: Any
    post: Any
    take: Any


@cache
def programs(code: str) -> Programs:
    return Programs(*(jax.jit(partial(function, CODES[code])) for function in (_begin, _post, _take)))


def _message(code: Code, around: Around, s: Array) -> CodedWave:
    return CodedWave({"x": s[None]}, code, flow_bound={"x": (around.rate, around.limit)})


def _channel(around: Around, step: Any, incarnation: Any, received: Received | None = None) -> Channel:
    schedule = fault_schedule((), 0)
    links = Links(around.neighbours, around.weights, Sums(SLOTS, None))  # pyright: ignore[reportArgumentType]
    faults = LinkFaults(around.number, schedule, schedule.key)  # pyright: ignore[reportArgumentType]
    none: Any = None
    return Channel(
        links, step, 0, faults, Transport(none, lambda row: received or none, none, incarnation=incarnation),
        noise_keys=NoiseKeys(),
    )  # fmt: skip


def _begin(code: Code, around: Around, s: Array) -> LinkMemory:
    return _message(code, around, s).link_memory(_channel(around, 0, 0))


def _post(
    code: Code, around: Around, s: Array, memory: LinkMemory, step: Array, own: Array
) -> tuple[Array, LinkMemory]:
    return _message(code, around, s).post(_channel(around, step, own), memory)


def _take(
    code: Code, around: Around, s: Array, memory: LinkMemory, step: Array, own: Array, received: Received
) -> tuple[Array, LinkMemory]:
    """(1, slots, entries) what has come, NaN where that cannot be read; and what links remember of it."""
    message, channel = _message(code, around, s), _channel(around, step, own, received)
    carried = message.deliver(channel, message.reflected(channel, memory)[2], memory.per_link.transport_state)
    read = jax.numpy.where((carried.numbers > 0)[..., None], carried.rows, jax.numpy.nan)
    return read, message.receive(channel, memory)[1]
