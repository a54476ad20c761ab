"""What travels over an edge: small frames of fixed layout, little-endian. Nothing in them is ever executed.

`parse` takes any bytes and gives a frame or raises `Malformed`; it allocates nothing larger than what it was given.
`_frame_limits` defines which values a field may have, and `_edge` which frame may come when
(docs/reference/silo-protocol.md).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

MAGIC = b"dBsi"
VERSION = 10  # of the protocol; the beginning of HELLO, with this number, is the same in every version
DTYPES = {1: np.dtype("<f4"), 2: np.dtype("<f8"), 3: np.dtype("u1")}
CODES = {dtype: code for code, dtype in DTYPES.items()}
MOST_AXES = 4
HASH = 32
NONCE = 32
NO_HASH = bytes(HASH)
# Bytes
LONGEST_SENTENCE = 500
LONGEST_VERSION = 64


class Malformed(ValueError):
    """Raised on bytes that are not a frame."""


class Position(NamedTuple):
    """Where a run is: the step, and how many exchanges it has begun in it."""

    step: int
    exchange: int


class Build(NamedTuple):
    """Software versions and loss hashes of a site. Hashes are comparable between equal versions of JAX only; empty
    fields are unknown."""

    decibel: str = ""
    jax: str = ""
    upper: bytes = NO_HASH
    lower: bytes = NO_HASH


class Hello(NamedTuple):
    """The first frame of a stream. The sender's identity is in its TLS certificate, which the listening end also sends,
    with its signature of the dialler's nonce: the dialler's gRPC does not show it."""

    federation_hash: bytes
    run_hash: bytes
    incarnation: int
    nonce: bytes
    certificate: bytes = b""
    proof: bytes = b""
    build: Build = Build()
    version: int = VERSION


class Statement(NamedTuple):
    """What a site says about itself, signed by it.

    `nonce` is a random number of this start of the site, and `heard` holds those of all sites that it has heard of
    (`nonces_of`): it counts for a site whose nonce is there, and for no other. `serial` grows from statement to
    statement. `saved` are the steps that it had saved when it started. It is `running` from its first step on, and
    `done` when it has no step left, or is at rest by the stop rule.
    """

    site: int
    incarnation: int
    nonce: int
    serial: int = 0
    step: int = 0
    saved: tuple[int, ...] = ()
    running: bool = False
    done: bool = False
    heard: bytes = b""
    signature: bytes = b""
    certificate: bytes = b""  # left out where it was sent before

    @property
    def order(self) -> tuple[int, int]:
        """Grows from each statement of a site to its next."""
        return self.incarnation, self.serial

    def has_heard(self, site: int, nonce: int) -> bool:
        return self.heard[site * _NONCE.size : (site + 1) * _NONCE.size] == _NONCE.pack(nonce)

    def signed_bytes(self) -> bytes:
        """The bytes that the site signs."""
        return self._head(0, 0, 0) + _steps(self.saved) + self.heard

    def head(self, heard_index: int) -> bytes:
        """The bytes before the statement's parts in a frame, whose part number `heard_index` is what it has heard."""
        return self._head(heard_index, len(self.signature), len(self.certificate))

    def _head(self, *parts: int) -> bytes:
        flags = _flags(self.running, self.done)
        lengths = (len(self.saved), *parts)
        return _STATEMENT.pack(self.site, self.incarnation, self.nonce, self.serial, self.step, flags, *lengths)


def nonces_of(statements: Iterable[Statement], sites: int) -> bytes:
    """The nonces in these statements, by the number of the site; 0 for a site of which there is none."""
    nonces = {statement.site: statement.nonce for statement in statements}
    return b"".join(_NONCE.pack(nonces.get(site, 0)) for site in range(sites))


class Roll(NamedTuple):
    """The statements that fixed the sender's first step or, until it is fixed, the newest statements of all sites.
    `running` says whether the sender has begun its first step."""

    running: bool
    statements: tuple[Statement, ...]


class Stand(NamedTuple):
    """Statements that are newer than those which the receiver has, passed on after ROLL."""

    statements: tuple[Statement, ...]


