"""Silos as real processes, some in network namespaces of their own, with real failures: killed, stopped, parted, slow.
All of it takes minutes."""

from __future__ import annotations

import random
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
from quadratics import random_quadratic
from silo_fleet import Fleet
from silo_sites import Loopback, Namespaces, ring

from decibel.silo._federation import FaultTolerance
from decibel_studies.testbed.namespaces import obstacle

pytestmark = pytest.mark.slow
TOLERANCE = FaultTolerance("continue", beat=0.3, missed=10, deadline=120.0)


@pytest.fixture
def fleet(tmp_path):
    fleets = []

    def make(federation, network=Loopback, **settings):
        fleets.append(Fleet(tmp_path, federation, network, **settings))
        return fleets[-1]

    yield make
    for one in fleets:
        one.end()


def chords(count, **options):
    """A ring whose nodes also know those two places on: it stays connected without any one or two neighbours."""
    federation = ring(count, **options)
    more = tuple((i, (i + 2) % count) for i in range(count))
    return replace(federation, edges=(*federation.edges, *more))


def solution(count):
    return random_quadratic(count, seed=1, spread=2.0).solution()


def apart():
    """A network for each site, or loopback where the system has no namespaces."""
    return Namespaces if obstacle() is None else Loopback


def test_eight_sites_killed_many_times_parted_slow_and_ten_percent_lost(fleet):
    kills = 4
    window = 100  # steps from one kill to the next
    calm = 1200  # steps after the last
    slow = {"slow": {"site-3": 10.0}}
    options = dict(steps=kills * window + calm, every=100, saves=True, lost=0.1, **slow)
    # A half of four, of which two were killed, must be enough to tell them where it is.
    sites = fleet(chords(8, fault_tolerance=TOLERANCE, faulty=1), apart(), **options)
    sites.hold(window)
    sites.start()
    sites.wait_for_step(20)
    chance, down = random.Random(0), {}
    for kill in range(kills):
        if kill == kills * 8 // 20:
            sites.network.part()
        if kill == kills * 11 // 20:
            sites.network.heal()
        name = chance.choice([name for name in sites.names if name not in down])
        sites.kill(name)
        down[name] = time.monotonic() + chance.uniform(0, 6)
        sites.hold((kill + 1) * window)
        reached = kill * window + chance.randrange(window)
        sites.wait_until(lambda: max(sites.step(name) for name in sites.names if name not in down) >= reached)  # noqa: B023
        while down and (len(down) > 1 or min(down.values()) < time.monotonic()):
            back = min(down, key=lambda one: down[one])
            time.sleep(max(0.0, down.pop(back) - time.monotonic()))
            sites.start(back)
        # One may be killed while it starts, but not all at once.
        sites.wait_until(lambda: sum(sites.step(name) < 0 for name in sites.names if name not in down) <= 1)
    for name in down:
        sites.start(name)
    sites.wait_for_step(0)
    assert max(sites.step(name) for name in sites.names) <= kills * window
    sites.let_go()
    x = sites.finish()
    np.testing.assert_allclose(x, np.tile(solution(8), (8, 1)), atol=1e-8)


def test_the_whole_federation_goes_on_from_its_last_common_checkpoint_bit_for_bit(fleet):
    sites = fleet(ring(4), steps=120, every=20, saves=True, lost=0.1)
    sites.start()
    whole = sites.finish()
    for name in sites.names:
        shutil.rmtree(sites.folder / name / "checkpoints")

    def saved_by(name):
        folder = sites.folder / name / "checkpoints"
        return {int(path.name) for path in folder.iterdir() if path.name.isdigit()} if folder.exists() else set()

    sites.hold(90)
    sites.start()
    sites.wait_until(lambda: all({60, 80} <= saved_by(name) for name in sites.names))
    for name in sites.names:
        sites.kill(name)
    sites.let_go()
    saved = {name: saved_by(name) for name in sites.names}
    newest = max(saved["site-1"])
    shutil.rmtree(sites.folder / "site-1" / "checkpoints" / str(newest))  # as if it had been killed a little earlier
    assert set.intersection(*saved.values()) - {newest}
    sites.start()
    np.testing.assert_array_equal(sites.finish(), whole)
