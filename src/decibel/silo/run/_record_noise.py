"""Sums over a site's records: clipped and added in exact integers, with noise of the operating system, and counted."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from decibel.core import RandomBytes, discrete_gaussian
from decibel.network import Grid
from decibel.oracles import RecordNoise, Records, Release

from ..protocol._site import Site
from ._host_callback import call_site
from ._privacy_budget import PrivacyAccountant

PART = 2**21  # entries that are put on the grid at a time


class SystemNoise(RecordNoise):
    """Takes the samples' vectors out of the compiled step: noise is drawn from the operating system's randomness."""

    def __init__(self, records: Records, privacy: PrivacyAccountant, site: Site) -> None:
        super().__init__(records)
        self.privacy = privacy
        self.site = site

    def sum_of_clipped(
        self, release: Release, rows: list[Float[Array, "_ entries"]], used: Bool[Array, " parts"]
    ) -> Float[Array, "samples entries"]:
        """Returns the samples as they are: the call below takes them out of the step, where they are clipped and
        summed."""
        (samples,) = rows  # a site's data are laid out for its own node
        return samples

    def __call__(
        self,
        step: Int[Array, ""] | int,
        release: Release,
        sums: Float[Array, "nodes *samples entries"],
        keys: Key[Array, " nodes"],
    ) -> Float[Array, "nodes entries"]:
        self.privacy.expect_release(self.records.noise, release)
        shape = jax.ShapeDtypeStruct((1, sums.shape[-1]), sums.dtype)
        # It takes the step's number, so that the step has begun.
        return call_site(self.site, partial(self._noisy_sum_on_host, release), (shape,), step, sums)[0]

    def _noisy_sum_on_host(
        self, release: Release, out: tuple[np.ndarray, ...], k: np.ndarray, rows: np.ndarray
    ) -> None:
        self.privacy.charge_release(self.records.noise, release, int(k))
        out[0][0] = noisy_sum(rows[0], release.clip, self.records.noise, self.privacy.source)


def noisy_sum(rows: np.ndarray, clip: float, noise: float, source: RandomBytes) -> np.ndarray:
    """(entries,) of float64: the sum of (samples, entries), each clipped, and noise. Exact up to the last product."""
    grid = Grid.fine(clip, noise)
    return (integer_sum(rows, grid) + discrete_gaussian(grid.scale, rows.shape[1], source)) * grid.step


def integer_sum(rows: np.ndarray, grid: Grid) -> np.ndarray:
    """(entries,) of int64: the sum of the rows on the grid, each clipped; one that is not finite counts as zero."""
    total = np.zeros(rows.shape[1], np.int64)
    few = max(1, PART // max(1, rows.shape[1]))
    for start in range(0, len(rows), few):
        total += _integers(rows[start : start + few].astype(np.float64), grid).sum(0)
    return total


def _integers(rows: np.ndarray, grid: Grid) -> np.ndarray:
    """(samples, entries) of int64: each row rounded towards zero, the sum of its squares at most limit²."""
    rows[~np.isfinite(rows).all(1)] = 0
    top = np.abs(rows).max(1, initial=0)
    shape = rows / np.where(top > 0, top, 1)[:, None]
    norm = np.sqrt(np.maximum(np.square(shape).sum(1), 1))  # at least 1, by the entry of `top`
    with np.errstate(over="ignore"):
        factor = np.minimum(top / grid.step, grid.limit / norm)
        less = 2.0**-40
    steps = np.trunc(shape * factor[:, None]).astype(np.int64)
    while (long := np.square(steps).sum(1) > grid.limit**2).any():  # below 2^62, with what rounding adds
        factor = np.where(long, factor * (1 - less), factor)
        less = 2 * less
        steps[long] = np.trunc(shape[long] * factor[long, None]).astype(np.int64)
    return steps
