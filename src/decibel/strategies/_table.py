"""How one level corrects for heterogeneity and mixes with its neighbours: a table, run in flow form.

A strategy moves a level from s to s⁺ given a step d (a direction already multiplied by its step size). It is written as
a generator: `delta = yield message` sends a message to the neighbours and receives δ(message) = Σ_j w_ij (m_j − m_i).
The network runs the generators of several levels in lockstep, so that messages which may travel together do.

Every carry is a sum of flows, and flows cancel over each edge, so its mean over nodes stays zero in any precision. The
papers' two-step recursions have a double root at 1 instead, and integrate rounding errors (docs/drift.md).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import cache, partial
from math import comb
from typing import Any, Literal, NamedTuple

import equinox as eqx

from ..core._names import hint
from ..core._vector import Scalar, Vector
from ..network._messages import Cumulative
from ..network._wave import Wave
from ..problem.prox import Prox

Carry = tuple[Vector, ...]
Flows = Generator[Any, Any, Any]  # yields messages, receives their flows


class Level(NamedTuple):
    """The state of one level: its variable s and its strategy's carry.

    Attributes:
        s: the variable of every node.
        carry: the vectors that the strategy keeps between steps.
    """

    s: Vector
    carry: Carry


def diffusion(s: Vector, d: Vector) -> Flows:
    """s⁺ = W (s − d)"""
    φ = s - d
    δ = yield φ
    return φ + δ, ()


def consensus(s: Vector, d: Vector) -> Flows:
    """s⁺ = W s − d"""
    δ = yield s
    return s + δ - d, ()


def local(s: Vector, d: Vector) -> Flows:
    """s⁺ = s − d"""
    yield from ()
    return s - d, ()


def exact_diffusion(s: Vector, d: Vector, c: Vector) -> Flows:
    """s⁺⁺ = W (2 s⁺ − s − Δd)"""
    φ = s - d + c
    δ = yield φ
    return φ + δ, (c + δ,)


def local_exact_diffusion(s: Vector, d: Vector, c: Vector, steps: int) -> Flows:
    """ED after s − d + c was taken `steps` − 1 times already; the flow corrects for all of them."""
    φ = s - d + c
    δ = yield φ
    return φ + δ, (c + (1 / steps) * δ,)


def edge_exact_diffusion(s: Vector, d: Vector, c: Vector) -> Flows:
    """ED, c = Σ_j F_ij kept per link: F_ij ← (F_ij − F_ji)/2 + w_ij (φ_j − φ_i) repairs what a lost message broke."""
    c = yield Cumulative(s - d + c)
    return s - d + c, (c,)


def identity(s: Vector) -> Vector:
    """The proximal map of zero."""
    return s


def nids(s: Vector, d: Vector, c: Vector, e: Vector, prox: Callable[[Vector], Vector] = identity) -> Flows:
    """ED whose proximal map is exact for terms that differ from node to node; without one e = 0, and it is ED."""
    φ = s - d + c - e
    δ = yield φ
    c = c + δ
    v = s - d + c
    s = prox(v)
    return s, (c, v - s)


def extra(s: Vector, d: Vector, c: Vector, δ: Vector, prox: Callable[[Vector], Vector] = identity) -> Flows:
    """s⁺⁺ = W (2 s⁺ − s) − Δd; δ(s) is kept from the step before, so that one vector travels."""
    s = prox(s + δ - d + c)
    δ = yield s
    return s, (c + δ, δ)


def wave(s: Vector, d: Vector, prox: Callable[[Vector], Vector] = identity) -> Flows:
    """EXTRA, its flows kept per link in wave variables, so that neighbours need no common clock."""
    F = yield Wave(s, after=d)
    return prox(s - d + F), ()


def gradient_tracking(s: Vector, d: Vector, c: Vector) -> Flows:
    """h⁺ = W (h + Δd), s⁺ = W (s − h⁺), with h = d + c."""
    δ = yield c + d
    c = c + δ
    φ = s - d - c
    δ = yield φ
    return φ + δ, (c,)


def semi_gradient_tracking(s: Vector, d: Vector, c: Vector) -> Flows:
    """h⁺ = W (h + Δd), s⁺ = W s − h⁺, with h = d + c."""
    δc, δs = yield c + d, s
    c = c + δc
    return s + δs - d - c, (c,)


def non_gradient_tracking(s: Vector, d: Vector, c: Vector, h: Vector) -> Flows:
    """h⁺ = W h + Δd, s⁺ = W s − h⁺, with h = d + c."""
    δh, δs = yield h, s
    c = c + δh
    h = d + c
    return s + δs - h, (c, h)


def direction_and_rate(s: Vector, d: Vector, *carry: Vector) -> Flows:
    """The move of strategies that need the direction and the step size apart, which have a `moved` of their own."""
    raise TypeError("this strategy takes a direction and a step size: call the strategy, not its move.")


class Strategy(eqx.Module):
    """How one level corrects for heterogeneity and mixes with its neighbours.

    A strategy is defined by polynomials A, B² and C in the mixing matrix W. With a step d (the direction times its step
    size) it moves s to s⁺ by

        s⁺ = C s − A d − B w,    w⁺ = w + B s⁺,    w⁰ = 0,

    and `move` is the same recursion in flow form.

    Args:
        name: its name in settings and traces.
        move: a generator function `move(s, d, *carry)`. `delta = yield message` sends a message to the neighbours and
            receives Σ_j w_ij (m_j − m_i). It returns the new s and a tuple of carries.
        carries: the number of carries.
        A: the coefficients of A in I, W, W², …
        B2: the coefficients of B².
        C: the coefficients of C.
        requires_spectrum: whether W must be symmetric with λ_min(W) > −1/3.
        per_link: whether the network keeps its flows for each link.
        coded: whether its messages are compressed or noised (`decibel.privacy`).
        pairwise: whether what it receives is not linear in the messages, so that their average is not enough.
        requires_self_weight: the least w_ii that it needs, of a symmetric W.
        default_rate: a step size that serves where none is given; None if there is no such.
        vectors: how many vectors a node sends to each neighbour per step; None if that is not stated.
        numbers: how many single numbers beside them.
        proximal: how it takes a proximal map of s: `"after"` the move, `"inside"` it (`move` then has an argument
            `prox`, and nodes may have maps of their own), or None if it cannot.
        prox: the proximal map of the level, which the problem gives.
        local_steps: how many steps a node takes for each exchange; all but the last are `alone`.
        asynchronous: whether a node may use the newest message of each neighbour, whenever that was sent.
    """

    name: str = eqx.field(static=True)
    move: Callable[..., Flows] = eqx.field(static=True)
    carries: int = eqx.field(static=True)
    A: tuple[float, ...] = eqx.field(static=True)
    B2: tuple[float, ...] = eqx.field(static=True)
    C: tuple[float, ...] = eqx.field(static=True)
    # ED and EXTRA iterate t² − 2λt + λ = 0, which leaves the unit disc at λ ≤ −1/3, and need real λ.
    requires_spectrum: bool = eqx.field(static=True, default=False)
    per_link: bool = eqx.field(static=True, default=False)  # its flows are remembered by the network, link by link
    coded: bool = eqx.field(static=True, default=False)  # its messages travel in code, which the network remembers
    pairwise: bool = eqx.field(static=True, default=False)
    requires_self_weight: float = eqx.field(static=True, default=0.0)
    default_rate: float | None = eqx.field(static=True, default=None)
    vectors: int | None = eqx.field(static=True, default=None)
    numbers: int = eqx.field(static=True, default=0)
    proximal: Literal["after", "inside"] | None = eqx.field(static=True, default=None)
    prox: Prox | None = None
    local_steps: int = eqx.field(static=True, default=1)
    asynchronous: bool = eqx.field(static=True, default=False)

    @property
    def mixes(self) -> bool:
        """Whether nodes exchange anything; False for `"local"`."""
        return self.move is not local

    @property
    def needs_links(self) -> bool:
        """Whether links remember something of its messages."""
        return self.per_link or self.coded

    @property
    def integrates(self) -> bool:
        """Whether it sums up what neighbours send, so that what one of them sends wrong is never forgotten."""
        return self.carries > 0 or self.coded or self.per_link

    def start(self, s: Vector) -> Level:
        """The level at a variable that all nodes share, with zero carries."""
        return Level(s, (s.zeros(),) * self.carries)

    def repair(self, carry: Carry) -> Carry:
        """The carry after nodes left or joined, with mean zero over nodes again.

        A carry that the network keeps for each link is reset to zero with it.
        """
        return tuple(c.zeros() if self.per_link else c.centred() for c in carry)

    def __call__(self, level: Level, direction: Vector, rate: Scalar, *, relax: Scalar | None = None) -> Flows:
        """Moves a level along −direction.

        Args:
            level: s and its carry.
            direction: what the variable moves against, such as a gradient.
            rate: the step size.
            relax: τ; takes s + τ (s⁺ − s) instead of s⁺.
        """
        s, carry = yield from self.moved(level, direction, rate)
        if relax is not None:
            s = level.s + relax * (s - level.s)
        return Level(s, carry)

    def moved(self, level: Level, direction: Vector, rate: Scalar) -> Flows:
        """The new s and the new carry, by `move` with the step d = rate · direction."""
        d = rate * direction
        if self.prox is None:
            return (yield from self.move(level.s, d, *level.carry))
        if self.proximal == "inside":
            return (yield from self.move(level.s, d, *level.carry, prox=partial(self.nearest, rate=rate)))
        s, carry = yield from self.move(level.s, d, *level.carry)
        return self.nearest(s, rate), carry

    def alone(self, level: Level, direction: Vector, rate: Scalar) -> Level:
        """A step without an exchange, of a strategy with local steps: s − d + c."""
        (c,) = level.carry
        return Level(level.s - rate * direction + c, level.carry)

    def nearest(self, s: Vector, rate: Scalar) -> Vector:
        """The proximal map of every node's s. Carries never see it, so that flows still cancel."""
        return s if self.prox is None else Vector(self.prox.over_nodes(s.tree, rate))

    def allows(self, prox: Prox) -> bool:
        """Whether the fixed point is exact with that map."""
        return self.proximal is not None if prox.nodes is None else self.proximal == "inside"


