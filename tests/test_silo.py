"""Silo without processes: frames, certificates, an edge's rules, who is let in, and the simulator's numbers."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import equinox as eqx
import grpc
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import random_quadratic
from silo_sites import Folders, ring
from typer.testing import CliRunner

import decibel as db
from decibel.cli import app
from decibel.cli._silo_rehearsal import on_loopback
from decibel.core._files import atomic_write
from decibel.engines.silo import _frames as frames
from decibel.engines.silo._certificates import Authority, NotTrusted, check, make_request, new_key, read_signed
from decibel.engines.silo._credentials import Credentials
from decibel.engines.silo._edge import NOWHERE, WINDOW, Edge, Rejected
from decibel.engines.silo._federation import FaultTolerance, Federation, SiteAddress
from decibel.engines.silo._frames import Beat, Bye, Data, Entry, Hello, Join, Malformed, Position, Roll, Skip
from decibel.engines.silo._payload_layout import in_code
from decibel.engines.silo._site import Site
from decibel.engines.silo._streams import METHOD, Outgoing, Streams
from decibel.methods._single_level import SingleLevel
from decibel.network._links import ConcatCodec, LinkState
from decibel.network.privacy import _in_code
from decibel.strategies import _table as strategies

TENSOR = np.arange(6.0).reshape(2, 3)
FRAMES = [
    Hello(b"f" * 32, b"p" * 32, 7, b"n" * 32, b"certificate", b"proof"),
    Roll(-1, False, (Entry(0, 5, ()), Entry(3, 9, (100, 200)))),
    Join(4, True, False, 17, Position(16, 2), True),
    Data(3, Position(12, 1), TENSOR),
    Data(3, Position(12, 1), np.arange(5, dtype=np.uint8)),
    Skip(99),
    Beat(),
    *(Bye(reason) for reason in frames.REASONS),
]


def equal(a, b):
    if isinstance(a, Data):
        return a[:2] == b[:2] and a.tensor.dtype == b.tensor.dtype and np.array_equal(a.tensor, b.tensor)
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

    def test_any_bytes_give_a_frame_or_malformed(self):
        chance = random.Random(0)
        originals = [frames.write(frame) for frame in FRAMES]
        seen = {"frame": 0, "malformed": 0}
        for _ in range(20_000):
            raw = bytearray(chance.choice(originals))
            for _ in range(chance.randint(1, 4)):
                match chance.randrange(4):
                    case 0 if raw:
                        raw[chance.randrange(len(raw))] = chance.randrange(256)
                    case 1:
                        del raw[chance.randrange(len(raw) + 1) :]
                    case 2:
                        raw += chance.randbytes(chance.randrange(9))
                    case 3:
                        raw = bytearray(frames.MAGIC) + chance.randbytes(chance.randrange(40))
            try:
                frames.parse(bytes(raw))
                seen["frame"] += 1
            except Malformed:
                seen["malformed"] += 1
        assert min(seen.values()) > 500  # so that both ways were tried

    def test_a_tensor_that_claims_to_be_huge_is_not_made(self):
        raw = bytearray(frames.write(FRAMES[3]))
        at = len(raw) - TENSOR.nbytes - 8
        raw[at : at + 8] = b"\xff" * 8
        with pytest.raises(Malformed, match="bytes instead of"):
            frames.parse(bytes(raw))


class TestCertificates:
    def setup_method(self):
        self.authority = Authority.make("test")
        self.key = new_key()

    def certificate(self, authority=None, **options):
        return (authority or self.authority).certify(make_request(self.key, "a", "test"), ["a"], **options)

    def test_the_name_is_in_the_certificate(self):
        assert check(self.certificate(), self.authority.certificate, set()) == "a"

    def test_raises(self):
        certificate, root = self.certificate(), self.authority.certificate
        with pytest.raises(NotTrusted, match="revoked"):
            check(certificate, root, {certificate.serial_number})
        with pytest.raises(NotTrusted, match="expired"):
            check(certificate, root, set(), datetime.now(UTC) + timedelta(days=400))
        with pytest.raises(NotTrusted, match="another authority"):
            check(self.certificate(Authority.make("test")), root, set())
        with pytest.raises(NotTrusted, match="not a site"):
            self.authority.certify(make_request(self.key, "mallory", "test"), ["a"])

    def test_a_signed_text_cannot_be_changed(self):
        signed = self.authority.sign('{"steps":100}')
        assert read_signed(signed, self.authority.certificate, "file") == '{"steps":100}'
        for forged in (signed.replace("100", "101"), Authority.make("test").sign("{}"), "{}", "no json", "[1]"):
            with pytest.raises(NotTrusted, match="file is not signed"):
                read_signed(forged, self.authority.certificate, "file")


class TestFederation:
    def test_text_and_back(self):
        federation = ring(4, method="ed", settings={"alpha": 0.1}, steps=10)
        assert Federation.from_text(federation.text) == federation
        assert replace(federation, steps=11).hash != federation.hash

    def test_one_end_dials(self):
        federation = ring(5, reachable={0, 2, 4})
        for a, b in federation.edges:
            assert federation.dials(a, b) != federation.dials(b, a)
            listener = b if federation.dials(a, b) else a
            assert federation.sites[listener].address is not None

    def test_a_port_alone_is_loopback(self, tmp_path):
        path = tmp_path / "f.toml"
        path.write_text('name="f"\nedges=[["a","b"]]\n[[sites]]\nname="a"\naddress=7401\n[[sites]]\nname="b"\n')
        assert Federation.from_toml(path).sites[0].listens == "127.0.0.1:7401"
        assert on_loopback(Federation.from_toml(path)).sites[1].address is None

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ('name="F!"', "lower-case"),
            ('edges=[["a","c"]]', "'c', which is not a site"),
            ('edges=[["a","a"]]', "two different sites"),
            ("stepz=3", "not known.*steps"),
            ('fault_tolerance={quorum="maybe"}', "wait, continue, stop"),
            ("fault_tolerance={beat=0}", "positive"),
            ('sites=[{name="a"},{name="b"}]', "neither has an address"),
            ('sites=[{name="a",address="nowhere"},{name="b"}]', "host:port"),
            ('sites=[{name="a",address=1},{name="b"},{name="b"}]', "two sites of the same name"),
        ],
    )
    def test_raises_in_a_sentence(self, tmp_path, change, sentence):
        written = {"name": '"f"', "edges": '[["a","b"]]', "sites": '[{name="a",address=7401},{name="b"}]'}
        key, _, value = change.partition("=")
        written[key] = value
        path = tmp_path / "f.toml"
        path.write_text("\n".join(f"{key}={value}" for key, value in written.items()))
        with pytest.raises(ValueError, match=sentence):
            Federation.from_toml(path)


CODES = [
    db.privacy.top_k("ed", 0.4),
    db.privacy.random_k("ed", 1.0),
    db.privacy.quantize("ed", 4),
    db.privacy.noisy("ed", 1.0, 0.1),
]


class Exponents(strategies.Code):
    """A user's code: signs and powers of two in integers, without a float; the largest power is infinity."""

    mixing: float = 0.3
    largest: int = eqx.field(static=True, default=255)  # of what decodes

    def bytes(self, entries, dtype):
        return 2 * entries

    def float_bytes(self, entries, dtype):
        return 0

    def encode(self, new, key, secret):
        powers = jnp.where(new == 0, 0, jnp.clip(jnp.floor(jnp.log2(jnp.abs(new))) + 200, 1, 254))
        powers = jnp.where(jnp.isfinite(new), powers, 255)
        return jnp.concatenate([powers.astype(jnp.uint8), (new < 0).astype(jnp.uint8)])

    def decode(self, row, key, entries, dtype):
        powers, signs = (part.astype(dtype) for part in jnp.split(row, 2))
        powers = jnp.minimum(powers, self.largest)
        sizes = jnp.where(powers == 0, 0, jnp.where(powers == 255, jnp.inf, 2 ** (powers - 200)))
        return (1 - 2 * signs) * sizes


