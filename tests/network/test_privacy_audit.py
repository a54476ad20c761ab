"""An audit of `privacy.noisy`: what an attacker learns from one message is no more than ε says, whatever is looked at.

Two data sets push the message to opposite ends of the clip, or one of them leaves it at zero. The attacker knows both
messages without noise and guesses by a score of what was sent; half of the trials choose the threshold, the other half
count. Where a share p of the one and q of the other exceed it, ε ≥ log((p − δ)/q), by the Clopper-Pearson bounds.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from privacy_attack import DELTAS, least_epsilon

import decibel as db
from decibel.core._discrete_gaussian import discrete_gaussian
from decibel.network._noisy import Grid

ENTRIES, CLIP = 650, 0.3


class Pair(NamedTuple):
    """The messages of two data sets without noise."""

    one: np.ndarray
    other: np.ndarray


def pair(opposite):
    v = np.random.default_rng(0).normal(size=ENTRIES).astype(np.float32)
    return Pair(10 * v, -10 * v if opposite else 0 * v)  # far beyond the clip


def released(code, new, dtype, trials, rng):
    """(trials, entries) what neighbours decode, by the function that a silo sends with."""
    rows = np.stack([code.release(new.astype(dtype), rng.bytes) for _ in range(trials)])
    return np.asarray(jax.vmap(lambda row: code.decode(row, None, ENTRIES, dtype))(rows))


def scores(sent, data, grid):
    """(trials,) what an attacker may look at, by name: the likelihood ratio, and the low bits."""
    towards = (grid.integers(data.one) - grid.integers(data.other)) * grid.step
    bits = np.ascontiguousarray(sent).view(f"u{sent.dtype.itemsize}")
    steps = np.round(sent.astype(np.float64) / grid.step).astype(np.int64)
    waves = {size: np.cos(2 * np.pi * np.arange(size) / size).astype(np.float32) for size in (2, 16)}
    alike = lambda known, size: waves[size][(steps - grid.integers(known)) & (size - 1)].sum(1)  # noqa: E731
    return {
        "likelihood": sent.astype(np.float64) @ towards,
        "lowest bit": (bits & 1).sum(1).astype(float),
        "low bits": (bits & 0xFF).sum(1).astype(float),
        "odd": (steps & 1).sum(1).astype(float),
        "modulo 2": alike(data.one, 2) - alike(data.other, 2),
        "modulo 16": alike(data.one, 16) - alike(data.other, 16),
        "off the grid": np.abs(sent - (steps * grid.step).astype(sent.dtype)).max(1).astype(np.float64),
    }


def excess(one, other, noise):
    """The largest of what is proved above what is claimed, over δ."""
    return max(least_epsilon(one, other, delta) - db.privacy.epsilon(noise, 1, delta) for delta in DELTAS)


def audit(noise, data, dtype, trials, send=released, sent_noise=None):
    """By score, what is proved above what is claimed; `sent_noise` is what was really sent."""
    code, rng = db.privacy.noisy("ed", CLIP, sent_noise or noise).flow_form.code, np.random.default_rng(1)
    grid, found = code.grid(ENTRIES), []
    for _ in range(0, trials, 10_000):  # a part at a time, for the memory's sake
        found.append([scores(send(code, new, dtype, min(trials, 10_000), rng), data, grid) for new in data])
    side = lambda name, i: np.concatenate([part[i][name] for part in found])  # noqa: E731
    return {name: excess(side(name, 0), side(name, 1), noise) for name in found[0][0]}


@pytest.mark.slow_except("4.0-True-float64")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("noise", "opposite"), [(100.0, False), (4.0, True), (1.0, True)])
def test_no_message_tells_more_than_is_claimed(dtype, noise, opposite):
    """At ε (δ = 1e-5) of 0.08, 2.2 and 10.7."""
    found = audit(noise, pair(opposite), dtype, 1000 if noise == 4 else 400)
    assert max(found.values()) <= 0, found


@pytest.mark.slow
def test_the_audit_finds_too_little_noise():
    """A third of what is claimed; of half so few trials prove nothing."""
    assert audit(4.0, pair(opposite=True), np.float32, 2000, sent_noise=4.0 / 3)["likelihood"] > 0


def test_the_audit_finds_noise_that_leaves_the_lowest_bit():
    """Even noise is as large as it should be, and hides no parity."""

    def send(code, new, dtype, trials, rng):
        grid = code.grid(ENTRIES)
        noise = discrete_gaussian(grid.scale, trials * ENTRIES, rng.bytes).reshape(-1, ENTRIES) // 2 * 2
        return (grid.integers(new) + noise).astype(dtype) * np.asarray(grid.step, dtype)

    found = audit(4.0, pair(opposite=False), np.float32, 400, send)
    assert found["likelihood"] <= 0 < min(found["odd"], found["modulo 2"])


@pytest.mark.slow
def test_no_message_tells_more_than_is_claimed_in_many_trials():
    """10⁵ of each data set, which also find half the noise. The difference is put on the grid once, being the same."""

    def in_bulk(code, new, dtype, trials, rng):
        grid = code.grid(ENTRIES)
        noise = discrete_gaussian(grid.scale, trials * ENTRIES, rng.bytes).reshape(-1, ENTRIES)
        return (grid.integers(new.astype(dtype)) + noise).astype(dtype) * np.asarray(grid.step, dtype)

    found = audit(4.0, pair(opposite=True), np.float32, 100_000, in_bulk)
    assert max(found.values()) <= 0, found
    assert audit(4.0, pair(opposite=True), np.float32, 10_000, in_bulk, sent_noise=2.0)["likelihood"] > 0


@pytest.mark.slow
def test_the_audit_finds_noise_in_floats():
    """Normal numbers in float32 have few values, and the sum with another number is mostly none of them."""

    def send(code, new, dtype, trials, rng):
        clipped = new * min(1.0, CLIP / max(float(np.linalg.norm(new)), 1e-30))
        keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), trials)
        chance = jax.vmap(lambda key: jax.random.normal(key, (ENTRIES,), jnp.float32))(keys)
        return np.asarray(clipped.astype(np.float32) + chance * np.float32(100.0 * CLIP))

    rng = np.random.default_rng(3)
    u = np.arange(2**23, dtype=np.float32) / np.float32(2**23)
    low = np.nextafter(np.float32(-1), np.float32(0))
    u = np.maximum(low, u * (np.float32(1) - low) + low)
    values = np.sort(np.asarray(np.float32(np.sqrt(2)) * jax.lax.erf_inv(jnp.asarray(u))) * np.float32(100.0 * CLIP))
    known = lambda sent: (values[np.minimum(np.searchsorted(values, sent), 2**23 - 1)] == sent).mean(1)  # noqa: E731
    one, other = (known(send(None, new, np.float32, 400, rng)) for new in pair(opposite=False))
    assert excess(one, other, 100.0) > 2 and other.min() > one.max()


class TestGrid:
    @pytest.mark.parametrize(
        ("noise", "entries"), [(1e-6, 7), (0.1, 650), (1.0, 1), (1.0, 20_000), (50.0, 7), (1e4, 650)]
    )
    def test_no_difference_is_longer_than_the_limit(self, noise, entries):
        """In exact integers, whatever comes: the sensitivity is 2 limit, and the noise at least `noise` limits."""
        grid, rng = Grid.of(0.3, noise, entries), np.random.default_rng(entries)
        assert grid.limit * noise <= grid.scale and grid.step * grid.scale == pytest.approx(0.3 * noise)
        for size in (1e-300, 1e-30, 1e-3, 0.3 / np.sqrt(entries), 1.0, 1e30, 1e300):
            for new in (size * rng.normal(size=entries), np.full(entries, size), size * np.eye(1, entries)[0]):
                steps = grid.integers(new)
                assert sum(int(step) ** 2 for step in steps) <= grid.limit**2
                assert (steps * np.sign(new) >= 0).all() and np.abs(steps).max() + 12 * grid.scale < 2**31
        short = 0.2 * np.full(entries, 1 / np.sqrt(entries))
        np.testing.assert_allclose(grid.integers(short) * grid.step, short, atol=grid.step * 1.001)

    def test_a_norm_that_rounding_made_too_small_is_noticed(self, monkeypatch):
        """What decides is the sum of the integers' squares."""
        short = SimpleNamespace(**{**vars(math), "sqrt": lambda square: math.sqrt(square) * (1 - 1e-3)})
        grid, new = Grid.of(0.3, 0.001, 100), np.random.default_rng(0).normal(size=100)
        monkeypatch.setattr("decibel.network._noisy.math", short)
        steps = grid.integers(new)
        assert 0.99 * grid.limit**2 < sum(int(step) ** 2 for step in steps) <= grid.limit**2

    def test_the_dtype_changes_nothing(self):
        """Of the same numbers, the same bytes."""
        code, new = (
            db.privacy.noisy("ed", 1.0, 2.0).flow_form.code,
            np.random.default_rng(0).normal(size=650).astype("f"),
        )
        sent = [code.release(new.astype(dtype), np.random.default_rng(1).bytes) for dtype in ("f4", "f8")]
        np.testing.assert_array_equal(*sent)
        assert sent[0].dtype == np.uint8 and sent[0].size == code.bytes(650, np.float32) == code.bytes(650, np.float64)

    def test_the_simulator_sends_the_same_up_to_the_noise(self):
        code, new = db.privacy.noisy("ed", 1.0, 0.01).flow_form.code, np.random.default_rng(0).normal(size=650)
        grid = code.grid(650)
        secrets = jax.random.split(jax.random.key(0), 500)
        encode = jax.jit(jax.vmap(lambda secret: code.encode(jnp.asarray(new), secret, secret)))
        sent = np.asarray(encode(secrets)).reshape(500, -1).view(np.int32)
        error = (sent - grid.integers(new)) / grid.scale
        assert abs(error.std() - 1) < 0.01 and np.abs(error.mean(0)).max() < 5 / np.sqrt(500)

    def test_what_is_not_finite_arrives_as_such(self):
        code = db.privacy.noisy("ed", 1.0, 1.0).flow_form.code

        @jax.jit
        def arrives(new):
            row = code.encode(new, jax.random.key(0), jax.random.key(1))
            return code.decode(row, jax.random.key(0), 5, jnp.float64)

        for bad in (np.nan, np.inf):
            assert np.isnan(arrives(np.array([1.0, 1.0, bad, 1.0, 1.0]))).all()
