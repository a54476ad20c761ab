"""Certificates that are renewed, stolen and revoked while sites talk, over gRPC."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import timedelta

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from silo_sites import Folders, ring
from silo_talking import Group, channel, wait_until

from decibel.core._files import atomic_write
from decibel.silo._errors import NotTrusted
from decibel.silo.protocol import _frames as frames
from decibel.silo.protocol._frames import Hello
from decibel.silo.run._connections import METHOD
from decibel.silo.trust._certificates import builder, certificate_fingerprint, der, make_request, pem
from decibel.silo.trust._credentials import Credentials
from decibel.silo.trust._signing import new_key, save_key


@pytest.fixture
def start(tmp_path):
    """Site 0 listens, site 1 dials."""
    with Group(Folders(tmp_path, ring(2))) as group:
        yield group


def met(talking, number):
    """The fingerprint of the key that the other end of the stream has shown."""
    stream = talking.site.edges[number].stream
    return stream and certificate_fingerprint(stream.certificate)


def test_renewed_certificates_are_shown_without_a_stop(start):
    """Both ends get new keys while they talk; they meet again at once, and each shows its new one."""
    folders, listener, dialler = start.folders, start(0), start(1)
    wait_until(lambda: met(listener, 1) and met(dialler, 0))
    old = [met(dialler, 0), met(listener, 1)]
    for one in (listener, dialler):
        key = new_key()
        save_key(key, one.home / "next-key.pem")
        certificate = folders.authority.certify(make_request(key, one.name, "test"), one.name)
        atomic_write(one.home / "certificate.pem", pem(certificate))
    new = [certificate_fingerprint(x509.load_pem_x509_certificate((one.home / "certificate.pem").read_bytes()))
           for one in (listener, dialler)]  # fmt: skip
    wait_until(
        lambda: all(any("a new certificate is in use" in line for line in one.said) for one in (listener, dialler))
    )
    wait_until(lambda: [met(dialler, 0), met(listener, 1)] == new)  # the listener had them connect again
    for one, revoked in ((listener, old[1]), (dialler, old[0])):  # and the old ones may be revoked
        made = folders.revoked.next([revoked])
        folders.revoked = made
        atomic_write(one.home / "revoked.json", folders.authority.sign_revoked(made))
    wait_until(lambda: all(one.credentials.trust.revoked.number > 1 for one in (listener, dialler)))
    assert [met(dialler, 0), met(listener, 1)] == new


def test_a_dialler_shows_its_renewed_certificate_at_once(start):
    """Or its stream would keep the old one, past its end."""
    folders, listener, dialler = start.folders, start(0), start(1)
    wait_until(lambda: met(listener, 1) and met(dialler, 0))
    renewed = folders.authority.certify(make_request(dialler.credentials.identity.key, "site-1", "test"), "site-1")
    atomic_write(dialler.home / "certificate.pem", pem(renewed))
    wait_until(lambda: (stream := listener.site.edges[1].stream) and stream.certificate == renewed)
    assert not any("rejected" in line for line in listener.said + dialler.said)


def call(folders, home, problem=b"p" * 32):
    """A stream to site 0 by the papers in a folder, and the event that ends it."""
    opened = channel(home, folders.federation.sites[0].address)
    over = threading.Event()

    def outgoing():
        yield frames.write(Hello(folders.federation.hash, problem, 1, b"n" * 32))
        over.wait(20)

    return opened, opened.stream_stream(METHOD)(outgoing()), over


@pytest.mark.parametrize("trouble", ["slow heartbeat", "full disk"])
def test_a_thief_is_cut_off_within_two_seconds(start, tmp_path, monkeypatch, trouble):
    """Though the site that was stolen from has shown its own certificate since, a list that is none has come before,
    and whatever else goes wrong."""
    folders, listener = start.folders, start(0, status=tmp_path / "status.json")
    stolen = folders.site("site-1", home=tmp_path / "thief")
    first, frames_in, over = call(folders, tmp_path / "thief")
    with first:
        next(frames_in)
        wait_until(lambda: met(listener, 1) == certificate_fingerprint(stolen))
        # The rightful holder knocks: it is known by its certificate, and gets no further.
        second, knocking, gone = call(folders, folders.home("site-1"), problem=b"q" * 32)
        with second, pytest.raises(grpc.RpcError):
            next(knocking)
        gone.set()
        assert met(listener, 1) == certificate_fingerprint(stolen)
        if trouble == "slow heartbeat":
            monkeypatch.setattr(listener.site, "on_heartbeat", lambda: time.sleep(8))
        if trouble == "full disk":
            full = lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left on device"))  # noqa: E731
            monkeypatch.setattr("decibel.silo.observe._site_status.atomic_write", full)
            monkeypatch.setattr("decibel.silo.trust._trust.atomic_write", full)
        wrong = (listener.home / "federation.json").read_bytes()
        atomic_write(listener.home / "revoked.json", wrong)
        wait_until(lambda: any("not signed by this federation's authority as a revocation" in s for s in listener.said))
        time.sleep(1.2)  # a thread that dies of its trouble is dead by now
        begun = time.monotonic()
        folders.revoke(listener.home, stolen)
        wait_until(lambda: listener.site.edges[1].stream is None, 2)
        with suppress(grpc.RpcError):  # it ends, one way or the other
            for _ in frames_in:
                pass
        assert time.monotonic() - begun < 2
        over.set()
    assert "site-1 was rejected: the certificate is revoked." in listener.said


def test_a_listener_with_a_key_of_another_kind_does_not_end_the_thread_that_dials(tmp_path):
    folders = Folders(tmp_path, ring(2))
    dialler, authority = Credentials.load(folders.home("site-1"), "site-1"), folders.authority
    key = rsa.generate_private_key(65537, 2048).public_key()
    made = builder(x509.Name([]), authority.certificate.subject, key, timedelta(days=1))
    foreign = der(made.sign(authority.key, hashes.SHA256()))
    for certificate, sentence in ((foreign, "not P-256"), (b"", "no certificate"), (b"nonsense", "no certificate")):
        with pytest.raises(NotTrusted, match=sentence):
            dialler.validated_prover(certificate, b"proof", "site-0", b"n" * 32)