class Poisoned(Exponents):
    """What it sends is infinite to all but itself."""

    def encode(self, new, key, secret):
        return super().encode(new, key, secret).at[0].set(255)


def in_own_code(code):
    return SingleLevel(_in_code("ed", code, "own code"), 0.1, 1.0, "single")


KNOWN = {(np.dtype("f8"), (3,)): {None}}


def message(step, exchange, *, epoch=1, tensor=None):
    return Data(epoch, Position(step, exchange), np.ones(3) if tensor is None else tensor)


def opened(mine=(True, 5), theirs=(True, 5)):
    edge = Edge(1, "other", dials=True)
    (edge.holds, step), (holds, there) = mine, theirs
    edge.settle(edge.view(step), Join(0, False, holds, there, NOWHERE))
    return edge


class TestEdge:
    def test_heard_in_turn(self):
        edge = opened()
        assert edge.awaited(Position(5, 0)) and not edge.takes_part(4)
        for at in (Position(5, 0), Position(5, 1), Position(6, 0)):
            edge.receive(Data(1, at, np.full(3, float(at.exchange))), KNOWN)
            row, tie = edge.take(at)
            assert row[0] == at.exchange and tie == LinkState.TIED

    def test_repeated_and_old_messages_do_nothing(self):
        edge = opened()
        edge.receive(message(5, 0), KNOWN)
        edge.receive(message(5, 0, tensor=np.zeros(3)), KNOWN)
        edge.receive(message(4, 0), KNOWN)
        edge.receive(message(5, 1, epoch=0), KNOWN)
        assert edge.repeated == 3 and edge.take(Position(5, 0))[0][0] == 1

    @pytest.mark.parametrize(
        ("data", "sentence"),
        [
            (message(7, 0), "out of order"),
            (message(5, 2), "out of order"),
            (message(5, 1, tensor=np.array([1, np.nan, 1])), "NaN"),
            (message(5, 1, tensor=np.array([1, np.inf, 1])), "infinity"),
            (message(5, 1, tensor=np.ones(4)), "shape"),
            (message(5, 1, tensor=np.ones(3, np.float32)), "float32"),
            (message(5, 1, tensor=np.ones((1, 3))), "shape"),
        ],
    )
    def test_raises(self, data, sentence):
        edge = opened()
        edge.receive(message(5, 0), KNOWN)
        with pytest.raises(Rejected, match=sentence):
            edge.receive(data, KNOWN)

    @pytest.mark.parametrize("made", CODES, ids=lambda made: made.name)
    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_what_is_not_finite_raises_in_code_too(self, made, bad):
        """Two levels in one message; only what is a float is looked at."""
        parts = ConcatCodec(made.move.code, [5, 9], np.float64)
        layout, keys = in_code(parts), (jax.random.key(0), jax.random.key(1))
        good = np.asarray(parts.encode(jnp.arange(14.0) - 3, *keys))
        known = {(good.dtype, good.shape): {layout}}
        opened().receive(message(5, 0, tensor=good), known)
        for place in (0, 5):  # the first entry of each level, and far larger than the others, so that it travels
            spoilt = np.asarray(parts.encode(jnp.full(14, 1e-9).at[place : place + 5].set(bad), *keys))
            with pytest.raises(Rejected, match="NaN"):
                opened().receive(message(5, 0, tensor=spoilt), known)
        # Neither steps of a quantizer nor places are floats: whatever bits they have, they are taken.
        bits = good.copy()
        ends = [
            (end, first) for (_, end, _), (first, _, _) in zip(layout, (*layout[1:], (bits.size, 0, "")), strict=True)
        ]
        for first, end in ends:
            bits[first:end] = 255
        opened().receive(message(5, 0, tensor=bits), known)

    @pytest.mark.parametrize("floats", [-8, 12, 24])
    def test_a_code_that_misstates_its_floats_raises(self, floats):
        class Wrong(Exponents):
            def float_bytes(self, entries, dtype):
                return floats

        with pytest.raises(ValueError, match=f"Wrong.float_bytes gives {floats} for a message of 16 bytes"):
            in_code(ConcatCodec(Wrong(), [8], np.dtype(np.float64)))

    def test_no_more_waits_than_can_be_ahead(self):
        edge = opened()
        with pytest.raises(Rejected, match="ahead"):
            for exchange in range(WINDOW + 1):
                edge.receive(message(5, exchange), KNOWN)

    def test_a_jump_is_announced_and_then_not_awaited(self):
        edge = opened()
        edge.receive(message(5, 0), KNOWN)
        with pytest.raises(Rejected, match="not ahead"):
            edge.skip(5)
        edge.skip(40)
        assert not edge.awaited(Position(6, 0)) and edge.awaited(Position(40, 0))
        edge.receive(message(40, 0), KNOWN)
        assert edge.take(Position(6, 0)) == (None, LinkState.TIED) and edge.take(Position(40, 0))[0] is not None

    @pytest.mark.parametrize("mine", [True, False])
    @pytest.mark.parametrize("theirs", [True, False])
    def test_both_ends_come_to_matching_ties(self, mine, theirs):
        here, there = opened((mine, 5), (theirs, 8)), opened((theirs, 8), (mine, 5))
        assert here.epoch == there.epoch
        pairs = {
            (LinkState.TIED, LinkState.TIED),
            (LinkState.RESET, LinkState.RESET),
            (LinkState.KEEPS, LinkState.RESTORE),
            (LinkState.RESTORE, LinkState.KEEPS),
        }
        assert (here.tie, there.tie) in pairs
        assert (here.tie == LinkState.RESTORE) == (theirs and not mine)

    def test_ties_last_one_step(self):
        edge = opened((False, 5), (True, 5))
        assert [edge.take(Position(*at))[1] for at in ((5, 0), (5, 1), (6, 0))] == [
            LinkState.RESTORE,
            LinkState.RESTORE,
            LinkState.TIED,
        ]

    def test_what_was_sent_is_sent_again_from_where_the_other_is(self):
        edge, sent = opened(), []
        for exchange in range(3):
            edge.say_data(Position(5, exchange), b"%d" % exchange)

        class Stream:
            send = staticmethod(sent.append)

        edge.stream = Stream()
        view = edge.view(6)
        edge.settle(view, view._replace(got=Position(5, 0)))
        assert sent == [b"1", b"2"]

    def test_a_closed_edge_is_apart_unless_its_flow_is_held(self):
        for forget, tie in ((True, LinkState.DROPPED), (False, LinkState.TIED)):
            edge = opened()
            edge.close(forget=forget)
            assert not edge.awaited(Position(5, 0)) and edge.take(Position(5, 0)) == (None, tie)


