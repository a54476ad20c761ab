"""A member that floods a site with statements of everyone: what it costs in signatures, and in time under the lock.

`python -m benchmarks.rolls` measures steps a second with and without such a flood.
"""

from __future__ import annotations

import threading

import pytest
from silo_ends import End, Manual
from silo_hostile import Everyone

from decibel.silo._errors import Rejected
from decibel.silo.protocol._frame_limits import SIGNATURES
from decibel.silo.protocol._frames import Roll, Stand, Statement, nonces_of, parse, write
from decibel.silo.trust import _certificates, _credentials
from decibel.silo.trust._credentials import Credentials

SITES = 100


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


class Watched(Manual):
    def __init__(self):
        super().__init__()
        self.held = Held()

    def lock(self):
        return self.held


class Victim(End):
    """Site 0 with real credentials, and how often it verifies: signatures of statements, and of certificates."""

    def __init__(self, members, monkeypatch):
        credentials = Credentials.load(members.folders.home("site-0"), "site-0")
        super().__init__(members.federation, 0, 1, signer=credentials, clock=Watched())
        self.counts, self.under_lock = {"statements": 0, "certificates": 0}, 0
        self.connect()
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
        return self.site._rendezvous.by_site[0]

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
    return Everyone(tmp_path_factory.mktemp("flood"), SITES)


def test_at_the_start_every_signature_is_verified_once_and_none_under_the_lock(members, monkeypatch):
    victim = Victim(members, monkeypatch)
    others = members.everyone(victim.heard())
    victim.deliver(Roll(False, others[:-1]), times=20)
    assert victim.counts == {"statements": SITES - 2, "certificates": SITES - 2}
    assert not victim.site._rendezvous.is_start_known
    older = (*others[:-1], members.statement(SITES - 1, heard=b"h" * 8 * SITES))
    victim.deliver(Roll(False, older), times=20)
    assert victim.counts == {"statements": SITES - 1, "certificates": SITES - 1} and victim.under_lock == 0


def test_a_run_pays_nothing_for_statements_that_it_has(members, monkeypatch):
    """20 rolls a second with the statements of all 100 sites, of the start and of a later step."""
    victim = Victim(members, monkeypatch)
    at_the_start = members.everyone(victim.heard())
    victim.deliver(Roll(False, at_the_start))
    assert victim.site._rendezvous.is_start_known
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
        for serial in range(SIGNATURES * SITES + 1):
            told = Statement(2, 1, 52, serial, heard=bytes(8 * SITES), certificate=b"none")
            victim.site._rendezvous._signer.has_signed = lambda *_: True
            victim.site._hear(victim.edge, [told], victim.line)
