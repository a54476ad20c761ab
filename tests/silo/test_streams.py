"""Who is let in, and who is cut off, over gRPC."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import grpc
import numpy as np
import pytest
from silo_messages import message
from silo_sites import Folders, ring
from silo_talking import Talking, channel, wait_until

from decibel.silo._errors import NotTrusted
from decibel.silo.protocol import _frames as frames
from decibel.silo.protocol._frame_limits import NOWHERE
from decibel.silo.protocol._frames import Beat, Hello, Join, Roll, Statement
from decibel.silo.protocol._send_queue import SendQueue
from decibel.silo.run._connections import METHOD
from decibel.silo.trust._authority import Authority
from decibel.silo.trust._credentials import Credentials


class Listener(Talking):
    """Site 0 of a ring of four, listening."""

    def __init__(self, folders):
        super().__init__(folders, 0)
        self.folders = folders

    def call(self, *sent, home=None, name="site-1", certificate=True, enough=99):
        """What a dialler with the papers in a folder hears, and how the call ends; after `enough` it hangs up."""
        address = self.folders.federation.sites[0].address
        with channel(home or self.folders.home(name), address, certificate=certificate) as opened:
            held = threading.Event()

            def outgoing():
                for frame in sent:
                    frame = frame() if callable(frame) else frame
                    yield frame if isinstance(frame, bytes) else frames.write(frame)
                held.wait(3)

            received = []
            try:
                for raw in opened.stream_stream(METHOD)(outgoing(), timeout=5):
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
    listening.close()


DENIED, GONE = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE


class TestWhoIsLetIn:
    def test_a_neighbour_is(self, listener):
        received, code, _ = listener.call(listener.hello, enough=2)
        assert isinstance(received[0], Hello) and isinstance(received[1], Roll) and code is None
        own = Credentials.load(listener.folders.home("site-1"), "site-1")
        assert own.validated_prover(received[0].certificate, received[0].proof, "site-0", b"n" * 32) == "site-0"
        for proof, nonce in ((received[0].proof, b"m" * 32), (b"", b"n" * 32)):
            with pytest.raises(NotTrusted):
                own.validated_prover(received[0].certificate, proof, "site-0", nonce)

    def test_without_a_certificate(self, listener):
        received, code, _ = listener.call(listener.hello, certificate=False)
        assert not received and code is GONE

    @pytest.mark.parametrize(
        "papers",
        [{"authority": Authority.make("test")}, {"lifetime": timedelta(seconds=-1)}],
        ids=["foreign", "expired"],
    )
    def test_with_papers_that_do_not_hold(self, listener, tmp_path, papers):
        listener.folders.site("site-1", home=tmp_path, **papers)
        received, code, _ = listener.call(listener.hello, home=tmp_path)
        assert not received and code is GONE

    @pytest.mark.parametrize("awaited", [False, True], ids=["before", "while hello is awaited"])
    def test_revoked(self, listener, tmp_path, awaited):
        certificate = listener.folders.site("site-1", home=tmp_path)

        def revoke():
            listener.folders.revoke(listener.folders.home("site-0"), certificate)

        def hello():
            wait_until(lambda: 1 in listener.streams._greeting)
            revoke()
            return listener.hello

        if not awaited:
            revoke()
        received, code, details = listener.call(hello if awaited else listener.hello, home=tmp_path)
        assert not received and code is DENIED and "revoked" in details

    def test_valid_but_no_neighbour(self, listener):
        received, code, details = listener.call(listener.hello, name="site-2")
        assert not received and code is DENIED and "site-2 is not a neighbour" in details

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"federation_hash": b"x" * 32}, "different federation files"),
            ({"run_hash": b"x" * 32}, "different problems"),
        ],
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
            (message(0, 0, tensor=np.ones(4)), "shape"),
            (Hello(b"f" * 32, b"p" * 32, 1, b"n" * 32), "second HELLO"),
            (Roll(True, (Statement(9, 1, 5),)), "site 9, of 4"),
            (Join(1, 2, True, True, 3, NOWHERE, True), "JOINED"),
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

        edge, stream = listener.site.edges[1], SendQueue(lambda: None)
        before = edge.rejected
        listener.streams._read(edge, frames(), stream)
        assert "site-1 was rejected: CLIENT: Received message larger than max" in listener.said[-1]
        assert edge.rejected == before + 1

    def test_a_listener_is_checked_too(self, listener, tmp_path):
        """The connecting end rejects a listener whose certificate is revoked or of another site."""
        listener.folders.site("site-1", home=tmp_path)
        listener.folders.revoke(tmp_path, listener.credentials.certificate)
        dialler = Talking(listener.folders, 1, home=tmp_path)
        wait_until(lambda: dialler.said)
        dialler.close()
        assert "site-0 was rejected: the certificate is revoked" in dialler.said[0]
        assert dialler.site.edges[0].stream is None

    def test_no_proxy_is_asked_for_this_machine(self, listener, monkeypatch):
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
        monkeypatch.delenv("no_proxy", raising=False)
        dialler = Talking(listener.folders, 3)
        wait_until(lambda: dialler.site.edges[0].stream)
        dialler.close()

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
