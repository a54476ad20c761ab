"""A member with a valid certificate that lies: an honest site's code, whose frames are changed on their way out."""

from __future__ import annotations

import random
import struct

import numpy as np

from decibel.engines.silo._frames import Beat, Bye, Data, Join, Malformed, Position, Roll, Skip, Stand, parse, write

from .node import ENTRIES

KEPT = 40


class Liar:
    """`often` is how many of its frames are no longer what they should be."""

    def __init__(self, seed: int, number: int, sites: int, steps: int, width: int = 2 * ENTRIES) -> None:
        self._chance = random.Random(f"liar {seed}")
        self._number, self._sites, self._steps, self._width = number, sites, steps, width
        self._often = self._chance.choice([0.02, 0.1, 0.4, 1.0])
        self._heard: list[bytes] = []

    def __call__(self, frame: bytes) -> list[bytes]:
        """What is sent in the place of a frame."""
        self._heard = [*self._heard[-KEPT:], frame]
        if self._chance.random() >= self._often:
            return [frame]
        return self._chance.choice(
            [self._drop, self._twice, self._old, self._noise, self._flip, self._forge, self._forge, self._flood]
        )(frame)

    def _drop(self, frame: bytes) -> list[bytes]:
        return []

    def _twice(self, frame: bytes) -> list[bytes]:
        return [frame, frame]

    def _old(self, frame: bytes) -> list[bytes]:
        return [self._chance.choice(self._heard), frame]

    def _noise(self, frame: bytes) -> list[bytes]:
        return [frame, self._chance.randbytes(self._chance.randrange(60))]

    def _flip(self, frame: bytes) -> list[bytes]:
        changed = bytearray(frame)
        changed[self._chance.randrange(len(changed))] ^= 1 << self._chance.randrange(8)
        return [bytes(changed)]

    def _flood(self, frame: bytes) -> list[bytes]:
        return [write(Beat())] * self._chance.choice([3, 300])

    def _forge(self, frame: bytes) -> list[bytes]:
        """A frame with fields that nobody should believe."""
        try:
            return [frame, write(self._forged(frame))]
        except (struct.error, OverflowError, ValueError):
            return [frame]  # no such frame can be written

    def _number_of(self) -> int:
        chance = self._chance
        return chance.choice([0, 1, chance.randrange(self._steps + 1), self._steps, self._steps + 1, 2**30, 2**31 - 1])

    def _forged(self, frame: bytes):
        chance = self._chance
        at = Position(self._number_of(), chance.choice([-1, 0, 0, 1]))
        epochs = [0, 1, 2**64 - 1]
        statements = ()
        try:
            found = parse(frame)
            epochs += [found.epoch] * 3 if isinstance(found, Data | Join) else []
            if isinstance(found, Roll | Stand):
                statements = tuple(self._changed(one) for one in found.statements)
        except Malformed:
            pass
        epoch = chance.choice(epochs)
        rows = np.full(chance.choice([ENTRIES, self._width, self._width, 7]), chance.choice([np.nan, 0.0, 100.0]))
        return chance.choice(
            [
                Join(epoch, chance.choice(epochs), *_flags(chance), at.step, at, chance.random() < 0.5),
                Data(epoch, Position(at.step, max(0, at.exchange)), rows),
                Skip(at.step),
                Bye(chance.choice(["finished", "left", "aside"])),
                Roll(*_flags(chance), statements),
                Stand(statements),
            ]
        )

    def _changed(self, statement):
        """A statement of anybody with another step or other checkpoints; only its own would be signed."""
        chance = self._chance
        return statement._replace(
            step=self._number_of(), saved=(self._number_of(),), incarnation=statement.incarnation + chance.randrange(2)
        )


def _flags(chance: random.Random) -> tuple[bool, bool]:
    return chance.random() < 0.5, chance.random() < 0.5


class Nobody:
    """Watches a liar: nothing need hold of it."""

    def __getattr__(self, name: str):
        return lambda *arguments: None
