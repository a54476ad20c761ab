"""Sites that are late: the slow are waited for, and those who are late on purpose cost no more than their share."""

from __future__ import annotations

import pytest
from silo_ends import End
from silo_sites import ring
from simulation import Schedule, World
from simulation.host import Host

from decibel.silo._federation import FaultTolerance
from decibel.silo.protocol._frame_limits import FREE_DELAY
from decibel.silo.protocol._frames import Beat, Position
from decibel.silo.protocol._lockstep_site import LockstepSite

RULES = FaultTolerance("continue", beat=0.1, missed=50, deadline=2.0)
QUICK = 0.005  # seconds of a step
FIRST = 1000.0  # when the clock begins
RING = ((0, 1), (1, 2), (2, 3), (3, 4), (0, 4))


def suspended(monkeypatch, times_slower, steps, rules=RULES):
    """Who suspended whom, in a ring of five of which site 2 is slower than the others; and when each had done its
    steps."""
    said, ends = [], {}
    say, goodbye = Host.say, LockstepSite.goodbye

    def hear(self, sentence):
        if sentence.endswith("edge suspended"):
            said.append((self.name, sentence.split()[0]))
        say(self, sentence)

    def leave(self, finished):
        ends[self.name] = self.clock.now() - FIRST
        goodbye(self, finished)

    monkeypatch.setattr(Host, "say", hear)
    monkeypatch.setattr(LockstepSite, "goodbye", leave)
    world = World(
        Schedule(
            seed=1,
            kind="slow",
            sites=5,
            edges=RING,
            tolerance=rules,
            steps=steps,
            levels=1,
            lossy=True,
            checkpoint_every=1000,
            slowest=0.001,
            compute=QUICK,
            noisy=False,
            speeds=(1.0, 1.0, times_slower, 1.0, 1.0),
        )
    )
    world.run()
    return said, ends


def test_a_site_that_is_fifteen_times_slower_is_waited_for(monkeypatch):
    said, _ = suspended(monkeypatch, 15.0, steps=60)
    assert said == []


def test_one_that_is_a_hundred_times_slower_is_suspended_by_its_neighbours_and_parts_nobody_else(monkeypatch):
    """Everybody waits for it, or for one that waits for it: only its own neighbours go on without it."""
    said, ends = suspended(monkeypatch, 100.0, steps=60)
    assert set(said) == {("site-1", "site-2"), ("site-3", "site-2")}
    assert max(ends.values()) < 60 * 100 * QUICK / 3  # it takes their model at the end


@pytest.mark.parametrize("waits", [False, True])
def test_the_share_of_the_time_is_bounded(waits):
    """A neighbour is late in every step by as long as it is waited for. Saying that it waits itself, it takes at most
    twice as long."""
    end = End(ring(3, fault_tolerance=FaultTolerance("continue", beat=1.0, missed=3, deadline=5.0), steps=10**6), 0, 1)
    late, other = end.site.edges[1], end.site.edges[2]
    end.connect()
    end.deliver(Beat(waits))
    end.site.running, waited = True, 0.0
    for edge in (late, other):
        edge.is_open, edge.first_step, edge.their_position = True, 0, Position(2**40, 0)
    for step in range(3000):
        end.clock.time += 0.1
        late.is_open, late.their_position = True, Position(step, -1)  # it joins again, and sends nothing
        begun = end.clock.time
        end.site._wait_for([late, other], Position(step, 0))
        waited += end.clock.time - begun
    allowed = 3000 * (19 * 0.1 + FREE_DELAY) + 5.0
    assert 0.8 * allowed < waited / (2 if waits else 1) < 1.1 * allowed


def test_without_faulty_members_there_is_no_limit():
    end = End(ring(3, fault_tolerance=RULES, steps=100, faulty=0), 0, 1)
    late, other = end.site.edges[1], end.site.edges[2]
    end.site._charge([late], 1000.0, {1: 0.0, 2: 0.0}, few=len([late]) < end.site._confirmations_needed)
    assert late.wait_budget.exceeded_reason(end.clock.time) == "" and other.waited_seconds == 0.0
