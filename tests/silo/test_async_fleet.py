"""Sites without a common clock as processes: one is killed and goes on from its own checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
from quadratics import random_quadratic
from silo_fleet import Fleet
from silo_sites import ring
from silo_worker import RATES

import decibel as db
from decibel.silo._federation import FaultTolerance, StopRule


@pytest.mark.slow
def test_a_site_is_killed_and_returns_from_its_own_checkpoint_while_others_go_on(tmp_path):
    """One of the others is five times slower."""
    rules = FaultTolerance("continue", beat=0.2, missed=10)
    federation = ring(3, fault_tolerance=rules, asynchronous=True, stop=StopRule(1e-10, 1.0))
    pause = {"all": 0.01, "site-0": 0.05}
    sites = Fleet(tmp_path, federation, steps=100_000, every=100, saves=True, task="one level", pause=pause)
    try:
        sites.start()
        sites.wait_until(lambda: list((tmp_path / "site-1").glob("checkpoints/[1-9]*00")))
        sites.kill("site-1")
        sites.wait_until(lambda: sites.status("site-2")["neighbours"]["site-1"]["state"] == "away")
        saved = max(int(path.name) for path in (tmp_path / "site-1").glob("checkpoints/[1-9]*00"))
        before = sites.step("site-2")
        sites.wait_for_step(before + 50, ["site-2"])  # nobody waits for it
        sites.start("site-1")
        x = sites.finish(240)
        done = np.load(tmp_path / "site-1.npz")["done"] + saved
        assert f"site-1: finished {done} steps" in sites.logs()
        assert sites.step("site-0") < sites.step("site-2")
        assert sites.status("site-2")["neighbours"]["site-0"]["their_step"] <= sites.step("site-0")
    finally:
        sites.end()
    problem = random_quadratic(3, seed=1, spread=2.0).single()
    exact = db.solve(problem, db.extra(**RATES["one level"]), federation.graph, steps=2000, metrics=[]).x
    np.testing.assert_allclose(x, np.tile(exact, (3, 1)), atol=1e-8)