class Join(NamedTuple):
    """How one end sees the edge, to begin or resume an exchange of messages.

    Attributes:
        epoch: the epoch of the exchange in progress or the last one.
        new_epoch: the epoch that the dialler proposes; the answer repeats it.
        is_open: whether the sender still exchanges messages in `epoch`.
        holds_flow: whether the sender remembers the flow of this edge.
        step: the first step in which the sender takes part.
        last_received: the position of the last message that it received.
        answer: whether this is JOINED.
    """

    epoch: int
    new_epoch: int
    is_open: bool
    holds_flow: bool
    step: int
    last_received: Position
    answer: bool = False


class Data(NamedTuple):
    """One row for this neighbour: the `tensor` of exchange `at` in `epoch`."""

    epoch: int
    at: Position
    tensor: np.ndarray


class Skip(NamedTuple):
    """Says that the sender continues at a later step."""

    step: int


class Beat(NamedTuple):
    """A sign of life. `is_waiting` says whether the sender waits for another neighbour."""

    is_waiting: bool = False


class Bye(NamedTuple):
    """The sender has `finished`, or has `left`, or sets the other `aside` because it is too slow."""

    reason: str


class Refuse(NamedTuple):
    """Why the sender closes this stream."""

    sentence: str


class Receipt(NamedTuple):
    """The newest message of an exchange that the sender has read, where sites have no common clock."""

    at: Position


class Strained(NamedTuple):
    """A link whose flow on a level is a large share of its limit."""

    neighbour: int
    level: int  # its index in x, y, z
    share: float


class Report(NamedTuple):
    """How a site is doing, signed by it, for people to see; nothing is decided by it.

    `time` is the Unix time of its own clock, `state` the index of a word in `STATES`, and `awaited_sites` the numbers
    of the sites for which it waits.
    """

    site: int
    incarnation: int
    serial: int
    time: int
    state: int
    step: int
    steps: int
    rate: float
    awaited_sites: tuple[int, ...] = ()
    strained: tuple[Strained, ...] = ()
    signature: bytes = b""
    certificate: bytes = b""

    @property
    def order(self) -> tuple[int, int]:
        """Grows from each report of a site to its next."""
        return self.incarnation, self.serial

    def signed_bytes(self) -> bytes:
        """The bytes that the site signs."""
        return self._head(0, 0) + self._lists()

    def written(self) -> bytes:
        head = self._head(len(self.signature), len(self.certificate))
        return head + self._lists() + self.signature + self.certificate

    def _head(self, signature: int, certificate: int) -> bytes:
        lengths = (len(self.awaited_sites), len(self.strained), signature, certificate)
        return _REPORT.pack(*self[: self._fields.index("awaited_sites")], *lengths)

    def _lists(self) -> bytes:
        waits = struct.pack(f"<{len(self.awaited_sites)}H", *self.awaited_sites)
        return waits + b"".join(_STRAINED.pack(*link) for link in self.strained)


class Reports(NamedTuple):
    """Newer reports of sites."""

    reports: tuple[Report, ...]


class Ordered(NamedTuple):
    """An order as the authority has signed it."""

    text: bytes


class Want(NamedTuple):
    """The sender was away when the others finished, and asks for their model."""


class Model(NamedTuple):
    """The model of a site that has finished, (entries,), at a step; no entries if it does not give it."""

    step: int
    row: np.ndarray


Frame = Hello | Roll | Stand | Join | Data | Skip | Beat | Bye | Refuse | Receipt | Reports | Ordered | Want | Model
STATES = ("starting", "compiling", "waiting", "running", "refused", "stopped", "finished")
REASONS = ("finished", "left", "aside")

