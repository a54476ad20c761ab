"""What leaves a node, made smaller or made private: strategies whose messages travel in code.

A node and its neighbours hold the same public copy φ̂ of what it has told so far. It sends, in code, what φ̂ lacks of
its message φ; all who hold φ̂ add what arrived, and flows are between public copies. What a code left out (`top_k`,
`random_k`, `quantize`) or cut off (`noisy`) is therefore in the next difference: that is the error feedback. Flows
still cancel over every link, so means over nodes are kept in any code. Every strategy but `"edge-ed"` can be wrapped:

    db.sparkle(db.privacy.top_k("ed", 0.1), alpha=..., beta=..., gamma=...)

A code needs every message to arrive, so it does not go with faults.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
from scipy.optimize import brentq
from scipy.special import log_ndtr

from ..core._vector import Vector
from ..network._codecs import Code, Noisy, Quantized, RandomK, TopK
from ..network._messages import Coded
from ._table import Flows, Strategy, strategy


def top_k(base: str | Strategy, share: float, *, mixing: float = 1.0) -> Strategy:
    """Only the largest entries of every difference travel, that `share` of them: values and places."""
    return _in_code(base, TopK(share=_share(share), mixing=_mixing(mixing)), f"top {share:g}")


def random_k(base: str | Strategy, share: float, *, mixing: float = 1.0) -> Strategy:
    """Entries at random travel, that `share` of them; both ends draw the places, so only values do."""
    return _in_code(base, RandomK(share=_share(share), mixing=_mixing(mixing)), f"random {share:g}")


def quantize(base: str | Strategy, bits: int = 8, *, mixing: float = 1.0) -> Strategy:
    """Every entry travels as an integer of 2, 4 or 8 bits, times the largest of the message."""
    if bits not in (2, 4, 8):
        raise ValueError(f"bits={bits!r} must be 2, 4 or 8.")
    return _in_code(base, Quantized(bits=bits, mixing=_mixing(mixing)), f"{bits} bits")


def noisy(base: str | Strategy, clip: float, noise: float, *, mixing: float = 1.0) -> Strategy:
    """Every difference is cut to the Euclidean norm `clip`, and Gaussian noise of deviation `noise`·`clip` is added to
    every entry. `epsilon` says what that hides."""
    for name, value in (("clip", clip), ("noise", noise)):
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value!r} must be a positive number.")
    code = Noisy(clip=float(clip), noise=float(noise), mixing=_mixing(mixing))
    return _in_code(base, code, f"clip {clip:g} noise {noise:g}")


def epsilon(noise: float, messages: int, delta: float = 1e-5) -> float:
    """ε of (ε, δ)-differential privacy for *all* data of one node together, after it has sent that many messages of
    `noisy(clip, noise)`: one per level, step and vector the strategy sends.

    Whatever the data are, a clipped difference moves by at most 2 clip. Gaussian mechanisms compose exactly (Dong, Roth
    and Su, 2019): together they are one with μ = 2 √messages / noise, for which
    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).
    """
    if messages == 0:
        return 0.0
    _validate_delta(delta)
    μ = 2 * math.sqrt(messages) / noise
    if _log_delta(0.0, μ) <= math.log(delta):
        return 0.0
    high = 1.0
    while _log_delta(high, μ) > math.log(delta):
        high *= 2
    return _root(lambda ε: _log_delta(ε, μ) - math.log(delta), 0.0, high)


def noise_for(ε: float, messages: int, delta: float = 1e-5) -> float:
    """The least `noise` that keeps that many messages within (ε, δ)."""
    if not ε > 0:
        raise ValueError(f"ε={ε!r} must be a positive number.")
    _validate_delta(delta)
    low, high = 1e-9, 1.0
    while epsilon(high, messages, delta) > ε:
        low, high = high, 2 * high
    return _root(lambda noise: epsilon(noise, messages, delta) - ε, low, high)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    found: Any = brentq(function, low, high, xtol=1e-12)
    return float(found)


def _validate_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta!r} must lie between 0 and 1, and be well below 1/samples.")


def _log_delta(ε: float, μ: float) -> float:
    first, second = log_ndtr(μ / 2 - ε / μ), ε + log_ndtr(-μ / 2 - ε / μ)
    return first + math.log1p(-math.exp(second - first)) if second < first else -math.inf


class InCode(eqx.Module):
    """A strategy's move with every message in code."""

    base: Strategy
    code: Code

    def __call__(self, s: Vector, d: Vector, *carry: Vector) -> Flows:
        move, answer = self.base.move(s, d, *carry), None
        while True:
            try:
                message = move.send(answer)
            except StopIteration as end:
                return end.value
            answer = yield Coded(message, self.code)


def _in_code(base: str | Strategy, code: Code, name: str) -> Strategy:
    row = strategy(base)
    if row.per_link or not row.mixes or isinstance(row.move, InCode):
        why = "sends flows, whose sums a code would break" if row.per_link else "sends no message that can be coded"
        raise ValueError(f"strategy {row.name!r} {why}: wrap one such as 'ed', 'gt' or 'diffusion'.")
    return Strategy(
        f"{row.name} ({name})", InCode(row, code), row.carries, row.A, row.B2, row.C,
        requires_spectrum=row.requires_spectrum, coded=True,
    )  # fmt: skip


def _share(share: float) -> float:
    if not (isinstance(share, int | float) and 0 < share <= 1):
        raise ValueError(f"share={share!r} must be a part of the entries, above 0 and at most 1.")
    return float(share)


def _mixing(mixing: float) -> float:
    if not (isinstance(mixing, int | float) and 0 < mixing <= 1):
        raise ValueError(f"mixing={mixing!r} must be above 0 and at most 1.")
    return float(mixing)