def wait_until(condition, seconds=10):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


class Listener:
    """Site 0 of a ring of four, listening, with no run behind it."""

    def __init__(self, folders):
        self.folders, self.said = folders, []
        credentials = Credentials.load(folders.home("site-0"), "site-0")
        self.site = Site(folders.federation, 0, b"p" * 32, lossy=True, say=self.said.append)
        self.site.expect(np.float64, (3,))
        self.streams = Streams(self.site, credentials, self.said.append)
        self.streams.start()

    def call(self, *sent, home=None, name="site-1", certificate=True, enough=99):
        """What a dialler with the papers in a folder hears, and how the call ends; after `enough` it hangs up."""
        home = home or self.folders.home(name)
        own = [(home / file).read_bytes() for file in ("key.pem", "certificate.pem")] if certificate else []
        root = (home / "authority.pem").read_bytes()
        options = [("grpc.ssl_target_name_override", "site-0")]
        address = self.folders.federation.sites[0].address
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(root, *own), options) as channel:
            held = threading.Event()

            def outgoing():
                yield from (frame if isinstance(frame, bytes) else frames.write(frame) for frame in sent)
                held.wait(3)

            received = []
            try:
                for raw in channel.stream_stream(METHOD)(outgoing(), timeout=5):
                    received.append(frames.parse(raw))
                    if len(received) == enough:
                        break
            except grpc.RpcError as error:
                return received, error.code(), error.details()
            finally:
                held.set()
            return received, None, ""

    @property
    def hello(self):
        return Hello(self.folders.federation.hash, b"p" * 32, 1, b"n" * 32)


