"""Hostile bytes and hostile sessions: whatever a neighbour sends, a site neither ends nor forgets nor grows.

DECIBEL_FUZZ is how many times as much to try: 10 makes ten million frames and ten times the sessions of the slow tier.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from silo_ends import End, Signer
from silo_sites import ring

from decibel.silo._errors import Rejected
from decibel.silo._federation import FaultTolerance
from decibel.silo.protocol import _frames as frames
from decibel.silo.protocol._edge import INBOX_MESSAGES
from decibel.silo.protocol._frames import (
    Beat,
    Bye,
    Data,
    Hello,
    Join,
    Malformed,
    Position,
    Roll,
    Skip,
    Stand,
    Statement,
)

TIMES = int(os.environ.get("DECIBEL_FUZZ", "1"))
FEDERATION = ring(
    4, fault_tolerance=FaultTolerance("continue", beat=0.5, missed=4, deadline=3.0, waiting=0.2), steps=200
)
SITES = len(FEDERATION.sites)


class Chance(random.Random):
    """Frames that are nearly right, of a neighbour that can sign in its own name only."""

    own = "site-0"

    def number(self, bits):
        return self.choice((0, 1, 2, self.randrange(250), 2**bits - 1, 2 ** (bits - 1), self.getrandbits(bits)))

    def position(self):
        return Position(*(self.choice((-1, 0, 1, 10, self.number(31))) for _ in range(2)))

    def statement(self):
        saved = tuple(self.number(32) for _ in range(self.choice((0, 1, 3, 40))))
        site, heard = self.choice((0, 1, 2, 3, 9)), self.choice((bytes(8 * SITES), b"h" * 8 * SITES, b"", b"h" * 99))
        numbers = (self.number(64), self.number(64), self.number(32), self.number(32))
        one = Statement(site, *numbers, saved, self.random() < 0.5, self.random() < 0.5, heard)
        if self.random() < 0.5:
            text = FEDERATION.hash + b"p" * 32 + one.signed_bytes()
            signature, certificate = Signer(self.own).sign("statement", text)
            return one._replace(signature=signature, certificate=certificate)
        return one._replace(signature=self.randbytes(self.randrange(40)), certificate=self.randbytes(self.randrange(9)))

    def frame(self, epoch=0):
        statements = tuple(self.statement() for _ in range(self.choice((0, 1, 2, 6))))
        epoch = self.choice((epoch, epoch, self.number(64)))
        flag = lambda: self.random() < 0.5  # noqa: E731
        tensor = self.choice((np.ones(3), np.full(3, 1e300), np.full(3, np.nan), np.ones(4), np.ones((1, 3), "f4")))
        return self.choice(
            (
                Hello(FEDERATION.hash, b"p" * 32, self.number(64), b"n" * 32),
                Roll(flag(), statements),
                Stand(statements),
                Join(epoch, self.number(64), flag(), flag(), self.number(32), self.position(), flag()),
                Data(epoch, Position(self.number(32), self.number(16)), tensor),
                Data(epoch, Position(self.choice((9, 10, 11, 12)), self.choice((0, 1))), np.ones(3)),
                Skip(self.number(32)),
                Beat(),
                Bye(self.choice(frames.REASONS)),
            )
        )


def fuzz(count, seed):
    """How many mangled frames were frames all the same, and how many were not."""
    chance = Chance(seed)
    originals = [frames.write(chance.frame()) for _ in range(300)]
    good = bad = 0
    for _ in range(count):
        raw = bytearray(chance.choice(originals))
        for _ in range(chance.choice((1, 1, 2, 4))):
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
            good += 1
        except Malformed:
            bad += 1
    return good, bad


def session(seed):
    """One hostile neighbour of a site that is at some step, for a while; another is honest and silent."""
    chance, kind = Chance(seed), seed % 2
    end = End(FEDERATION, *((1, 0) if kind else (0, 1)))
    chance.own = f"site-{end.edge.number}"
    end.site.running, end.site.next_step = True, 10
    end.site._rendezvous.start = 10
    end.connect()
    for _ in range(chance.randrange(5, 40)):
        match chance.randrange(12):
            case 0:
                end.disconnect()
            case 1 | 2:
                end.connect(incarnation=chance.number(64))
            case 3:
                end.clock.time += chance.random()
                end.site.on_heartbeat()
            case 4:
                end.site._send_due_joins()
            case 5 if end.edge.is_open:
                end.site._position = Position(end.site.next_step, 0)
                end.site._wait_for([end.edge], end.site._position)
                end.edge.take(end.site._position)
            case 6:
                end.site._catch_up()
            case _ if end.edge.stream is not None:
                end.deliver(chance.frame(end.edge.epoch))
            case _:
                end.connect()
        yield end


def check(end):
    site, edge = end.site, end.edge
    assert site.error is None and site.next_step == 10  # nobody but the neighbour itself says that anybody is ahead
    assert len(edge.inbox) <= INBOX_MESSAGES and len(edge.outbox) <= INBOX_MESSAGES
    known = site._rendezvous.by_site
    assert set(known) <= set(range(SITES)) and known[site.number].incarnation == 7
    others = set(known) - {site.number}
    for other in others:
        one = known[other]
        assert one.certificate == f"site-{other}".encode()  # what is believed of a site, it has signed


@pytest.mark.parametrize("seed", range(3))
def test_mangled_frames_are_frames_or_malformed(seed):
    assert min(fuzz(7_000, seed)) > 250


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_million_mangled_frames(seed):
    assert min(fuzz(250_000 * TIMES, 10 + seed)) > 1000


def run_sessions(seeds):
    frames_taken = rejected = 0
    for seed in seeds:
        for end in session(seed):
            check(end)
        frames_taken, rejected = frames_taken + 1, rejected + end.edge.rejected
    assert rejected > frames_taken / 2  # most of them are caught


def test_hostile_sessions():
    run_sessions(range(200))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_ten_thousand_hostile_sessions(part):
    run_sessions(range(1000 + 2500 * TIMES * part, 1000 + 2500 * TIMES * (part + 1)))


def test_a_site_with_an_error_would_be_noticed():
    end = next(session(1))
    end.site.error = Rejected("for the test")
    with pytest.raises(AssertionError):
        check(end)
