"""Compressed and differentially private messages, as strategies that wrap others; and private records.

A node and its neighbours hold the same public copy φ̂ of what it has sent so far. The node sends the encoded difference
of its message φ from φ̂, everyone adds the decoded difference to φ̂, and flows are between public copies. What an
encoding leaves out (`top_k`, `random_k`, `quantize`) or clips (`noisy`) is part of the next difference: this is error
feedback. Flows still cancel over every link, so means over nodes are preserved. Every strategy except `"edge-ed"` and
`"local"` can be wrapped:

    db.sparkle(db.privacy.top_k("ed", 0.1), alpha=..., beta=..., gamma=...)

Such messages must all arrive, so they cannot be combined with faults. `mixing` multiplies the flows; it is the
consensus step size of CHOCO-SGD. The codes of `"wave"` survive loss: both ends of a link agree on the base of a
difference by acknowledgements, so messages may be lost, late or reordered. There `mixing` multiplies the weight ½ of a
new message. `noisy` cannot wrap `"wave"`.

`records` is not a strategy: it hides single records in the directions that a strategy receives (`solve(privacy=...)`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import equinox as eqx
import numpy as np

from ..core import _zcdp
from ..core._numbers import is_number, validate_delta, validate_positive
from ..core._vector import Vector
from ..network._codecs import Code, Quantized, RandomK, TopK
from ..network._coded_wave import CodedWave
from ..network._communicator import Move
from ..network._messages import Coded
from ..network._noisy import Noisy
from ..oracles._records import Records
from ._limited import LimitedStrategy, with_limit
from ._table import Strategy, identity, no_flow_form, strategy, wave

__all__ = ["epsilon", "noise_for", "noisy", "quantize", "random_k", "records", "top_k", "total_epsilon"]

NOISE = "give the deviation of the noise on an entry, divided by clip"
LEAST_NOISE = 1e-6  # its integers fit into 32 bits


def top_k(base: str | Strategy, share: float, *, mixing: float = 1.0) -> Strategy:
    """Sends only the largest entries of each difference, with their positions.

    Args:
        base: the strategy to wrap, by name or as a `Strategy`.
        share: the share of entries sent, above 0 and at most 1.
        mixing: factor of the flows, above 0 and at most 1.
    """
    return _encoded(base, TopK(share=_share(share), mixing=_mixing(mixing)), f"top {share:g}")


def random_k(base: str | Strategy, share: float, *, mixing: float = 1.0) -> Strategy:
    """Sends random entries of each difference. Both ends draw the same positions, so only values are sent.

    Args:
        base: the strategy to wrap, by name or as a `Strategy`.
        share: the share of entries sent, above 0 and at most 1.
        mixing: factor of the flows, above 0 and at most 1.
    """
    return _encoded(base, RandomK(share=_share(share), mixing=_mixing(mixing)), f"random {share:g}")


def quantize(base: str | Strategy, bits: int = 8, *, mixing: float = 1.0) -> Strategy:
    """Sends every entry of each difference as an integer, scaled by the largest entry of the message.

    Args:
        base: the strategy to wrap, by name or as a `Strategy`.
        bits: per entry: 2, 4 or 8.
        mixing: factor of the flows, above 0 and at most 1.
    """
    if bits not in (2, 4, 8):
        raise ValueError(f"bits={bits!r} must be 2, 4 or 8.")
    return _encoded(base, Quantized(bits=bits, mixing=_mixing(mixing)), f"{bits} bits")


def noisy(base: str | Strategy, clip: float, noise: float, *, mixing: float = 1.0) -> Strategy:
    """Clips each difference and adds discrete Gaussian noise to it; `epsilon` gives the differential privacy.

    A difference is clipped to the norm `clip`. It is rounded towards zero to integers times a step of at most `noise` ·
    `clip`/256, so its norm does not grow. Then integer noise is added (Canonne, Kamath and Steinke, 2020). Only
    integers are sent, so no low bits of floats reveal anything. A silo (`db.Silo`) does all this in exact integers,
    with the operating system's randomness, and counts every message. The simulator and the cluster draw normal numbers
    from the run's seed, which anyone can repeat: they show what the noise costs, and protect nothing.

    Args:
        base: the strategy to wrap, by name or as a `Strategy`.
        clip: the largest Euclidean norm of a difference.
        noise: the standard deviation of the noise on each entry, divided by `clip`; at least 1e-6.
        mixing: factor of the flows, above 0 and at most 1.
    """
    validate_positive("clip", clip, "give the largest norm of a difference")
    _validate_noise(noise)
    code = Noisy(clip=float(clip), noise=float(noise), mixing=_mixing(mixing))
    return _encoded(base, code, f"clip {clip:g} noise {noise:g}")


def records(clip: float, noise: float, *, products: float | None = None) -> Records:
    """Clips every record's part of a direction and adds noise to their sum: `solve(..., privacy=records(...))`.

    A sample's gradients (∇_x f, ∇_y f), its ∇_y g and its products (J z, H z) are each clipped to a norm. Every entry
    of their sums over a batch gets Gaussian noise of `noise` times that norm. The sums are then divided by the size of
    the batch. A step uses the samples in no other way, so the privacy holds for whatever it sends, with any strategy,
    and for the model.

    Replacing one record changes a sum by at most twice the norm, so `epsilon(noise, sums)` is the ε of one record. With
    all samples in every step, a record is in one sum per step of a single-level method, and in three of SPARKLE. With
    `sampling="shuffle-once"` a record is in one batch of each pass. Batches follow from the seed, which all nodes know,
    so random batches hide nothing. In a silo (`db.Silo`) the sums are exact integers, the noise is the operating
    system's, and every sum is counted. The simulator and the cluster draw normal numbers from the seed.

    Args:
        clip: the largest norm of a sample's gradient.
        noise: the standard deviation of the noise on an entry of the sum, divided by the norm; at least 1e-6.
        products: the largest norm of a sample's products (J z, H z) together; None takes `clip`.
    """
    validate_positive("clip", clip, "give the largest norm of a sample's gradient")
    _validate_noise(noise)
    if products is not None:
        validate_positive("products", products, "give the largest norm of a sample's products with second derivatives")
    return Records(float(clip), float(noise), float(clip if products is None else products))


def epsilon(noise: float, messages: int, delta: float = 1e-5) -> float:
    """The ε of (ε, δ)-differential privacy: of all data of a node after messages with `noisy`, or of one record after
    sums of `records`.

    Whatever the data, a clipped difference changes by at most 2 `clip`. So each message satisfies zero-concentrated
    differential privacy (zCDP) with 2/noise², and all together with ρ = 2 messages/noise². ε is the smallest ρ α +
    log((α − 1)/α) − log(δ α)/(α − 1) over α > 1. This holds exactly for the discrete Gaussian, and for messages that
    depend on earlier ones. Only a silo promises it.

    Args:
        noise: the `noise` of `noisy`, or of `records`.
        messages: the number of messages sent, one per level and exchange (three in a step of SPARKLE with ED); or the
            number of sums that a record was in.
        delta: δ.

    References:
        Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy, 2020; Bun and Steinke, Concentrated
        Differential Privacy, 2016.
    """
    validate_positive("noise", noise, NOISE)
    _validate_messages(messages, 0)
    validate_delta(delta)
    return _zcdp.epsilon(_zcdp.rho(float(noise), int(messages)), float(delta))


def total_epsilon(messages: Mapping[float, int], delta: float = 1e-5) -> float:
    """`epsilon` after messages with several sizes of noise.

    Args:
        messages: how many were sent, by their noise.
        delta: δ.
    """
    validate_delta(delta)
    return _zcdp.epsilon(sum(_zcdp.rho(noise, count) for noise, count in messages.items()), float(delta))


def noise_for(ε: float, messages: int, delta: float = 1e-5) -> float:
    """The smallest `noise` for which that many messages are (ε, δ)-differentially private.

    Args:
        ε: the privacy budget.
        messages: the number of messages sent, one per level and exchange.
        delta: δ.
    """
    validate_positive("ε", ε, "give the privacy budget, such as 1.0")
    _validate_messages(messages, 1)
    validate_delta(delta)
    return math.sqrt(2 * int(messages) / _zcdp.rho_for(float(ε), float(delta)))


def _validate_noise(noise: object) -> None:
    validate_positive("noise", noise, NOISE)
    assert isinstance(noise, int | float | np.number)
    if noise < LEAST_NOISE:
        raise ValueError(f"noise={noise!r} must be at least {LEAST_NOISE:g}: less hides nothing.")


def _validate_messages(messages: object, least: int) -> None:
    if not isinstance(messages, int | np.integer) or isinstance(messages, bool) or messages < least:
        raise ValueError(
            f"messages={messages!r} must be an integer of at least {least}: give how many are sent, one per level and "
            "exchange."
        )


class CodedFlowForm(eqx.Module):
    """A strategy's flow form with every message encoded."""

    base: Strategy
    code: Code

    def __call__(self, s: Vector, d: Vector, *carry: Vector) -> Move:
        move = self.base.flow_form(s, d, *carry)
        answer = None
        while True:
            try:
                message = move.send(answer)
            except StopIteration as end:
                return end.value
            answer = yield Coded(message, self.code)


