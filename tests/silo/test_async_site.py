"""Sites without a common clock: the newest message counts, nobody waits, and no peer ends or stalls another."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from silo_ends import RULES, End, signed
from silo_messages import message
from silo_sites import ring

from decibel.network._links import LinkStatus
from decibel.silo._errors import NotFinite, Rejected, SiteLost
from decibel.silo._federation import StopRule
from decibel.silo.commands._run_site import status as show
from decibel.silo.observe._site_metrics import metrics
from decibel.silo.observe._site_status import status_facts, write_status
from decibel.silo.protocol._async_edge import FEWEST_ON_THE_WAY, MOST_ON_THE_WAY
from decibel.silo.protocol._frame_limits import NEWEST_BURST, NEWEST_PER_SECOND, NOWHERE
from decibel.silo.protocol._frames import Bye, Data, Hello, Join, Position, Receipt, Roll, Skip, Stand, Statement, parse
from decibel.silo.protocol._send_queue import SendQueue
from decibel.silo.protocol._site import STOP
from decibel.silo.protocol._termination import FEWEST_STEPS, Averages, RestDetector

FEDERATION = ring(3, fault_tolerance=RULES, steps=100, asynchronous=True, stop=StopRule(1e-6, 2.0))


class Alone(End):
    """Site 0 of three, at its edge with site 1, and with another neighbour that only runs."""

    def __init__(self, quorum="continue"):
        federation = replace(FEDERATION, fault_tolerance=replace(RULES, quorum=quorum))
        super().__init__(federation, 0, 1)
        self.site.set_exchanges([(0, 0), (1, 0)], [(1, 2)])
        self.site.agree_on_start([])
        self.connect()
        self.runs()
        other = self.site.edges[2]
        self.site.connected(other, Hello(federation.hash, b"p" * 32, 1, b"n" * 32), self.line)
        other.enter()
        other.touch(1e9)

    def runs(self):
        self.deliver(Roll(True, ()))

    def takes(self, place=0):
        """What the step is given of site 1: its message, or nothing, and the state of the link."""
        out = np.empty((2, 3)), np.empty(2, bool), np.empty(2, np.int32)
        self.site.collect(place, out)
        return (out[0][0, 0] if out[1][0] else None), LinkStatus(int(out[2][0]))

    def acknowledges(self, others=(1, 2)):
        """These neighbours have read all that was sent, and say so."""
        for other in others:
            edge = self.site.edges[other]
            for exchange, waiting in edge._on_the_way.items():
                if waiting:
                    edge.on_receipt(Receipt(Position(waiting[-1], exchange)), self.clock.time)

    def says_done(self, site, step, done=True):
        self.deliver(Stand((signed(self, site, step, done=done),)))


def numbered(step, value=None, exchange=0):
    return message(step, exchange, epoch=0, tensor=np.full(3, float(step if value is None else value)))


class TestTheNewestMessage:
    @pytest.mark.parametrize("seed", range(5))
    def test_is_used_once_and_none_that_is_older(self, seed):
        """Numbers in any order, and looks in between (negative)."""
        edge, newest, used = Alone().site.edges[1], -1, -1
        for now, event in enumerate(np.random.default_rng(seed).integers(-30, 70, 100).tolist()):
            if event >= 0:
                edge.receive(numbered(event), {(np.dtype("f8"), (3,)): {None}}, 1000.0 + now)
                newest = max(newest, event)
                continue
            row, _ = edge.collect(0)
            assert (row is None) == (newest == used)
            assert row is None or row[0] == newest
            used = newest

    def test_exchanges_have_their_own(self):
        end = Alone()
        end.deliver(numbered(4, 1.0), numbered(4, 2.0, exchange=1), numbered(3, 9.0, exchange=1))
        assert (end.takes(0)[0], end.takes(1)[0]) == (1.0, 2.0)
        assert (end.takes(0)[0], end.takes(1)[0]) == (None, None)

    def test_who_starts_again_may_use_numbers_again(self):
        end = Alone()
        end.deliver(numbered(50))
        assert end.takes()[0] == 50
        end.connect(incarnation=1)
        end.deliver(numbered(20))
        assert end.takes()[0] is None
        end.connect(incarnation=2)
        end.runs()
        end.deliver(numbered(20))
        assert end.takes() == (20, LinkStatus.CONTINUE)

    def test_what_was_sent_last_is_sent_again_on_a_new_stream(self):
        end = Alone()
        rows = [np.arange(6.0).reshape(2, 3), np.ones((2, 3))]
        end.site.post(7, rows)
        end.sent()
        end.connect()
        found = [frame for frame in end.sent() if isinstance(frame, Data)]
        assert [frame.at for frame in found] == [Position(7, 0), Position(7, 1)]
        np.testing.assert_array_equal(found[0].tensor, rows[0][0])

    def test_a_quick_site_sends_fewer_than_are_taken_and_its_last(self):
        """However quick its steps are, its neighbour has no reason to close the stream."""
        end, other, steps = Alone(), Alone(), 5000
        for step in range(steps):
            end.clock.time += 2e-5
            end.site.post(step, [np.full((2, 3), float(step)), np.ones((2, 3))])
            for frame in end.sent()[::2]:  # for both neighbours, by turns
                if isinstance(frame, Data):
                    other.site.edges[1].receive(frame, {(np.dtype("f8"), (3,)): {None}}, end.clock.time)
            end.acknowledges()
        assert 0 < other.site.edges[1].replaced < 0.6 * NEWEST_PER_SECOND * steps * 2e-5
        end.site.goodbye(finished=True)
        last = [frame for frame in end.sent() if isinstance(frame, Data)]
        assert {frame.at for frame in last} >= {Position(steps - 1, 0), Position(steps - 1, 1)}

    def test_what_is_not_finite_is_not_sent(self):
        with pytest.raises(NotFinite):
            Alone().site.post(1, [np.full((2, 3), np.nan), np.ones((2, 3))])


class SlowReader:
    """Site 1 at the other end of site 0's stream, which reads a few frames now and then; what it has not read waits."""

    def __init__(self, entries=3):
        self.sender, self.reader, self.waiting = Alone(), Alone().site.edges[1], []
        self.known, self.row = {(np.dtype("f8"), (entries,)): {None}}, np.ones(entries)
        self.reader.stream = self.line = type(self.sender.line)()
        self.sender.connect()
        self.sender.sent()

    def post(self, step):
        self.sender.clock.time += 0.01
        self.sender.site.edges[1].post(0, step, self.row, self.sender.clock.time)
        self.waiting += [frame for frame in self.sender.sent() if isinstance(frame, Data)]

    def reads(self, count):
        """The step of the newest message that it has then."""
        now = self.sender.clock.time
        for frame in self.waiting[:count]:
            self.reader.receive(frame, self.known, now)
        del self.waiting[:count]
        for raw in self.line.sent:
            self.sender.site.edges[1].on_receipt(parse(raw), now)
        self.line.sent.clear()
        self.waiting += [frame for frame in self.sender.sent() if isinstance(frame, Data)]
        return max(self.reader._newest_step.values(), default=-1)


