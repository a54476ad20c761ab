"""Sites without a common clock: the newest message counts, nobody waits, and no peer ends or stalls another."""

from __future__ import annotations

import io
import threading
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from silo_ends import RULES, End
from silo_messages import message
from silo_sites import ring

from decibel.cli._silo_run import status as show
from decibel.engines.silo._errors import NotFinite, Rejected, SiteLost
from decibel.engines.silo._federation import Federation, StopRule
from decibel.engines.silo._frames import Bye, Data, Hello, Join, Position, Roll, Skip, Stand, Statement
from decibel.engines.silo._limits import NEWEST_BURST, NEWEST_PER_SECOND, NOWHERE
from decibel.engines.silo._metrics import metrics
from decibel.engines.silo._outgoing import Outgoing
from decibel.engines.silo._rest import LEAST, Rest
from decibel.engines.silo._site import STOP
from decibel.engines.silo._status import note, status
from decibel.network._links import LinkState

FEDERATION = ring(3, fault_tolerance=RULES, steps=100, asynchronous=True, stop=StopRule(1e-6, 2.0))


class Alone(End):
    """Site 0 of three, at its edge with site 1, and with another neighbour that only runs."""

    def __init__(self, quorum="continue"):
        federation = replace(FEDERATION, fault_tolerance=replace(RULES, quorum=quorum))
        super().__init__(federation, 0, 1)
        self.site.exchange_at([(0, 0), (1, 0)], [(1, 2)])
        self.site.agree([])
        self.connect()
        self.runs()
        other = self.site.edges[2]
        self.site.connected(other, Hello(federation.hash, b"p" * 32, 1, b"n" * 32), self.line)
        other.enter()
        other.touch(1e9)

    def runs(self):
        self.deliver(Roll(True, True, ()))

    def takes(self, place=0):
        """What the step is given of site 1: its message, or nothing, and the state of the link."""
        out = np.empty((2, 3)), np.empty(2, bool), np.empty(2, np.int32)
        self.site.collect(place, out)
        return (out[0][0, 0] if out[1][0] else None), LinkState(int(out[2][0]))

    def says_done(self, site, step, done=True):
        one = Statement(site, 3, step, (), done=done)
        name = self.site.federation.sites[site].name
        signature = self.site._roll_call._signer._signature(name, self.site._roll_call._about + one.text())
        self.deliver(Stand((one._replace(signature=signature, certificate=name.encode()),)))


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
        assert end.takes() == (20, LinkState.TIED)

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
        end, other, steps = Alone(), Alone(), 50_000
        for step in range(steps):
            end.clock.time += 2e-5
            end.site.post(step, [np.full((2, 3), float(step)), np.ones((2, 3))])
            for frame in end.sent()[::2]:  # for both neighbours, by turns
                if isinstance(frame, Data):
                    other.site.edges[1].receive(frame, {(np.dtype("f8"), (3,)): {None}}, end.clock.time)
        assert 0 < other.site.edges[1].replaced < 0.6 * NEWEST_PER_SECOND * steps * 2e-5
        end.site.goodbye(finished=True)
        last = [frame for frame in end.sent() if isinstance(frame, Data)]
        assert {frame.at for frame in last} >= {Position(steps - 1, 0), Position(steps - 1, 1)}

    def test_what_is_not_finite_is_not_sent(self):
        with pytest.raises(NotFinite):
            Alone().site.post(1, [np.full((2, 3), np.nan), np.ones((2, 3))])


