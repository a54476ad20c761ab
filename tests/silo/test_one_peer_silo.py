"""Sites on graphs that change: vectors go to the peer of the step and to nobody else, and all keep step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import silo_sites
from quadratics import random_quadratic
from silo_ends import EPOCH, STEP, Manual
from silo_messages import message
from silo_sites import Folders, assert_refused, ring, run_sites
from test_protocol import bring_to

import decibel as db
from decibel.methods._single_level import SingleLevel
from decibel.silo.protocol import _lockstep_site as lockstep
from decibel.silo.protocol._frames import Data, Position
from decibel.strategies import strategy

FOUR = random_quadratic(4, seed=1, spread=2.0)
RING = db.graphs.matchings(db.graphs.ring(4))
assert_simulated = partial(silo_sites.assert_simulated, tolerance=1e-12)


def with_links_of(graph):
    """A federation whose file has the links of all phases of a graph."""
    edges = {tuple(edge) for phase in graph.phases for edge in phase.edges.tolist()}
    return replace(ring(graph.nodes), edges=tuple(sorted(edges)))


def sparkle(name="ed", **options):
    return db.sparkle(name, alpha=0.03, beta=0.1, gamma=0.1, **options)


def single(name):
    return SingleLevel(0.1, 1.0, strategy(name))


def sent_bytes(monkeypatch):
    """Bytes of the tensors that all sites send, by step; filled as they send."""
    sent = Counter()
    write = lockstep.write_data

    def counting(epoch, at, row):
        sent[at.step] += row.nbytes
        return write(epoch, at, row)

    monkeypatch.setattr(lockstep, "write_data", counting)
    return sent


@pytest.mark.slow
def test_sites_with_one_peer_a_step_equal_the_simulator(tmp_path, monkeypatch):
    """One pair of three sites is drawn in each step, and sends two vectors; some pairs are lost by `faults`."""
    problem, method, steps = random_quadratic(3).single(), single("ed"), 12
    graph = db.graphs.random_matchings(3)
    folders = Folders(tmp_path, with_links_of(graph))
    sent = sent_bytes(monkeypatch)
    options = {"faults": db.faults.drop(0.3), "seed": 5}
    sites = run_sites(folders, method, steps, [problem] * 3, graph=graph, metrics=[], **options)
    expected = assert_simulated(sites, problem, method, graph, steps, **options)
    vector = problem.x0.nbytes
    assert sent == dict.fromkeys(range(steps), 2 * vector)
    assert expected.trace["bytes"][-1] == pytest.approx(steps * 2 / 3 * vector)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "method"),
    [
        (db.graphs.one_peer_hypercube(4, order="random"), sparkle(updates="simultaneous")),
        (RING, sparkle()),
        (RING, sparkle(upper_every=3)),
        (db.Levels(RING, db.graphs.ring(4)), sparkle()),
        (db.Levels(db.graphs.one_peer_hypercube(4), db.graphs.random_matchings(4)), sparkle("gt")),
        (RING, sparkle(db.privacy.quantize("ed", 4))),
        (db.graphs.random_matchings(3), sparkle()),
        (db.Levels(db.graphs.path(4), db.graphs.ring(4)), sparkle("edge-ed")),
    ],
    ids=["hypercube", "matchings", "lazy upper level", "one level", "two sequences", "in 4 bits", "one rests", "fixed"],
)
def test_on_all_levels(tmp_path, graph, method):
    levels = graph if isinstance(graph, db.Levels) else db.Levels(graph)
    phases = [phase for one in levels.distinct()[0] for phase in one.phases]
    folders = Folders(tmp_path, with_links_of(db.graphs.cycle(*phases)))
    problem = random_quadratic(levels.nodes, seed=1, spread=2.0).problem()
    sites = run_sites(folders, method, 12, [problem] * levels.nodes, graph=graph, eval_every=6)
    assert_simulated(sites, problem, method, graph, 12, "xyz")


def test_asynchronous_sites_raise(tmp_path):
    federation = replace(with_links_of(RING), asynchronous=True)
    sentence = "changes with the step, and asynchronous sites have no common steps"
    assert_refused(tmp_path, federation, FOUR.single(), db.ed(alpha=0.1), sentence, graph=RING)


def test_all_links_of_all_phases_must_be_in_the_federation_file(tmp_path):
    sentence = r"has an edge .* that the federation file does not have"
    graph = db.graphs.random_matchings(4)
    assert_refused(tmp_path, ring(4), FOUR.single(), db.ed(alpha=0.1), sentence, graph=graph)


class TestALinkThatRests:
    def exchanged(self, kind, tensor, *, rests, lossy=True):
        """A site whose neighbour has sent this tensor, after an exchange in which their link rests, or not."""
        end = bring_to("talking", kind)
        end.site.expect_empty(np.float64)
        end.site.tolerates_loss = lossy
        end.site._position = Position(STEP, 0)
        end.deliver(message(STEP, 1, epoch=EPOCH, tensor=tensor))
        assert end.edge.stream is not None
        other = end.edge.number
        out = np.full((1, 3), 7.0), np.ones(1, bool), np.zeros(1, np.int32)
        end.site.exchange((-1 if rests else other,), np.arange(3.0), None, out, resting=(other,) if rests else ())
        return end, out

    def test_has_an_empty_frame_both_ways(self):
        end, (rows, arrived, _) = self.exchanged("dials", np.zeros(0), rests=True)
        (said,) = (frame for frame in end.sent() if isinstance(frame, Data))
        assert said.at == Position(STEP, 1) and said.tensor.size == 0
        assert not arrived.any() and not rows.any() and not end.edge.invalid_row

    def test_a_method_that_needs_every_message_ends_without_its_vector_but_not_by_one_too_many(self):
        end, _ = self.exchanged("dials", np.ones(3), rests=True, lossy=False)
        assert end.site.error is None
        with pytest.raises(RuntimeError, match="no message was received from site-0 in step 10"):
            self.exchanged("dials", np.zeros(0), rests=False, lossy=False)

    def test_is_waited_for(self):
        """A neighbour that says nothing is missed also where no vector is due."""
        end = bring_to("talking", "dials")
        end.site.tolerates_loss = False
        end.site._position = Position(STEP, 0)
        out = np.zeros((1, 3)), np.zeros(1, bool), np.zeros(1, np.int32)
        assert isinstance(end.clock, Manual)
        with pytest.raises(RuntimeError, match="site-0 sent no message for 5 seconds"):
            end.site.exchange((-1,), np.arange(3.0), None, out, resting=(0,))

    def test_of_a_fixed_graph_there_is_none(self):
        end = bring_to("talking", "dials")
        end.deliver(message(STEP, 1, epoch=EPOCH, tensor=np.zeros(0)))
        assert end.edge.rejected == 1 and "which no exchange sends" in end.said[-1]