I, W, W2 = (1.0,), (0.0, 1.0), (0.0, 0.0, 1.0)
I_W, I_W2, ZERO = (1.0, -1.0), (1.0, -2.0, 1.0), (0.0,)

STRATEGIES = {
    row.name: row
    for row in (
        #        name         flow form               carries A   B²    C
        Strategy("diffusion", diffusion, 0, W, ZERO, W, vectors=1, proximal="after"),
        Strategy("consensus", consensus, 0, I, ZERO, W, vectors=1),
        Strategy("local", local, 0, I, ZERO, I, vectors=0),
        Strategy("ed", exact_diffusion, 1, W, I_W, W, requires_spectrum=True, vectors=1, proximal="after"),
        Strategy("extra", extra, 2, I, I_W, W, requires_spectrum=True, vectors=1, proximal="inside"),
        Strategy("nids", nids, 2, W, I_W, W, requires_spectrum=True, vectors=1, proximal="inside"),
        Strategy("gt", gradient_tracking, 1, W2, I_W2, W2, vectors=2, proximal="after"),
        Strategy("semi-gt", semi_gradient_tracking, 1, W, I_W2, W2, vectors=2),
        Strategy("non-gt", non_gradient_tracking, 2, I, I_W2, W2, vectors=2),
        Strategy("edge-ed", edge_exact_diffusion, 1, W, I_W, W, requires_spectrum=True, per_link=True, vectors=2),
        Strategy(
            "wave",
            wave,
            0,
            I,
            I_W,
            W,
            requires_spectrum=True,
            per_link=True,
            vectors=1,
            proximal="inside",
            asynchronous=True,
        ),
    )
}