class TestNobodyWaits:
    def test_a_step_begins_at_once_whatever_a_neighbour_does(self):
        end = Alone()
        for step in range(20):
            before = end.clock.time
            end.deliver(numbered(step % 7))
            assert end.site.begin(step) == step and end.clock.time == before

    def test_its_own_checkpoint_is_enough(self):
        end = Alone()
        assert end.site.agree([20, 40]) == 40 and end.site.next == 40

    @pytest.mark.parametrize(("quorum", "state"), [("continue", LinkState.DROPPED), ("wait", LinkState.TIED)])
    def test_who_is_gone_is_dropped_or_kept_and_returns(self, quorum, state):
        end = Alone(quorum)
        assert end.site.begin(0) == 0
        end.clock.time += RULES.patience + 1
        end.site.watch()
        assert end.site.begin(1) == 1 and end.takes() == (None, state)
        end.connect()
        end.runs()
        end.deliver(numbered(30))
        assert end.takes() == (30, LinkState.TIED)

    def test_quorum_stop(self):
        end = Alone("stop")
        end.deliver(Bye("left"))
        with pytest.raises(SiteLost, match="site-1 cannot be reached"):
            end.site.begin(1)

    def test_what_a_finished_neighbour_sent_last_counts_for_good(self):
        end = Alone()
        end.deliver(numbered(99), Bye("finished"))
        assert end.takes() == (99, LinkState.TIED)
        end.clock.time += RULES.patience + 1
        end.site.watch()
        assert end.takes() == (None, LinkState.TIED)

    def test_a_site_that_all_have_left_waits(self):
        end = Alone()
        for edge in end.site.edges.values():
            edge.close(forget=True)
        waited = []
        wait = end.clock.wait

        def then_stop(timeout=None):
            waited.append(timeout)
            end.site.stop()
            return wait(timeout)

        end.clock.wait = then_stop
        assert end.site.begin(0) == STOP and waited

    def test_a_neighbour_that_is_there_and_never_runs_is_waited_for_once(self):
        end = Alone()
        end.edge.begins_anew()
        before = end.clock.time
        assert end.site.begin(0) == 0
        assert RULES.deadline <= end.clock.time - before <= RULES.deadline + 2 * RULES.beat
        before = end.clock.time
        assert end.site.begin(1) == 1 and end.clock.time == before


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
            Stand((Statement(2, 9, 50, (), b"forged", b"site-2", True),)),
        ],
    )
    def test_what_no_site_says_closes_the_stream_and_nothing_else(self, frame):
        end = Alone()
        end.deliver(frame)
        assert end.edge.rejected == 1 and end.edge.stream is None
        before = end.clock.time
        assert end.site.begin(6) == 6 and end.clock.time == before
        assert end.takes() == (None, LinkState.TIED)

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
        stream = Outgoing(lambda: None)
        for step in range(10_000):
            stream.send_newest(0, bytes([step % 256]) * 1000)
            stream.send_newest(1, b"other")
        stream.send(b"last")
        stream.end()
        assert list(stream) == [bytes([9_999 % 256]) * 1000, b"other", b"last"]

    def test_a_frame_that_waits_is_handed_on_while_others_send(self):
        stream, found = Outgoing(lambda: None), []
        reader = threading.Thread(target=lambda: found.extend(stream))
        reader.start()
        for step in range(1000):
            stream.send_newest(0, step.to_bytes(2, "big"))
        stream.end()
        reader.join(10)
        numbers = [int.from_bytes(one, "big") for one in found]
        assert numbers == sorted(set(numbers)) and numbers[-1] == 999


class TestTheStopRule:
    def at_rest(self, end, *, used=(1, 2)):
        """Steps in which nothing moves, longer than the rule asks for."""
        for step in range(LEAST + 1):
            for place in range(2):
                end.site._used[place][:] = [other in used for other in (1, 2)]
            end.site.note(1e-9, [np.zeros(2), np.zeros(2)])
            end.clock.time += 1.0
            found = end.site.begin(step)
        return found

    def test_ends_when_all_say_that_they_are_at_rest(self):
        end = Alone()
        end.says_done(1, 5)
        assert self.at_rest(end) != STOP and end.site.done
        end.says_done(2, 5)
        assert end.site.begin(9) == STOP and "stop rule" in end.site.ended

    def test_others_alone_do_not_end_it(self):
        end = Alone()
        end.says_done(1, 5)
        end.says_done(2, 5)
        for step in range(10):
            end.site.note(1.0, [np.zeros(2), np.zeros(2)])
            end.clock.time += 1.0
            assert end.site.begin(step) == step

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
            rest = Rest(StopRule(1e-6, 2.0))
            for now in range(10):
                rest.note(now, 0.0, {1: 0.0})
            assert rest.holds({1})
            rest.note(10.0, own, {1: link})
            assert not rest.holds({1})

    def test_a_pause_is_no_rest_until_a_step_has_shown_it(self):
        rest = Rest(StopRule(1e-6, 2.0))
        for now in (0.0, 0.1, 0.2):
            rest.note(now, 0.0, {1: 0.0})
        assert rest.seconds(9.0) == 9.0 and not rest.holds({1})
        rest.note(9.0, 0.0, {1: 0.0})
        assert rest.holds({1})

    def test_without_a_rule_nobody_rests(self):
        rest = Rest(None)
        rest.note(0.0, 0.0, {})
        assert not rest.holds(())

    def test_it_tells_whether_it_is_done_and_when_it_has_finished(self):
        end = Alone()
        self.at_rest(end)
        end.sent()
        end.site.watch()
        stands = [frame for frame in end.sent() if isinstance(frame, Stand)]
        assert {one.done for stand in stands for one in stand.statements if one.site == 0} == {True}
        end.connect()
        end.site.next = 100
        end.site.goodbye(finished=True)
        *_, last = [frame for frame in end.sent() if isinstance(frame, Stand)]
        assert [(one.step, one.done) for one in last.statements if one.site == 0] == [(100, True)]


