"""One end of an edge without a network: a real site, with a clock and signatures of the test's own."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
from silo_sites import ring

from decibel.silo._errors import Rejected
from decibel.silo._federation import FaultTolerance
from decibel.silo.protocol import _frames as frames
from decibel.silo.protocol._async_site import AsyncSite
from decibel.silo.protocol._clock import Clock
from decibel.silo.protocol._frames import Hello, Roll, Statement, nonces_of
from decibel.silo.protocol._lockstep_site import LockstepSite

PROBLEM = b"p" * 32
RULES = FaultTolerance("continue", beat=1.0, missed=3, deadline=5.0)
FEDERATION = ring(3, fault_tolerance=RULES, steps=100)
STEP = 10
EPOCH = 1002  # of the first JOIN: the second number that a site draws
SERIALS = itertools.count(1)


class Signer:
    """Anybody can forge these, but no test does so by accident."""

    def __init__(self, name):
        self.name = name

    def sign(self, purpose, text):
        return self._signature(self.name, text), self.name.encode()

    def has_signed(self, name, purpose, certificate, signature, text):
        return certificate == name.encode() and signature == self._signature(name, text)

    def _signature(self, name, text):
        return hashlib.sha256(name.encode() + text).digest()


class Manual(Clock):
    """Time passes when somebody waits."""

    def __init__(self):
        self.time, self.drawn = 100.0, 0

    def now(self):
        return self.time

    def nonce(self):
        self.drawn += 1
        return 1000 + self.drawn

    def lock(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def wait(self, timeout=None):
        self.time += timeout or 0.0
        return True

    def notify_all(self):
        pass


class Line:
    """A stream that remembers what was sent."""

    def __init__(self):
        self.sent, self.over = [], False

    def send(self, frame):
        if not self.over:
            self.sent.append(frame)

    def send_newest(self, key, frame):
        self.send(frame)

    def end(self):
        self.over = True

    hang_up = end


class End:
    """Site `number` of a federation, at its edge with one neighbour."""

    def __init__(self, federation, number, other, *, tolerates_loss=True, signer=None, clock=None):
        self.said, self.clock = [], clock or Manual()
        name = federation.sites[number].name
        kind = AsyncSite if federation.asynchronous else LockstepSite
        self.site = kind(
            federation,
            number,
            PROBLEM,
            signer or Signer(name),
            incarnation=7,
            tolerates_loss=tolerates_loss,
            say=self.said.append,
            clock=self.clock,
        )
        self.site.expect(np.float64, (3,))
        self.edge = self.site.edges[other]
        self.site._rendezvous.sign_own(0, [])
        self.line = None

    def connect(self, incarnation=1):
        self.line = Line()
        hello = Hello(self.site.federation.hash, PROBLEM, incarnation, b"n" * 32)
        try:
            self.site.connected(self.edge, hello, self.line)
        except Rejected as error:
            self.edge.rejected += 1
            self.said.append(str(error))

    def disconnect(self):
        self.site.disconnected(self.edge, self.line)

    def deliver(self, *given):
        for frame in given:
            try:
                self.site.receive(self.edge, frames.parse(frames.write(frame)), self.line)
            except Rejected as error:
                self.edge.rejected += 1
                self.said.append(str(error))
                self.disconnect()

    def sent(self):
        """What it has sent since it was asked last."""
        if self.line is None:
            return []
        found, self.line.sent = [frames.parse(raw) for raw in self.line.sent], []
        return found


def signed(end, site, step=0, saved=(), *, by=None, fresh=True, **fields):
    """What a site says of itself, since it has heard of `end`'s start (`fresh`), or before."""
    own = end.site._rendezvous.by_site[end.site.number]
    sites = len(end.site.federation.sites)
    heard = nonces_of([own] if fresh else [], sites)
    fields = {"incarnation": 1, "nonce": 50 + site, "serial": next(SERIALS), "running": True, "heard": heard} | fields
    statement = Statement(site, step=step, saved=saved, **fields)
    text = end.site.federation.hash + PROBLEM + statement.signed_bytes()
    signature, certificate = Signer(by or f"site-{site}").sign("statement", text)
    return statement._replace(signature=signature, certificate=certificate)


def at_the_start(end, saved):
    """What all other sites say that are at their start, and have heard of each other and of `end`."""
    own = end.site._rendezvous.by_site[end.site.number]
    others = [Statement(site, 1, 50 + site) for site in saved]
    heard = nonces_of([own, *others], len(end.site.federation.sites))
    return tuple(signed(end, site, 0, steps, running=False, heard=heard) for site, steps in saved.items())


def standing_end(kind):
    """The end that dials or listens, of a site that is at step `STEP` already."""
    end = End(FEDERATION, *((1, 0) if kind == "dials" else (0, 1)))
    assert end.edge.dials == (kind == "dials")
    end.site.running, end.site.next_step = True, STEP
    end.site._rendezvous.start = STEP
    return end


def tell_running(end, running=True):
    """The neighbour says whether it runs."""
    end.deliver(Roll(running, ()))
