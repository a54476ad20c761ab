"""What travels over an edge: small frames of fixed layout, little-endian. Nothing in them is ever executed.

`parse` takes any bytes and gives a frame or raises `Malformed`; it allocates nothing larger than what it was given.
Which values a field may have is in `_limits`, and which frame may come when in `_edge` (docs/silo-protocol.md).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

MAGIC = b"dBsi"
VERSION = 4  # of the protocol; the beginning of HELLO, with this number, is the same in every version
DTYPES = {1: np.dtype("<f4"), 2: np.dtype("<f8"), 3: np.dtype("u1")}
CODES = {dtype: code for code, dtype in DTYPES.items()}
MOST_AXES = 4
HASH, NONCE = 32, 32
NO_HASH = bytes(HASH)
LONGEST_SENTENCE, LONGEST_VERSION = 500, 64  # bytes


class Malformed(ValueError):
    """Bytes that are not a frame."""


class Position(NamedTuple):
    """Where a run is: the step, and how many exchanges it has begun in it."""

    step: int
    exchange: int


class Build(NamedTuple):
    """What computes: versions, and hashes of the losses, which mean the same where JAX is the same. Nothing is said of
    what is empty."""

    decibel: str = ""
    jax: str = ""
    upper: bytes = NO_HASH
    lower: bytes = NO_HASH


class Hello(NamedTuple):
    """Who speaks is in its certificate; here is what it speaks of. The one that was dialled proves its certificate."""

    federation: bytes
    problem: bytes
    incarnation: int
    nonce: bytes
    certificate: bytes = b""
    proof: bytes = b""
    build: Build = Build()
    version: int = VERSION


class Statement(NamedTuple):
    """What a site says of itself, signed by it: its step, those that it had saved when it started, and whether it is
    `done`: has no step left, or is at rest by the stop rule."""

    site: int
    incarnation: int
    step: int
    saved: tuple[int, ...]
    signature: bytes = b""
    certificate: bytes = b""  # left out where it was sent before
    done: bool = False

    def text(self) -> bytes:
        """What is signed."""
        head = _STATEMENT.pack(self.site, self.incarnation, self.step, self.done, len(self.saved), 0, 0)
        return head + _steps(self.saved)


class Roll(NamedTuple):
    """What every site has said of itself, as far as known. The sender has `settled` from which step it starts, by these
    statements and no others; it is `running`."""

    settled: bool
    running: bool
    statements: tuple[Statement, ...]


class Stand(NamedTuple):
    """Newer statements, while the run goes on."""

    statements: tuple[Statement, ...]


class Join(NamedTuple):
    """`step` is the first in which the sender takes part; `open` that it still does, in `epoch`, and `got` what it had
    last; `holds` that it remembers the flow of this edge. `next` is the epoch to begin, if there is to be one; an
    answer repeats it."""

    epoch: int
    next: int
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


class Refuse(NamedTuple):
    """Why the sender closes this stream."""

    sentence: str


Frame = Hello | Roll | Stand | Join | Data | Skip | Beat | Bye | Refuse
REASONS = ("finished", "left", "aside")
KINDS = {Hello: 1, Roll: 2, Join: 3, Data: 4, Skip: 5, Beat: 6, Bye: 7, Stand: 8, Refuse: 9}

_HEAD = struct.Struct("<4sB")
_VERSION = struct.Struct("<H")
_HELLO = struct.Struct(f"<{HASH}s{HASH}sQ{NONCE}sHH")
_BUILD = struct.Struct(f"<{HASH}s{HASH}sBB")
_ROLL = struct.Struct("<BH")
_COUNT = struct.Struct("<H")
_STATEMENT = struct.Struct("<HQIBBBH")  # site, incarnation, step, done; and how much of saved, signature, certificate
_JOIN = struct.Struct("<QQBIii")
_DATA = struct.Struct("<QIHBB7x")  # so that the numbers of a tensor of one axis begin at a multiple of 8
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
        case Hello(federation, problem, incarnation, nonce, certificate, proof, build, version):
            head = _HELLO.pack(federation, problem, incarnation, nonce, len(certificate), len(proof))
            return _VERSION.pack(version) + head + certificate + proof + _build(build)
        case Roll(settled, running, statements):
            head = _ROLL.pack(_flags(settled, running), len(statements))
            return head + b"".join(map(_statement, statements))
        case Stand(statements):
            return _COUNT.pack(len(statements)) + b"".join(map(_statement, statements))
        case Join(epoch, following, is_open, holds, step, got, answer):
            return _JOIN.pack(epoch, following, _flags(is_open, holds, answer), step, got.step, got.exchange)
        case Data(epoch, at, tensor):
            return write_data(epoch, at, tensor)[_HEAD.size :]
        case Skip(step):
            return _SKIP.pack(step)
        case Bye(reason):
            return _BYE.pack(REASONS.index(reason))
        case Refuse(sentence):
            raw = sentence.encode()[:LONGEST_SENTENCE]
            return _COUNT.pack(len(raw)) + raw
        case Beat():
            return b""


def _build(build: Build) -> bytes:
    decibel, jax = (text.encode()[:LONGEST_VERSION] for text in (build.decibel, build.jax))
    return _BUILD.pack(build.upper, build.lower, len(decibel), len(jax)) + decibel + jax


def _statement(one: Statement) -> bytes:
    sizes = (len(one.saved), len(one.signature), len(one.certificate))
    head = _STATEMENT.pack(one.site, one.incarnation, one.step, one.done, *sizes)
    return head + _steps(one.saved) + one.signature + one.certificate


def _steps(saved: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(saved)}I", *saved)


def _flags(*flags: bool) -> int:
    return sum(flag << place for place, flag in enumerate(flags))


def parse(raw: bytes) -> Frame:
    reader = Reader(raw)
    magic, kind = reader.take(_HEAD)
    if magic != MAGIC:
        raise Malformed("these bytes are not a frame.")
    read = {1: _hello, 2: _roll, 3: _join, 4: _data, 5: _skip, 6: _beat, 7: _bye, 8: _stand, 9: _refuse}.get(kind)
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
    (version,) = reader.take(_VERSION)
    if version != VERSION:
        raise Malformed(
            f"HELLO of protocol version {version}, and this site speaks {VERSION}: install the same release."
        )
    federation, problem, incarnation, nonce, certificate, proof = reader.take(_HELLO)
    shown, proved = bytes(reader.bytes(certificate)), bytes(reader.bytes(proof))
    return Hello(federation, problem, incarnation, nonce, shown, proved, _read_build(reader), version)


def _read_build(reader: Reader) -> Build:
    upper, lower, *lengths = reader.take(_BUILD)
    if max(lengths) > LONGEST_VERSION:
        raise Malformed(f"version of {max(lengths)} letters.")
    decibel, jax = (_text(reader, length) for length in lengths)
    return Build(decibel, jax, upper, lower)


def _text(reader: Reader, length: int) -> str:
    return bytes(reader.bytes(length)).decode(errors="replace")


def _roll(reader: Reader) -> Roll:
    flags, count = reader.take(_ROLL)
    settled, running = _flagged(flags, 2)
    return Roll(settled, running, tuple(_read_statement(reader) for _ in range(count)))


def _stand(reader: Reader) -> Stand:
    (count,) = reader.take(_COUNT)
    return Stand(tuple(_read_statement(reader) for _ in range(count)))


def _beat(_: Reader) -> Beat:
    return Beat()


def _read_statement(reader: Reader) -> Statement:
    site, incarnation, step, flags, saved, signature, certificate = reader.take(_STATEMENT)
    (done,) = _flagged(flags, 1)
    steps = struct.unpack(f"<{saved}I", reader.bytes(4 * saved))
    signed, shown = bytes(reader.bytes(signature)), bytes(reader.bytes(certificate))
    return Statement(site, incarnation, step, steps, signed, shown, done)


def _join(reader: Reader) -> Join:
    epoch, following, flags, step, got_step, got_exchange = reader.take(_JOIN)
    is_open, holds, answer = _flagged(flags, 3)
    return Join(epoch, following, is_open, holds, step, Position(got_step, got_exchange), answer)


def _flagged(flags: int, count: int) -> list[bool]:
    if flags >> count:
        raise Malformed(f"flags of {flags}, of which {count} bits are known.")
    return [bool(flags >> place & 1) for place in range(count)]


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


def _refuse(reader: Reader) -> Refuse:
    (length,) = reader.take(_COUNT)
    if length > LONGEST_SENTENCE:
        raise Malformed(f"sentence of {length} bytes.")
    return Refuse(_text(reader, length))
