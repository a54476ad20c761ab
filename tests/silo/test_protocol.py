"""The protocol as a model: every row of the table in docs/reference/silo-protocol.md."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from silo_ends import EPOCH, FEDERATION, RULES, STEP, End, at_the_start, signed, standing_end, tell_running
from silo_messages import message
from silo_sites import ring

from decibel.silo._errors import SiteLost
from decibel.silo._federation import FaultTolerance
from decibel.silo.protocol._frame_limits import BURST, NOWHERE
from decibel.silo.protocol._frames import (
    Beat,
    Bye,
    Data,
    Hello,
    Join,
    Model,
    Position,
    Refuse,
    Roll,
    Skip,
    Stand,
    Statement,
    Want,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "silo-protocol.md"


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


def promises():
    """The tests that the page names, each once."""
    rows = [line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    named = [re.findall(r"`([a-z_/]+\.py::test_\w+)`", row[1]) for row in rows if len(row) == 2]
    return sorted({test for tests in named for test in tests})


def test_every_promise_names_a_test():
    section = PAGE.read_text().split("## Promises")[1].split("\n## ")[0]
    rows = [
        line for line in section.splitlines() if line.startswith("| ") and not line.startswith(("| **", "| promise"))
    ]
    assert len(rows) > 40 and all("::test_" in row for row in rows)


def test_every_promise_has_its_test():
    def exists(test):
        file, name = test.split("::")
        path = Path(__file__).parents[1] / file if "/" in file else Path(__file__).with_name(file)
        return re.search(rf"^(    )?def {name}\(", path.read_text(), re.MULTILINE)

    assert not [test for test in promises() if not exists(test)]


def bring_to(state, kind):
    end = standing_end(kind)
    if state != "away":
        end.connect()
        tell_running(end)
    if state in ("joining", "talking", "reconnecting", "finished") and kind == "dials":
        end.site._send_due_joins()
    if state in ("talking", "reconnecting", "finished"):
        assert kind == "listens" or end.edge.join_epoch == EPOCH
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
    end.site._position = Position(STEP, 0)
    end.deliver(message(STEP, 1, epoch=EPOCH))
    end.site._wait_for([end.edge], Position(STEP, 2))


def silence(end):
    end.clock.time += RULES.patience + 1
    end.site.on_heartbeat()


def no_answer(end):
    end.clock.time += RULES.patience + 1
    end.site._send_due_joins()


def begin_without(end):
    tell_running(end, running=False)
    end.site._send_due_joins()


def finished_and_wanted(end):
    end.site.model = Model(100, np.ones(3))
    end.deliver(Want())


def asked_and_given(end):
    end.site.expect_model(np.ones(3))
    end.edge.ask_for_model(end.clock.time, 1.0)
    end.deliver(Model(100, np.ones(3)))


def in_an_exchange(tensor, *, rests):
    """The neighbour sends this, and the link rests in the exchange, or not; then the next frame comes."""

    def exchange(end):
        end.site.expect_empty(np.float64)
        end.site._position = Position(STEP, 0)
        end.deliver(message(STEP, 1, epoch=EPOCH, tensor=tensor))
        other = end.edge.number
        out = np.zeros((1, 3)), np.zeros(1, bool), np.zeros(1, np.int32)
        end.site.exchange((-1 if rests else other,), np.ones(3), None, out, resting=(other,) if rests else ())
        end.deliver(Beat())

    return exchange


HEARD = bytes(8 * len(FEDERATION.sites))
FORGED = Statement(2, 9, 50, 1, 50, (40,), heard=HEARD, signature=b"forged", certificate=b"site-2")
EVENTS = {
    "stream and HELLO": lambda end: end.connect(),
    "stream ends": lambda end: end.disconnect(),
    "neighbour runs, a step begins": lambda end: end.site._send_due_joins(),
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
    "empty DATA, while the link rests": in_an_exchange(np.zeros(0), rests=True),
    "DATA, while the link rests": in_an_exchange(np.ones(3), rests=True),
    "empty DATA, while it does not": in_an_exchange(np.zeros(0), rests=False),
    "SKIP ahead": lambda end: end.deliver(Skip(STEP + 20)),
    "SKIP back": lambda end: end.deliver(Skip(STEP - 1)),
    "a step beyond the run": lambda end: end.deliver(Skip(101)),
    "a second HELLO": lambda end: end.deliver(Hello(b"f" * 32, b"p" * 32, 1, b"n" * 32)),
    "a statement that is not signed": lambda end: end.deliver(Stand((FORGED,))),
    "BYE left": lambda end: end.deliver(Bye("left")),
    "BYE aside": lambda end: end.deliver(Bye("aside")),
    "BYE finished": lambda end: end.deliver(Bye("finished")),
    "WANT, before this end has finished": lambda end: end.deliver(Want()),
    "WANT, when it has": finished_and_wanted,
    "MODEL that was not asked for": lambda end: end.deliver(Model(100, np.ones(3))),
    "MODEL that was asked for": asked_and_given,
    "REFUSE": lambda end: end.deliver(Refuse("for a reason")),
    "no sign of life": silence,
    "deadline": late,
    "neighbour restarted": lambda end: end.connect(incarnation=2),
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
            Stand((Statement(2, 2**64 - 1, 2**64 - 1, 2**32 - 1, 2**32 - 1, (2**32 - 1,) * 255, heard=b"h" * 2**15),)),
            Roll(True, tuple(Statement(i, 2**64 - 1, 0) for i in range(300))),
            Data(2**64 - 1, Position(2**32 - 1, 2**16 - 1), np.ones(3)),
        ],
    )
    def test_with_fields_as_large_as_they_can_be(self, frame, kind):
        end = bring_to("talking", kind)
        end.deliver(frame)
        assert end.site.error is None and end.site.next_step == STEP
        end.edge.stop_exchanging(forget=True)
        end.connect()
        tell_running(end)
        end.site._send_due_joins()
        end.deliver(Join(0, end.edge.join_epoch, False, False, STEP, NOWHERE, kind == "dials"))
        assert end.site.begin_step(STEP) == STEP

    def test_a_jump_is_followed_only_as_far_as_two_sites_say(self):
        end = bring_to("talking", "dials")
        end.deliver(Skip(90), Stand((signed(end, 0, 90),)))
        assert end.site.begin_step(STEP) == STEP
        end.deliver(Stand((signed(end, 2, 40),)))
        assert end.site.begin_step(STEP + 1) == 40
        assert Skip(40) in end.sent()

    def test_a_neighbour_in_this_very_step_is_not_ahead(self):
        """It has begun the step that begins here next, and waits for the message of that step."""
        end = bring_to("talking", "dials")
        other = bring_to("talking", "listens")
        other.site._position, other.site.next_step = Position(STEP, 0), STEP + 1
        other.site.on_heartbeat()
        stood = next(frame for frame in other.sent() if isinstance(frame, Stand)).statements[0]
        assert stood.site == 0 and stood.step == STEP
        end.deliver(Skip(90), Stand((signed(end, 0, stood.step), signed(end, 2, STEP))))
        assert end.site.begin_step(STEP) == STEP

    def test_who_has_finished_says_so_signed(self):
        end = bring_to("talking", "listens")
        end.site.next_step = 100
        end.edge.finished = True  # so that it does not wait for it
        end.site.goodbye(True)
        stood = [one for frame in end.sent() if isinstance(frame, Stand) for one in frame.statements]
        assert [(one.site, one.step) for one in stood if one.site == 0] == [(0, 100)]

    def test_no_statement_of_another_site_is_believed_unless_it_has_signed_it(self):
        end = bring_to("talking", "dials")
        end.deliver(Stand((signed(end, 2, 50, by="site-0"),)))
        assert 2 not in end.site._rendezvous.by_site and end.edge.rejected == 1

    def test_an_old_statement_does_not_replace_a_newer_one(self):
        end = bring_to("talking", "dials")
        old, new = (signed(end, 2, step) for step in (20, 50))
        end.deliver(Stand((new,)), Stand((old,)))
        assert end.site._rendezvous.by_site[2].step == 50 and end.edge.rejected == 0

    def test_a_basis_that_was_not_signed_settles_nothing(self):
        """ROLL with statements of its own making for others, and an agreed step beyond the run."""
        end = End(FEDERATION, 1, 0)
        end.connect()
        own = end.site._rendezvous.by_site[1]
        forged = tuple(one._replace(signature=b"forged") for one in at_the_start(end, {0: (60,), 2: (60,)}))
        end.deliver(Roll(True, (own, *forged)))
        assert end.edge.stream is None and set(end.site._rendezvous.by_site) == {1}
        assert not end.site._rendezvous.is_start_known

    def test_a_basis_of_older_statements_that_were_not_signed_closes_the_stream_and_nothing_else(self):
        """They are no news, so that only the basis is a reason to look at them."""
        end = End(FEDERATION, 1, 0)
        end.connect()
        end.site._rendezvous.sign_own(0, [30])
        forged = tuple(one._replace(signature=b"forged") for one in at_the_start(end, {0: (), 2: ()}))
        others = at_the_start(end, {0: (30, 60), 2: (30, 60)})
        end.deliver(Stand(others[:1]))
        own = end.site._rendezvous.by_site[1]._replace(heard=others[0].heard)
        end.deliver(Roll(True, (own, *forged)))
        assert end.edge.stream is None and end.edge.rejected == 1 and not end.edge.their_start_statements
        end.connect()
        end.deliver(Stand(others))
        assert end.site.agree_on_start([30]) == 30

    def test_all_start_from_what_all_have_saved(self):
        end = End(FEDERATION, 1, 0)
        end.connect()
        end.site._rendezvous.sign_own(0, [30, 60])
        end.deliver(Roll(False, at_the_start(end, {0: (30, 60), 2: (30, 62)})))
        assert len(end.site._rendezvous.by_site) == 3  # or it would wait
        assert end.site.agree_on_start([30, 60]) == 30

    def test_a_flood_of_frames_closes_the_stream(self):
        for frame in (Bye("aside"), message(STEP, 0, epoch=EPOCH), message(1, 0, epoch=5)):
            end = bring_to("talking", "listens")
            end.deliver(*[frame] * BURST)
            assert end.edge.stream is None and "more frames" in end.said[-1]

    def test_a_neighbour_that_joins_from_behind_and_stays_there_is_soon_left_alone(self):
        """It beats and never sends, and joins again whenever it may: each time it has to wait twice as long."""
        rules = FaultTolerance("continue", beat=0.1, missed=10, deadline=50.0)
        end = End(ring(3, fault_tolerance=rules, steps=10**6), 0, 1)
        waited = self._time_lost(end, lambda step: Join(0, step, False, False, 0, NOWHERE))
        assert 0.4 < waited < 0.1 * (end.clock.time - 100)

    def test_who_leaves_and_joins_again_has_no_more_of_it(self):
        """The same neighbour says goodbye before it is suspended, and joins in the next step."""
        rules = FaultTolerance("continue", beat=0.1, missed=10, deadline=5.0, waiting=0.1)
        end = End(ring(3, fault_tolerance=rules, steps=10**6), 0, 1)
        joined, wait = [0.0], end.clock.wait

        def join(step):
            joined[0] = end.clock.time
            return Join(0, step, False, False, step, NOWHERE)

        def leave_in_time(timeout=None):
            if end.edge.is_open and end.clock.time > joined[0] + 0.25:
                end.deliver(Bye("left"))
            return wait(timeout)

        end.clock.wait = leave_in_time
        waited = self._time_lost(end, join, others=[2])
        assert 0.4 < waited < 0.15 * (end.clock.time - 100)

    def _time_lost(self, end, join, others=()):
        """While it tries to hold the site up, in 600 steps that take half a second each."""
        end.site.running, end.site.next_step = True, STEP
        end.site._rendezvous.start = STEP
        waited, edges = 0.0, [end.edge, *(end.site.edges[one] for one in others)]
        for other in edges[1:]:
            other.is_open, other.first_step, other.their_position = True, 0, Position(2**40, 0)  # in time, always
        for step in range(STEP, STEP + 600):
            if end.edge.stream is None:
                end.connect()
            tell_running(end)
            if not end.edge.is_open:
                end.deliver(join(step))
            end.site.next_step, end.site._position, before = step + 1, Position(step, 0), end.clock.time
            end.site._wait_for(edges, Position(step, 0))
            waited += end.clock.time - before
            end.clock.time += 0.5
        return waited


def test_who_returns_never_begins_a_step_beyond_the_last():
    """Its neighbour is in its last step, so that the next one it would take part in is none."""
    end = bring_to("talking", "listens")
    end.deliver(Stand(tuple(signed(end, site, FEDERATION.steps) for site in (1, 2))))
    end.deliver(Skip(FEDERATION.steps))
    end.site._catch_up()
    assert end.site.next_step == FEDERATION.steps - 1


def test_where_the_quorum_is_stop_a_site_that_has_lost_a_neighbour_ends():
    rules = FaultTolerance("stop", beat=1.0, missed=3)
    end = End(ring(3, fault_tolerance=rules, steps=100), 0, 1)
    end.site.running, end.site._rendezvous.start = True, 0
    with pytest.raises(SiteLost, match="site-1, site-2 cannot be reached, and the federation's quorum is 'stop'"):
        end.site.begin_step(STEP)


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
    end.edge.is_open, end.edge.their_position = True, Position(3, -1)
    with pytest.raises(Enough):
        end.site._wait_for([end.edge], Position(3, 0))
    assert min(waits[-10:]) > 0.1
