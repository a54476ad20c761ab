"""Frames: read as written, and nothing else is a frame."""

from __future__ import annotations

import numpy as np
import pytest

from decibel.silo.protocol import _frames as frames
from decibel.silo.protocol._frames import (
    Beat,
    Build,
    Bye,
    Data,
    Hello,
    Join,
    Malformed,
    Model,
    Ordered,
    Position,
    Receipt,
    Refuse,
    Report,
    Reports,
    Roll,
    Skip,
    Stand,
    Statement,
    Strained,
    Want,
)

TENSOR = np.arange(6.0).reshape(2, 3)
STATEMENTS = (
    Statement(0, 5, 77, heard=b"nonces"),
    Statement(1, 5, 78, heard=b"nonces", done=True),
    Statement(3, 2**64 - 1, 79, 8, 250, (100, 200), True, False, b"others", b"signature", b"certificate"),
)
FRAMES = [
    Hello(b"f" * 32, b"p" * 32, 7, b"n" * 32, b"certificate", b"proof", Build("1.2.3", "0.10.2", b"u" * 32, b"l" * 32)),
    Roll(True, STATEMENTS),
    Join(4, 2**64 - 1, True, False, 17, Position(16, 2), True),
    Data(3, Position(12, 1), TENSOR),
    Data(3, Position(12, 1), np.arange(5, dtype=np.uint8)),
    Skip(99),
    Stand(STATEMENTS),
    Beat(),
    Refuse("zürich and bern run different problems"),
    Receipt(Position(2**32 - 1, 2)),
    Reports((Report(1, 2**64 - 1, 3, 4, 5, 6, 7, 8.0, (0, 2), (Strained(0, 2, 0.5),), b"signature", b"certificate"),)),
    Ordered(b"an order"),
    Want(),
    Model(250, TENSOR[0]),
    Model(250, np.zeros(0, np.float32)),
    *(Bye(reason) for reason in frames.REASONS),
]


def equal(a, b):
    if isinstance(a, Data | Model):
        return a[:-1] == b[:-1] and a[-1].dtype == b[-1].dtype and np.array_equal(a[-1], b[-1])
    return a == b


class TestFrames:
    @pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
    def test_read_as_written(self, frame):
        assert equal(frames.parse(frames.write(frame)), frame)

    @pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
    def test_nothing_shorter_or_longer_is_a_frame(self, frame):
        raw = frames.write(frame)
        for length in range(len(raw)):
            with pytest.raises(Malformed):
                frames.parse(raw[:length])
        with pytest.raises(Malformed):
            frames.parse(raw + b"\0")

    def test_another_version_is_named(self):
        known, other = frames.VERSION, frames.VERSION + 1
        raw = frames.write(FRAMES[0]._replace(version=other))
        with pytest.raises(
            Malformed, match=f"protocol version {other}, and this site speaks {known}: install the same"
        ):
            frames.parse(raw[:7] + b"whatever that version has")

    def test_a_tensor_that_claims_to_be_huge_is_not_made(self):
        raw = bytearray(frames.write(FRAMES[3]))
        at = len(raw) - TENSOR.nbytes - 8
        raw[at : at + 8] = b"\xff" * 8
        with pytest.raises(Malformed, match="bytes instead of"):
            frames.parse(bytes(raw))