def polynomial(name: str, A: tuple[float, ...], B2: tuple[float, ...], C: tuple[float, ...]) -> Strategy:
    """A strategy from its polynomials in W, which need not be a published one.

    It exchanges one vector per power of W; a flow form written by hand is cheaper where one is known.

    Args:
        name: its name in settings and traces.
        A: the coefficients of A, lowest power first.
        B2: the coefficients of B².
        C: the coefficients of C.
    """

    def apply(coefficients: tuple[float, ...], s: Vector) -> Flows:
        constant, *higher = _in_flows(coefficients)
        total = constant * s
        for factor in higher:
            s = yield s
            total = total + factor * s
        return total

    def move(s: Vector, d: Vector, c: Vector) -> Flows:
        s = (yield from apply(C, s)) - (yield from apply(A, d)) + c
        return s, (c - (yield from apply(B2, s)),)

    return Strategy(name, move, 1, A, B2, C)


def _in_flows(coefficients: tuple[float, ...]) -> list[float]:
    """Coefficients in powers of W − I instead of W."""
    degree = len(coefficients)
    return [sum(coefficients[k] * comb(k, j) for k in range(j, degree)) for j in range(degree)]


@cache
def led(local_steps: int) -> Strategy:
    """Local Exact Diffusion: several steps for each exchange, and the exact solution.

    Args:
        local_steps: how many steps; 1 is ED.
    """
    if isinstance(local_steps, bool) or not isinstance(local_steps, int) or local_steps < 1:
        raise ValueError(f"local_steps={local_steps!r} must be a positive integer.")
    if local_steps == 1:
        return STRATEGIES["ed"]
    move = partial(local_exact_diffusion, steps=local_steps)
    return replace(STRATEGIES["ed"], name="led", move=move, proximal=None, local_steps=local_steps)


def strategy(name: str | Strategy) -> Strategy:
    """The strategy of a given name.

    Args:
        name: a key of `STRATEGIES`; a `Strategy` is returned as it is.

    Raises:
        ValueError: if the name is not known.
    """
    if isinstance(name, Strategy):
        return name
    if name in STRATEGIES:
        return STRATEGIES[name]
    raise ValueError(f"strategy {name!r} is not known: {hint(name, STRATEGIES)}")
