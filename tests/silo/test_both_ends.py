"""Two honest ends of an edge, under every order of events."""

from __future__ import annotations

import copy
import copyreg
import threading

import pytest
from silo_ends import standing_end, tell_running

from decibel.network._links import LinkStatus
from decibel.silo.protocol._frames import Bye, parse, write

MATCHING = {
    (LinkStatus.CONTINUE, LinkStatus.CONTINUE),
    (LinkStatus.START_AT_ZERO, LinkStatus.START_AT_ZERO),
    (LinkStatus.GIVE_FLOW, LinkStatus.TAKE_FLOW),
    (LinkStatus.TAKE_FLOW, LinkStatus.GIVE_FLOW),
}


class Pair:
    """Both ends of an edge, and what is under way between them."""

    def __init__(self):
        self.ends = {"dials": standing_end("dials"), "listens": standing_end("listens")}
        for end in self.ends.values():
            end.edge.holds = True

    def happen(self, event):
        """Whether it could."""
        what, *who = event.split()
        dials, listens = self.ends.values()
        if what == "connect":
            if dials.edge.stream or listens.edge.stream:
                return False
            for end in self.ends.values():
                end.connect(incarnation=7)  # that of both
                tell_running(end)
        elif what == "break":
            if dials.edge.stream is None:
                return False
            for end in self.ends.values():
                end.disconnect()  # what is under way is lost
        elif what == "deliver":
            end, other = (self.ends[who[0]], self.ends["listens" if who[0] == "dials" else "dials"])
            if other.line is None or not other.line.sent or end.edge.stream is None:
                return False
            end.deliver(parse(other.line.sent.pop(0)))
        elif what == "join":
            before = dials.edge.joining
            dials.site._join()
            return dials.edge.joining and not before
        elif what == "forget":
            edge = self.ends[who[0]].edge
            if not edge.open:
                return False
            edge.send(write(Bye("aside")))
            edge.close(forget=True)
        return True

    @property
    def key(self):
        return tuple(
            (
                end.edge.state,
                end.edge.holds,
                end.edge.epoch,
                int(end.edge.tie),
                tuple(end.line.sent) if end.line else (),
            )
            for end in self.ends.values()
        )

    def check(self):
        dials, listens = (end.edge for end in self.ends.values())
        assert not dials.rejected and not listens.rejected  # two honest ends understand each other
        if dials.open and listens.open and dials.epoch == listens.epoch:
            assert (dials.tie, listens.tie) in MATCHING


DEPTH = 16


@pytest.mark.slow
def test_two_honest_ends_always_find_back_to_each_other(monkeypatch):
    """All orders of connecting, breaking, joining, forgetting and delivering, to a depth; from each the ends come to
    talk in one epoch, with ties that match, once nothing is disturbed any more."""
    events = ["connect", "break", "join", "deliver dials", "deliver listens", "forget dials", "forget listens"]
    monkeypatch.setitem(copyreg.dispatch_table, type(threading.Lock()), lambda lock: (threading.Lock, ()))
    level, seen = [Pair()], set()
    for _ in range(DEPTH):
        following = []
        for pair in level:
            for event in events:
                new = copy.deepcopy(pair)
                if not new.happen(event) or new.key in seen:
                    continue
                seen.add(new.key)
                new.check()
                following.append(new)
        level = following[:4000]
        for pair in level[::7]:
            settled = copy.deepcopy(pair)
            for _ in range(40):
                for event in ("connect", "join", "deliver dials", "deliver listens"):
                    settled.happen(event)
            ends = [end.edge for end in settled.ends.values()]
            assert [edge.state for edge in ends] == ["talking", "talking"] and ends[0].epoch == ends[1].epoch
    assert len(seen) > 500, len(seen)