class TestNoBacklog:
    @pytest.mark.parametrize(("entries", "most"), [(3, MOST_ON_THE_WAY), (100_000, FEWEST_ON_THE_WAY)])
    def test_what_waits_in_the_network_is_bounded_however_slow_the_reader_is(self, entries, most):
        link, steps = SlowReader(entries), 2000 if entries == 3 else 50
        for step in range(steps):
            link.post(step)
            assert len(link.waiting) <= most
            if step % 100 == 99:
                link.reads(1)
        for _ in range(2):
            newest = link.reads(most)
        assert newest == steps - 1

    def test_who_is_held_and_wakes_has_the_newest_after_one_more_look(self):
        link = SlowReader()
        for step in range(4500):
            link.post(step)
        assert link.reads(MOST_ON_THE_WAY) < MOST_ON_THE_WAY  # these were sent before it was held
        assert link.reads(1) == 4499

    def test_a_receipt_that_never_comes_does_not_silence_a_link(self):
        link = SlowReader()
        for step in range(50):
            link.post(step)
        link.waiting.clear()
        link.sender.site.edges[1].post_unacknowledged()
        assert [frame.at.step for frame in link.sender.sent()] == [49]

    @pytest.mark.parametrize("at", [Position(1, 0), Position(0, 1), Position(100, 0), Position(0, 60_000)])
    def test_a_receipt_for_what_was_not_sent_closes_the_stream(self, at):
        end = Alone()
        end.edge.post(0, 0, np.ones(3), end.clock.time)
        end.deliver(Receipt(at))
        assert end.edge.rejected == 1 and end.edge.stream is None

    def test_receipts_that_say_nothing_new_are_paid_for(self):
        end = Alone()
        end.edge.post(0, 0, np.ones(3), end.clock.time)
        end.deliver(*[Receipt(Position(0, 0))] * 300)
        assert end.edge.rejected == 1 and "more frames" in end.said[-1]

    def test_ages_come_from_the_sender_s_steps(self):
        """Its message has just come, and it is 45,000 steps ahead of it, at 1,000 steps a second."""
        end = Alone()
        end.deliver(numbered(10))
        edge = end.edge
        edge.note_step(10, end.clock.time)
        end.clock.time += 45.0
        edge.receive(numbered(11), {(np.dtype("f8"), (3,)): {None}}, end.clock.time)
        edge.note_step(45_011, end.clock.time)
        found = edge.status(end.clock.time)
        assert found["message_steps_behind"] == 45_000
        np.testing.assert_allclose(found["message_seconds_ago"], 45.0, rtol=1e-3)

    def test_neighbours_steps_are_heard_in_their_statements(self):
        end = Alone()
        end.deliver(numbered(10))
        end.says_done(1, 60, done=False)
        assert status_facts(end.site)["neighbours"]["site-1"]["message_steps_behind"] == 50


