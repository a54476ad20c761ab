"""New editions of the federation file: who takes them, and how saved states go on under them, with real sites."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from silo_sites import Folders, free_ports, ring, run_sites

import decibel as db
from decibel.core._files import atomic_write
from decibel.core._vector import Vector
from decibel.engines._checkpoint import Checkpoints, OtherRunError
from decibel.methods._method import State
from decibel.methods._single_level import SingleLevel
from decibel.network._links import LinkMemory
from decibel.network._wave import WaveLinks
from decibel.silo._errors import NotTrusted, Rejected
from decibel.silo._federation import Federation, Member, StopRule
from decibel.silo.protocol._async_site import AsyncSite
from decibel.silo.protocol._frame_limits import validate_greeting
from decibel.silo.protocol._frames import Build, Hello
from decibel.silo.run._amendment import Placement, changes, migrate, succeed, why_not_exact
from decibel.silo.trust._credentials import Credentials
from decibel.strategies import _table as strategies
from decibel.strategies._table import Level

TARGETS = np.random.default_rng(3).normal(size=(6, 3))
CURVATURES = np.random.default_rng(4).uniform(0.5, 1.5, (6, 3))
FIRST = 60  # steps of the first edition


@pytest.fixture(autouse=True)
def one_save_at_a_time(monkeypatch):
    """Orbax numbers its saves by process, and these sites are threads of one."""
    lock = threading.Lock()
    begin = Checkpoints.__init__
    save = Checkpoints.save

    def begin_alone(self, *arguments, **options):
        with lock:
            begin(self, *arguments, **options)

    def save_alone(self, *arguments):
        with lock:
            save(self, *arguments)
            self._manager.wait_until_finished()

    monkeypatch.setattr(Checkpoints, "__init__", begin_alone)
    monkeypatch.setattr(Checkpoints, "save", save_alone)


def problem():
    def loss(x, batch):
        return 0.5 * (batch["curvature"] * (x - batch["target"]) ** 2).sum(-1).mean()

    def record(node):
        return {"target": TARGETS[node][None], "curvature": CURVATURES[node][None]}

    return db.Problem(loss, upper_data=record, x0=np.zeros(3))


def solution(*nodes):
    members = list(nodes)
    return (CURVATURES[members] * TARGETS[members]).sum(0) / CURVATURES[members].sum(0)


def single(strategy):
    return SingleLevel(0.3, 1.0, strategies.strategy(strategy))


def amended(federation, *, keep=None, come=0, edges=None, warm=False, **changes):
    """The next edition: with those sites by name, and so many new ones; edges by name, or a ring."""
    sites = [site for site in federation.sites if keep is None or site.name in keep]
    ports = free_ports(come)
    number = 1 + max(federation.node_id(position) for position in range(len(federation.sites)))
    sites += [Member(f"site-{number + i}", f"127.0.0.1:{port}") for i, port in enumerate(ports)]
    names = [site.name for site in sites]
    if edges is None:
        numbers = [(i, (i + 1) % len(names)) for i in range(len(names))]
    else:
        numbers = [(names.index(a), names.index(b)) for a, b in edges]
    written = replace(federation, sites=tuple(sites), edges=tuple(numbers), history=(), warm=0, **changes)
    return succeed(federation, written, warm=warm)


def deliver(folders, federation):
    """The new file to every site that stays; folders of those who come."""
    folders.federation = federation
    for site in federation.sites:
        if folders.home(site.name).exists():
            atomic_write(folders.home(site.name) / "federation.json", folders.authority.sign_federation(federation))
        else:
            folders.site(site.name)


def run(folders, strategy, steps, *, every=FIRST):
    count = len(folders.federation.sites)
    return run_sites(
        folders, single(strategy), steps, [problem() for _ in range(count)], metrics=[], eval_every=every,
        checkpoint=lambda name: folders.home(name) / "checkpoints", resume=True,
    )  # fmt: skip


# Who takes what


def test_sites_keep_their_numbers_for_life():
    first = ring(3)
    second = amended(first, keep=("site-0", "site-2"), come=1)
    assert second.edition == 2 and second.history == (first.hash.hex(),)
    assert [(site.name, site.node, site.since) for site in second.sites] == [
        ("site-0", 0, 1), ("site-2", 2, 1), ("site-3", 3, 2),
    ]  # fmt: skip
    third = amended(second, steps=900)
    assert third.history == (first.hash.hex(), second.hash.hex()) and third.sites == second.sites
    assert changes(first, second)[:2] == ["site-3 comes", "site-1 leaves"]
    assert changes(second, third) == ["steps None → 900"]
    assert Federation.from_text(third.text) == third


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [({"name": "other"}, "name changed"), ({"seed": 1}, "seed changed"), ({"steps": 50}, "less than before")],
)
def test_another_run_is_no_new_edition(changed, sentence):
    first = ring(3, steps=60)
    with pytest.raises(ValueError, match=sentence):
        succeed(first, replace(first, **changed), warm=False)


def test_a_site_takes_only_what_follows_the_edition_that_it_has_had(tmp_path):
    first = ring(3)
    second = amended(first, steps=100)
    third = amended(second, steps=200)
    forged = amended(first, steps=300)  # another second edition, of the same authority
    folders = Folders(tmp_path, first)

    def start(federation):
        signed = folders.authority.sign_federation(federation)
        atomic_write(folders.home("site-0") / "federation.json", signed)
        return Credentials.load(folders.home("site-0"), "site-0").federation

    assert start(first) == first
    assert start(third) == third  # one edition was left out
    for old in (first, second):
        with pytest.raises(NotTrusted, match=r"this site has had edition 3: get the newest"):
            start(old)
    assert start(third) == third
    with pytest.raises(NotTrusted, match="which does not follow edition 3"):
        start(amended(amended(forged, steps=400), steps=500))
    remembered = json.loads((folders.home("site-0") / "trust.json").read_text())
    assert remembered["edition"] == 3 and remembered["federation"] == third.hash.hex()


def test_a_removed_site_has_no_place_in_the_new_edition(tmp_path):
    first = ring(3)
    folders = Folders(tmp_path, first)
    signed = folders.authority.sign_federation(amended(first, keep=("site-0", "site-2"), edges=[("site-0", "site-2")]))
    atomic_write(folders.home("site-1") / "federation.json", signed)
    with pytest.raises(ValueError, match="'site-1' is not in federation"):
        Credentials.load(folders.home("site-1"), "site-1")


def test_a_neighbour_with_an_older_edition_is_told_so():
    first = ring(3)
    second = amended(first, steps=100)
    hello = Hello(first.hash, bytes(32), 1, b"", b"", b"", Build())
    with pytest.raises(Rejected, match="site-1 has edition 1 of the federation file, and site-0 has edition 2"):
        validate_greeting(hello, second, bytes(32), "site-1", "site-0")


# What continues


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["edge-ed", "wave"])
def test_flows_continue_with_other_members_and_another_graph(tmp_path, strategy):
    """One in the middle leaves, two come, and two that stay are no longer neighbours."""
    first = ring(4, steps=FIRST)
    folders = Folders(tmp_path, first)
    before = run(folders, strategy, FIRST)
    np.testing.assert_allclose(before[0].nodes.x[0], solution(0, 1, 2, 3), atol=1e-3)
    edges = [
        ("site-0", "site-2"),
        ("site-0", "site-3"),
        ("site-2", "site-4"),
        ("site-3", "site-4"),
        ("site-4", "site-5"),
    ]
    second = amended(first, keep=("site-0", "site-2", "site-3"), come=2, edges=edges, steps=360)
    deliver(folders, second)
    after = run(folders, strategy, 360)
    for result, steps_done in zip(after, (360, 360, 360, 360 - FIRST, 360 - FIRST), strict=True):
        assert result.steps_done == steps_done
        np.testing.assert_allclose(result.nodes.x[0], solution(0, 2, 3, 4, 5), atol=1e-7)
    assert after[3].trace["step"][0] == FIRST  # who came began where the others were


@pytest.mark.slow
def test_sites_without_a_common_clock_continue_from_their_own_states(tmp_path, monkeypatch):
    """One leaves, and one comes and begins at step 0; the others go on from where they were."""
    begin = AsyncSite.begin_step  # which leaves the others time, all being threads of one process
    monkeypatch.setattr(AsyncSite, "begin_step", lambda site, step: (time.sleep(0.003), begin(site, step))[1])
    first = ring(3, steps=FIRST, asynchronous=True)
    folders = Folders(tmp_path, first)
    run(folders, "wave", FIRST)
    steps = 100_000
    second = amended(first, keep=("site-0", "site-2"), come=1, steps=steps, stop=StopRule(1e-10, 0.5))
    deliver(folders, second)
    after = run(folders, "wave", steps, every=5000)
    assert [result.trace["step"][0] for result in after] == [0, 0, 0]
    for result in after:
        assert result.status == "stopped" and FIRST < result.step < steps
        np.testing.assert_allclose(result.nodes.x[0], solution(0, 2, 3), atol=1e-8)


def test_a_site_has_its_place_in_the_graph_and_its_number_for_life(tmp_path):
    """Alone in the second edition, with number 3: what its step size allows without a common clock is looked up."""
    second = amended(ring(3, asynchronous=True), keep=(), come=1, edges=[], steps=20)
    folders = Folders(tmp_path, second)
    (result,) = run(folders, "wave", 20)
    assert result.step == 20
    away = np.abs(TARGETS - np.asarray(result.nodes.x[0])).max(1)
    assert away.argmin() == 3


@pytest.mark.slow
def test_corrections_continue_on_another_graph_of_the_same_members(tmp_path):
    first = ring(4, steps=FIRST)
    folders = Folders(tmp_path, first)
    run(folders, "ed", FIRST)
    edges = [("site-0", "site-2"), ("site-2", "site-1"), ("site-1", "site-3")]
    deliver(folders, amended(first, edges=edges, steps=360))
    for result in run(folders, "ed", 360):
        np.testing.assert_allclose(result.nodes.x[0], solution(0, 1, 2, 3), atol=1e-9)


@pytest.mark.slow
def test_corrections_begin_at_zero_among_other_members_if_the_organiser_says_so(tmp_path):
    first = ring(4, steps=FIRST)
    folders = Folders(tmp_path, first)
    run(folders, "ed", FIRST)
    second = amended(first, keep=("site-0", "site-2", "site-3"), steps=400)
    deliver(folders, second)
    with pytest.raises(OtherRunError, match=r"corrections of ed on level x cancel only over the members.*--warm"):
        run(folders, "ed", 400)
    deliver(folders, amended(second, come=1, warm=True))
    for result in run(folders, "ed", 400):
        np.testing.assert_allclose(result.nodes.x[0], solution(0, 2, 3, 4), atol=1e-8)


@pytest.mark.parametrize("strategy", ["edge-ed", "wave"])
def test_links_keep_what_they_hold_and_new_ones_begin_at_zero(strategy):
    """Slots are by neighbour: b had slot 1 and has slot 0; c is new, and a is gone. A wave's weight has changed."""
    held = jnp.asarray([[[1.0], [2.0]]])
    none = jnp.zeros((1, 2, 1))
    wave = strategy == "wave"

    def state(rows):
        by_link = WaveLinks(rows, (rows != 0).astype(jnp.int32), None, None) if wave else rows
        return State(Level(Vector(jnp.ones((1, 1))), ()), link_memory=(((LinkMemory(by_link),),),))

    def placed(edition, *links):
        return Placement(edition, ("me", *(name for name, _ in links)), (links,))

    before = placed(1, ("a", 0.25), ("b", 0.25))
    for weight in (0.25, 0.3):
        now = placed(2, ("b", weight), ("c", 0.25))
        after = migrate(state(held), state(none), before, now, {}, warm=False).link_memory[0][0][0].per_link
        kept = 0.0 if wave and weight != 0.25 else 2.0
        np.testing.assert_array_equal((after.z if wave else after)[0, :, 0], [kept, 0.0])


