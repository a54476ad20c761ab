"""The edges' streams: gRPC over mutual TLS, raw bytes, one bidirectional stream per edge.

A site listens only where the federation file says. It dials the neighbours that it has to dial, again and again until
they answer. Before a frame reaches the site, both ends have shown a certificate of the federation's authority that is
neither expired nor revoked, and have named the same federation and the same problem.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from decibel.core import optional, plain

from .._errors import NotTrusted, Rejected
from .._federation import LOOPBACK
from .._logging import FromGrpc, Log, quiet_grpc
from ..observe._bulletin import Bulletin
from ..observe._site_metrics import serve
from ..observe._site_status import progress_line, status_facts, write_status
from ..protocol._compatibility import differences, validate_losses
from ..protocol._edge import INBOX_MESSAGES, Edge
from ..protocol._frame_limits import validate_greeting
from ..protocol._frames import Hello, Malformed, Refuse, parse, write
from ..protocol._send_queue import SendQueue
from ..protocol._site import Site
from ..trust._credentials import Credentials, Identity

GRPC_IS_QUIET = quiet_grpc()  # before it is imported
with optional("grpcio and cryptography", caller="db.Silo", extra="silo"):
    import grpc
    from cryptography import x509

METHOD = "/decibel.Silo/Edge"
STATUS_SECONDS = 1.0  # between writes of the status file
CREDENTIALS_SECONDS = 0.5  # between looks at certificates and the list of revoked keys
MOST_SENTENCES = 1000  # that are remembered, so as not to repeat them in the log
STRANGERS_TOPIC = "sites that are not neighbours"
GOODBYE_SECONDS = 2.0  # for the last frames to arrive
RETRY_SECONDS = 0.5  # before what failed is tried again
GREETING_SECONDS = 5.0  # for the handshake of TLS, and again for HELLO
IDLE_SECONDS = 5.0  # for which a connection without a stream stays
FRAME_OVERHEAD_BYTES = 4096  # of a frame besides its tensor
LARGEST_FRAME_BYTES = 2**31 - 1
CONNECTIONS = 64  # in addition to 8 for every neighbour; further ones are closed when they come


class Connections:
    """All streams of one site. Three things are optional: its status file, lines of progress every `progress_seconds`,
    and a port on loopback for health and metrics.
    """

    def __init__(
        self,
        site: Site,
        credentials: Credentials,
        say: Callable[[str], None],
        status_file: Path | None = None,
        *,
        progress_seconds: float | None = None,
        metrics_port: int | None = None,
    ) -> None:
        self.site = site
        self.credentials = credentials
        self._status_file = status_file
        self._progress_seconds = progress_seconds
        self._port = metrics_port
        self._log = say if isinstance(say, Log) else Log(site.name, say)
        self._from_grpc = FromGrpc(self._log)
        self._bulletin = Bulletin(site, credentials)
        largest = max(site.largest_message, site.model_bytes)
        limit = max(largest + FRAME_OVERHEAD_BYTES, site.limits.largest_roll) + 64 * 1024
        self._room = (
            (INBOX_MESSAGES + 2) * (site.largest_message + FRAME_OVERHEAD_BYTES)
            + 2 * site.limits.largest_roll
            + site.model_bytes
        )
        if limit > LARGEST_FRAME_BYTES:
            raise ValueError(
                f"a message has {site.largest_message} bytes, and gRPC carries {LARGEST_FRAME_BYTES}: choose a method "
                "or a code that sends less."
            )
        self._options = [
            ("grpc.max_receive_message_length", limit),
            ("grpc.max_send_message_length", limit),
            ("grpc.so_reuseport", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._closed = threading.Event()
        self._server: grpc.Server | None = None
        self._presented: Identity | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._threads: list[threading.Thread] = []
        self._greeting: dict[int, Callable[[], object]] = {}  # neighbours whose HELLO is awaited, and how to stop it
        self._reported: set[str] = set()

    def start(self) -> None:
        logging.getLogger("grpc").addHandler(self._from_grpc)
        if not GRPC_IS_QUIET:
            self._log.warning(
                "gRPC was imported before db.Silo and prints a line for every failed handshake: set "
                "GRPC_VERBOSITY=ERROR before the program starts"
            )
        self._listen()
        for edge in self.site.edges.values():
            if edge.dials:
                self._run_forever(self._dial_forever, edge)
        self._run_forever(self._beat)
        self._run_forever(self._reload_credentials)
        if self._progress_seconds is not None:
            self._run_forever(self._progress, self._progress_seconds)
        if self._port is not None:
            self._run_forever(self._metrics, self._port)

    def close(self) -> None:
        self._bulletin.send_reports(last=True)
        self._closed.set()
        with self.site.lock:
            # The last frames are to arrive: streams end, and are cut only where the other end does not end its own.
            for edge in self.site.edges.values():
                edge.end_stream()
            self.site.lock.wait_for(lambda: not any(edge.stream for edge in self.site.edges.values()), GOODBYE_SECONDS)
            for edge in self.site.edges.values():
                edge.drop_stream()
        self._stop_listening(0.5)
        until = time.monotonic() + GOODBYE_SECONDS / 2
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._write_status()
        self._log.tell_left_out(at_the_end=True)
        logging.getLogger("grpc").removeHandler(self._from_grpc)

    def _start_thread(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True, name=f"silo {target.__name__}")
        thread.start()
        self._threads = [running for running in self._threads if running.is_alive()] + [thread]

    def _run_forever(self, target: Callable[..., None], *arguments: object) -> None:
        """Runs in a thread until the site is closed, whatever goes wrong in it."""

        def forever() -> None:
            while not self._closed.is_set():
                try:
                    target(*arguments)
                except Exception as error:
                    self._report_once(f"{target.__name__.strip('_')} failed and is tried again: {error!r}")
                    self._closed.wait(RETRY_SECONDS)

        forever.__name__ = target.__name__
        self._start_thread(forever)

    def _beat(self) -> None:
        last_status_at = 0.0
        while not self._closed.wait(self.site.fault_tolerance.beat):
            self.site.on_heartbeat()
            self._bulletin.send_reports()
            if time.monotonic() > last_status_at + STATUS_SECONDS:
                last_status_at = time.monotonic()
                self._write_status()
                self._log.tell_left_out()

    def _write_status(self) -> None:
        if self._status_file is None:
            return
        try:
            write_status(self._status_file, status_facts(self.site))
            self._bulletin.save(self._status_file.parent)
        except OSError as error:
            self._report_once(f"{self._status_file} cannot be written: {error.strerror or error}")

    def _progress(self, every: float) -> None:
        while not self._closed.wait(every):
            self._log(plain(progress_line(self.site)))

    def _metrics(self, port: int) -> None:
        try:
            serve(self.site, port, self._closed)
        except OSError as error:
            self._report_once(f"metrics cannot be served at port {port}: {error.strerror or error}; the run continues")
            self._closed.wait(10 * RETRY_SECONDS)

    def _reload_credentials(self) -> None:
        """Reloads certificates and lists in its own thread, so that neither a slow disk nor a late heartbeat delays a
        revocation.
        """
        while not self._closed.wait(CREDENTIALS_SECONDS):
            self.site.health.expiries = self.credentials.expiries
            try:
                for sentence in self.credentials.refresh():
                    self._report_once(sentence)
            finally:
                self._recheck_certificates()
            self._bulletin.obey()
            self._present_renewed()

    def _recheck_certificates(self) -> None:
        """Ends the streams of neighbours whose certificates have expired or were revoked since."""
        for edge in self.site.edges.values():
            stream = edge.stream
            if not isinstance(stream, SendQueue) or stream.certificate is None:
                continue
            try:
                self.credentials.validated_name(stream.certificate)
            except NotTrusted as error:
                self._report_once(f"{edge.name} was rejected: {error}", edge.name)
                with self.site.lock:
                    edge.rejected += 1
                    stream.conclude(write(Refuse(str(error))))
                    self.site.disconnected(edge, stream)
                self._start_thread(self._cut_later, stream)

    # The end that listens

    def _listen(self) -> None:
        member = self.site.federation.sites[self.site.number]
        if member.listens is None or all(edge.dials for edge in self.site.edges.values()):
            return
        # A thread per neighbour's stream, one for the stream that replaces it, and a few for those who are turned away.
        most = len(self.site.edges) * 2 + 4
        pool = ThreadPoolExecutor(most, thread_name_prefix="silo stream")
        options = [
            *self._options,
            ("grpc.max_concurrent_streams", 2),  # of one connection
            ("grpc.max_allowed_incoming_connections", CONNECTIONS + 8 * len(self.site.edges)),
            ("grpc.server_handshake_timeout_ms", int(1000 * GREETING_SECONDS)),
            ("grpc.max_connection_idle_ms", int(1000 * IDLE_SECONDS)),
        ]
        server = grpc.server(pool, options=options, maximum_concurrent_rpcs=most)
        handler = grpc.stream_stream_rpc_method_handler(self._serve_stream)
        service, name = METHOD.strip("/").split("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
        # gRPC could ask for it at every handshake, but then crashes (1.85) if many of these fail at once.
        identity = self.credentials.identity
        security = grpc.ssl_server_credentials(
            [(identity.key_pem, identity.certificate_pem)], self.credentials.authority_pem, True
        )
        try:
            server.add_secure_port(member.listens, security)
        except RuntimeError:
            raise ValueError(
                f"{self.site.name} cannot listen at {member.listens}: free the port, or change `listen` in the "
                "federation file."
            ) from None
        server.start()
        self._server = server
        self._pool = pool
        self._presented = identity

    def _present_renewed(self) -> None:
        """Presents a renewed certificate from now on: streams are opened again, and the run continues."""
        if self._closed.is_set():
            return
        if self._server is not None and self._presented is not self.credentials.identity:
            self._stop_listening(0.0)
            self._listen()
        for edge in self.site.edges.values():
            stream = edge.stream
            if isinstance(stream, SendQueue) and edge.dials and stream.presented is not self.credentials.identity:
                self.site.disconnected(edge, stream)  # and `_dial_forever` dials again

    def _stop_listening(self, grace: float) -> None:
        if self._server is not None and self._pool is not None:
            self._server.stop(grace).wait()
            self._pool.shutdown(wait=False)

    def _serve_stream(self, frames: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        stream = SendQueue(context.cancel, self._room)
        edge: Edge | None = None
        try:
            edge, stream.certificate = self._authenticate(context)
            with self._one_greeting(edge, context.cancel), _within(GREETING_SECONDS, context.cancel):
                first = next(frames, b"")
            hello = self._validate_hello(first, edge.name)
            self.credentials.validated_name(stream.certificate)  # it may have been revoked while HELLO was awaited
            identity = self.credentials.identity
            proof = self.credentials.proof(identity, self.site.name, edge.name, hello.nonce)
            stream.send(self._own_hello(_nonce(), identity.certificate_der, proof))
            self.site.connected(edge, hello, stream)
        except ValueError as error:  # NotTrusted, Rejected and Malformed are ValueErrors
            if edge is None:
                self._report_once(str(error), STRANGERS_TOPIC)
            else:
                self._report_once(f"{edge.name} was rejected: {error}", edge.name)
            context.abort(grpc.StatusCode.PERMISSION_DENIED, plain(error))
            raise AssertionError from None  # abort raises
        except grpc.RpcError:  # the neighbour hung up, or sent no HELLO in time
            return
        self._start_thread(self._read, edge, frames, stream)
        yield from stream

    def _authenticate(self, context: grpc.ServicerContext) -> tuple[Edge, x509.Certificate]:
        shown = x509.load_pem_x509_certificate(bytes(context.auth_context().get("x509_pem_cert", [b""])[0]))
        name = self.credentials.validated_name(shown)
        for edge in self.site.edges.values():
            if edge.name == name and not edge.dials:
                return edge, shown
        raise Rejected(f"{name} is not a neighbour that connects to {self.site.name}")

    @contextmanager
    def _one_greeting(self, edge: Edge, stop: Callable[[], object]) -> Iterator[None]:
        """Ends a neighbour's earlier stream that still awaits HELLO, since each may have only one."""
        with self.site.lock:
            before = self._greeting.get(edge.number)
            self._greeting[edge.number] = stop
        if before is not None:
            before()
        try:
            yield
        finally:
            with self.site.lock:
                if self._greeting.get(edge.number) is stop:
                    del self._greeting[edge.number]

    # The end that dials

    def _dial_forever(self, edge: Edge) -> None:
        address = self.site.federation.sites[edge.number].address
        assert address is not None
        outside = int(not address.startswith(f"{LOOPBACK}:"))  # no proxy leads back to this machine
        options = [
            *self._options,
            ("grpc.ssl_target_name_override", edge.name),
            ("grpc.enable_http_proxy", outside),
        ]
        pause = 0.1
        while not self._closed.is_set():
            identity = self.credentials.identity  # it may have been renewed
            security = grpc.ssl_channel_credentials(
                self.credentials.authority_pem, identity.key_pem, identity.certificate_pem
            )
            # A channel of its own for every attempt: one that hangs must not be used again.
            with grpc.secure_channel(address, security, options) as channel:
                begun = time.monotonic()
                try:
                    self._dial_once(edge, channel, identity)
                except grpc.RpcError as error:
                    self._not_connected(edge, error)
                except (NotTrusted, Rejected, Malformed) as error:
                    edge.rejected += 1
                    self._report_once(f"{edge.name} was rejected: {error}", edge.name)
            pause = 0.1 if time.monotonic() - begun > 5 else min(2.0, pause * 1.5)
            self._closed.wait(pause * random.uniform(0.5, 1.5))

    def _not_connected(self, edge: Edge, error: grpc.RpcError) -> None:
        assert isinstance(error, grpc.Call)
        details = plain(error.details() or "")
        with self.site.lock:
            edge.trouble = details
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                edge.on_refuse(details)

    def _dial_once(self, edge: Edge, channel: grpc.Channel, presented: Identity) -> None:
        # gRPC needs the queue to make the call, and the queue needs the call to cancel it.
        stream = SendQueue(lambda: call.cancel(), self._room, presented=presented)
        call: Any = channel.stream_stream(METHOD)(iter(stream))
        nonce = _nonce()
        stream.send(self._own_hello(nonce))
        with _within(GREETING_SECONDS, call.cancel):
            first = next(call, b"")
        try:
            hello = self._validate_hello(first, edge.name)
            name = self.credentials.validated_prover(hello.certificate, hello.proof, edge.name, nonce)
            if name != edge.name:
                raise NotTrusted(f"the certificate belongs to {name}.")
            stream.certificate = x509.load_der_x509_certificate(hello.certificate)
            self.site.connected(edge, hello, stream)
        except ValueError as error:
            self._refuse(call, stream, error)
            raise
        self._read(edge, call, stream)

    # Both

    def _own_hello(self, nonce: bytes, certificate: bytes = b"", proof: bytes = b"") -> bytes:
        site = self.site
        return write(
            Hello(site.federation.hash, site.run_hash, site.incarnation, nonce, certificate, proof, site.build)
        )

    def _validate_hello(self, first: bytes, name: str) -> Hello:
        site = self.site
        hello = validate_greeting(parse(first), site.federation, site.run_hash, name, site.name)
        validate_losses(site.build, hello.build, name, site.name)
        for sentence in differences(site.build, hello.build, name):
            self._report_once(sentence, name)
        return hello

    def _refuse(self, frames: Iterator[bytes], stream: SendQueue, error: ValueError) -> None:
        """Tells the other end the reason, and waits a little until it has arrived."""
        stream.conclude(write(Refuse(plain(error))))
        with _within(GOODBYE_SECONDS / 2, stream.cut), suppress(grpc.RpcError):
            for _ in frames:
                pass

    def _cut_later(self, stream: SendQueue) -> None:
        self._closed.wait(GOODBYE_SECONDS / 2)
        stream.cut()

    def _read(self, edge: Edge, frames: Iterator[bytes], stream: SendQueue) -> None:
        try:
            for raw in frames:
                edge.received_bytes += len(raw)
                self.site.receive(edge, parse(raw), stream)
        except (Rejected, Malformed) as error:
            edge.rejected += 1
            edge.log(f"{edge.name} was rejected: {error}")
            stream.conclude(write(Refuse(plain(error))))
            self.site.disconnected(edge, stream)
            self._refuse(frames, stream, error)
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                edge.rejected += 1
                edge.log(f"{edge.name} was rejected: {error.details()}")
        except Exception as error:
            if not self._closed.is_set():
                edge.log(f"the stream with {edge.name} ended: {error!r}")
        finally:
            self.site.disconnected(edge, stream)
            stream.cut()

    def _report_once(self, sentence: str, cause: str | None = None) -> None:
        """Logs the same failure once: a neighbour that tries again every second must not fill the log."""
        sentence = plain(sentence)
        if sentence not in self._reported:
            if len(self._reported) >= MOST_SENTENCES:
                self._reported.clear()
            self._reported.add(sentence)
            self._log.about(cause or self.site.name)(sentence)


@contextmanager
def _within(seconds: float, otherwise: Callable[[], object]) -> Iterator[None]:
    timer = threading.Timer(seconds, otherwise)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _nonce() -> bytes:
    return secrets.token_bytes(32)
