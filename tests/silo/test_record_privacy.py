"""A site's records: sums in exact integers with noise of the system, counted before it is drawn, within the budget."""

from __future__ import annotations

import json
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from privacy_attack import DELTAS, least_epsilon
from silo_sites import Folders, free_ports, ring, run_sites

import decibel as db
from decibel.core import _zcdp
from decibel.core._discrete_gaussian import discrete_gaussian
from decibel.core._ledger import Ledger
from decibel.network._noisy import Grid
from decibel.oracles._records import PrivateOracle, RecordNoise, Release
from decibel.silo._errors import BudgetSpent
from decibel.silo._federation import Federation, Member
from decibel.silo.run import _privacy_budget as module
from decibel.silo.run._privacy_budget import Budgets, PrivacyAccountant
from decibel.silo.run._record_noise import integer_sum, noisy_sum

NOISE, CLIP, SAMPLES = 20.0, 0.5, 6
PRIVATE = db.privacy.records(CLIP, NOISE)


def line(x, batch):
    return 0.5 * jnp.mean((batch["a"] @ x - batch["b"]) ** 2)


def lower(x, y, batch):
    return 0.5 * jnp.mean((batch["a"] @ y - batch["b"] * jnp.sum(x)) ** 2) + 0.05 * jnp.sum(y**2)


def upper(x, y, batch):
    return line(x, batch) + line(y, batch)


def samples(nodes, seed=0, entries=3):
    rng = np.random.default_rng(seed)
    return {"a": rng.normal(size=(nodes, SAMPLES, entries)), "b": rng.normal(size=(nodes, SAMPLES))}


def single(nodes, dtype=jnp.float64):
    return db.Problem(line, upper_data=samples(nodes), x0=jnp.zeros(3, dtype))


def bilevel(nodes):
    zero = jnp.zeros(3)
    return db.Problem(upper, lower, upper_data=samples(nodes), lower_data=samples(nodes, 1), x0=zero, y0=zero)


def alone(folder):
    """A federation of one."""
    folders = Folders(folder, Federation("test", (Member("site-0", f"127.0.0.1:{free_ports(1)[0]}"),), ()))
    return folders, folders.home("site-0")


@pytest.mark.slow_except("simultaneous")
@pytest.mark.parametrize("updates", ["simultaneous", "alternating"])
def test_a_record_counts_in_both_levels(tmp_path, updates):
    """One sum over the upper records; over the lower ones ∇_y g and the products, which alternating takes twice."""
    folders, home = alone(tmp_path)
    method = db.sparkle("gt", alpha=0.01, beta=0.1, gamma=0.1, updates=updates)
    engine, graph = db.Silo(home, "site-0"), folders.federation.graph
    db.solve(bilevel(1), method, graph, steps=4, engine=engine, metrics=[], privacy=PRIVATE)
    assert module.read(home).sums == {NOISE: 12 if updates == "simultaneous" else 16}


@pytest.mark.slow
def test_a_record_is_in_one_batch_of_a_pass(tmp_path):
    """Three batches in a pass: seven steps are in the third pass, and a restart begins another."""
    folders, home = alone(tmp_path)
    options = {"batch_size": 2, "sampling": "shuffle-once", "metrics": [], "privacy": PRIVATE}
    budget = db.privacy.epsilon(NOISE, 4)
    for steps, sums, reached in ((7, 3, 7), (2, 4, 2), (5, 4, 0)):
        engine = db.Silo(home, "site-0", record_budget=budget)
        found = db.solve(single(1), db.dsgd(alpha=0.1), folders.federation.graph, steps=steps, engine=engine, **options)
        assert found.step == reached and module.read(home).sums == {NOISE: sums}


@pytest.mark.slow
def test_flows_by_link_need_no_noise_of_their_own(tmp_path):
    """`edge-ed` cannot be wrapped in `noisy`; its directions can be private, with a limit on lies beside."""
    folders = Folders(tmp_path, ring(2, flow_limit=10.0))
    method = db.sparkle("edge-ed", alpha=0.01, beta=0.1, gamma=0.1)
    run_sites(folders, method, 5, [bilevel(2)] * 2, metrics=[], privacy=PRIVATE)
    for name in ("site-0", "site-1"):
        assert module.read(folders.home(name)).sums == {NOISE: 15}


