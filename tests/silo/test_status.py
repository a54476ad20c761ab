"""What a site says of itself: its state in words, who was missing and for how long, and how fast it goes."""

from __future__ import annotations

import io
import json
import time

import numpy as np
import pytest
from rich.console import Console
from silo_ends import EPOCH, FEDERATION, RULES, STEP, End, standing_end, tell_running
from silo_messages import message
from silo_sites import ring

from decibel.silo._errors import Stopped
from decibel.silo._federation import FaultTolerance
from decibel.silo.commands._run_site import in_words, read_note
from decibel.silo.commands._run_site import status as show
from decibel.silo.observe._site_status import closing_line, progress_line, status_facts, write_state, write_status
from decibel.silo.protocol._edge import Flow
from decibel.silo.protocol._frame_limits import NOWHERE
from decibel.silo.protocol._frames import Bye, Join, Position, Refuse


def word(end):
    found = status_facts(end.site)
    return found["state"], found["detail"]


def talking():
    end = standing_end("dials")
    end.connect()
    tell_running(end)
    end.site._send_due_joins()
    end.deliver(Join(0, EPOCH, False, False, STEP, NOWHERE, True))
    assert end.edge.state == "talking"
    return end


def patiently(end, seconds, during):
    """What a wait shows when it has lasted that long: time passes when somebody waits."""
    wait, seen, until = end.clock.wait, [], end.clock.time + seconds

    def watched(timeout=None):
        if end.clock.time >= until and not seen:
            seen.append(word(end))
            end.site.stop()
        return wait(timeout)

    end.clock.wait = watched
    try:
        during()
    except Stopped:
        pass
    finally:
        end.clock.wait = wait
    return seen[0]


class TestStates:
    def test_starting(self):
        assert word(End(FEDERATION, 1, 0)) == ("starting", "")

    def test_compiling(self):
        end = talking()
        with end.site.health.compiles():
            assert word(end) == ("compiling", "")
        assert word(end) == ("running", "")

    def test_waiting_for_all_who_have_not_spoken(self):
        end = End(FEDERATION, 1, 0)
        found = patiently(end, 12.0, lambda: end.site.agree_on_start([]))
        assert found == ("waiting", "for site-0 (12 s), site-2 (12 s)")

    def test_waiting_for_a_neighbour_that_is_away(self):
        rules = FaultTolerance(quorum="wait", beat=1.0, missed=3)
        end = End(ring(3, fault_tolerance=rules, steps=100), 1, 0)
        end.site.running = True
        end.site._rendezvous.start = 0
        found = patiently(end, 5.0, lambda: end.site.begin_step(3))
        assert found == ("waiting", "for site-0 (5 s), site-2 (5 s)")

    def test_waiting_for_a_message(self):
        end = talking()
        end.site._position = Position(STEP, 0)
        assert word(end) == ("running", "")
        assert patiently(end, 2.0, lambda: end.site._wait_for([end.edge], end.site._position)) == (
            "waiting",
            "for site-0 (2 s)",
        )
        assert 2.0 <= end.edge.waited_seconds <= RULES.deadline

    def test_no_wait_is_left_when_the_message_has_come(self):
        end = talking()
        end.site._position, wait = Position(STEP, 0), end.clock.wait

        def late(timeout=None):
            wait(timeout)
            if end.clock.time > 103:
                end.deliver(message(STEP, 0, epoch=EPOCH))

        end.clock.wait = late
        end.site._wait_for([end.edge], end.site._position)
        assert word(end) == ("running", "") and 3.0 <= end.edge.waited_seconds < 4.0

    def test_stopped_with_a_reason(self):
        end = talking()
        end.site.health.reason = "it was told to stop"
        end.site.goodbye(False)
        assert word(end) == ("stopped", "it was told to stop")

    def test_finished(self):
        end = talking()
        end.deliver(Bye("finished"))
        end.site.goodbye(True)
        assert word(end) == ("finished", "")


class TestRefusals:
    def test_before_the_run(self):
        end = End(FEDERATION, 1, 0)
        end.connect()
        end.deliver(Refuse("site-1 and site-0 run different problems"))
        assert word(end) == ("refused", "site-0: site-1 and site-0 run different problems")
        assert end.said == ["site-0 rejected this site: site-1 and site-0 run different problems"]
        end.deliver(Refuse("site-1 and site-0 run different problems"))
        assert len(end.said) == 1

    def test_in_the_middle_of_it(self):
        """It is named beside the neighbour, and is over when both talk again."""
        end = talking()
        end.deliver(Bye("aside"))
        assert "took too long" in end.said[-1]
        found = status_facts(end.site)
        assert found["state"] == "running" and "took too long" in found["neighbours"]["site-0"]["why"]
        end.site._send_due_joins()
        end.deliver(Join(0, end.edge.join_epoch, False, False, STEP, NOWHERE, True))
        assert end.edge.state == "talking" and status_facts(end.site)["neighbours"]["site-0"]["why"] == ""

    def test_what_is_said_is_one_plain_line(self):
        end = talking()
        end.deliver(Refuse("\x1b[2J\nsite-9: all is well" + "x" * 900))
        assert "\x1b" not in end.said[-1] and "\n" not in end.said[-1] and len(end.said[-1]) < 600


