"""A run that has finished is not begun again, and a site that was away at its end gets the model."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from quadratics import random_quadratic
from silo_ends import PROBLEM as PROBLEM_HASH
from silo_ends import RULES, End, at_the_start, signed
from silo_fleet import Fleet
from silo_sites import Folders, ring
from silo_talking import Talking, Walk

import decibel as db
from decibel.silo._errors import FinishedByFew, SiteLost
from decibel.silo._federation import FaultTolerance
from decibel.silo.observe._site_status import closing_line, status_facts
from decibel.silo.protocol._frames import Bye, Model, Stand, Want
from decibel.silo.protocol._shared_model import agree_on, row_of, with_row
from decibel.silo.protocol._site import STOP
from decibel.silo.run._finished import Finished, move_aside, read, write
from decibel.silo.run._site_run import SiteRun

STEPS = 60
ROW = np.arange(1.0, 5.0)


def returned(count=3, **options):
    """The end at site 0 of site 1, which comes back at step 10 of 100 when the others have finished."""
    end = End(ring(count, fault_tolerance=RULES, steps=100, **options), 1, 0)
    end.site.expect_model(ROW)
    end.site.next_step, end.site._rendezvous.start = 10, 10
    end.connect()
    return end


def ends_of(end):
    """The same site at each of its neighbours: by number."""
    there = {}
    for other, edge in end.site.edges.items():
        one = End.__new__(End)
        one.__dict__.update(end.__dict__)
        one.edge = edge
        one.connect()
        there[other] = one
    return there


def finished(end, *numbers):
    for number in numbers:
        end.site._rendezvous.take([signed(end, number, 100, done=True)])


def answering(end, offers):
    """Neighbours answer when they are asked, while the site waits."""
    ends, wait, asked = ends_of(end), end.clock.wait, []
    for other, one in ends.items():
        if other in offers:
            one.deliver(Bye("finished"))

    def waited(timeout=None):
        for other, one in ends.items():
            if any(isinstance(frame, Want) for frame in one.sent()):
                asked.append(other)
                one.deliver(Model(100, offers[other]))
        return wait(timeout)

    end.clock.wait = waited
    return asked


class TestTheModel:
    def test_is_taken_from_neighbours_that_agree(self):
        end = returned()
        finished(end, 0, 2)
        asked = answering(end, {0: ROW, 2: ROW * 1.001})
        assert end.site.begin_step(10) == STOP
        assert sorted(asked) == [0, 2] and end.site.taken_model.step == 100
        assert np.abs(end.site.taken_model.row - ROW).max() < 0.01
        assert "finished without this site, which came to step 10: it has the model of site-" in end.site.end_reason
        assert "differs by at most 0.001, of step 100" in end.site.end_reason

    @pytest.mark.parametrize("lie", [ROW + 1, -ROW, np.full(4, 1e300), np.zeros(4), np.zeros(0)], ids=str)
    def test_is_not_taken_from_one_that_is_alone_with_it(self, lie):
        end = returned()
        finished(end, 0, 2)
        answering(end, {0: lie, 2: ROW})
        with pytest.raises(SiteLost, match=r"no 2 of its neighbours give the same model: copy solution\.npz"):
            end.site.begin_step(10)
        assert end.site.taken_model is None

    def test_is_taken_from_one_where_all_are_believed(self):
        end = returned(faulty=0)
        finished(end, 0)
        answering(end, {0: ROW})
        assert end.site.begin_step(10) == STOP and np.array_equal(end.site.taken_model.row, ROW)

    def test_is_taken_at_a_site_with_a_single_neighbour(self):
        """Which is in its hands in any case."""
        end = returned(2)
        finished(end, 0)
        answering(end, {0: ROW})
        assert end.site.begin_step(10) == STOP and np.array_equal(end.site.taken_model.row, ROW)
        assert "site-0, which no other neighbour confirms" in end.site.end_reason

    @pytest.mark.parametrize(
        ("model", "sentence"),
        [
            (Model(100, np.ones(5)), "with 5 entries, of 4"),
            (Model(100, np.ones(4, np.float32)), "MODEL of float32"),
            (Model(100, np.array([1.0, np.nan, 0, 0])), "NaN"),
            (Model(101, ROW), "step 101, of 100"),
        ],
    )
    def test_that_is_none_closes_the_stream(self, model, sentence):
        end = returned()
        end.edge.ask_for_model(end.clock.time, 1.0)
        end.deliver(model)
        assert end.edge.offer is None and end.edge.rejected == 1 and sentence in end.said[-1]

    def test_that_was_not_asked_for_closes_the_stream(self):
        end = returned()
        end.deliver(Model(100, ROW))
        assert end.edge.rejected == 1 and "not asked for" in end.said[-1]

    def test_is_given_once_in_a_while(self):
        end = returned()
        end.deliver(Want())
        assert not any(isinstance(frame, Model) for frame in end.sent())
        end.site.model = Model(100, ROW)
        for _ in range(5):
            end.deliver(Want())
        assert sum(isinstance(frame, Model) for frame in end.sent()) == 1
        end.clock.time += RULES.patience
        end.deliver(Want())
        assert sum(isinstance(frame, Model) for frame in end.sent()) == 1

    def test_that_as_many_agree_on_as_must_say_a_thing(self):
        offers = {f"site-{i}": Model(100, ROW * (1 + 0.001 * i)) for i in range(3)} | {"liar": Model(100, -ROW)}
        agreement = agree_on(offers, 3)
        assert (agreement.giver, agreement.others) == ("site-1", ("site-0", "site-2"))  # the one in the middle
        assert agreement.distance == pytest.approx(0.001, rel=0.01) and agree_on(offers, 4) is None
        late = {name: model._replace(step=99) if name == "site-0" else model for name, model in offers.items()}
        assert agree_on(late, 3) is None and agree_on({}, 1) is None

    def test_that_was_lost_is_asked_for_again(self):
        end = returned()
        now = end.clock.time
        end.sent()
        end.edge.ask_for_model(now, 3.0)
        end.edge.ask_for_model(now + 2.9, 3.0)
        assert end.sent() == [Want()]
        end.edge.ask_for_model(now + 3.0, 3.0)
        assert end.sent() == [Want()]
        end.connect()
        end.edge.ask_for_model(now + 3.1, 3.0)
        assert Want() in end.sent()


class TestWhoIsLeftBehind:
    def test_nobody_who_takes_part(self):
        """In a large ring the sites on its other side finish first."""
        end = End(ring(9, fault_tolerance=RULES, steps=100), 1, 0)
        end.connect()
        end.site._rendezvous.start, end.site.next_step = 10, 95
        end.edge.is_open = True
        finished(end, 4, 5, 6)
        assert end.site._rendezvous.is_over and not end.site._is_left_behind()
        end.deliver(Bye("finished"))
        assert end.site._is_left_behind()

    def test_nobody_by_the_word_of_one(self):
        end = returned()
        finished(end, 0)
        end.deliver(Bye("finished"))
        assert not end.site._is_left_behind() and not end.site._may_continue()  # nor does it go on alone
        finished(end, 2)
        assert end.site._is_left_behind()

    def test_two_that_return_together(self):
        """Each has the other as a neighbour, and both are far behind."""
        end = returned()
        finished(end, 0, 2)
        end.deliver(Bye("finished"))
        end.site.edges[2].is_open = True
        assert end.site._is_left_behind()

    def test_also_a_site_whose_method_needs_every_message(self):
        end = End(ring(3, fault_tolerance=RULES, steps=100), 1, 0, tolerates_loss=False)
        end.connect()
        end.deliver(Stand((signed(end, 0, 100, done=True), signed(end, 2, 100, done=True))))
        assert end.site._rendezvous.is_start_known


class TestTooFewThatHaveFinished:
    """For a site whose method needs every message."""

    def started(self, *others):
        end = End(ring(3, fault_tolerance=RULES, steps=100), 1, 0, tolerates_loss=False)
        end.connect()
        end.site._rendezvous.sign_own(0, [90])
        end.site._rendezvous.take([one(end) for one in others])
        return end

    def test_are_named_and_people_decide(self):
        """It waited for ever, or the one that had finished went back."""
        end = self.started(
            lambda end: signed(end, 0, 100, running=True, done=True), lambda end: at_the_start(end, {2: (90,)})[0]
        )
        with pytest.raises(FinishedByFew, match=r"site-0 finished this run, too few .*move finished\.json away there"):
            end.site.agree_on_start([90])

    def test_are_waited_for_where_another_may_finish_yet(self):
        end = self.started(
            lambda end: signed(end, 0, 100, running=True, done=True), lambda end: signed(end, 2, 99, running=True)
        )
        assert end.site._rendezvous.finished_by_few == []


class TestWords:
    def test_who_departs_is_told_and_who_returns(self):
        end = returned()
        for quorum, sentence in (("continue", "the run continues without its data"), ("wait", "the run waits for it")):
            end.site.fault_tolerance = FaultTolerance(quorum, beat=1.0, missed=3)
            end.edge.is_open = True
            end.deliver(Bye("left"))
            assert "site-0 has left: " in end.said[-1] and sentence in end.said[-1]
        end.edge.is_open = True
        end.site._tell_returned(end.edge)
        assert end.said[-1] == "site-0 is back at step 10"
        end.edge.touch(end.clock.time)
        end.clock.time += 4
        end.site.on_heartbeat()
        assert end.said[-1].startswith("site-0 has sent no heartbeat for 3 s: ")

    def test_for_whom_it_waits_again_and_again(self):
        """A site whose neighbours had finished waited for ever, without a word."""
        end = returned()
        end.site._rendezvous.sign_own(0, [10])
        end.site.health.set_awaited(["site-2"], end.clock.time)
        for _ in range(140):
            end.site.on_heartbeat()
            end.clock.time += 1
        waits = [line for line in end.said if line.startswith("waiting for site-2; if they have finished, start them")]
        assert len(waits) == 3

    def test_finished_without(self):
        end = returned()
        end.deliver(Bye("finished"))
        end.site.next_step = end.site.steps_done = 100
        end.site.goodbye(True)
        assert closing_line(end.site).startswith("finished 100 steps, without site-2")
        assert end.site.health.without == ["site-2"]


def test_over_grpc(tmp_path):
    """Two sites that had finished are started again, and the third returns from step 20."""
    rules = FaultTolerance("continue", beat=0.1, missed=30, deadline=20.0)
    folders = Folders(tmp_path, ring(3, fault_tolerance=rules, steps=STEPS))
    sites = [Talking(folders, number) for number in range(3)]
    for one in sites:
        one.site.expect_model(ROW)
    ends = []
    try:
        for one in sites[:2]:
            one.site.resume_finished(STEPS, "", ["site-2"], 30.0)
            one.site.model = Model(STEPS, ROW)
            ends.append(threading.Thread(target=one.site.goodbye, args=(True,), daemon=True))
            ends[-1].start()
        walk = Walk(sites[2], STEPS, saved=(20,))
        walk.join(20)
        assert walk.error is None and walk.steps == [] and np.array_equal(sites[2].site.taken_model.row, ROW)
        sites[2].site.next_step = STEPS
        sites[2].site.goodbye(True)
        for end in ends:
            end.join(20)
        assert not any(end.is_alive() for end in ends)  # nobody else lacks the model
        assert [one.site.health.without for one in sites] == [[], [], []]
    finally:
        for one in sites:
            one.streams.close()


@pytest.mark.slow_except("local")
@pytest.mark.parametrize("strategy", ["edge-ed", "local"])
def test_what_is_given_is_what_all_sites_agree_on(strategy):
    """A level that is not mixed stays with its site."""
    problem = random_quadratic(3).problem()
    method = db.sparkle("edge-ed", strategy, alpha=0.05, beta=0.1, gamma=0.1)
    state = db.solve(problem, method, db.graphs.ring(3), steps=1, metrics=[]).state
    row = row_of(method, state)
    shared = ("x", "y") if strategy == "edge-ed" else ("y",)
    assert row.size == sum(getattr(state, level).s.tree.size for level in shared)
    given = with_row(method, state, 2 * row)
    for level in ("x", "y"):
        factor = 2 if level in shared else 1
        np.testing.assert_array_equal(getattr(given, level).s.tree, factor * getattr(state, level).s.tree)
    np.testing.assert_array_equal(given.z.s.tree, state.z.s.tree)
    np.testing.assert_array_equal(row_of(method, given), 2 * row)


PROBLEM = """
import decibel as db
import numpy as np


