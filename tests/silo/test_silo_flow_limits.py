"""A limit on lies over gRPC: which methods a silo runs, what its status names, and a site that lies."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from quadratics import random_quadratic
from silo_commands import silo_command
from silo_sites import Folders, assert_refused, ring, run_sites

import decibel as db
from decibel.silo.commands._flows import largest, report, saturated
from decibel.silo.run._flow_limits import protected, validate_messages

RATES = {"alpha": 0.05, "beta": 0.1, "gamma": 0.1}
QUADRATIC = random_quadratic(4, seed=1, spread=2.0)


def untrusting(count=4, **options):
    return ring(count, trust_members=False, **options)


class TestWhatASiloRuns:
    @pytest.mark.parametrize(
        "strategy",
        ["ed", "gt", "edge-ed", "wave", "ada-ed", "diffusion", "consensus", db.privacy.noisy("diffusion", 1.0, 1.0),
         db.privacy.quantize("wave")],
    )  # fmt: skip
    def test_what_mixes_needs_a_limit_or_trust(self, strategy):
        method = db.sparkle(strategy, **RATES)
        with pytest.raises(ValueError, match=r"no limit.*flow_limit in the federation file, or write trust_members"):
            protected(method, untrusting())
        protected(method, ring(4))

    @pytest.mark.parametrize("name", ["ed", "d-soba", "dsbo", "d-adast", "led", "gossip-dsbo"])
    def test_where_there_is_no_limit_members_must_be_trusted(self, name):
        with pytest.raises(ValueError, match="has no limit on what neighbours send"):
            protected(db.CATALOG[name](**db.CATALOG[name].defaults), untrusting(flow_limit=3.0))

    def test_what_sends_nothing_runs(self):
        protected(db.sparkle("local", "local", **RATES), untrusting())

    @pytest.mark.parametrize("strategy", ["edge-ed", "wave", "diffusion", "consensus", db.privacy.quantize("wave", 4)])
    def test_a_limit_is_put_on_every_level(self, strategy):
        limited = protected(db.sparkle(strategy, **RATES), untrusting(flow_limit={"x": 1.0, "y": 2.0, "z": 3.0}))
        assert limited.strategies["x"].name.endswith(" (limit x 1, y 2, z 3)")
        assert limited.strategies["x"].flow_form == db.strategies.strategy(strategy).flow_form
        assert {level: one.limits[level] for level, one in limited.strategies.items()} == {"x": 1, "y": 2, "z": 3}
        other = protected(limited, untrusting(flow_limit=5.0)).strategies["x"]
        assert other.limits["x"] == 5 and other.name == f"{db.strategies.strategy(strategy).name} (limit 5)"
        assert protected(limited, untrusting()) is not None  # it has a limit of its own
        with pytest.raises(ValueError, match="lacks level z"):
            protected(db.sparkle(strategy, **RATES), untrusting(flow_limit={"x": 1.0, "y": 2.0}))
        with pytest.raises(ValueError, match="no limit"):
            protected(db.sparkle(strategy, "gt", **RATES), untrusting(flow_limit=3.0))

    def test_exchanges_that_happen_in_some_steps_need_a_limit_too(self):
        lazy, problem = db.sparkle("edge-ed", upper_every=3, **RATES), random_quadratic(2).problem()
        for method in (protected(lazy, untrusting(2, flow_limit=3.0)), lazy):
            run = db.Simulator().start(problem, method, db.Levels(db.graphs.ring(2)), db.RunConfig())
            with pytest.raises(ValueError, match="has no limit") if method is lazy else nullcontext():
                validate_messages(run.program, run.state, untrusting(2))

    def test_solve_raises(self, tmp_path):
        assert_refused(tmp_path, untrusting(2), random_quadratic(2).single(), db.ed(alpha=0.1), "trust_members = true")

    def test_a_site_alone_has_nobody_to_trust(self):
        protected(db.ed(alpha=0.1), replace(untrusting(2), sites=untrusting(2).sites[:1], edges=()))


def status(folders, name):
    return json.loads((folders.home(name) / "status.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["edge-ed", "wave"])
def test_sites_with_a_limit_equal_the_simulator_and_name_who_is_at_it(tmp_path, name):
    limits, level = {"x": 100.0, "y": 0.8, "z": 100.0}, "y"
    folders, graph = Folders(tmp_path, federation := untrusting(flow_limit=limits)), federation.graph
    options = {"faults": db.faults.drop(0.2, one_way=True), "eval_every": 20, "metrics": []}
    problem = QUADRATIC.problem()
    sites = run_sites(folders, db.sparkle(name, **RATES), 60, [problem] * 4, **options)
    limited = {"edge-ed": db.strategies.edge_ed, "wave": db.strategies.wave}[name](limits)
    expected = db.solve(problem, db.sparkle(limited, **RATES), graph, steps=60, **options)
    for number, site in enumerate(sites):
        np.testing.assert_allclose(site.nodes.x[0], expected.nodes.x[number], atol=1e-10)
    sizes = np.asarray(expected.state.link_memory[0][0][0].per_link.sizes[level])
    homes = {site.name: folders.home(site.name) for site in federation.sites}
    found = largest(homes)
    np.testing.assert_allclose(found[level].size, sizes[..., 1].max(), rtol=1e-9)
    assert found[level].cut and not found["x"].cut and 0 < found["x"].size < 100
    assert any("rehearse without it" in line for line in report(homes, federation))
    at = [
        (one, name)
        for one in homes
        for name, of in status(folders, one)["neighbours"].items()
        if saturated(of["flows"])
    ]
    assert len(at) == (sizes[..., 0] > 0.8).sum() > 0
    one, name = at[0]
    assert saturated(status(folders, one)["neighbours"][name]["flows"]) == " (saturated: y)"
    said = silo_command("status", str(homes[one]))
    assert f"{name} finished (saturated: y)" in " ".join(said.split())


TOML = """
name = "f"
method = "sparkle-edge-ed"
steps = 60
eval_every = 20
edges = [["a", "b"], ["b", "c"], ["c", "a"]]
settings = {upper = "wave", alpha = 0.05, beta = 0.1, gamma = 0.1}
sites = [{name = "a", address = 7401}, {name = "b", address = 7402}, {name = "c"}]
"""
PROBLEM = """
import numpy as np
import decibel as db