@pytest.mark.slow
def test_the_model_is_that_of_the_simulator_but_for_the_noise(tmp_path):
    """A wide clip and little noise: the same sums, in float32 as well; and the noise is new at every start."""
    for number, dtype in enumerate((jnp.float32, jnp.float64)):
        folders, home = alone(tmp_path / str(number))
        options = {"steps": 20, "metrics": [], "batch_size": 2, "sampling": "shuffle-once"}
        plain = db.solve(single(1, dtype), db.ed(alpha=0.1), folders.federation.graph, **options)
        private = [
            db.solve(single(1, dtype), db.ed(alpha=0.1), folders.federation.graph, engine=db.Silo(home, "site-0"),
                     privacy=db.privacy.records(100.0, 1e-6), **options)
            for _ in range(2)
        ]  # fmt: skip
        for found in private:
            assert found.x.dtype == dtype
            np.testing.assert_allclose(found.x, plain.x, atol=1e-3)
        assert np.abs(private[0].x - private[1].x).min() > 0


def test_a_budget_of_records_needs_noise_for_records(tmp_path):
    folders, home = alone(tmp_path)
    with pytest.raises(ValueError, match=r"record_budget=1 needs solve\(privacy=db\.privacy\.records"):
        db.solve(
            single(1),
            db.ed(alpha=0.1),
            folders.federation.graph,
            steps=1,
            engine=db.Silo(home, "site-0", record_budget=1.0),
        )
    with pytest.raises(ValueError, match="record_budget=-1 must be a positive number: give the largest ε"):
        db.Silo(home, "site-0", record_budget=-1)


