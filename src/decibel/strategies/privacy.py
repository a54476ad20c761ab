"""Compressed and differentially private messages, as strategies that wrap others.

A node and its neighbours hold the same public copy φ̂ of what it has sent so far. The node sends the encoded difference
of its message φ from φ̂, everyone adds the decoded difference to φ̂, and flows are between public copies. What an
encoding leaves out (`top_k`, `random_k`, `quantize`) or clips (`noisy`) is part of the next difference: this is error
feedback. Flows still cancel over every link, so means over nodes are preserved. Every strategy except `"edge-ed"` and
`"local"` can be wrapped:

    db.sparkle(db.privacy.top_k("ed", 0.1), alpha=..., beta=..., gamma=...)

Encoded messages must all arrive, so they cannot be combined with faults. `mixing` multiplies the flows; it is the
consensus step size of CHOCO-SGD.
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
from ._table import Flows, Strategy, direction_and_rate, strategy

__all__ = ["epsilon", "noise_for", "noisy", "quantize", "random_k", "top_k"]


def top_k(base: str | Strategy, share: float, *, mixing: float = 1.0) -> Strategy:
    """Sends only the largest entries of each difference, with their positions.

    Args:
        base: the strategy to wrap, by name or as a `Strategy`.
        share: the share of entries sent, above 0 and at most 1.
        mixing: factor of the flows, above 0 and at most 1.
    """
    return _in_code(base, TopK(share=_share(share), mixing=_mixing(mixing)), f"top {share:g}")


def random_k(base: str | Strategy, share: float, *, mixing: float = 1.0) -> Strategy:
    """Sends random entries of each difference; both ends draw the positions, so only values are sent.

    Args:
        base: the strategy to wrap, by name or as a `Strategy`.
        share: the share of entries sent, above 0 and at most 1.
        mixing: factor of the flows, above 0 and at most 1.
    """
    return _in_code(base, RandomK(share=_share(share), mixing=_mixing(mixing)), f"random {share:g}")


def quantize(base: str | Strategy, bits: int = 8, *, mixing: float = 1.0) -> Strategy:
    """Sends every entry of each difference as an integer, scaled by the largest entry of the message.

    Args:
        base: the strategy to wrap, by name or as a `Strategy`.
        bits: per entry: 2, 4 or 8.
        mixing: factor of the flows, above 0 and at most 1.
    """
    if bits not in (2, 4, 8):
        raise ValueError(f"bits={bits!r} must be 2, 4 or 8.")
    return _in_code(base, Quantized(bits=bits, mixing=_mixing(mixing)), f"{bits} bits")


def noisy(base: str | Strategy, clip: float, noise: float, *, mixing: float = 1.0) -> Strategy:
    """Clips each difference and adds Gaussian noise to it; `epsilon` gives the differential privacy.

    Args:
        base: the strategy to wrap, by name or as a `Strategy`.
        clip: the largest Euclidean norm of a difference.
        noise: the standard deviation of the noise on each entry, divided by `clip`.
        mixing: factor of the flows, above 0 and at most 1.
    """
    for name, value in (("clip", clip), ("noise", noise)):
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value!r} must be a positive number.")
    code = Noisy(clip=float(clip), noise=float(noise), mixing=_mixing(mixing))
    return _in_code(base, code, f"clip {clip:g} noise {noise:g}")


def epsilon(noise: float, messages: int, delta: float = 1e-5) -> float:
    """ε of the (ε, δ)-differential privacy of one node's whole data, after it sent messages with `noisy`.

    Whatever the data, a clipped difference changes by at most 2 `clip`. Gaussian mechanisms compose exactly: together
    they are one with μ = 2 √messages / noise, for which δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), Φ the standard normal
    distribution function.

    Args:
        noise: of `noisy`.
        messages: sent in all: one per level, step and vector that the strategy sends.
        delta: δ.

    References:
        Dong, Roth and Su, Gaussian Differential Privacy, 2019.
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
    """The smallest `noise` for which that many messages are (ε, δ)-differentially private.

    Args:
        ε: the privacy budget.
        messages: sent in all: one per level, step and vector that the strategy sends.
        delta: δ.
    """
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
    adapts = row.move is direction_and_rate
    if row.needs_links or not row.mixes or adapts:
        reasons = {
            "is encoded already": row.coded,
            "sends cumulative flows, which cannot be encoded": row.per_link,
            "sends scaled differences, which cannot be encoded": row.pairwise,
            "makes steps of its own, which cannot be wrapped": adapts,
        }
        why = next((reason for reason, holds in reasons.items() if holds), "sends no message that can be encoded")
        raise ValueError(f"strategy {row.name!r} {why}: wrap one such as 'ed', 'gt' or 'diffusion'.")
    return Strategy(
        f"{row.name} ({name})", InCode(row, code), row.carries, row.A, row.B2, row.C,
        requires_spectrum=row.requires_spectrum, coded=True, local_steps=row.local_steps,
    )  # fmt: skip


def _share(share: float) -> float:
    if not (isinstance(share, int | float) and 0 < share <= 1):
        raise ValueError(f"share={share!r} must be the share of entries to send, above 0 and at most 1.")
    return float(share)


def _mixing(mixing: float) -> float:
    if not (isinstance(mixing, int | float) and 0 < mixing <= 1):
        raise ValueError(f"mixing={mixing!r} must be above 0 and at most 1.")
    return float(mixing)
