"""A site's streams over the simulated network: the same calls of `Site`, in the order of `_connections.Connections`.

What is not simulated is gRPC and TLS itself: the certificate that TLS would show is handed over with the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from decibel.silo._errors import NotTrusted, Rejected
from decibel.silo.protocol._edge import Edge
from decibel.silo.protocol._frame_limits import validate_greeting
from decibel.silo.protocol._frames import Hello, Malformed, Refuse, parse, write
from decibel.silo.protocol._site import Site
from decibel.silo.run import _connections as product
from decibel.silo.trust._credentials import Credentials

from .network import End
from .papers import parsed

if TYPE_CHECKING:
    from .host import Host

DIALLING = 3.0
NONCE = bytes(32)  # a simulated connection cannot be replayed


class Streams:
    """All streams of one life of a site."""

    def __init__(self, host: Host, site: Site, credentials: Credentials) -> None:
        self.host, self.site, self.credentials = host, site, credentials
        self.world, self.scheduler = host.world, host.world.scheduler
        self.closed = False

    def start(self) -> None:
        self.host.listener = self
        for edge in self.site.edges.values():
            if edge.dials:
                self._later(self.scheduler.random.random() * 0.1, "dials", lambda edge=edge: self._dial(edge, 0.1))
        self._later(self.site.fault_tolerance.beat, "beats", self._beat)
        self._later(product.CREDENTIALS_SECONDS, "looks", self._guard)

    def close(self) -> None:
        """In the site's task."""
        self.closed, self.host.listener = True, None
        site = self.site
        with site.lock:
            for edge in site.edges.values():
                edge.end_stream()
            site.lock.wait_for(lambda: not any(edge.stream for edge in site.edges.values()), product.GOODBYE_SECONDS)
            for edge in site.edges.values():
                edge.drop_stream()

    def _later(self, seconds: float, what: str, action) -> None:
        """In a thread of its own, in the product."""

        def act() -> None:
            if not self.closed and self.host.streams is self:
                self.host.guarded(action)

        self.scheduler.after(seconds, f"{self.host.number} {what}", act)

    def _beat(self) -> None:
        self.site.on_heartbeat()
        self._later(self.site.fault_tolerance.beat, "beats", self._beat)

    def _guard(self) -> None:
        self._later(product.CREDENTIALS_SECONDS if self.world.schedule.revokes else 5.0, "looks", self._guard)
        try:
            self.credentials.refresh()
            self.host.monitor.trusts(self.host, self.credentials)
            for edge in self.site.edges.values() if self.world.schedule.hostile else ():
                stream = edge.stream
                if isinstance(stream, End) and stream.certificate is not None:
                    try:
                        self.credentials.validated_name(stream.certificate)  # pyright: ignore[reportArgumentType]
                    except NotTrusted:
                        with self.site.lock:
                            edge.rejected += 1
                            stream.hang_up()
                            self.site.disconnected(edge, stream)
        except OSError as error:
            self.host.say(f"certificates could not be looked at: {error!r}")

    # The end that listens

    def answer(self, end: End, shown: object) -> None:
        self.host.guarded(lambda: self._answer(end, shown))

    def _answer(self, end: End, shown: object) -> None:
        """A connection whose other end has shown a certificate."""
        try:
            edge = self._who(shown)
        except ValueError as error:
            self._refuse(end, error)
            return
        end.certificate = shown
        end.on_frame = lambda raw: self.host.guarded(lambda: self._greeted(edge, end, raw))
        self._greet_within(end)

    def _greet_within(self, end: End) -> None:
        waiting = end.on_frame

        def late() -> None:
            if end.on_frame is waiting:
                end.hang_up()

        self._later(product.GREETING_SECONDS, "waits for a greeting", late)

    def _who(self, shown) -> Edge:
        name = self.credentials.validated_name(shown)
        for edge in self.site.edges.values():
            if edge.name == name and not edge.dials:
                return edge
        raise Rejected(f"{name} is not a neighbour that connects to {self.site.name}")

    def _greeted(self, edge: Edge, end: End, raw: bytes) -> None:
        try:
            hello = self._greeting(raw, edge.name)
            self.credentials.validated_name(end.certificate)  # pyright: ignore[reportArgumentType]
            own = self.credentials.identity
            proof = self.credentials.proof(own, self.site.name, edge.name, hello.nonce)
            end.send(self._hello(own.certificate_der, proof))
            self._connect(edge, hello, end)
        except ValueError as error:
            self._refuse(end, error)

    # The end that dials

    def _dial(self, edge: Edge, pause: float) -> None:
        begun, target = self.scheduler.now, self.world.hosts[edge.number]

        def again() -> None:
            longer = 0.1 if self.scheduler.now - begun > 5 else min(2.0, pause * 1.5)
            wait = longer * (0.5 + self.scheduler.random.random())
            self._later(wait, "dials", lambda: self._dial(edge, longer))

        def reach() -> None:
            if self.world.network.is_blocked(self.host.number, edge.number) or target.is_off:
                if self.scheduler.now - begun < DIALLING:
                    self._later(0.2, "knocks", reach)  # as TCP does, again and again
                else:
                    again()
            elif target.listener is None:
                again()
            else:
                end, there = self.world.network.connect(self.host.number, edge.number)
                self.world.corrupt(end, there)
                end.on_close = again
                end.on_frame = lambda raw: self.host.guarded(lambda: self._answered(edge, end, raw, again))
                self._greet_within(end)
                target.listener.answer(there, self.credentials.certificate)
                end.send(self._hello())

        self._later(self.world.network.delay(), "reaches", reach)

    def _answered(self, edge: Edge, end: End, raw: bytes, again) -> None:
        try:
            hello = self._greeting(raw, edge.name)
            name = self.credentials.validated_prover(hello.certificate, hello.proof, edge.name, NONCE)
            if name != edge.name:
                raise NotTrusted(f"the certificate belongs to {name}.")
            end.certificate = parsed(hello.certificate)
            self._connect(edge, hello, end, again)
        except ValueError as error:
            edge.rejected += 1
            self._refuse(end, error)

    # Both

    def _hello(self, certificate: bytes = b"", proof: bytes = b"") -> bytes:
        site = self.site
        return write(Hello(site.federation.hash, site.run_hash, site.incarnation, NONCE, certificate, proof))

    def _greeting(self, raw: bytes, name: str) -> Hello:
        return validate_greeting(parse(raw), self.site.federation, self.site.run_hash, name, self.site.name)

    def _connect(self, edge: Edge, hello: Hello, end: End, again=lambda: None) -> None:
        self.host.monitor.connected(self.host, edge, end)
        end.on_frame = lambda raw: self.host.guarded(lambda: self._read(edge, raw, end))

        def over() -> None:
            self.host.guarded(lambda: self.site.disconnected(edge, end))
            end.hang_up()
            again()

        end.on_close = over
        self.site.connected(edge, hello, end)

    def _read(self, edge: Edge, raw: bytes, end: End) -> None:
        try:
            frame = parse(raw)
            self.host.monitor.heard(self.host, edge, frame, end)
            self.site.receive(edge, frame, end)
            self.host.monitor.received(self.host, edge, frame)
        except (Rejected, Malformed) as error:
            edge.rejected += 1
            self.host.say(f"{edge.name} was rejected: {error}")
            self.host.monitor.rejected(self.host, edge, end, str(error))
            end.send(write(Refuse(str(error))))
            end.hang_up()

    def _refuse(self, end: End, error: ValueError) -> None:
        self.host.say(str(error))
        end.hang_up()