_HEAD = struct.Struct("<4sB")
_VERSION = struct.Struct("<H")
_HELLO = struct.Struct(f"<{HASH}s{HASH}sQ{NONCE}sHH")
_BUILD = struct.Struct(f"<{HASH}s{HASH}sBB")
_FLAGS = struct.Struct("<B")
_COUNT = struct.Struct("<H")
_NONCE = struct.Struct("<Q")
# Site, incarnation, nonce, serial, step, flags; how many steps are saved, the place of what was heard, and how many
# bytes the signature and the certificate have.
_STATEMENT = struct.Struct("<HQQIIBBHBH")
_JOIN = struct.Struct("<QQBIii")
_DATA = struct.Struct("<QIHBB7x")  # so that the numbers of a tensor of one axis begin at a multiple of 8
_SKIP = struct.Struct("<I")
_BYE = struct.Struct("<B")
_RECEIPT = struct.Struct("<IH")
# Site, incarnation, serial, time, state, step, steps, rate; how many sites are awaited and how many links strained, and
# how many bytes the signature and the certificate have.
_REPORT = struct.Struct("<HQIQBIIfBBBH")
_STRAINED = struct.Struct("<HBf")
_MODEL = struct.Struct("<IB6xQ")


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
        case Roll(running, statements):
            return _FLAGS.pack(_flags(running)) + _statements(statements)
        case Stand(statements):
            return _statements(statements)
        case Join(epoch, following, is_open, holds, step, got, answer):
            return _JOIN.pack(epoch, following, _flags(is_open, holds, answer), step, got.step, got.exchange)
        case Data(epoch, at, tensor):
            return write_data(epoch, at, tensor)[_HEAD.size :]
        case Skip(step):
            return _SKIP.pack(step)
        case Bye(reason):
            return _BYE.pack(REASONS.index(reason))
        case Refuse(sentence):
            return _with_size(sentence.encode()[:LONGEST_SENTENCE])
        case Receipt(at):
            return _RECEIPT.pack(*at)
        case Reports(reports):
            return _COUNT.pack(len(reports)) + b"".join(report.written() for report in reports)
        case Ordered(text):
            return _with_size(text)
        case Beat(waits):
            return _FLAGS.pack(_flags(waits))
        case Model(step, row):
            return _MODEL.pack(step, CODES[row.dtype], row.size) + row.tobytes()
        case Want():
            return b""


def _build(build: Build) -> bytes:
    decibel, jax = (text.encode()[:LONGEST_VERSION] for text in (build.decibel, build.jax))
    return _BUILD.pack(build.upper, build.lower, len(decibel), len(jax)) + decibel + jax


def _statements(statements: tuple[Statement, ...]) -> bytes:
    """Most sites have heard the same nonces, so these are written once."""
    distinct = dict.fromkeys(statement.heard for statement in statements)
    index_of = {heard: index for index, heard in enumerate(distinct)}
    parts = [_COUNT.pack(len(index_of))]
    parts += map(_with_size, index_of)
    parts.append(_COUNT.pack(len(statements)))
    for statement in statements:
        parts += [
            statement.head(index_of[statement.heard]),
            _steps(statement.saved),
            statement.signature,
            statement.certificate,
        ]
    return b"".join(parts)


def _with_size(raw: bytes) -> bytes:
    return _COUNT.pack(len(raw)) + raw


def _steps(saved: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(saved)}I", *saved)


def _flags(*flags: bool) -> int:
    return sum(flag << place for place, flag in enumerate(flags))


def parse(raw: bytes) -> Frame:
    reader = FrameReader(raw)
    magic, kind = reader.take(_HEAD)
    if magic != MAGIC:
        raise Malformed("these bytes are not a frame.")
    read = BY_KIND.get(kind)
    if read is None:
        raise Malformed(f"frame of unknown kind {kind}.")
    frame = read(reader)
    if reader.left:
        raise Malformed(f"{type(frame).__name__} frame with {reader.left} bytes too many.")
    return frame


class FrameReader:
    """Takes bytes from the front, and raises if there are too few."""

    def __init__(self, raw: bytes) -> None:
        self._raw = memoryview(raw)
        self._at = 0

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


def _hello(reader: FrameReader) -> Hello:
    (version,) = reader.take(_VERSION)
    if version != VERSION:
        raise Malformed(
            f"HELLO of protocol version {version}, and this site speaks {VERSION}: install the same release."
        )
    federation, problem, incarnation, nonce, certificate, proof = reader.take(_HELLO)
    shown = bytes(reader.bytes(certificate))
    proved = bytes(reader.bytes(proof))
    return Hello(federation, problem, incarnation, nonce, shown, proved, _read_build(reader), version)


def _read_build(reader: FrameReader) -> Build:
    upper, lower, *lengths = reader.take(_BUILD)
    if max(lengths) > LONGEST_VERSION:
        raise Malformed(f"version of {max(lengths)} letters.")
    decibel, jax = (_text(reader, length) for length in lengths)
    return Build(decibel, jax, upper, lower)


