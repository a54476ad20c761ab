"""Exact draws of the discrete Gaussian P(X = x) ∝ exp(−x²/(2σ²)) over the integers, σ = 256 · 2^a.

A draw has a high part h ≥ 0 from a table of σ = 256, a uniform low part w of a bits, and a sign. It is accepted with
probability exp(−w (2 · 2^a h + w)/(2σ²)), the ratio of the probabilities of x = 2^a h + w and of 2^a h; minus zero is
rejected. Both choices compare a uniform number of 64 bits with a number known up to an error bound. Where these bits do
not decide, more bits are drawn and the number is computed to more digits. Draws are exact if the bytes are random.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Callable
from decimal import ROUND_FLOOR, Decimal, localcontext
from functools import lru_cache

import numpy as np

RandomBytes = Callable[[int], bytes]  # returns that many random bytes

TABLE = 256  # σ of the table
NEAR = 1  # the largest error of the table's 64-bit numbers
NEAR_EXP = 2.0**15  # in units of 2^−64, many times the rounding error of exp and of its comparison


def discrete_gaussian(σ: int, count: int, source: RandomBytes = os.urandom) -> np.ndarray:
    """(count,) independent draws, of int64.

    Args:
        σ: 256 times a power of two.
        count: the number of draws.
        source: returns random bytes; by default those of the operating system, which are fit for cryptography.
    """
    low = σ // TABLE
    if low < 1 or low * TABLE != σ or low & (low - 1) or σ > 2**28:
        raise ValueError(f"σ={σ!r} must be 256 times a power of two, and at most 2**28.")
    draws = np.zeros(count, np.int64)
    missing = np.arange(count)
    while missing.size:
        h = _high(missing.size, source)
        w, sign = _low_and_sign(low, missing.size, source)
        accepted = _accepts(w * (2 * low * h + w), 2 * σ**2, source)
        size = low * h + w
        accepted &= (size > 0) | (sign > 0)
        draws[missing[accepted]] = (sign * size)[accepted]
        missing = missing[~accepted]
    return draws


def _high(count: int, source: RandomBytes) -> np.ndarray:
    table = _table()
    u = _words(count, source)
    h = np.searchsorted(table, u, "left")  # table[h − 1] < u ≤ table[h], of which the last is the largest that u can be
    below = np.where(h > 0, u - table[h - 1], np.uint64(2**64 - 1))
    for i in np.flatnonzero(np.minimum(below, table[h] - u) <= NEAR):
        h[i] = _settle(int(u[i]), _cumulative, source)
    return h


def _low_and_sign(low: int, count: int, source: RandomBytes) -> tuple[np.ndarray, np.ndarray]:
    bits = np.frombuffer(source(4 * count), np.uint32).astype(np.int64)
    return (bits >> 1) & (low - 1), 2 * (bits & 1) - 1


def _accepts(numerators: np.ndarray, denominator: int, source: RandomBytes) -> np.ndarray:
    """Each with probability exp(−numerator/denominator); the quotients are exact, being over a power of two."""
    u = _words(len(numerators), source)
    chances = np.exp(-numerators / denominator) * 2.0**64
    margin = chances - u.astype(np.float64)
    accepted = margin > 0
    for i in np.flatnonzero((np.abs(margin) <= NEAR_EXP) & (numerators > 0)):
        n = int(numerators[i])
        accepted[i] = _settle(int(u[i]), lambda bits, n=n: [_exp(n, denominator, bits)], source) == 0
    return accepted | (numerators == 0)


def _settle(u: int, numbers: Callable[[int], list[int]], source: RandomBytes) -> int:
    """How many of the numbers in [0, 1] lie below the number whose first 64 bits are u.

    `numbers(bits)` gives them to one unit of 2^−bits. More bits are drawn until the answer is certain.
    """
    bits = 64
    while True:
        bits += 64
        u = (u << 64) | int.from_bytes(source(8), "little")
        rounded = numbers(bits)
        below = bisect_left(rounded, u - 2)
        if below == bisect_left(rounded, u + 3) and u + 3 < 2**bits:
            return below


def _words(count: int, source: RandomBytes) -> np.ndarray:
    return np.frombuffer(source(8 * count), np.uint64)


@lru_cache(maxsize=1)
def _table() -> np.ndarray:
    return np.asarray(_cumulative(64), np.uint64)


@lru_cache(maxsize=4)
def _cumulative(bits: int) -> list[int]:
    """P(h ≤ j) for j = 0, 1, ... in units of 2^−bits, rounded down and off by one at most; the last are 2^bits − 1."""
    with localcontext(prec=_digits(bits)):
        end = math.ceil(TABLE * math.sqrt(2 * math.log(2) * (bits + 40)))  # beyond, all is below one unit
        weights = [(-Decimal(j * j) / (2 * TABLE**2)).exp() for j in range(end)]
        total = sum(weights)
        so_far = Decimal(0)
        cumulative = []
        for weight in weights:
            so_far += weight
            cumulative.append(min(2**bits - 1, _floor(so_far / total * 2**bits)))
        return cumulative


def _exp(numerator: int, denominator: int, bits: int) -> int:
    """exp(−numerator/denominator) in units of 2^−bits, rounded down and off by one at most."""
    with localcontext(prec=_digits(bits)):
        return _floor((-Decimal(numerator) / denominator).exp() * 2**bits)


def _digits(bits: int) -> int:
    return math.ceil(bits * math.log10(2)) + 30


def _floor(number: Decimal) -> int:
    return int(number.to_integral_value(ROUND_FLOOR))