@pytest.fixture(scope="module")
def listener(tmp_path_factory):
    listening = Listener(Folders(tmp_path_factory.mktemp("listener"), ring(4)))
    yield listening
    listening.site.goodbye(False)
    listening.streams.close()


DENIED, GONE = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE


class TestWhoIsLetIn:
    def test_a_neighbour_is(self, listener):
        received, code, _ = listener.call(listener.hello, enough=2)
        assert isinstance(received[0], Hello) and isinstance(received[1], Roll) and code is None
        own = Credentials.load(listener.folders.home("site-1"), "site-1")
        assert own.check_proof(received[0].certificate, received[0].proof, "site-0", b"n" * 32) == "site-0"
        for proof, nonce in ((received[0].proof, b"m" * 32), (b"", b"n" * 32)):
            with pytest.raises(NotTrusted):
                own.check_proof(received[0].certificate, proof, "site-0", nonce)

    def test_without_a_certificate(self, listener):
        received, code, _ = listener.call(listener.hello, certificate=False)
        assert not received and code is GONE

    def test_of_a_foreign_authority(self, listener, tmp_path):
        listener.folders.site("site-1", authority=Authority.make("test"), home=tmp_path)
        received, code, _ = listener.call(listener.hello, home=tmp_path)
        assert not received and code is GONE

    def test_expired(self, listener, tmp_path):
        listener.folders.site("site-1", lifetime=timedelta(seconds=-1), home=tmp_path)
        received, code, _ = listener.call(listener.hello, home=tmp_path)
        assert not received and code is GONE

    def test_revoked(self, listener, tmp_path):
        certificate = listener.folders.site("site-1", home=tmp_path)
        revoked = listener.folders.home("site-0") / "revoked.json"
        atomic_write(revoked, listener.folders.authority.sign(f'["{certificate.serial_number:x}"]').encode())
        received, code, details = listener.call(listener.hello, home=tmp_path)
        assert not received and code is DENIED and "revoked" in details

    def test_valid_but_no_neighbour(self, listener):
        received, code, details = listener.call(listener.hello, name="site-2")
        assert not received and code is DENIED and "site-2 is not a neighbour" in details

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [({"federation": b"x" * 32}, "different federation files"), ({"problem": b"x" * 32}, "different problems")],
    )
    def test_of_another_federation_or_problem(self, listener, change, sentence):
        received, code, details = listener.call(listener.hello._replace(**change))
        assert not received and code is DENIED and sentence in details

    def test_that_does_not_say_hello(self, listener):
        for first in (Beat(), b"GET / HTTP/1.1"):
            received, code, _ = listener.call(first)
            assert not received and code is DENIED

    @pytest.mark.parametrize(
        ("frame", "sentence"),
        [
            (b"nonsense", "not a frame"),
            (message(0, 0, tensor=np.full(3, np.nan)), "NaN"),
            (message(0, 0, tensor=np.ones(4)), "shape"),
            (Hello(b"f" * 32, b"p" * 32, 1, b"n" * 32), "second HELLO"),
            (Roll(0, True, (Entry(9, 1, ()),)), "more sites"),
            (Join(1, True, True, 3, NOWHERE, True), "JOINED"),
        ],
    )
    def test_a_neighbour_that_misbehaves_is_cut_off(self, listener, frame, sentence):
        edge = listener.site.edges[1]
        before = edge.rejected
        listener.call(listener.hello, frame)
        wait_until(lambda: edge.rejected == before + 1 and edge.stream is None)
        assert sentence in listener.said[-1]

    def test_a_message_larger_than_any_exchange_is_not_read(self, listener):
        _, code, details = listener.call(listener.hello, b"\0" * 2**20)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details
        wait_until(lambda: listener.site.edges[1].stream is None)

    def test_a_listener_that_sends_a_larger_message_is_named(self, listener):
        class TooLarge(grpc.RpcError, grpc.Call):
            code = staticmethod(lambda: grpc.StatusCode.RESOURCE_EXHAUSTED)
            details = staticmethod(lambda: "CLIENT: Received message larger than max (1048576 vs. 69656)")

        def frames():
            raise TooLarge
            yield

        edge, stream = listener.site.edges[1], Outgoing(lambda: None)
        before = edge.rejected
        listener.streams._read(edge, frames(), stream)
        assert "site-1 was rejected: CLIENT: Received message larger than max" in listener.said[-1]
        assert edge.rejected == before + 1

    def test_a_listener_is_checked_too(self, listener, tmp_path):
        """The connecting end rejects a listener whose certificate is revoked or of another site."""
        said = []
        dialler = Credentials.load(listener.folders.home("site-1"), "site-1")
        own = Credentials.load(listener.folders.home("site-0"), "site-0").certificate
        revoked = tmp_path / "revoked.json"
        atomic_write(revoked, listener.folders.authority.sign(f'["{own.serial_number:x}"]').encode())
        site = Site(listener.folders.federation, 1, b"p" * 32, lossy=True, say=said.append)
        streams = Streams(site, replace(dialler, revoked_list=revoked), said.append)
        streams.start()
        wait_until(lambda: said)
        streams.close()
        assert "site-0 was rejected: the certificate is revoked" in said[0] and site.edges[0].stream is None

    def test_a_certificate_that_is_revoked_while_its_holder_talks(self, listener, tmp_path):
        said, revoked = [], tmp_path / "revoked.json"
        dialler = Credentials.load(listener.folders.home("site-3"), "site-3")
        site = Site(listener.folders.federation, 3, b"p" * 32, lossy=True, say=said.append)
        streams = Streams(site, replace(dialler, revoked_list=revoked), said.append)
        streams.start()
        wait_until(lambda: site.edges[0].stream)
        own = Credentials.load(listener.folders.home("site-0"), "site-0").certificate
        atomic_write(revoked, listener.folders.authority.sign(f'["{own.serial_number:x}"]'))
        wait_until(lambda: site.edges[0].stream is None)
        streams.close()
        assert "site-0 was rejected: the certificate is revoked." in said

    def test_no_proxy_is_asked_for_this_machine(self, listener, monkeypatch):
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
        monkeypatch.delenv("no_proxy", raising=False)
        dialler = Credentials.load(listener.folders.home("site-3"), "site-3")
        site = Site(listener.folders.federation, 3, b"p" * 32, lossy=True, say=lambda sentence: None)
        streams = Streams(site, dialler, lambda sentence: None)
        streams.start()
        wait_until(lambda: site.edges[0].stream)
        streams.close()

    def test_listens_where_the_federation_says_and_nowhere_else(self, listener):
        port = int(listener.folders.federation.sites[0].address.split(":")[1])
        addresses = {
            line.split()[1]
            for table in ("/proc/net/tcp", "/proc/net/tcp6")
            if Path(table).exists()
            for line in Path(table).read_text().splitlines()[1:]
            if line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}")
        }
        if not addresses:
            pytest.skip("this system does not tell who listens")
        assert all(address.startswith(("0100007F", "0000000000000000FFFF00000100007F")) for address in addresses)