class TestCount:
    def test_it_is_written_before_noise_is_drawn(self, tmp_path):
        privacy = PrivacyAccountant(tmp_path, Budgets())
        privacy.charge_release(NOISE, Release(0, 0, CLIP, 1, 0), 0)
        assert module.read(tmp_path).sums == {NOISE: 1}

    def test_nothing_is_drawn_that_cannot_be_written_down(self, tmp_path, monkeypatch):
        privacy = PrivacyAccountant(tmp_path, Budgets())

        def full(number):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(module.os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            privacy.charge_release(NOISE, Release(0, 0, CLIP, 1, 0), 0)
        assert not privacy.sums

    def test_no_sum_beyond_the_budget(self, tmp_path):
        privacy = PrivacyAccountant(tmp_path, Budgets(record=db.privacy.epsilon(NOISE, 2)))
        for k in (0, 1, 2, 3):  # two slots, twice
            privacy.charge_release(NOISE, Release(0, 0, CLIP, 2, 0), k)
        with pytest.raises(BudgetSpent, match="another sum would exceed the records' privacy budget"):
            privacy.charge_release(NOISE, Release(0, 0, CLIP, 2, 0), 4)
        assert module.read(tmp_path).sums == {NOISE: 2}

    def test_a_count_of_both_kinds_is_kept(self, tmp_path):
        privacy = PrivacyAccountant(tmp_path, Budgets(3.0, 2.0, 1e-6))
        privacy.charge_release(NOISE, Release(0, 0, CLIP, 1, 0), 0)
        privacy._charge(40.0, 3)
        spent = module.read(tmp_path)
        assert spent == ({40.0: 3}, {NOISE: 1}, (3.0, 2.0, 1e-6))
        assert PrivacyAccountant(tmp_path, Budgets()).sums == {NOISE: 1}
        (tmp_path / "privacy.json").write_text(json.dumps({"version": 1, "sent": [], "records": [{"noise": 1}]}))
        with pytest.raises(ValueError, match="cannot be read: restore it"):
            PrivacyAccountant(tmp_path, Budgets())

    @pytest.mark.parametrize("first", [0, 1, 17])
    def test_steps_left_are_those_that_fit(self, tmp_path, first):
        """As many as can be charged, step by step."""
        releases = [
            Release(0, 0, CLIP, 3, 0),
            Release(1, 1, CLIP, 4, 1),
            Release(2, 1, CLIP, 4, -7919),
            Release(3, 1, CLIP, 1, 0),
        ]
        for number, budget in enumerate(np.geomspace(0.5, 5, 3)):
            home = tmp_path / str(number)
            home.mkdir()
            privacy = PrivacyAccountant(home, Budgets(record=float(budget)))
            for release in releases:
                privacy.expect_release(NOISE, release)
            left = privacy.steps_left(200, first)
            done = 0
            try:
                for done in range(201):
                    for release in releases:
                        privacy.charge_release(NOISE, release, first + done)
            except BudgetSpent:
                pass
            assert left == done < 200

    def test_epsilon_against_an_accountant(self):
        """One record in three sums of each of 200 steps, replaced: it moves each by 2/noise deviations."""
        accounting = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: pip install it")
        from dp_accounting import pld, rdp

        replace = accounting.NeighboringRelation.REPLACE_ONE
        accountant = rdp.RdpAccountant((1 + np.exp(np.arange(-6, 12, 0.02))).tolist(), replace)
        accountant.compose(accounting.GaussianDpEvent(NOISE / 2), 600)
        exact = pld.privacy_loss_distribution.from_gaussian_mechanism(NOISE / 2 / np.sqrt(600))
        ours = _zcdp.epsilon(_zcdp.rho(NOISE, 600), 1e-5)
        assert exact.get_epsilon_for_delta(1e-5) <= ours <= accountant.get_epsilon(1e-5) <= 1.2 * ours


class TestIntegers:
    @pytest.mark.parametrize("noise", [1e-6, 0.1, 1.0, 50.0, 1e4])
    def test_no_record_is_longer_than_the_limit(self, noise):
        """In exact integers, whatever it is: replacing it moves a sum by at most 2 limits, of `noise` deviations."""
        grid, rng = Grid.fine(0.3, noise), np.random.default_rng(0)
        assert grid.limit * noise <= grid.scale <= 2**26 and grid.step * grid.scale == pytest.approx(0.3 * noise)
        sizes = np.array([1e-300, 1e-30, 1e-3, 0.01, 1.0, 1e30, 1e300])
        rows = np.concatenate(
            [np.outer(sizes, rng.normal(size=40)), np.outer(sizes, np.ones(40)), np.outer(sizes, np.eye(1, 40)[0])]
        )
        bad = np.ones((3, 40))
        bad[:, 7] = np.nan, np.inf, -np.inf
        for row in (*rows, *bad, *np.clip(rows, -1e38, 1e38).astype(np.float32)):
            steps = integer_sum(row[None], grid)
            assert sum(int(step) ** 2 for step in steps) <= grid.limit**2
            assert np.isfinite(row).all() or not steps.any()
        together = np.concatenate([rows, bad])
        np.testing.assert_array_equal(
            integer_sum(together, grid), sum(integer_sum(row[None], grid) for row in together)
        )

    def test_a_norm_that_rounding_made_too_small_is_noticed(self, monkeypatch):
        grid, row = Grid.fine(0.3, 0.1), np.random.default_rng(0).normal(size=(1, 100))
        real = np.sqrt
        monkeypatch.setattr(np, "sqrt", lambda square: real(square) * (1 - 1e-3))
        assert sum(int(step) ** 2 for step in integer_sum(row, grid)) <= grid.limit**2

    def test_short_records_are_hardly_rounded(self):
        rows = 1e-4 * np.random.default_rng(0).normal(size=(50, 650))
        found = noisy_sum(rows, 1.0, 1.0, np.random.default_rng(1).bytes)
        zero = noisy_sum(0 * rows, 1.0, 1.0, np.random.default_rng(1).bytes)
        np.testing.assert_allclose(found - zero, rows.sum(0), atol=50 * 2.0**-26)

    def test_parts_do_not_matter(self, monkeypatch):
        rows, grid = np.random.default_rng(0).normal(size=(50, 30)), Grid.fine(1.0, 1.0)
        whole = integer_sum(rows, grid)
        monkeypatch.setattr("decibel.silo.run._record_noise.PART", 70)
        np.testing.assert_array_equal(integer_sum(rows, grid), whole)


class Kept(RecordNoise):
    """Keeps the samples' vectors that a step hands out."""

    def sum_of_clipped(self, release, rows, used):
        return rows[0]

    def __call__(self, step, release, sums, keys):
        self.rows = np.asarray(sums[0])
        return sums.sum(1)


@cache
def handed_out(dtype):
    """(samples, entries) the vectors that a step hands out, for either data set."""
    found, rng = [], np.random.default_rng(0)
    a, b = rng.normal(size=(1, 20, 50)), rng.normal(size=(1, 20))
    for sign in (1, -1):
        target = b.copy()
        target[0, 3] = sign * 1e3
        data = {"a": a.astype(dtype), "b": target.astype(dtype)}
        made, noise = db.Problem(line, upper_data=data, x0=jnp.zeros(50, dtype)), Kept(PRIVATE)
        oracle = PrivateOracle(made, jnp.arange(1), jax.random.key(0), None, Ledger(), noise=noise)
        _ = oracle.draw().at(db.Vector(jnp.full((1, 50), 0.1, dtype))).fx
        assert noise.rows.dtype == dtype and noise.rows.shape == (20, 50)
        found.append(noise.rows)
    return found


class TestAudit:
    """One record replaced by its opposite, far beyond the clip; the attacker knows all others."""

    CLAIMED = 2.0

    def scores(self, sent, towards, grid):
        """(trials,) what an attacker may look at, by name."""
        steps = np.round(sent / grid.step).astype(np.int64)
        return {
            "likelihood": sent @ towards,
            "odd": (steps & 1).sum(1).astype(float),
            "off the grid": np.abs(sent - steps * grid.step).max(1),
        }

    def audit(self, dtype, trials, sums, noise=CLAIMED):
        """By score, the largest of what is proved above what is claimed for `CLAIMED`, over δ."""
        grid, rng, found = Grid.fine(CLIP, noise), np.random.default_rng(1), []
        one, other = (sums(rows, grid) for rows in handed_out(dtype))
        for total in (one, other):
            drawn = discrete_gaussian(grid.scale, trials * 50, rng.bytes).reshape(trials, 50)
            found.append(self.scores((total + drawn) * grid.step, (one - other) * grid.step, grid))
        claims = {delta: db.privacy.epsilon(self.CLAIMED, 1, delta) for delta in DELTAS}
        proved = {
            name: {delta: least_epsilon(found[0][name], found[1][name], delta) for delta in DELTAS} for name in found[0]
        }
        self.proved = proved
        return {name: max(proved[name][delta] - claims[delta] for delta in DELTAS) for name in proved}

    @pytest.mark.slow_except("float32-2000")
    @pytest.mark.parametrize("trials", [2000, 100_000])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
    def test_no_sum_tells_more_of_a_record_than_is_claimed(self, dtype, trials):
        found = self.audit(dtype, trials, integer_sum)
        assert max(found.values()) <= 0, found
        assert self.proved["likelihood"][1e-2] > 0.3  # the attack does find something

    def test_the_audit_finds_samples_that_are_not_clipped(self):
        whole = lambda rows, grid: np.round(rows.astype(np.float64).sum(0) / grid.step).astype(np.int64)  # noqa: E731
        assert self.audit(np.float64, 2000, whole)["likelihood"] > 0

    def test_the_audit_finds_too_little_noise(self):
        assert self.audit(np.float32, 2000, integer_sum, self.CLAIMED / 3)["likelihood"] > 0

    def test_what_is_sent_is_what_is_audited(self):
        """The same integers and noise, by the function that a silo calls."""
        for dtype in (np.float32, np.float64):
            rows, grid = handed_out(dtype)[0], Grid.fine(CLIP, self.CLAIMED)
            sent = noisy_sum(rows, CLIP, self.CLAIMED, np.random.default_rng(2).bytes)
            noise = discrete_gaussian(grid.scale, 50, np.random.default_rng(2).bytes)
            np.testing.assert_array_equal(sent, (integer_sum(rows, grid) + noise) * grid.step)