class TestNobodyWaits:
    def test_a_step_begins_at_once_whatever_a_neighbour_does(self):
        end = Alone()
        for step in range(20):
            before = end.clock.time
            end.deliver(numbered(step % 7))
            assert end.site.begin_step(step) == step and end.clock.time == before

    def test_its_own_checkpoint_is_enough(self):
        end = Alone()
        assert end.site.agree_on_start([20, 40]) == 40 and end.site.next_step == 40

    @pytest.mark.parametrize(("quorum", "state"), [("continue", LinkStatus.DROP_FLOW), ("wait", LinkStatus.CONTINUE)])
    def test_who_is_gone_is_dropped_or_kept_and_returns(self, quorum, state):
        end = Alone(quorum)
        assert end.site.begin_step(0) == 0
        end.clock.time += RULES.patience + 1
        end.site.on_heartbeat()
        assert end.site.begin_step(1) == 1 and end.takes() == (None, state)
        end.connect()
        end.runs()
        end.deliver(numbered(30))
        assert end.takes() == (30, LinkStatus.CONTINUE)

    def test_quorum_stop(self):
        end = Alone("stop")
        end.deliver(Bye("left"))
        with pytest.raises(SiteLost, match="site-1 cannot be reached"):
            end.site.begin_step(1)

    def test_what_a_finished_neighbour_sent_last_counts_for_good(self):
        end = Alone()
        end.deliver(numbered(99), Bye("finished"))
        assert end.takes() == (99, LinkStatus.CONTINUE)
        end.clock.time += RULES.patience + 1
        end.site.on_heartbeat()
        assert end.takes() == (None, LinkStatus.CONTINUE)

    def test_a_site_that_all_have_left_waits(self):
        end = Alone()
        for edge in end.site.edges.values():
            edge.stop_exchanging(forget=True)
        waited = []
        wait = end.clock.wait

        def then_stop(timeout=None):
            waited.append(timeout)
            end.site.stop()
            return wait(timeout)

        end.clock.wait = then_stop
        assert end.site.begin_step(0) == STOP and waited

    def test_a_neighbour_that_is_there_and_never_runs_is_waited_for_once(self):
        end = Alone()
        end.edge.on_restart()
        before = end.clock.time
        assert end.site.begin_step(0) == 0
        assert RULES.deadline <= end.clock.time - before <= RULES.deadline + 2 * RULES.beat
        before = end.clock.time
        assert end.site.begin_step(1) == 1 and end.clock.time == before