class TestTheEnd:
    def said(self, end):
        """By site 0 of itself: its last statement, its last message and its last word."""
        frames = end.sent()
        own = [one for frame in frames if isinstance(frame, Stand) for one in frame.statements if one.site == 0]
        last = [frame.at for frame in frames if isinstance(frame, Data)]
        return own[-1:], last[-1:], [frame.reason for frame in frames if isinstance(frame, Bye)]

    def test_a_neighbour_that_comes_back_in_time_is_told(self):
        end = Alone()
        end.site.post(99, [np.ones((2, 3)), np.ones((2, 3))])
        end.site.next = 100
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
        end.site.agree([100])
        end.site.goodbye(finished=True)
        assert [(one.step, one.done) for one in self.said(end)[0]] == [(100, True)]


def test_status_has_steps_and_staleness(tmp_path):
    end = Alone()
    end.deliver(numbered(3), numbered(8))
    end.clock.time += 0.5
    assert end.takes()[0] == 8
    end.takes()
    end.takes()
    found = status(end.site)["neighbours"]["site-1"]
    assert found["their_step"] == 8 and found["message_seconds_ago"] == 0.5
    assert (found["messages_used"], found["messages_replaced"], found["steps_since_message"]) == (1, 1, 2)
    assert status(end.site)["rest_seconds"] == 0.0
    note(tmp_path / "status.json", status(end.site))
    console = Console(file=io.StringIO(), width=200)
    show([tmp_path], console)
    assert "site-1 talking (step 8, 0.5 s ago, used 2 steps ago), site-2 talking" in console.file.getvalue()
    assert 'decibel_silo_message_age_seconds{neighbour="site-1"} 0.5' in metrics(end.site)


class TestFederation:
    def test_it_is_signed(self):
        common = replace(FEDERATION, asynchronous=False, stop=None)
        others = [replace(common, asynchronous=True), FEDERATION, replace(FEDERATION, stop=StopRule(1e-3))]
        assert len({common.hash, *(one.hash for one in others)}) == 4
        assert all(Federation.from_text(one.text) == one for one in others)

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"asynchronous": 1}, "asynchronous=1 must be true or false"),
            ({"asynchronous": False}, "add asynchronous = true"),
            ({"stop": StopRule(0.0)}, r"tolerance=0.0 of \[stop\] must be a positive number"),
            ({"stop": StopRule(1e-6, -1.0)}, r"seconds=-1.0 of \[stop\] must be a positive number"),
        ],
    )
    def test_what_is_wrong_raises(self, changes, sentence):
        with pytest.raises(ValueError, match=sentence):
            replace(FEDERATION, **changes)

    def test_from_toml(self, tmp_path):
        text = 'name = "t"\nedges = [["a", "b"]]\nasynchronous = true\n'
        sites = '[[sites]]\nname = "a"\naddress = 7401\n[[sites]]\nname = "b"\n'
        path = tmp_path / "federation.toml"
        path.write_text(f"{text}[stop]\ntolerance = 1e-7\n{sites}")
        assert Federation.from_toml(path).stop == StopRule(1e-7, 10.0)
        path.write_text(f"{text}[stop]\nseconds = 3.0\n{sites}")
        with pytest.raises(ValueError, match="lacks 'tolerance'"):
            Federation.from_toml(path)
        path.write_text(f"{text}[stop]\ntolerence = 1e-7\n{sites}")
        with pytest.raises(ValueError, match="'tolerence', which is not known"):
            Federation.from_toml(path)