def problem():
    upper = lambda x, y, batch: 0.5 * ((y - batch) ** 2).mean() + 0.5 * ((x - batch) ** 2).mean()
    lower = lambda x, y, batch: 0.5 * ((y - x - batch) ** 2).mean()
    data = np.arange(3.0, dtype="f")[:, None] * np.ones((3, 4), "f")
    start = np.zeros((), "f")
    return db.Problem(upper, lower, upper_data=data, lower_data=data, x0=start, y0=start)
"""


@pytest.mark.slow
def test_a_rehearsal_finds_the_limit(tmp_path, monkeypatch):
    """Without one it suggests one, for `"edge-ed"` on y and z and `"wave"` on x; with that one nothing is cut."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    Path("f.toml").write_text(TOML)
    Path("example_problem.py").write_text(PROBLEM)

    rehearse = partial(silo_command, "rehearse", "f.toml", "--problem", "example_problem:problem")
    said = rehearse()
    suggested = tomllib.loads(said[said.index("[flow_limit]") : said.index("Members who collude")])
    assert "any 1: no limit is enough, such as against" in said and "1 of 2 neighbours of" in said
    measured = largest({name: Path("silo-rehearsal", name) for name in "abc"})
    assert set(measured) == set("xyz")
    assert {level: pytest.approx(1.2 * one.size, rel=0.01) for level, one in measured.items()} == suggested[
        "flow_limit"
    ]
    assert all(limit >= 1.2 * measured[level].size for level, limit in suggested["flow_limit"].items())
    x = db.Result.load("silo-rehearsal/a/solution.npz").x
    assert "no limit" in silo_command("init", "f.toml", "--no-passphrase", code=1)
    Path("f.toml").write_text(TOML + said[said.index("[flow_limit]") : said.index("Members who collude")])
    again = rehearse()
    assert "saturated" not in again and "cut" not in again
    np.testing.assert_array_equal(db.Result.load("silo-rehearsal/a/solution.npz").x, x)
    assert "3 sites" in silo_command("init", "f.toml", "--no-passphrase")
