"""The protocol as a model: every row of the table in docs/silo-protocol.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from silo_ends import FEDERATION, RULES, STEP, End, Signer, standing_end, tell_running
from silo_messages import message
from silo_sites import ring

from decibel.engines.silo._federation import FaultTolerance
from decibel.engines.silo._frames import Bye, Data, Hello, Join, Position, Refuse, Roll, Skip, Stand, Statement
from decibel.engines.silo._limits import BURST, NOWHERE

PAGE = Path(__file__).parents[3] / "docs" / "silo-protocol.md"
EPOCH = 1001


def table():
    rows = [line.strip("|\n ").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row] for row in rows]
    first = cells.index(["state", "end", "event", "next", "says"])
    found = []
    for row in cells[first + 1 :]:
        if len(row) < 4 or row[0] == "what":
            break
        state, end, event, following, *says = row
        ends = ("dials", "listens") if end == "both" else (end,)
        found += [(state, one, event, following, says[0] if says else "") for one in ends]
    return found


def bring_to(state, kind):
    end = standing_end(kind)
    if state != "away":
        end.connect()
        tell_running(end)
    if state in ("joining", "talking", "reconnecting", "finished") and kind == "dials":
        end.site._join()
    if state in ("talking", "reconnecting", "finished"):
        assert kind == "listens" or end.edge.asking == EPOCH
        end.deliver(Join(0, EPOCH, False, False, STEP, NOWHERE, kind == "dials"))
        end.deliver(message(STEP, 0, epoch=EPOCH))
    if state == "reconnecting":
        end.disconnect()
    if state == "finished":
        end.deliver(Bye("finished"))
    assert end.edge.state == state
    end.sent()
    return end


def late(end):
    end.site._at = Position(STEP, 0)
    end.deliver(message(STEP, 1, epoch=EPOCH))
    end.site._wait_for([end.edge], Position(STEP, 2))


def silence(end):
    end.clock.time += RULES.patience + 1
    end.site.watch()


def no_answer(end):
    end.clock.time += RULES.patience + 1
    end.site._join()


def begin_without(end):
    tell_running(end, running=False)
    end.site._join()


FORGED = Statement(2, 9, 50, (40,), b"forged", b"site-2")
EVENTS = {
    "stream and HELLO": lambda end: end.connect(),
    "stream ends": lambda end: end.disconnect(),
    "neighbour runs, a step begins": lambda end: end.site._join(),
    "neighbour does not run, a step begins": begin_without,
    "no answer, a step begins": no_answer,
    "JOIN": lambda end: end.deliver(Join(0, 0, False, False, STEP, NOWHERE)),
    "JOIN, not open": lambda end: end.deliver(Join(0, 0, False, False, STEP, NOWHERE)),
    "JOIN, open": lambda end: end.deliver(Join(EPOCH, 0, True, True, STEP, NOWHERE)),
    "JOINED, not open": lambda end: end.deliver(Join(0, EPOCH, False, False, STEP, NOWHERE, True)),
    "JOINED to an earlier JOIN": lambda end: end.deliver(Join(0, 5, False, False, STEP, NOWHERE, True)),
    "JOINED, open": lambda end: end.deliver(Join(EPOCH, 0, True, True, STEP, NOWHERE, True)),
    "DATA": lambda end: end.deliver(message(STEP, 1, epoch=EPOCH)),
    "DATA out of order": lambda end: end.deliver(message(STEP + 5, 3, epoch=EPOCH)),
    "DATA with a NaN": lambda end: end.deliver(message(STEP, 1, epoch=EPOCH, tensor=np.full(3, np.nan))),
    "DATA of another shape": lambda end: end.deliver(message(STEP, 1, epoch=EPOCH, tensor=np.ones(4))),
    "SKIP ahead": lambda end: end.deliver(Skip(STEP + 20)),
    "SKIP back": lambda end: end.deliver(Skip(STEP - 1)),
    "a step beyond the run": lambda end: end.deliver(Skip(101)),
    "a second HELLO": lambda end: end.deliver(Hello(b"f" * 32, b"p" * 32, 1, b"n" * 32)),
    "a statement that is not signed": lambda end: end.deliver(Stand((FORGED,))),
    "BYE left": lambda end: end.deliver(Bye("left")),
    "BYE aside": lambda end: end.deliver(Bye("aside")),
    "BYE finished": lambda end: end.deliver(Bye("finished")),
    "REFUSE": lambda end: end.deliver(Refuse("for a reason")),
    "no sign of life": silence,
    "deadline": late,
    "neighbour started anew": lambda end: end.connect(incarnation=2),
}


def test_the_table_has_every_state_and_every_event():
    rows = table()
    assert {row[0] for row in rows} == {"away", "connected", "joining", "talking", "reconnecting", "finished"}
    assert {row[2] for row in rows} == set(EVENTS) and len(rows) > 60


@pytest.mark.parametrize(("state", "kind", "event", "following", "says"), table())
def test_every_row_is_what_a_site_does(state, kind, event, following, says):
    end = bring_to(state, kind)
    EVENTS[event](end)
    names = [type(frame).__name__.upper() for frame in end.sent()]
    names = ["JOINED" if one == "JOIN" and kind == "listens" else one for one in names if one not in ("BEAT", "STAND")]
    assert (end.edge.state, " ".join(names)) == (following, says)


class TestNoFrameEndsANeighbour:
    """Each of these ended an honest site, or made it skip steps, in the first version."""

    @pytest.mark.parametrize("kind", ["dials", "listens"])
    @pytest.mark.parametrize(
        "frame",
        [
            Join(2**64 - 1, 2**64 - 1, False, False, STEP, NOWHERE),
            Join(2**64 - 1, 2**64 - 1, True, True, STEP, Position(2**31 - 1, 2**31 - 1), True),
            Join(0, 0, False, False, 2**32 - 1, NOWHERE),
            Skip(2**32 - 1),
            Stand((Statement(2, 2**64 - 1, 2**32 - 1, (2**32 - 1,) * 255),)),
            Roll(True, True, tuple(Statement(i, 2**64 - 1, 0, ()) for i in range(300))),
            Data(2**64 - 1, Position(2**32 - 1, 2**16 - 1), np.ones(3)),
        ],
    )
    def test_with_fields_as_large_as_they_can_be(self, frame, kind):
        end = bring_to("talking", kind)
        end.deliver(frame)
        assert end.site.error is None and end.site.next == STEP
        end.edge.close(forget=True)
        end.connect()
        tell_running(end)
        end.site._join()
        end.deliver(Join(0, end.edge.asking, False, False, STEP, NOWHERE, kind == "dials"))
        assert end.site.begin(STEP) == STEP

    def test_a_jump_is_followed_only_as_far_as_two_sites_say(self):
        end, statement = bring_to("talking", "dials"), lambda site, step: Statement(site, 3, step, ())
        signed = lambda one: _signed(end, one)  # noqa: E731
        end.deliver(Skip(90), Stand((signed(statement(0, 90)),)))
        assert end.site.begin(STEP) == STEP
        end.deliver(Stand((signed(statement(2, 40)),)))
        assert end.site.begin(STEP + 1) == 40
        assert Skip(40) in end.sent()

    def test_a_neighbour_in_this_very_step_is_not_ahead(self):
        """It has begun the step that begins here next, and waits for the message of that step."""
        end = bring_to("talking", "dials")
        other = bring_to("talking", "listens")
        other.site._at, other.site.next = Position(STEP, 0), STEP + 1
        other.site.watch()
        stood = next(frame for frame in other.sent() if isinstance(frame, Stand)).statements[0]
        assert stood.site == 0 and stood.step == STEP
        third = _signed(end, Statement(2, 3, STEP, ()))
        end.deliver(Skip(90), Stand((stood._replace(certificate=b"site-0"), third)))
        assert end.site.begin(STEP) == STEP

    def test_that_the_others_are_done_takes_two_to_say(self):
        """One that says so while the other neighbour is away does not make a site go on alone."""
        end = bring_to("talking", "dials")
        end.deliver(Stand((_signed(end, Statement(0, 3, 100, ())),)), Bye("finished"))
        assert end.edge.finished and not end.site._may_go_on()
        end.site._roll_call.take([_signed(end, Statement(2, 3, 100, ()))])
        assert end.site._may_go_on()

    def test_who_has_finished_says_so_signed(self):
        end = bring_to("talking", "listens")
        end.site.next = 100
        end.edge.finished = True  # so that it does not wait for it
        end.site.goodbye(True)
        stood = [one for frame in end.sent() if isinstance(frame, Stand) for one in frame.statements]
        assert [(one.site, one.step) for one in stood if one.site == 0] == [(0, 100)]

    def test_no_statement_of_another_site_is_believed_unless_it_has_signed_it(self):
        end = bring_to("talking", "dials")
        end.deliver(Stand((_signed(end, Statement(2, 3, 50, ()), by="site-0"),)))
        assert 2 not in end.site._roll_call.known and end.edge.rejected == 1

    def test_an_old_statement_does_not_replace_a_newer_one(self):
        end = bring_to("talking", "dials")
        new, old = (_signed(end, Statement(2, 3, step, ())) for step in (50, 20))
        end.deliver(Stand((new,)), Stand((old,)))
        assert end.site._roll_call.known[2].step == 50 and end.edge.rejected == 0

    def test_a_basis_that_was_not_signed_settles_nothing(self):
        """ROLL with statements of its own making for others, and an agreed step beyond the run."""
        end = End(FEDERATION, 1, 0)
        end.connect()
        own = end.site._roll_call.known[1]
        forged = (Statement(0, 1, 0, (60,), b"forged", b"site-0"), own, FORGED)
        end.deliver(Roll(True, True, forged))
        assert end.edge.stream is None and set(end.site._roll_call.known) == {1}
        assert not end.site._roll_call.settled

    def test_a_basis_of_older_statements_that_were_not_signed_closes_the_stream_and_nothing_else(self):
        """They are no news, so that only the basis is a reason to look at them."""
        end = End(FEDERATION, 1, 0)
        end.connect()
        end.site._roll_call.say(0, [30])
        own = end.site._roll_call.known[1]
        others = tuple(_signed(end, Statement(site, 5, 0, (30, 60))) for site in (0, 2))
        end.deliver(Stand(others))
        forged = tuple(Statement(site, 1, 0, (), b"forged", f"site-{site}".encode()) for site in (0, 2))
        end.deliver(Roll(True, True, (own, *forged)))
        assert end.edge.stream is None and end.edge.rejected == 1 and not end.edge.basis
        assert end.site.agree([30]) == 30

    def test_all_start_from_what_all_have_saved(self):
        end = End(FEDERATION, 1, 0)
        end.connect()
        end.site._roll_call.say(0, [30, 60])
        others = tuple(_signed(end, Statement(site, 1, 0, (30, 60 + site))) for site in (0, 2))
        end.deliver(Roll(False, False, others))
        assert len(end.site._roll_call.known) == 3  # or it would wait
        assert end.site.agree([30, 60]) == 30

    def test_a_flood_of_frames_closes_the_stream(self):
        for frame in (Bye("aside"), message(STEP, 0, epoch=EPOCH), message(1, 0, epoch=5)):
            end = bring_to("talking", "listens")
            end.deliver(*[frame] * BURST)
            assert end.edge.stream is None and "more frames" in end.said[-1]

    def test_a_neighbour_that_joins_from_behind_and_stays_there_is_soon_left_alone(self):
        """It beats and never sends, and joins again whenever it may: each time it has to wait twice as long."""
        rules = FaultTolerance(beat=0.1, missed=10, deadline=50.0)
        end = End(ring(3, fault_tolerance=rules, steps=10**6), 0, 1)
        waited = self._time_lost(end, lambda step: Join(0, step, False, False, 0, NOWHERE))
        assert 0.4 < waited < 0.1 * (end.clock.time - 100)

    def test_a_neighbour_that_is_always_late_takes_its_share_of_the_time_and_no_more(self):
        """It keeps the deadline and sends nothing, though it says that it is here; another neighbour is in time."""
        rules = FaultTolerance(beat=0.1, missed=10, deadline=5.0, waiting=0.1)
        end = End(ring(3, fault_tolerance=rules, steps=10**6), 0, 1)
        waited = self._time_lost(end, lambda step: Join(0, step, False, False, step, NOWHERE), others=[2])
        assert 0.4 < waited < 0.15 * (end.clock.time - 100)

    def _time_lost(self, end, join, others=()):
        """While it tries to hold the site up, in 600 steps that take half a second each."""
        end.site.running, end.site.next = True, STEP
        end.site._roll_call.settled = True
        waited, edges = 0.0, [end.edge, *(end.site.edges[one] for one in others)]
        for other in edges[1:]:
            other.open, other.first, other.theirs = True, 0, Position(2**40, 0)  # in time, always
        for step in range(STEP, STEP + 600):
            if end.edge.stream is None:
                end.connect()
            tell_running(end)
            if not end.edge.open:
                end.deliver(join(step))
            end.site.next, end.site._at, before = step + 1, Position(step, 0), end.clock.time
            end.site._wait_for(edges, Position(step, 0))
            waited += end.clock.time - before
            end.clock.time += 0.5
        return waited


def _signed(end, statement, by=None):
    name = by or f"site-{statement.site}"
    text = end.site.federation.hash + b"p" * 32 + statement.text()
    signature, certificate = Signer(name).sign_statement(text)
    return statement._replace(signature=signature, certificate=certificate)


def test_who_returns_never_begins_a_step_beyond_the_last():
    """Its neighbour is in its last step, so that the next one it would take part in is none."""
    end = bring_to("talking", "listens")
    end.site._roll_call.known = {
        site: Statement(site, 1, FEDERATION.steps, ())
        for site in range(len(FEDERATION.sites))
        if site != end.site.number
    }
    end.deliver(Skip(FEDERATION.steps))
    end.site._catch_up()
    assert end.site.next == FEDERATION.steps - 1


def test_who_waits_past_the_deadline_for_one_that_it_has_to_wait_for_does_not_spin():
    end = End(ring(3, fault_tolerance=FaultTolerance("wait", beat=1.0, missed=3, deadline=5.0), steps=100), 0, 1)
    waits = []

    class Enough(Exception):
        pass

    def wait(seconds):
        waits.append(seconds)
        end.clock.time += max(seconds, 0.01)
        if len(waits) > 40:
            raise Enough

    end.site.lock.wait = wait
    end.edge.open, end.edge.theirs = True, Position(3, -1)
    with pytest.raises(Enough):
        end.site._wait_for([end.edge], Position(3, 0))
    assert min(waits[-10:]) > 0.1