QUADRATIC = random_quadratic(4, seed=1, spread=2.0)


def by_node(nodes_called):
    """The quadratic with data as functions of the node."""
    whole = QUADRATIC.problem()

    def part(data):
        def of(node):
            nodes_called.append(node)
            return jax.tree.map(lambda leaf: leaf[node], data.tree)

        return of

    return db.Problem(
        whole.upper, whole.lower, upper_data=part(whole.upper_data), lower_data=part(whole.lower_data),
        x0=whole.x0, y0=whole.y0,
    )  # fmt: skip


def run_sites(folders, method, steps, problems=None, **options):
    """Every site in a thread of its own; their results."""
    results = {}

    def run(number, name):
        try:
            problem = problems[number] if problems else QUADRATIC.problem()
            engine = db.Silo(folders.home(name), name, say=lambda sentence: None)
            own = {key: value(name) if callable(value) else value for key, value in options.items()}
            results[number] = db.solve(problem, method, folders.federation.graph, steps=steps, engine=engine, **own)
        except BaseException as error:
            results[number] = error

    threads = [
        threading.Thread(target=run, args=(number, site.name)) for number, site in enumerate(folders.federation.sites)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    failed = [result for result in results.values() if isinstance(result, BaseException)]
    if failed:
        raise failed[0]
    return [results[number] for number in range(len(threads))]


def method(strategy):
    return db.sparkle(strategy, alpha=0.03, beta=0.1, gamma=0.1, updates="simultaneous")


def test_four_sites_equal_the_simulator(tmp_path):
    """With data of its own only, over gRPC, with a site that nobody can reach, and a fifth of the messages lost."""
    folders = Folders(tmp_path, ring(4, reachable={0, 2, 3}))
    called = [[] for _ in range(4)]
    options = {"faults": db.faults.drop(0.2, one_way=True), "eval_every": 20}
    sites = run_sites(folders, method("edge-ed"), 40, [by_node(calls) for calls in called], **options)
    graph = folders.federation.graph
    expected = db.solve(QUADRATIC.problem(), method("edge-ed"), graph, steps=40, metrics=[], **options)
    for number, site in enumerate(sites):
        assert set(called[number]) == {number}
        for level in "xyz":
            found, wanted = getattr(site.nodes, level), getattr(expected.nodes, level)
            np.testing.assert_allclose(found[0], wanted[number], atol=1e-10)
        assert site.trace["bytes"][-1] == expected.trace["bytes"][-1] and site.trace["rounds"][-1] == 40
        assert set(site.trace) >= {"upper", "lower"} and "consensus_x" not in site.trace


@pytest.mark.parametrize("strategy", ["gt", db.privacy.quantize("ed", 4)], ids=["gt", "ed in 4 bits"])
def test_sites_whose_messages_all_arrive_equal_the_simulator(tmp_path, strategy):
    folders = Folders(tmp_path, ring(3))
    problem = random_quadratic(3).single()
    single = SingleLevel(strategies.strategy(strategy), 0.1, 1.0, "single")
    sites = run_sites(folders, single, 30, [problem] * 3, metrics=[])
    expected = db.solve(problem, single, folders.federation.graph, steps=30, metrics=[])
    for number, site in enumerate(sites):
        np.testing.assert_allclose(site.nodes.x[0], expected.nodes.x[number], atol=1e-10)
        assert site.trace["bytes"][-1] == expected.trace["bytes"][-1]


def test_metrics_that_compare_nodes_raise(tmp_path):
    folders = Folders(tmp_path, ring(2))
    engine = db.Silo(folders.home("site-0"), "site-0")
    problem = random_quadratic(2).single()
    with pytest.raises(ValueError, match="'consensus_x' needs the data of other sites"):
        db.solve(problem, db.ed(alpha=0.1), folders.federation.graph, steps=5, engine=engine, metrics=["consensus_x"])


@pytest.mark.parametrize(
    ("graph", "sentence"),
    [
        (db.graphs.complete(4), "federation file does not have"),
        (db.graphs.ring(5), "5 nodes"),
        (db.graphs.one_peer_exponential(4), "same in every step"),
    ],
)
def test_graphs_that_the_federation_does_not_have_raise(tmp_path, graph, sentence):
    folders = Folders(tmp_path, ring(4))
    problem = random_quadratic(graph.nodes).problem()
    with pytest.raises(ValueError, match=sentence):
        db.solve(problem, method("gt"), graph, steps=5, engine=db.Silo(folders.home("site-0"), "site-0"))


def test_papers_that_do_not_fit_raise(tmp_path):
    folders = Folders(tmp_path, ring(2))
    with pytest.raises(ValueError, match="belongs to 'site-1', not to 'site-0'"):
        Credentials.load(folders.home("site-1"), "site-0")
    folders.site("site-0", lifetime=timedelta(seconds=-1))
    with pytest.raises(ValueError, match="expired"):
        Credentials.load(folders.home("site-0"), "site-0")
    atomic_write(folders.home("site-1") / "federation.json", Authority.make("test").sign(folders.federation.text))
    with pytest.raises(ValueError, match="not signed by this federation's authority"):
        Credentials.load(folders.home("site-1"), "site-1")


def test_a_site_that_needs_every_message_stops_when_a_neighbour_is_gone(tmp_path):
    """Two sites; one ends early. What must hear everything says so; its checkpoint is what it goes on from."""
    quick = FaultTolerance(beat=0.05, missed=100)
    folders = Folders(tmp_path, ring(2, fault_tolerance=quick))
    problem = random_quadratic(2).single()

    def leave(name):
        return [lambda step, row: step == 4] if name == "site-1" else []

    with pytest.raises(RuntimeError, match=r"site-1.*needs every message"):
        run_sites(folders, db.ed(alpha=0.1), 400, [problem] * 2, callbacks=leave, eval_every=2, metrics=[])


@pytest.mark.parametrize(
    "strategy",
    ["ed", db.privacy.quantize("ed", 8), _in_code("ed", Exponents(), "own code")],
    ids=["open", "in code", "own code"],
)
def test_sites_that_diverge_stop_by_themselves(tmp_path, strategy):
    """Who has a NaN to send keeps it, and ends as in the simulator; its neighbour does not wait for the deadline."""
    folders, said = Folders(tmp_path, ring(2)), []
    single = SingleLevel(strategies.strategy(strategy), 1e6, 1.0, "single")
    problem = random_quadratic(2).single()

    def run(name):
        engine = db.Silo(folders.home(name), name, say=said.append)
        try:
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                result = db.solve(problem, single, engine.graph, steps=400, engine=engine, metrics=[])
            said.append(result.message)
        except RuntimeError as error:
            said.append(str(error))

    threads = [threading.Thread(target=run, args=(site.name,)) for site in folders.federation.sites]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert any("non-finite" in sentence for sentence in said)
    assert not any("deadline" in sentence or "rejected" in sentence for sentence in said)


def test_a_users_own_code_equals_the_simulator(tmp_path):
    folders, problem, made = Folders(tmp_path, ring(3)), random_quadratic(3).single(), in_own_code(Exponents())
    sites = run_sites(folders, made, 30, [problem] * 3, metrics=[])
    expected = db.solve(problem, made, folders.federation.graph, steps=30, metrics=[])
    for number, site in enumerate(sites):
        np.testing.assert_allclose(site.nodes.x[0], expected.nodes.x[number], atol=1e-10)


def test_integers_that_decode_to_infinity_do_not_get_through(tmp_path):
    """Who receives them stops, names who sent them, and neither counts them nor sends anything on."""
    folders, problem = Folders(tmp_path, ring(3)), random_quadratic(3).single()
    results = {}

    def run(number, name):
        made = in_own_code(Poisoned(largest=254) if number == 1 else Exponents())
        engine = db.Silo(folders.home(name), name, say=lambda sentence: None)
        try:
            results[number] = db.solve(problem, made, engine.graph, steps=6, engine=engine, metrics=[])
        except RuntimeError as error:
            results[number] = str(error)

    threads = [threading.Thread(target=run, args=(i, site.name)) for i, site in enumerate(folders.federation.sites)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    found = "site-1 sent a message in step 0 that decodes to a NaN or infinity"
    # Who finds it leaves; the other may learn of that first.
    assert all(found in results[n] or "no message was received from" in results[n] for n in (0, 2))
    assert any(found in results[n] for n in (0, 2))


def test_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("f.toml").write_text('name="f"\nedges=[["a","b"]]\n[[sites]]\nname="a"\naddress=7401\n[[sites]]\nname="b"\n')

    def silo(*arguments, code=0):
        result = CliRunner().invoke(app, ["silo", *arguments])
        assert result.exit_code == code, result.output
        return result.output

    assert "2 sites" in silo("init", "f.toml")
    assert "already has a key" in silo("init", "f.toml", code=1)
    for name in "ab":
        silo("join", name)
    assert "not in federation" in silo("join", "c", code=1)
    assert Path("silo/a/key.pem").stat().st_mode & 0o077 == 0
    assert "identifies its holder as b until" in silo("sign", "silo/a/request.pem", "silo/b/request.pem")
    a, b = Credentials.load("silo/a", "a"), Credentials.load("silo/b", "b")
    assert a.check(b.certificate) == "b"
    silo("revoke", "silo/b/certificate.pem")
    atomic_write(Path("silo/a/revoked.json"), Path("silo/public/revoked.json").read_bytes())
    with pytest.raises(NotTrusted, match="revoked"):
        a.check(b.certificate)
    assert "never ran" in silo("status")
    assert "names no method" in silo("run", "a", "--problem", "m:f", code=1)


def test_importing_decibel_does_not_import_grpc():
    script = "import decibel as db, sys; db.Silo; db.privacy; assert not {'grpc', 'cryptography'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, env={"PATH": "/usr/bin", "JAX_PLATFORMS": "cpu"})


def test_the_flow_that_is_taken_over_conserves_the_sum():
    """F_ij := −F_ji at the end that returns, whatever its own checkpoint held."""
    from decibel.network._incidence import Sums
    from decibel.network._links import Links, Received, _accumulate

    rng = np.random.default_rng(0)
    F, φ = jnp.asarray(rng.normal(size=(2, 1, 3))), jnp.asarray(rng.normal(size=(2, 3)))

    class Pair:
        def __init__(self, ties):
            self.ties = jnp.asarray(ties)[:, None]

        def links(self, k, buffer):
            return Received(buffer[::-1], jnp.ones((2, 1), bool), self.ties)

    for ties, kept in (
        ((LinkState.KEEPS, LinkState.RESTORE), F[0, 0]),
        ((LinkState.RESET, LinkState.RESET), jnp.zeros(3)),
    ):
        links = Links(jnp.asarray([[1], [0]]), jnp.full((2, 1, 1), 0.25), Sums(1, None), Pair(ties))
        never = jnp.zeros((2, 1), bool)
        new = _accumulate(links, jnp.int32(0), ~never, never, φ, F)
        np.testing.assert_array_equal(new[0], -new[1])
        np.testing.assert_allclose(new[0, 0], kept + 0.25 * (φ[1] - φ[0]), atol=1e-15)


def test_places():
    assert SiteAddress("a").listens is None and SiteAddress("a", "h:1", "0.0.0.0:2").listens == "0.0.0.0:2"