def records(node):
    return np.random.default_rng(node).normal(node, 1.0, (50, 3))


def upper(x, y, batch):
    return 0.5 * ((y - batch.mean(0)) ** 2).sum() + 0.5 * (x**2).sum()


def lower(x, y, batch):
    return 0.5 * ((y - x - batch.mean(0)) ** 2).sum()


def problem():
    return db.Problem(upper, lower, upper_data=records, lower_data=records, x0=np.zeros(3, "f"), y0=np.zeros(3, "f"))
"""


class Hospitals(Fleet):
    """Three sites as `decibel silo run` starts them."""

    def command(self, name):
        command = [sys.executable, "-m", "decibel.cli", "silo", "run", name, "--problem", "hospitals:problem"]
        return [*command, "--home", self.folder / name, "--stay", "60"]

    def wait(self):
        assert not any(process.wait(120) for process in self.processes.values()), self.logs()


@pytest.mark.slow
def test_three_hospitals_of_which_one_is_gone_at_the_end(tmp_path):
    """It was begun again at step 0, and what had finished was replaced, without a word."""
    (tmp_path / "hospitals.py").write_text(PROBLEM)
    rules = FaultTolerance("continue", beat=0.2, missed=10, deadline=60.0)
    settings = {"alpha": 0.05, "beta": 0.1, "gamma": 0.1}
    run = Hospitals(tmp_path, ring(3, fault_tolerance=rules, steps=1500, method="sparkle-edge-ed", settings=settings))
    try:
        run.start()
        run.wait_for_step(200, ["site-2"])
        run.kill("site-2")
        run.wait_until(lambda: all("gives the model" in run.log(name) for name in ("site-0", "site-1")))
        for name in ("site-0", "site-1"):
            assert "site-2 has sent no heartbeat" in run.log(name)
            assert "finished 1500 steps, without site-2" in run.log(name)
        files = {path: path.read_bytes() for path in tmp_path.glob("site-[01]/solution.npz")}
        assert len(files) == 2
        run.start("site-2")
        run.wait()
        assert "the others finished without this site" in run.log("site-2")
        models = [db.Result.load(tmp_path / name / "solution.npz") for name in run.names]
        assert models[2].step == 1500
        assert any(np.array_equal(models[2].y, one.y) and np.array_equal(models[2].x, one.x) for one in models[:2])
        run.start()  # by mistake, or after a reboot
        run.wait()
        assert all("has finished this run before" in run.log(name) for name in run.names)
        assert {path: path.read_bytes() for path in files} == files
        assert all(read(tmp_path / name).without == [] for name in run.names)
    finally:
        run.end()


def test_a_finished_record_of_another_run_means_nothing(tmp_path):
    write(tmp_path, Finished("ab", "cd", 60, "", []))
    record = read(tmp_path)
    assert record.is_of(b"\xab", b"\xcd") and not record.is_of(b"\xab", b"\xce") and not record.is_of(b"\xac", b"\xcd")
    (tmp_path / "finished.json").write_text('{"step": 1}')
    with pytest.raises(ValueError, match=r"finished\.json is damaged"):
        read(tmp_path)
    assert read(tmp_path / "none") is None


class TestARunThatHasFinishedHere:
    """It began again at step 0, and its solution was replaced without a word."""

    def run(self, home, federation=None, **options):
        run = SiteRun.__new__(SiteRun)
        run._home, run._serve_model_seconds, run._earlier_run, run._finished_before = home, 0.0, None, None
        run.site = returned(**options).site
        hashes = federation or run.site.federation.hash.hex(), PROBLEM_HASH.hex()
        write(home, Finished(*hashes, 100, "", ["site-2"]))
        return run

    def test_does_no_step_again(self, tmp_path):
        run = self.run(tmp_path)
        assert run.resume_if_finished([80, 90, 100]) == 100
        assert run.site.had_finished and run.site.next_step == run.site.goal == 100

    def test_is_not_begun_again_where_its_checkpoints_are_gone(self, tmp_path):
        run = self.run(tmp_path)
        with pytest.raises(ValueError, match=r"of step 100, is gone: solution\.npz is its model; to do it again, move"):
            run.resume_if_finished([80, 90])

    def test_is_set_aside_where_another_begins(self, tmp_path):
        (tmp_path / "solution.npz").write_bytes(b"of before")
        run = self.run(tmp_path, federation="ab" * 32)
        assert run.resume_if_finished([80, 90, 100]) is None and not run.site.had_finished
        aside = move_aside(tmp_path, run._earlier_run)
        assert (aside / "solution.npz").read_bytes() == b"of before" and read(tmp_path) is None
        assert read(aside).federation == "ab" * 32 and list(tmp_path.iterdir()) == [tmp_path / "finished"]

    def test_is_set_aside_where_a_stop_rule_ended_it_and_it_goes_on(self, tmp_path):
        """One that was away then needs the links of the others."""
        run = self.run(tmp_path, asynchronous=True)
        run.site.limits = run.site.limits._replace(steps=101)
        assert run.resume_if_finished([100]) is None and run._earlier_run is not None
        run.site.limits = run.site.limits._replace(steps=100)
        assert run.resume_if_finished([100]) == 100


def test_a_site_that_stays_is_finished_in_its_status():
    end = returned()
    end.site.resume_finished(100, "", [], 0.0)
    facts = status_facts(end.site)
    assert (facts["state"], facts["step"], facts["had_finished"]) == (
        "finished", 100, True,
    )  # fmt: skip
