"""Whole silos on a virtual clock, network and disk (`simulation`): what must hold under every schedule, and planted
bugs that are found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from simulation import Schedule, World
from simulation.node import ALPHA, ENTRIES, Peers, Problem, undisturbed
from simulation.planted import BUGS, planted
from simulation.schedule import KINDS, PEER_KINDS

import decibel as db
from decibel.core import _files as files
from decibel.methods._single_level import SingleLevel
from decibel.network._incidence import slots_of_node
from decibel.strategies import strategy

TESTS = Path(__file__).parents[1]
RING = tuple(tuple(sorted(((i - 1) % 4, (i + 1) % 4))) for i in range(4))


def run(seed, kind=None, *, one_peer=False):
    world = World(Schedule.of(seed, kind, one_peer=one_peer))
    world.run()
    return world


@pytest.mark.parametrize("lossy", [True, False])
def test_a_simulated_node_is_the_products(lossy):
    """Exact Diffusion on a ring, in NumPy and by the library."""
    data = Problem.of(4, 1)
    problem = data.of_library()
    method = SingleLevel(ALPHA, 1.0, strategy("edge-ed" if lossy else "ed"))
    graph = db.graphs.ring(4)
    expected = db.solve(problem, method, graph, steps=25, metrics=[], engine=db.Simulator(), progress=False)
    states = undisturbed(RING, 1, lossy, 25)
    found = np.stack([np.frombuffer(state)[:ENTRIES] for state in states])
    np.testing.assert_allclose(found, expected.nodes.x, rtol=0, atol=1e-12)
    assert tuple(slots_of_node(graph, 1).neighbours) == RING[1]


def test_a_simulated_node_with_one_peer_a_step_is_the_products():
    """Damped Exact Diffusion on matchings of a ring, in the order that the simulation draws."""
    data, peers = Problem.of(4, 1), Peers.of(3, [(0, 1), (1, 2), (2, 3), (0, 3)])
    assert len(peers.phases) == 2
    phases = []
    for step in range(25):
        W = np.eye(4)
        for a, b in peers.phases[peers.phase(step, 0)]:
            W[np.ix_([a, b], [a, b])] = 0.5
        phases.append(db.graphs.from_matrix(W, disconnected=True))
    problem = data.of_library()
    method = SingleLevel(ALPHA, 1.0, db.strategies.ed(damping=peers.damping))
    expected = db.solve(problem, method, db.graphs.cycle(*phases), steps=25, metrics=[], progress=False)
    states = undisturbed(RING, 1, False, 25, peers)
    found = np.stack([np.frombuffer(state)[:ENTRIES] for state in states])
    np.testing.assert_allclose(found, expected.nodes.x, rtol=0, atol=1e-12)


@pytest.mark.slow_except("calm", "storm")
@pytest.mark.parametrize("kind", PEER_KINDS)
def test_what_must_hold_holds_with_one_peer_a_step(kind):
    for seed in range(4):
        run(seed, kind, one_peer=True)


@pytest.mark.slow
def test_what_must_hold_holds_with_one_peer_a_step_under_many_schedules():
    for seed in range(100):
        run(seed, one_peer=True)


@pytest.mark.slow_except(*(kind for kind in KINDS if kind != "orbax"))
@pytest.mark.parametrize("kind", KINDS)
def test_what_must_hold_holds(kind):
    run(0, kind)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_what_must_hold_holds_under_five_hundred_schedules(part):
    for seed in range(100 * part, 100 * (part + 1)):
        run(seed)


@pytest.mark.parametrize("kind", ["storm", pytest.param("orbax", marks=pytest.mark.slow)])
def test_a_seed_replays_exactly(kind):
    digests = [run(seed, kind).digest for seed in (3, 4, 3)]
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.slow
def test_a_seed_replays_exactly_in_another_process():
    code = "from simulation import *; w = World(Schedule.of(3, 'storm')); w.run(); print(w.digest)"
    found = []
    for hashes in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hashes, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
        found.append(subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).strip())
    assert found == [str(run(3, "storm").digest)] * 2


def test_calls_of_the_system_are_put_back():
    run(0, "calm")
    assert files.os is os


@pytest.mark.slow_except(
    "a_vector_goes_over_a_link_that_rests",
    "keeps_and_restore_are_swapped",
    "names_are_not_synced",
    "what_was_lost_is_not_sent_again",
)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name):
    bug = BUGS[name]
    for seed in bug.seeds:
        try:
            with planted(name):
                run(seed, bug.kind, one_peer=bug.one_peer)
        except Exception:  # what the monitor says, or the site's own error
            run(seed, bug.kind, one_peer=bug.one_peer)  # and nothing but the bug is found
            return
    pytest.fail("no schedule found it")


def test_the_page_names_bugs_as_they_are():
    protocol = (TESTS.parent / "docs" / "reference" / "silo-protocol.md").read_text()
    page = protocol.split("## Simulated")[1].split("\n## ")[0]
    named = re.findall(r"^\| `(\w+)`[^|]*\| ([\w-]+) \|", page, re.MULTILINE)
    assert len(named) >= 10 and all(BUGS[name].kind == kind for name, kind in named)
    assert f"{len(BUGS)} bugs are planted" in page