def _text(reader: FrameReader, length: int) -> str:
    return bytes(reader.bytes(length)).decode(errors="replace")


def _flag(reader: FrameReader) -> bool:
    (flags,) = reader.take(_FLAGS)
    (flag,) = _flagged(flags, 1)
    return flag


def _read_statements(reader: FrameReader) -> tuple[Statement, ...]:
    heard = [_sized(reader) for _ in range(_count(reader))]
    return tuple(_read_statement(reader, heard) for _ in range(_count(reader)))


def _count(reader: FrameReader) -> int:
    (count,) = reader.take(_COUNT)
    return count


def _sized(reader: FrameReader) -> bytes:
    return bytes(reader.bytes(_count(reader)))


def _read_statement(reader: FrameReader, heard: list[bytes]) -> Statement:
    site, incarnation, nonce, serial, step, flags, saved, place, signature, certificate = reader.take(_STATEMENT)
    running, done = _flagged(flags, 2)
    if place >= len(heard):
        raise Malformed(f"statement with part {place} of {len(heard)}.")
    return Statement(
        site,
        incarnation,
        nonce,
        serial,
        step,
        struct.unpack(f"<{saved}I", reader.bytes(4 * saved)),
        running,
        done,
        heard[place],
        bytes(reader.bytes(signature)),
        bytes(reader.bytes(certificate)),
    )


def _join(reader: FrameReader) -> Join:
    epoch, following, flags, step, got_step, got_exchange = reader.take(_JOIN)
    is_open, holds, answer = _flagged(flags, 3)
    return Join(epoch, following, is_open, holds, step, Position(got_step, got_exchange), answer)


def _flagged(flags: int, count: int) -> list[bool]:
    if flags >> count:
        raise Malformed(f"flags of {flags}, of which {count} bits are known.")
    return [bool(flags >> place & 1) for place in range(count)]


def _data(reader: FrameReader) -> Data:
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


def _bye(reader: FrameReader) -> Bye:
    (reason,) = reader.take(_BYE)
    if reason >= len(REASONS):
        raise Malformed(f"goodbye of unknown reason {reason}.")
    return Bye(REASONS[reason])


def _refuse(reader: FrameReader) -> Refuse:
    length = _count(reader)
    if length > LONGEST_SENTENCE:
        raise Malformed(f"sentence of {length} bytes.")
    return Refuse(_text(reader, length))


def _reports(reader: FrameReader) -> Reports:
    return Reports(tuple(_read_report(reader) for _ in range(_count(reader))))


def _read_report(reader: FrameReader) -> Report:
    *fields, waits, strained, signature, certificate = reader.take(_REPORT)
    return Report(*fields)._replace(
        awaited_sites=struct.unpack(f"<{waits}H", reader.bytes(2 * waits)),
        strained=tuple(Strained(*reader.take(_STRAINED)) for _ in range(strained)),
        signature=bytes(reader.bytes(signature)),
        certificate=bytes(reader.bytes(certificate)),
    )


def _model(reader: FrameReader) -> Model:
    step, code, entries = reader.take(_MODEL)
    if code not in DTYPES or entries * DTYPES[code].itemsize != reader.left:
        raise Malformed(f"model of unknown dtype {code}, or with {reader.left} bytes for {entries} entries.")
    return Model(step, np.frombuffer(reader.bytes(reader.left), DTYPES[code]))


READERS: dict[type[Frame], Callable[[FrameReader], Frame]] = {
    Hello: _hello,
    Roll: lambda reader: Roll(_flag(reader), _read_statements(reader)),
    Join: _join,
    Data: _data,
    Skip: lambda reader: Skip(*reader.take(_SKIP)),
    Beat: lambda reader: Beat(_flag(reader)),
    Bye: _bye,
    Stand: lambda reader: Stand(_read_statements(reader)),
    Refuse: _refuse,
    Receipt: lambda reader: Receipt(Position(*reader.take(_RECEIPT))),
    Reports: _reports,
    Ordered: lambda reader: Ordered(_sized(reader)),
    Want: lambda reader: Want(),
    Model: _model,
}
KINDS = {frame: number for number, frame in enumerate(READERS, 1)}
BY_KIND = dict(enumerate(READERS.values(), 1))