class TestNoPeerEndsAnother:
    @pytest.mark.parametrize(
        "frame",
        [
            message(5, 0, epoch=1),
            message(5, 2, epoch=0),
            message(101, 0, epoch=0),
            message(2**32 - 1, 2**16 - 1, epoch=2**64 - 1),
            message(5, 0, epoch=0, tensor=np.ones(4)),
            message(5, 0, epoch=0, tensor=np.full(3, np.nan)),
            Join(0, 1, False, False, 5, NOWHERE),
            Join(0, 1, False, False, 5, NOWHERE, True),
            Skip(50),
            Stand((Statement(2, 9, 50, step=50, heard=bytes(24), signature=b"forged", certificate=b"site-2"),)),
        ],
    )
    def test_what_no_site_says_closes_the_stream_and_nothing_else(self, frame):
        end = Alone()
        end.deliver(frame)
        assert end.edge.rejected == 1 and end.edge.stream is None
        before = end.clock.time
        assert end.site.begin_step(6) == 6 and end.clock.time == before
        assert end.takes() == (None, LinkStatus.CONTINUE)

    def test_numbers_that_do_not_grow_are_paid_for(self):
        end = Alone()
        end.deliver(*[numbered(3)] * 500)
        assert end.edge.rejected == 1 and end.edge.repeated == 200

    def test_messages_are_limited_by_time(self):
        edge = Alone().site.edges[1]
        known, row = {(np.dtype("f8"), (3,)): {None}}, np.ones(3)
        with pytest.raises(Rejected, match="more frames"):
            for step in range(NEWEST_BURST + 1):
                edge.receive(Data(0, Position(step, 0), row), known, 200.0)
        edge.receive(Data(0, Position(NEWEST_BURST + 1, 0), row), known, 201.0)
        assert len(edge._mail) == 1

    def test_a_neighbour_that_does_not_read_costs_one_message(self):
        stream = SendQueue(lambda: None)
        for step in range(10_000):
            stream.send_newest(0, bytes([step % 256]) * 1000)
            stream.send_newest(1, b"other")
        stream.send(b"last")
        stream.end()
        assert list(stream) == [bytes([9_999 % 256]) * 1000, b"other", b"last"]


