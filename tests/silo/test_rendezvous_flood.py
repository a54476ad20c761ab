"""A member that floods a site with statements of everyone: what it costs in signatures, and in time under the lock.

`python tests/silo/test_rendezvous_flood.py` measures steps a second with and without such a flood.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from silo_hostile import Conversation, Member
from silo_sites import Folders, ring

from decibel.silo._errors import Rejected
from decibel.silo._federation import FaultTolerance
from decibel.silo.protocol._clock import Clock
from decibel.silo.protocol._edge import Edge
from decibel.silo.protocol._frame_limits import PROOFS
from decibel.silo.protocol._frames import Beat, Hello, Roll, Stand, Statement, nonces_of, parse, write
from decibel.silo.protocol._lockstep_site import LockstepSite
from decibel.silo.run._connections import Streams
from decibel.silo.trust import _certificates, _credentials
from decibel.silo.trust._certificates import der, make_request
from decibel.silo.trust._credentials import Credentials
from decibel.silo.trust._signing import load_key, new_key, sign

SITES, STEPS = 100, 10**6
PROBLEM = b"p" * 32
RULES = FaultTolerance("continue", beat=1.0, missed=10, deadline=60.0)


class Members:
    """The keys and certificates of everyone but site 0. Those of these names have folders."""

    def __init__(self, folder, names=("site-0",)):
        self.federation = ring(SITES, fault_tolerance=RULES, steps=STEPS)
        self.folders = Folders(folder, self.federation, names=list(names))
        self.keys = {site: new_key() for site in range(1, SITES)}
        self.certificates = {site: self._certificate(site) for site in self.keys}

    def _certificate(self, site):
        name = self.federation.sites[site].name
        if (home := self.folders.home(name)).exists():
            self.keys[site] = load_key(home / "key.pem")
        request = make_request(self.keys[site], name, "test")
        return der(self.folders.authority.certify(request, name, timedelta(days=1)))

    def statement(self, site, **fields):
        one = Statement(site, 1, 50 + site, **fields)
        text = self.federation.hash + PROBLEM + one.text()
        signature = sign(self.keys[site], "statement", text)
        return one._replace(signature=signature, certificate=self.certificates[site])

    def everyone(self, heard, **fields):
        return tuple(self.statement(site, heard=heard, **fields) for site in self.keys)


class Held(threading.Condition):
    """A lock that knows whether somebody holds it."""

    def __init__(self):
        super().__init__()
        self.depth = 0

    def __enter__(self):
        entered = super().__enter__()
        self.depth += 1
        return entered

    def __exit__(self, *error):
        self.depth -= 1
        return super().__exit__(*error)


class Watched(Clock):
    def __init__(self):
        self.held, self.time = Held(), 1000.0

    def now(self):
        return self.time

    def lock(self):
        return self.held


class Nowhere:
    def send(self, frame):
        pass

    send_newest = end = hang_up = send


class Victim:
    """Site 0 with real credentials, and how often it verifies: signatures of statements, and of certificates."""

    def __init__(self, members, monkeypatch):
        self.clock, self.counts, self.under_lock = Watched(), {"statements": 0, "certificates": 0}, 0
        credentials = Credentials.load(members.folders.home("site-0"), "site-0")
        arguments = members.federation, 0, PROBLEM, credentials
        self.site = LockstepSite(*arguments, incarnation=1, lossy=True, say=lambda sentence: None, clock=self.clock)
        self.site._rendezvous.say(0, [])
        self.edge: Edge = self.site.edges[1]
        self.line = Nowhere()
        self.site.connected(self.edge, Hello(members.federation.hash, PROBLEM, 1, b"n" * 32), self.line)
        monkeypatch.setattr(_credentials, "verified", self.counted("statements", _credentials.verified))
        of = _certificates.Holder.of
        monkeypatch.setattr(_credentials.Holder, "of", self.counted("certificates", of))

    def counted(self, what, real):
        def count(*arguments):
            self.counts[what] += 1
            self.under_lock += self.clock.held.depth > 0
            return real(*arguments)

        return count

    @property
    def own(self):
        return self.site._rendezvous.known[0]

    def heard(self):
        """The nonces of everyone, when all have heard of each other."""
        return nonces_of([self.own, *(Statement(site, 1, 50 + site) for site in range(1, SITES))], SITES)

    def deliver(self, frame, times=1):
        raw = write(frame)
        for _ in range(times):
            self.clock.time += 0.05  # 20 a second
            self.site.receive(self.edge, parse(raw), self.line)


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    return Members(tmp_path_factory.mktemp("flood"))


def test_at_the_start_every_signature_is_verified_once_and_none_under_the_lock(members, monkeypatch):
    victim = Victim(members, monkeypatch)
    others = members.everyone(victim.heard())
    victim.deliver(Roll(False, others[:-1]), times=20)
    assert victim.counts == {"statements": SITES - 2, "certificates": SITES - 2}
    assert not victim.site._rendezvous.settled
    older = (*others[:-1], members.statement(SITES - 1, heard=b"h" * 8 * SITES))
    victim.deliver(Roll(False, older), times=20)
    assert victim.counts == {"statements": SITES - 1, "certificates": SITES - 1} and victim.under_lock == 0


def test_a_run_pays_nothing_for_statements_that_it_has(members, monkeypatch):
    """20 rolls a second with the statements of all 100 sites, of the start and of a later step."""
    victim = Victim(members, monkeypatch)
    at_the_start = members.everyone(victim.heard())
    victim.deliver(Roll(False, at_the_start))
    assert victim.site._rendezvous.settled
    later = members.everyone(victim.heard(), serial=7, step=50, running=True)
    victim.deliver(Stand(later))
    before = dict(victim.counts)
    assert before["statements"] <= 2 * SITES and before["certificates"] == SITES - 1
    for statements in (at_the_start, later):
        victim.deliver(Roll(True, statements), times=100)
        victim.deliver(Roll(True, tuple(reversed(statements))), times=100)
    assert victim.counts == before and victim.under_lock == 0 and victim.edge.rejected == 0


def test_a_library_of_old_statements_is_paid_for_by_who_sends_it(members, monkeypatch):
    """A member passes on, one after the other, what a site that is away has said in its life."""
    victim = Victim(members, monkeypatch)
    victim.site._rendezvous.start = 0
    victim.clock.time += 1e6
    with pytest.raises(Rejected, match="more frames or statements"):
        for serial in range(PROOFS * SITES + 1):
            told = Statement(2, 1, 52, serial, heard=bytes(8 * SITES), certificate=b"none")
            victim.site._rendezvous._signer.check_statement = lambda *_: True
            victim.site._hear(victim.edge, [told], victim.line)


# The measurement


def walks(folder, federation, number, steps, cpu, ends):
    """A site with its streams, in a process of its own: a step is an exchange, and some time on an accelerator. Counts
    its steps and the seconds of its processor."""
    credentials = Credentials.load(folder / f"site-{number}", f"site-{number}")
    site = LockstepSite(federation, number, PROBLEM, credentials, incarnation=1, lossy=True, say=print)
    site.expect(np.float64, (1000,))
    site._rendezvous.say(0, [])
    site._rendezvous.start = 0  # most of the hundred do not run
    streams = Streams(site, credentials, print)
    streams.start()
    others = tuple(site.edges)
    out = np.empty((len(others), 1000)), np.empty(len(others), bool), np.empty(len(others), np.int32)
    step = 0
    while not ends.is_set():
        step = site.begin(step) + 1
        time.sleep(0.006)
        site.exchange(others, np.zeros(1000), None, out)
        steps[number], cpu[number] = step, time.process_time()
    site.goodbye(False)
    streams.close()


def measure(seconds=3.0, rounds=10, rate=20):
    """Steps of site 0 of a hundred, beside site 1, for each second and for each second of its processor, which other
    programs on the machine change less. Statements of all come once a beat; in every other phase, site 99 also sends
    rolls with all of them."""
    with tempfile.TemporaryDirectory() as folder:
        members = Members(Path(folder), names=["site-0", "site-1", "site-99"])
        process = multiprocessing.get_context("spawn")
        ends, steps, cpu = process.Event(), process.Array("l", 2), process.Array("d", 2)
        started = [
            process.Process(target=walks, args=(Path(folder), members.federation, number, steps, cpu, ends))
            for number in range(2)
        ]
        for one in started:
            one.start()
        while min(steps) < 50:
            time.sleep(0.1)
        line = Conversation(Member(Path(folder) / "site-99", "site-99"), 0, PROBLEM).read()
        rates = {"quiet": [], "flooded": []}
        serial = 0
        for kind in ["quiet", "flooded"] * rounds:
            begun, first, before, sent = time.monotonic(), steps[0], cpu[0], 0
            while (now := time.monotonic()) < begun + seconds:
                if now >= begun + sent / rate:
                    if sent % rate == 0:
                        serial += 1
                        statements = members.everyone(bytes(8 * SITES), serial=serial, step=serial, running=True)
                        line.say(Stand(statements), Beat())
                    sent += 1
                    if kind == "flooded":
                        line.say(Roll(True, statements))
                time.sleep(0.001)
            done = steps[0] - first
            rates[kind].append((done / (time.monotonic() - begun), done / (cpu[0] - before)))
        assert line.call.is_active()  # or nothing was measured
        ends.set()
        line.close()
        for one in started:
            one.join(20)
            one.kill()
    return rates


if __name__ == "__main__":
    medians = {kind: np.median(found, axis=0) for kind, found in measure().items()}
    print(medians, "shares", medians["flooded"] / medians["quiet"])