def test_a_warm_start_keeps_variables_and_forgets_corrections():
    ed = strategies.strategy("ed")
    saved = State(Level(Vector(jnp.full((1, 2), 3.0)), (Vector(jnp.full((1, 2), 5.0)),)), memory=(jnp.ones(1),))
    place = Placement(1, ("me",), ((),))
    warm = migrate(saved, saved._replace(memory=(jnp.zeros(1),)), place, place, {"x": ed}, warm=True)
    np.testing.assert_array_equal(warm.x.s.tree, 3.0)
    np.testing.assert_array_equal(warm.x.carry[0].tree, 0.0)
    np.testing.assert_array_equal(warm.memory[0], 1.0)


@pytest.mark.parametrize(
    ("strategy", "members", "graph"),
    [("edge-ed", True, True), ("wave", True, True), ("diffusion", True, True), ("local", True, True),
     ("ed", False, True), ("gt", False, True), ("ada-ed", False, True), (db.privacy.quantize("wave", 4), True, True),
     (db.privacy.quantize("ed", 4), False, False)],
)  # fmt: skip
def test_what_continues_exactly(strategy, members, graph):
    used = {"x": strategies.strategy(strategy)}
    assert why_not_exact(used, members_changed=members, graph_changed=graph) == ""


@pytest.mark.parametrize(
    ("strategy", "members"), [("ed", True), ("extra", True), ("gt", True), (db.privacy.quantize("ed", 4), False)]
)
def test_what_does_not_continue_exactly(strategy, members):
    assert why_not_exact({"x": strategies.strategy(strategy)}, members_changed=members, graph_changed=True)