class TestWhoWasMissing:
    def test_is_in_the_last_line(self):
        end = talking()
        for _ in range(40):
            end.clock.time += 1.0
            end.edge.touch(end.clock.time)
            end.site.on_heartbeat()
        end.site.goodbye(False)
        assert closing_line(end.site) == "stopped at step 0; site-2 was missing for 40 s"

    def test_nobody(self):
        end = talking()
        del end.site.edges[2]
        end.clock.time += 2.0
        end.edge.touch(end.clock.time)
        end.site.on_heartbeat()
        end.site.goodbye(False)
        assert closing_line(end.site) == "stopped at step 0; nobody was missing"

    def test_the_time_at_the_start_counts(self):
        end = End(FEDERATION, 1, 0)
        for _ in range(7):
            end.clock.time += 1.0
            end.site.on_heartbeat()
        assert end.site.health.missing == {"site-0": 7.0, "site-2": 7.0}


@pytest.mark.parametrize("rate", [0.5, 3.0, 40.0])
def test_the_rate_is_of_steps_done(rate):
    """Not of the steps that a checkpoint brought."""
    end = talking()
    end.site.running = False
    end.clock.time += 1.0
    end.site.on_heartbeat()
    end.site.running, begun = True, end.clock.time
    for second in range(100):
        end.clock.time = begun + second
        end.edge.touch(end.clock.time)
        end.site._position = Position(500 + int(rate * second), -1)
        if second == 0:
            end.site.health._steps.clear()
        end.site.on_heartbeat()
    assert end.site.health.rate == pytest.approx(rate, rel=0.05)
    assert f"step {500 + int(99 * rate)} of 100, " in progress_line(end.site)
    assert "1 of 2 neighbours connected" in progress_line(end.site)


def shown_of(end, folder):
    """What `decibel silo status` prints."""
    write_status(folder / "status.json", status_facts(end.site))
    console = Console(width=80, record=True, file=io.StringIO())
    show([folder], console)
    return console.export_text()


class TestWords:
    def test_of_notes(self, tmp_path):
        end = talking()
        write_status(tmp_path / "status.json", status_facts(end.site))
        found = read_note(tmp_path)
        assert found is not None and in_words(found, time.time()) == ("running", [])
        assert "no update for 60 s (was running)" in in_words(found, found["time"] + 60)[0]
        write_state(tmp_path / "status.json", "site-1", "starting", "loading example_problem:problem")
        found = read_note(tmp_path)
        assert in_words(found, found["time"] + 70) == ("starting, for 70 s: loading example_problem:problem", [])

    def test_of_a_run_that_is_over_do_not_age(self, tmp_path):
        end = talking()
        end.site.health.missing, end.site.health.reason = {"site-2": 312.4}, "it was told to stop"
        end.site.goodbye(False)
        write_status(tmp_path / "status.json", status_facts(end.site))
        found = read_note(tmp_path)
        said = ["stopped, since it was told to stop", "site-2 was missing for 312 s"]
        assert in_words(found, time.time() + 1e6) == ("stopped", said)

    def test_of_refusals_are_the_neighbours_own(self, tmp_path):
        end = End(FEDERATION, 1, 0)
        end.connect()
        end.deliver(Refuse("for a reason"))
        write_status(tmp_path / "status.json", status_facts(end.site))
        assert in_words(read_note(tmp_path), time.time()) == ("refused", ["site-0 is connected: for a reason"])
        console = Console(width=80, record=True, file=io.StringIO())
        show([tmp_path, tmp_path / "nobody"], console)
        shown = console.export_text()
        assert "site-1: site-0 is connected: for a reason" in shown and "never ran" in shown

    def test_a_saturated_link_is_explained(self, tmp_path):
        end = talking()
        end.edge.flows = {"y": Flow(now=2.0, largest=2.0, limit=1.0, saturated=True)}
        shown = shown_of(end, tmp_path)
        assert "(saturated: y)" in shown and "saturated means that a flow is at flow_limit" in shown
        assert "without site-2 the flows between the others are different" in shown  # which is away
        del end.site.edges[2]
        assert "saturated means" in shown_of(end, tmp_path) and "without" not in shown_of(end, tmp_path)
        end.edge.flows = {}
        assert "saturated" not in shown_of(end, tmp_path)

    def test_a_note_is_json_whatever_was_said(self, tmp_path):
        end = talking()
        end.deliver(Refuse('"}\x00'))
        write_status(tmp_path / "status.json", status_facts(end.site))
        assert json.loads((tmp_path / "status.json").read_text())["neighbours"]["site-0"]["state"] == "talking"


def test_bytes_are_counted():
    end = talking()
    end.sent()
    before = end.edge.sent_bytes
    end.edge.send_data(Position(STEP, 0), b"x" * 100)
    assert end.edge.sent_bytes == before + 100
    assert np.isfinite(status_facts(end.site)["steps_per_second"])
