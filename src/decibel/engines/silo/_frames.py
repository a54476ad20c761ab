"""What travels over an edge: small frames of fixed layout, little-endian. Nothing in them is ever executed.

`parse` takes any bytes and gives a frame or raises `Malformed`; it allocates nothing larger than what it was given.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

MAGIC = b"dBs1"
DTYPES = {1: np.dtype("<f4"), 2: np.dtype("<f8"), 3: np.dtype("u1")}
CODES = {dtype: code for code, dtype in DTYPES.items()}
MOST_AXES = 4
HASH, NONCE = 32, 32


class Malformed(ValueError):
    """Bytes that are not a frame."""


class Position(NamedTuple):
    """Where a run is: the step, and how many exchanges it has begun in it."""

    step: int
    exchange: int


class Hello(NamedTuple):
    """Who speaks is in its certificate; here is what it speaks of. The one that was dialled proves its certificate."""

    federation: bytes
    problem: bytes
    incarnation: int
    nonce: bytes
    certificate: bytes = b""
    proof: bytes = b""


class Entry(NamedTuple):
    site: int
    incarnation: int
    steps: tuple[int, ...]


class Roll(NamedTuple):
    """Who is there, as far as known, and the steps each has saved; the step that was agreed on, or −1."""

    agreed: int
    running: bool
    entries: tuple[Entry, ...]


class Join(NamedTuple):
    """`step` is the first in which the sender takes part; `open` that it still does, and `got` what it had last;
    `holds` that it remembers the flow of this edge."""

    epoch: int
    open: bool
    holds: bool
    step: int
    got: Position
    answer: bool = False  # JOINED


class Data(NamedTuple):
    epoch: int
    at: Position
    tensor: np.ndarray


class Skip(NamedTuple):
    """The sender continues at a later step."""

    step: int


class Beat(NamedTuple):
    """A sign of life."""


class Bye(NamedTuple):
    """The sender has `finished`, or has `left`, or sets the other `aside` because it is too slow."""

    reason: str


Frame = Hello | Roll | Join | Data | Skip | Beat | Bye
REASONS = ("finished", "left", "aside")
KINDS = {Hello: 1, Roll: 2, Join: 3, Data: 4, Skip: 5, Beat: 6, Bye: 7}

_HEAD = struct.Struct("<4sB")
_HELLO = struct.Struct(f"<{HASH}s{HASH}sQ{NONCE}sHH")
_ROLL = struct.Struct("<q?H")
_ENTRY = struct.Struct("<HQH")
_JOIN = struct.Struct("<I???Iqi")
_DATA = struct.Struct("<IIHBB3x")  # so that the numbers of a tensor of one axis begin at a multiple of 8
_SKIP = struct.Struct("<I")
_BYE = struct.Struct("<B")


def write(frame: Frame) -> bytes:
    return _HEAD.pack(MAGIC, KINDS[type(frame)]) + _body(frame)


def write_data(epoch: int, at: Position, tensor: np.ndarray) -> bytes:
    """A Data frame; the tensor's bytes are copied once."""
    shape = struct.pack(f"<{tensor.ndim}I", *tensor.shape)
    head = _DATA.pack(epoch, at.step, at.exchange, CODES[tensor.dtype], tensor.ndim)
    raw = np.ascontiguousarray(tensor).data.cast("B") if tensor.size else b""  # of nothing there is no view
    return b"".join((_HEAD.pack(MAGIC, KINDS[Data]), head, shape, raw))


def _body(frame: Frame) -> bytes:
    match frame:
        case Hello(federation, problem, incarnation, nonce, certificate, proof):
            head = _HELLO.pack(federation, problem, incarnation, nonce, len(certificate), len(proof))
            return head + certificate + proof
        case Roll(agreed, running, entries):
            parts = [_ROLL.pack(agreed, running, len(entries))]
            for site, incarnation, steps in entries:
                parts.append(_ENTRY.pack(site, incarnation, len(steps)) + struct.pack(f"<{len(steps)}I", *steps))
            return b"".join(parts)
        case Join(epoch, is_open, holds, step, got, answer):
            return _JOIN.pack(epoch, is_open, holds, answer, step, got.step, got.exchange)
        case Data(epoch, at, tensor):
            return write_data(epoch, at, tensor)[_HEAD.size :]
        case Skip(step):
            return _SKIP.pack(step)
        case Bye(reason):
            return _BYE.pack(REASONS.index(reason))
        case Beat():
            return b""


def parse(raw: bytes) -> Frame:
    reader = Reader(raw)
    magic, kind = reader.take(_HEAD)
    if magic != MAGIC:
        raise Malformed("these bytes are not a frame.")
    read = {1: _hello, 2: _roll, 3: _join, 4: _data, 5: _skip, 6: lambda _: Beat(), 7: _bye}.get(kind)
    if read is None:
        raise Malformed(f"frame of unknown kind {kind}.")
    frame = read(reader)
    if reader.left:
        raise Malformed(f"{type(frame).__name__} frame with {reader.left} bytes too many.")
    return frame


class Reader:
    """Takes bytes from the front, and raises if there are too few."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = memoryview(raw), 0

    @property
    def left(self) -> int:
        return len(self._raw) - self._at

    def bytes(self, count: int) -> memoryview:
        if count > self.left:
            raise Malformed(f"frame ends {count - self.left} bytes too early.")
        self._at += count
        return self._raw[self._at - count : self._at]

    def take(self, layout: struct.Struct) -> tuple:
        return layout.unpack(self.bytes(layout.size))


def _hello(reader: Reader) -> Hello:
    federation, problem, incarnation, nonce, certificate, proof = reader.take(_HELLO)
    return Hello(federation, problem, incarnation, nonce, bytes(reader.bytes(certificate)), bytes(reader.bytes(proof)))


def _roll(reader: Reader) -> Roll:
    agreed, running, count = reader.take(_ROLL)
    entries = []
    for _ in range(count):
        site, incarnation, steps = reader.take(_ENTRY)
        entries.append(Entry(site, incarnation, struct.unpack(f"<{steps}I", reader.bytes(4 * steps))))
    return Roll(agreed, running, tuple(entries))


def _join(reader: Reader) -> Join:
    epoch, is_open, holds, answer, step, got_step, got_exchange = reader.take(_JOIN)
    return Join(epoch, is_open, holds, step, Position(got_step, got_exchange), answer)


def _data(reader: Reader) -> Data:
    epoch, step, exchange, code, axes = reader.take(_DATA)
    if code not in DTYPES or axes > MOST_AXES:
        raise Malformed(f"tensor of unknown dtype {code} or with {axes} axes.")
    shape = struct.unpack(f"<{axes}I", reader.bytes(4 * axes))
    size = DTYPES[code].itemsize
    for length in shape:
        size *= length  # Python's integers do not overflow
    if size != reader.left:
        raise Malformed(f"tensor of shape {shape} with {reader.left} bytes instead of {size}.")
    tensor = np.frombuffer(reader.bytes(size), DTYPES[code]).reshape(shape)
    return Data(epoch, Position(step, exchange), tensor)


def _skip(reader: Reader) -> Skip:
    return Skip(*reader.take(_SKIP))


def _bye(reader: Reader) -> Bye:
    (reason,) = reader.take(_BYE)
    if reason >= len(REASONS):
        raise Malformed(f"goodbye of unknown reason {reason}.")
    return Bye(REASONS[reason])