class TestTheStopRule:
    def at_rest(self, end, *, used=(1, 2), read=(1, 2)):
        """Steps in which nothing moves, longer than the rule asks for. Those who are `used` send in every step, and
        those who `read` say that they have read what was sent to them."""
        site = end.site
        for step in range(site.next_step, site.next_step + FEWEST_STEPS + 3):
            site.post(step, [np.zeros((2, 3)), np.zeros((2, 3))])
            end.acknowledges(read)
            if site.begin_step(step) == STOP:
                return STOP
            for place in range(2):
                for other in used:
                    site.edges[other].receive(numbered(step, 0.0, place), site.expected_layouts, end.clock.time)
                end.takes(place)
            site.note_change(1e-9, [np.zeros(2), np.zeros(2)])
            end.clock.time += 1.0
        return site.begin_step(site.next_step)

    def test_ends_when_all_say_that_they_are_at_rest(self):
        end = Alone()
        end.says_done(1, 5)
        assert self.at_rest(end) != STOP and end.site.done
        end.says_done(2, 5)
        assert end.site.begin_step(9) == STOP and "stop rule" in end.site.end_reason

    def test_others_alone_do_not_end_it(self):
        end = Alone()
        end.says_done(1, 5)
        end.says_done(2, 5)
        for step in range(10):
            end.site.note_change(1.0, [np.zeros(2), np.zeros(2)])
            end.clock.time += 1.0
            assert end.site.begin_step(step) == step

    def test_who_takes_it_back_is_heard(self):
        end = Alone()
        end.says_done(1, 5)
        end.says_done(2, 5)
        end.says_done(2, 6, done=False)
        assert self.at_rest(end) != STOP

    def test_a_silent_neighbour_is_no_sign_of_rest(self):
        end = Alone()
        end.says_done(1, 5)
        end.says_done(2, 5)
        assert self.at_rest(end, used=(2,)) != STOP and not end.site.done

    def test_one_that_has_not_read_where_this_site_is_may_have_said_so_of_before(self):
        end = Alone()
        end.says_done(1, 5)
        end.says_done(2, 5)
        assert self.at_rest(end, read=(2,)) != STOP and not end.site.done
        assert self.at_rest(end) == STOP

    def test_the_message_that_was_under_way_when_it_read_that_is_no_answer(self):
        end = Alone()
        edge = end.site.edges[1]
        edge.ask_for_answer(7)
        edge.post(0, 7, np.zeros(3), 0.0)
        edge.receive(numbered(3), end.site.expected_layouts, 0.0)
        edge.on_receipt(Receipt(Position(7, 0)), 0.0)
        for number, answers in ((4, False), (5, True)):
            edge.receive(numbered(number), end.site.expected_layouts, 0.0)
            assert not edge.has_answered  # before it is used
            edge.collect(0)
            assert edge.has_answered == answers

    @pytest.mark.parametrize("quorum", ["continue", "wait"])
    def test_a_neighbour_that_is_gone_is_no_sign_of_rest_whatever_it_said_before(self, quorum):
        end = Alone(quorum)
        end.says_done(1, 5)
        end.says_done(2, 5)
        end.deliver(Bye("left"))
        assert self.at_rest(end, used=(2,)) != STOP and not end.site.done
        end.connect()
        end.runs()
        assert self.at_rest(end) == STOP

    def test_who_has_finished_is_no_longer_needed(self):
        end = Alone()
        end.says_done(1, 5)
        end.says_done(2, 5)
        end.deliver(Bye("finished"))
        assert self.at_rest(end, used=(2,)) == STOP

    @pytest.mark.parametrize("change", [2e-6, np.nan, np.inf])
    def test_any_move_begins_it_anew(self, change):
        for own, link in ((change, 0.0), (0.0, change)):
            rest = RestDetector(StopRule(1e-6, 2.0))
            for now in range(10):
                rest.record_step(now, 0.0, {1: 0.0})
            assert rest.is_at_rest({1})
            rest.record_step(10.0, own, {1: link})
            assert not rest.is_at_rest({1})

    def test_a_pause_is_no_rest_until_a_step_has_shown_it(self):
        rest = RestDetector(StopRule(1e-6, 2.0))
        for now in (0.0, 0.1, 0.2):
            rest.record_step(now, 0.0, {1: 0.0})
        assert rest.seconds(9.0) == 9.0 and not rest.is_at_rest({1})
        rest.record_step(9.0, 0.0, {1: 0.0})
        assert rest.is_at_rest({1}) and not rest.is_at_rest({1, 2})  # it has used no message of site 2

    def test_averages_rest_where_batches_never_let_a_step(self):
        """Noise of 0.1 around a point: no step is within 0.02 of the one before, and averages of 400 steps are; while
        the point drifts by as little as 0.001 a step, none is."""
        rule, rng = StopRule(0.02, 2.0, average=400), np.random.default_rng(0)
        for drift, rests in ((0.0, True), (0.001, False)):
            end = Alone()
            end.site.rest, end.site._averages = RestDetector(rule), Averages(rule.average)
            for step in range(4000):
                end.clock.time += 0.01
                end.site._used[0][:] = step % 7 == 0
                noise = 0.1 * rng.normal(size=(3, 2, 3))
                end.site.note_held([noise[0, 0] + drift * step], [noise[1], noise[2]])
            assert (end.site.rest.seconds(end.clock.time) > rule.seconds) == rests
            assert end.site.rest.is_at_rest({1, 2}) == rests

    def test_batches_need_averages(self):
        with pytest.raises(ValueError, match=r"never rest: add average = 1000"):
            replace(FEDERATION, batch_size=8)
        replace(FEDERATION, batch_size=8, stop=StopRule(1e-6, 2.0, average=100))
        with pytest.raises(ValueError, match=r"average=0 of \[stop\] must be a number of steps"):
            replace(FEDERATION, stop=StopRule(1e-6, 2.0, average=0))

    def test_it_tells_whether_it_is_done(self):
        end = Alone()
        self.at_rest(end)
        end.sent()
        end.site.on_heartbeat()
        stands = [frame for frame in end.sent() if isinstance(frame, Stand)]
        assert {one.done for stand in stands for one in stand.statements if one.site == 0} == {True}


