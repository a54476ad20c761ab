"""A member with a valid certificate that means harm: python silo_hostile.py HOME NAME MODE SECONDS

It meets the others like anybody, so that the others start. Then, by MODE, it `leaves`, or attacks each of its
neighbours in turn with everything that has ended or held up a site before.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import numpy as np
from silo_sites import Folders, ring
from silo_talking import channel

from decibel.silo._federation import FaultTolerance
from decibel.silo.protocol._frame_limits import NOWHERE
from decibel.silo.protocol._frames import (
    Beat,
    Bye,
    Data,
    Hello,
    Join,
    Position,
    Roll,
    Skip,
    Stand,
    Statement,
    nonces_of,
    parse,
    write,
)
from decibel.silo.run._connections import METHOD
from decibel.silo.trust._certificates import der, make_request
from decibel.silo.trust._credentials import Credentials
from decibel.silo.trust._signing import load_key, new_key, sign

NEVER = 2**32 - 1
PROBLEM = b"p" * 32


class Everyone:
    """A large ring, and the keys of all its sites but site 0. Those of these names have folders."""

    def __init__(self, folder, sites, names=("site-0",)):
        rules = FaultTolerance("continue", beat=1.0, missed=10, deadline=60.0)
        self.federation = ring(sites, fault_tolerance=rules, steps=10**6)
        self.folders = Folders(folder, self.federation, names=list(names))
        self.keys = {site: new_key() for site in range(1, sites)}
        self.certificates = {site: self._certificate(site) for site in self.keys}

    def _certificate(self, site):
        name = self.federation.sites[site].name
        if (home := self.folders.home(name)).exists():
            self.keys[site] = load_key(home / "key.pem")
        request = make_request(self.keys[site], name, "test")
        return der(self.folders.authority.certify(request, name, timedelta(days=1)))

    def statement(self, site, **fields):
        one = Statement(site, 1, 50 + site, **fields)
        signature = sign(self.keys[site], "statement", self.federation.hash + PROBLEM + one.signed_bytes())
        return one._replace(signature=signature, certificate=self.certificates[site])

    def everyone(self, heard, **fields):
        return tuple(self.statement(site, heard=heard, **fields) for site in self.keys)


class Member:
    """What it takes to be let in: papers, and the problem of the others, which it learns from their HELLO."""

    def __init__(self, home, name):
        self.own = Credentials.load(home, name)
        self.federation = self.own.federation
        self.number = self.federation.number(name)
        self.neighbours = self.federation.neighbours(self.number)
        self.incarnation = time.time_ns()
        self.nonce, self.serial = random.getrandbits(64), 0
        self.known: dict[int, Statement] = {}

    def channel(self, other):
        site = self.federation.sites[other]
        return channel(self.own.home, site.address, site.name)

    def hello(self, problem):
        return write(Hello(self.federation.hash, problem, self.incarnation, b"n" * 32))

    def statement(self, problem, step=0, saved=(), site=None):
        self.serial += 1
        number = self.number if site is None else site
        one = Statement(number, self.incarnation, self.nonce, self.serial, step, saved)
        one = one._replace(heard=nonces_of([*self.known.values(), one], len(self.federation.sites)))
        text = self.federation.hash + problem + one.signed_bytes()
        signature, certificate = self.own.sign("statement", text)
        return one._replace(signature=signature, certificate=certificate)

    def hear(self, statements):
        """Keeps the newest of every site, with its certificate."""
        for one in statements:
            old = self.known.get(one.site)
            if one.site != self.number and (old is None or one.order > old.order):
                certificate = one.certificate or (old.certificate if old else b"")
                self.known[one.site] = one._replace(certificate=certificate)


class Conversation:
    """A stream with one neighbour, on which anything can be said."""

    def __init__(self, member, other, problem):
        self.member, self.other, self.problem = member, other, problem
        self.out, self.ended = [], threading.Event()
        self.more = threading.Condition()
        self.heard: list[object] = []
        self._channel = member.channel(other)
        self.say_raw(member.hello(problem))
        self.call = self._channel.stream_stream(METHOD)(self._outgoing())

    def _outgoing(self):
        while not self.ended.is_set():
            with self.more:
                self.more.wait_for(lambda: self.out or self.ended.is_set(), 0.5)
                ready, self.out = self.out, []
            yield from ready

    def say_raw(self, raw):
        with self.more:
            self.out.append(raw)
            self.more.notify()

    def say(self, *given):
        for frame in given:
            self.say_raw(write(frame))

    def read(self):
        """In the background, for as long as it lasts."""

        def take():
            with suppress(Exception):
                for raw in self.call:
                    self.heard.append(parse(raw))

        threading.Thread(target=take, daemon=True).start()
        return self

    def close(self):
        self.ended.set()
        with self.more:
            self.more.notify()
        self.call.cancel()
        self._channel.close()


def rendezvous(member, problem):
    """Until all have heard of each other: it passes on what it hears, as all do."""
    lines = [Conversation(member, other, problem).read() for other in member.neighbours]
    while True:
        for line in lines:
            for frame in list(line.heard):
                if isinstance(frame, Roll | Stand):
                    member.hear(frame.statements)
        member.known[member.number] = member.statement(problem)
        complete = len(member.known) == len(member.federation.sites)
        for line in lines:
            line.say(Roll(complete, tuple(member.known.values())), Beat())
        if complete and all(any(isinstance(f, Roll) and f.running for f in line.heard) for line in lines):
            return lines
        time.sleep(0.2)


def attacks(member, problem, other, chance):
    """Each takes a conversation and lasts a moment."""

    def floods(line):
        for _ in range(2000):
            line.say(chance.choice((Beat(), Bye("aside"), Join(0, 1, False, False, 0, NOWHERE))))

    def huge(line):
        line.say(Join(2**64 - 1, 2**64 - 1, False, False, NEVER, NOWHERE))

    def far(line):
        line.say(Skip(NEVER), Skip(1000))

    def ahead(line):
        line.say(Join(0, 5, False, False, 3999, NOWHERE), Stand((member.statement(problem, 3999),)))

    def forged(line):
        others = [site for site in range(len(member.federation.sites)) if site != member.number]
        line.say(Stand(tuple(member.statement(problem, 3999, site=site) for site in others)))
        line.say(Roll(True, tuple(member.statement(problem, 0, (3999,), site) for site in others)))

    def behind(line):
        line.say(Roll(True, ()), Join(0, 7, False, True, 0, NOWHERE))
        for _ in range(20):
            line.say(Beat())
            time.sleep(0.1)

    def wrong(line):
        line.say(Join(0, 9, False, False, 0, NOWHERE))
        line.say(Data(9, Position(0, 0), np.full(7, np.nan)), Data(9, Position(5, 5), np.ones(3)))

    def nonsense(line):
        line.say_raw(chance.randbytes(60_000))

    def silent(line):
        more = [member.channel(other) for _ in range(3)]
        calls = [one.stream_stream(METHOD)(iter(lambda: time.sleep(2) or b"", b"")) for one in more for _ in range(10)]
        time.sleep(0.5)
        for call in calls:
            call.cancel()
        for one in more:
            one.close()

    return [floods, huge, far, ahead, forged, behind, wrong, nonsense, silent]


def attack(member, problem, other, until, counts):
    chance = random.Random(other)
    while time.monotonic() < until:
        for one in attacks(member, problem, other, chance):
            with suppress(Exception):
                line = Conversation(member, other, problem)
                if one.__name__ != "floods":
                    line.read()  # or it never reads
                one(line)
                time.sleep(0.3)
                line.close()
                counts[one.__name__] = counts.get(one.__name__, 0) + 1


if __name__ == "__main__":
    home, name, mode, seconds = sys.argv[1:]
    problem = bytes.fromhex((Path(home).parent / "problem").read_text())
    member = Member(home, name)
    lines = rendezvous(member, problem)
    if mode == "leaves":
        for line in lines:
            line.say(Bye("left"))
        time.sleep(1.0)
    for line in lines:
        line.close()
    if mode == "attacks":
        until, counts = time.monotonic() + float(seconds), {}
        threads = [
            threading.Thread(target=attack, args=(member, problem, other, until, counts)) for other in member.neighbours
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(counts, flush=True)