class CodedWaveFlowForm(eqx.Module):
    """The flow form of `"wave"` with every message encoded."""

    code: Code

    def __call__(self, s: Vector, d: Vector, prox: Callable[[Vector], Vector] = identity) -> Move:
        F = yield CodedWave(s, self.code, wait_for=d)
        return prox(s - d + F), ()


def _encoded(base: str | Strategy, code: Code, name: str) -> Strategy:
    wrapped = strategy(base)
    if wrapped.flow_form is wave:
        if isinstance(code, Noisy):
            raise ValueError("noise cannot be added to 'wave', which may send the same content twice: wrap 'ed'.")
        coded = replace(wrapped, name=f"wave ({name})", flow_form=CodedWaveFlowForm(code))
        return with_limit(coded, wrapped.limit) if isinstance(wrapped, LimitedStrategy) else coded
    reasons = {
        "is encoded already": wrapped.coded,
        "sends cumulative flows, which cannot be encoded": wrapped.keeps_link_flows,
        "pushes shares of what it holds, which cannot be encoded": wrapped.pushes,
        "makes steps of its own, which cannot be wrapped": wrapped.flow_form is no_flow_form,
        "sends no message that can be encoded": wrapped.needs_links or not wrapped.communicates,
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    if why is not None:
        raise ValueError(f"strategy {wrapped.name!r} {why}: wrap one such as 'ed', 'gt' or 'diffusion'.")
    return replace(wrapped, name=f"{wrapped.name} ({name})", flow_form=CodedFlowForm(wrapped, code), proximal=None)


def _share(share: float) -> float:
    if not (is_number(share) and 0 < share <= 1):
        raise ValueError(f"share={share!r} must be the share of entries to send, above 0 and at most 1.")
    return float(share)


def _mixing(mixing: float) -> float:
    if not (is_number(mixing) and 0 < mixing <= 1):
        raise ValueError(f"mixing={mixing!r} must be above 0 and at most 1.")
    return float(mixing)