class TestTheEnd:
    def said(self, end):
        """By site 0 of itself: its last statement, its last message and its last word."""
        frames = end.sent()
        own = [one for frame in frames if isinstance(frame, Roll | Stand) for one in frame.statements if one.site == 0]
        last = [frame.at for frame in frames if isinstance(frame, Data)]
        return own[-1:], last[-1:], [frame.reason for frame in frames if isinstance(frame, Bye)]

    def test_a_neighbour_that_comes_back_in_time_is_told(self):
        end = Alone()
        end.site.post(99, [np.ones((2, 3)), np.ones((2, 3))])
        end.site.next_step = 100
        end.site.disconnected(end.site.edges[1], end.line)
        waits = end.clock.wait

        def wait(timeout=None):
            if end.clock.time > 101.0:
                end.connect()
            return waits(timeout)

        end.clock.wait = wait
        end.site.goodbye(finished=True)
        assert 101.0 < end.clock.time < 102.0 < 100.0 + RULES.patience
        own, last, byes = self.said(end)
        assert [(one.step, one.done) for one in own] == [(100, True)] and last == [Position(99, 1)]
        assert byes == ["finished"]

    def test_one_that_does_not_is_waited_for_a_while(self):
        end = Alone()
        end.site.disconnected(end.site.edges[1], end.line)
        begun = end.clock.time
        end.site.goodbye(finished=True)
        assert RULES.patience <= end.clock.time - begun < RULES.patience + 1

    def test_who_leaves_or_is_told_to_stop_waits_for_nobody(self):
        for finished in (False, True):
            end = Alone()
            end.site.disconnected(end.site.edges[1], end.line)
            end.site.stopping = True
            begun = end.clock.time
            end.site.goodbye(finished)
            assert end.clock.time == begun

    def test_who_starts_again_with_no_step_left_says_that_it_is_done(self):
        end = Alone()
        end.site.agree_on_start([100])
        end.site.goodbye(finished=True)
        assert [(one.step, one.done) for one in self.said(end)[0]] == [(100, True)]


def test_status_has_steps_and_staleness(tmp_path):
    end = Alone()
    end.deliver(numbered(3), numbered(8))
    end.clock.time += 0.5
    assert end.takes()[0] == 8
    end.takes()
    end.takes()
    found = status_facts(end.site)["neighbours"]["site-1"]
    assert found["their_step"] == 8 and found["message_seconds_ago"] == 0.5 and found["message_steps_behind"] == 0
    assert (found["messages_used"], found["messages_replaced"], found["steps_since_message"]) == (1, 1, 2)
    assert status_facts(end.site)["rest_seconds"] == 0.0
    write_status(tmp_path / "status.json", status_facts(end.site))
    console = Console(file=io.StringIO(), width=200)
    show([tmp_path], console)
    said = "site-1 talking (step 8, 0 steps old, 0.5 s old, used 2 steps ago), site-2 talking"
    assert said in console.file.getvalue()
    assert 'decibel_silo_message_age_seconds{neighbour="site-1"} 0.5' in metrics(end.site)
