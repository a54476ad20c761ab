"""SIGTERM: a site ends within five seconds, whatever it waits for, and goes on from there when it is started again."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import numpy as np
import pytest
from quadratics import random_quadratic
from silo_fleet import Fleet
from silo_sites import ring

from decibel.silo._federation import FaultTolerance

pytestmark = pytest.mark.slow
LIMIT = 5.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # seconds; more on a machine that is busy already
PATIENT = FaultTolerance(quorum="wait", beat=0.3, missed=400, deadline=600.0)


@pytest.fixture
def fleet(tmp_path):
    made = []

    def make(count=3, **settings):
        made.append(Fleet(tmp_path, ring(count, fault_tolerance=PATIENT), saves=True, every=10, **settings))
        return made[-1]

    yield make
    for one in made:
        one.end()


def terminated(sites, name, well=(0,)):
    """Seconds until it has ended, by itself and well."""
    process, begun = sites.processes.pop(name), time.monotonic()
    process.send_signal(signal.SIGTERM)
    try:
        status = process.wait(30)
    except subprocess.TimeoutExpired:
        raise AssertionError(sites.logs()) from None
    took = time.monotonic() - begun
    assert status in well, sites.logs()
    return took


def saved(sites, name):
    folder = sites.folder / name / "checkpoints"
    return sorted(int(path.name) for path in folder.glob("[0-9]*")) if folder.exists() else []


def finish(sites):
    x = sites.finish()
    solution = random_quadratic(len(x), seed=1, spread=2.0).solution()
    np.testing.assert_allclose(x, np.tile(solution, (len(x), 1)), atol=1e-6)


def test_while_it_waits_for_the_others_to_start(fleet):
    sites = fleet(steps=100)
    sites.start("site-0")
    sites.wait_until(lambda: sites.status("site-0") is not None)
    sites.wait_for_news("site-0", 3.0)
    # Before it has something to save, the signal may simply end it.
    assert terminated(sites, "site-0", well=(0, -signal.SIGTERM)) < LIMIT


def test_between_two_steps_while_a_neighbour_is_away(fleet):
    sites = fleet(steps=500)
    sites.hold(40)
    sites.start()
    sites.wait_for_step(35)
    sites.kill("site-1")
    sites.let_go()
    time.sleep(3.0)  # the others come as far as they can without it
    step = sites.step("site-0")
    assert step < 500 and terminated(sites, "site-0") < LIMIT
    assert saved(sites, "site-0")[-1] >= 30
    sites.start("site-0", "site-1")
    finish(sites)


def test_in_the_middle_of_a_step_while_a_neighbour_is_silent(fleet):
    sites = fleet(count=4, steps=500)
    sites.hold(40)
    sites.start()
    sites.wait_for_step(35)
    sites.kill("site-1", signal.SIGSTOP)
    sites.let_go()
    time.sleep(3.0)
    assert terminated(sites, "site-0") < LIMIT
    assert saved(sites, "site-0")[-1] >= 30
    sites.kill("site-1", signal.SIGCONT)
    sites.start("site-0")
    finish(sites)


def test_while_it_runs(fleet):
    sites = fleet(steps=500)
    sites.start()
    sites.wait_for_step(50)
    assert terminated(sites, "site-0") < LIMIT
    assert saved(sites, "site-0")[-1] >= 40
    sites.start("site-0")
    finish(sites)


def test_when_it_has_finished_and_waits_for_a_slower_neighbour(fleet):
    sites = fleet(steps=120, slow={"site-1": 10.0})
    sites.start()
    sites.wait_until(lambda: sites.status("site-0") is not None and sites.step("site-0") >= 119)
    # Where the neighbours had all its messages in time the run is over, and the signal finds a process that exits.
    assert terminated(sites, "site-0", well=(0, -signal.SIGTERM)) < LIMIT
    assert saved(sites, "site-0")[-1] >= 110


def test_while_it_compiles(fleet):
    """Nothing is lost: what it had saved is there."""
    sites = fleet(steps=500, compiles=["site-0"])
    sites.start()
    sites.wait_until(lambda: (sites.status("site-0") or {}).get("state") == "compiling")
    sites.wait_for_news("site-0", 2.0)
    assert terminated(sites, "site-0", well=(-signal.SIGTERM,)) < LIMIT
    sites.settings["compiles"] = []
    sites.start("site-0")
    finish(sites)
