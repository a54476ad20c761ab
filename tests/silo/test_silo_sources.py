"""A site reads its samples from a source, with the simulator's numbers, and sends nothing computed without them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from silo_sites import Folders, ring, run_sites
from streamed import Failing, Noted, samples

import decibel as db
from decibel.methods._single_level import SingleLevel
from decibel.silo.protocol._edge import Edge
from decibel.strategies import _table as strategies

SITES = 2
TREES = samples((7, 5))
METHOD = SingleLevel(0.05, 1.0, strategies.strategy("ed"))


def loss(x, batch):
    return jnp.mean((batch["a"] @ x - batch["b"]) ** 2)


def problem(data):
    return db.Problem(loss, upper_data=data, x0=jnp.zeros(3))


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["random", pytest.param("shuffle-once", marks=pytest.mark.slow)])
def test_sites_read_what_the_simulator_reads(tmp_path, sampling):
    folders = Folders(tmp_path, ring(SITES))
    opened = [[] for _ in range(SITES)]

    def read(site):
        def of(node):
            opened[site].append(node)
            return Noted(TREES[node])

        return problem(of)

    options = {"batch_size": 3, "metrics": [], "seed": 2, "eval_every": 5, "sampling": sampling}
    sites = run_sites(folders, METHOD, 10, [read(number) for number in range(SITES)], **options)
    if sampling == "random":
        wanted = db.solve(problem(TREES), METHOD, folders.federation.graph, steps=10, **options).nodes.x
    else:  # alone, a node's shuffled order is as long as its samples, in memory as well
        in_memory = run_sites(
            Folders(tmp_path / "memory", ring(SITES)), METHOD, 10, [problem(TREES)] * SITES, **options
        )
        wanted = [site.nodes.x[0] for site in in_memory]
    for number, site in enumerate(sites):
        assert opened[number] == [number]
        np.testing.assert_allclose(site.nodes.x[0], wanted[number], atol=1e-12)


@pytest.mark.slow
def test_a_site_whose_source_fails_stops_before_it_sends(tmp_path, monkeypatch):
    folders = Folders(tmp_path, ring(2))
    read, sent = Failing(TREES[0], 5), []
    send_data = Edge.send_data

    def noted(edge, at, *data):
        if edge.name == "site-1":  # from site 0
            sent.append(at.step)
        return send_data(edge, at, *data)

    monkeypatch.setattr(Edge, "send_data", noted)
    problems = [problem(lambda node: read), problem(TREES[:2])]
    with pytest.raises(OSError, match="the disk is gone"):
        run_sites(folders, METHOD, 20, problems, batch_size=3, metrics=[], eval_every=20)
    assert sorted(set(sent)) == [0, 1, 2, 3]  # the first call is for the first sample; the fifth step's call fails
