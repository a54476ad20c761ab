"""Draws of the discrete Gaussian: their distribution, also where 64 bits do not settle them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from decibel.core import _discrete_gaussian as module
from decibel.core._discrete_gaussian import discrete_gaussian


def bytes_by(seed):
    return np.random.default_rng(seed).bytes


@pytest.fixture
def small_table(monkeypatch):
    """σ of the table is 2, so that every integer is drawn often, and many draws are not accepted."""
    monkeypatch.setattr(module, "TABLE", 2)
    _forget()
    yield
    monkeypatch.undo()
    _forget()


def _forget():
    module._table.cache_clear()
    module._cumulative.cache_clear()


def p_value(draws, σ, bins):
    """Against the mass function, in bins of integers."""
    x = np.arange(-20 * σ, 20 * σ + 1)
    mass = np.exp(-(x.astype(float) ** 2) / (2 * σ**2))
    cell = np.clip(x // bins, -3 * σ // bins, 3 * σ // bins)
    first = cell.min()
    expected = np.bincount(cell - first, mass / mass.sum()) * len(draws)
    found = np.bincount(np.clip(draws // bins, -3 * σ // bins, 3 * σ // bins) - first, minlength=len(expected))
    return chisquare(found, expected).pvalue


@pytest.mark.parametrize(("σ", "bins"), [(256, 16), (2**12, 256), (2**16, 2**12)])
def test_draws_are_distributed_as_they_should_be(σ, bins):
    draws = discrete_gaussian(σ, 200_000, bytes_by(σ))
    assert draws.dtype == np.int64 and p_value(draws, σ, bins) > 1e-3
    assert chisquare(np.bincount(draws % 8)).pvalue > 1e-3  # the lowest bits are fair at such σ


@pytest.mark.parametrize("σ", [2, 4, 16])
def test_every_integer_has_its_mass(small_table, σ):
    assert p_value(discrete_gaussian(σ, 400_000, bytes_by(1)), σ, 1) > 1e-3


@pytest.mark.parametrize("near", ["NEAR", "NEAR_EXP"])
def test_what_64_bits_leave_open_is_settled_by_more(small_table, monkeypatch, near):
    """A quarter of all comparisons count as open here; elsewhere less than one in 2^45."""
    settled, settle = [], module._settle
    monkeypatch.setattr(module, near, 2**61 if near == "NEAR" else 2.0**61)
    monkeypatch.setattr(module, "_settle", lambda *given: settled.append(settle(*given)) or settled[-1])
    draws = discrete_gaussian(8, 20_000, bytes_by(2))
    assert len(settled) > 2_000 and p_value(draws, 8, 1) > 1e-3


def test_the_table_is_the_sum_of_exponentials():
    weights = np.exp(-(np.arange(4000.0) ** 2) / (2 * 256**2))
    table = module._table().astype(float) / 2.0**64
    np.testing.assert_allclose(table, (np.cumsum(weights) / weights.sum())[: len(table)], rtol=1e-12)
    assert module._table()[-1] == 2**64 - 1 and module._cumulative(128)[300] >> 64 == int(module._table()[300])


def test_the_machine_gives_other_draws_every_time():
    assert (discrete_gaussian(256, 1000) != discrete_gaussian(256, 1000)).mean() > 0.9


@pytest.mark.parametrize("σ", [0, 100, 768, 2**29])
def test_raises_in_a_sentence(σ):
    with pytest.raises(ValueError, match=f"σ={σ} must be 256 times a power of two"):
        discrete_gaussian(σ, 1)
