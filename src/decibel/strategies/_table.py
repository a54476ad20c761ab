"""How one level corrects for heterogeneity and mixes with its neighbours: a table, run in flow form.

A strategy moves a level from s to s⁺ given the displacement d, a direction multiplied by its step size. It is written
as a generator: `delta = yield message` sends a message to the neighbours and receives δ(message) = Σ_j w_ij (m_j −
m_i). The network runs the generators of several levels in lockstep, so that messages which may travel together do.

Every carry is a sum of flows, and flows cancel over each edge, so its mean over nodes stays zero in any precision. The
papers' two-step recursions have a second root at 1, and integrate rounding errors (docs/drift.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache, partial
from math import comb
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from ..core._names import hint
from ..core._numbers import is_number, validate_count
from ..core._vector import Scalar, Vector
from ..network._coded_wave import CodedWave
from ..network._communicator import Move
from ..network._messages import (
    ASK_DAMPING,
    Coded,
    Cumulative,
    Fanout,
    LinkFree,
    Message,
    Plain,
    Pull,
    Scaled,
    as_message,
)
from ..network._push import Push
from ..network._quantized_scales import QuantizedScaled
from ..network._wave import Wave
from ..problem.prox import Prox

# The length of the vectors with which messages are traced: larger than the count of single numbers in any message, so
# that `divmod` separates vectors from numbers.
ENTRIES = 1000
Carry = tuple[Vector, ...]


class Level(NamedTuple):
    """The state of one level: its variable s and its strategy's carry.

    Attributes:
        s: the variable of every node.
        carry: the vectors that the strategy keeps between steps.
    """

    s: Vector
    carry: Carry


def diffusion(s: Vector, d: Vector) -> Move:
    """s⁺ = W (s − d)"""
    φ = s - d
    δ = yield φ
    return φ + δ, ()


def consensus(s: Vector, d: Vector) -> Move:
    """s⁺ = W s − d"""
    δ = yield s
    return s + δ - d, ()


def local(s: Vector, d: Vector) -> Move:
    """s⁺ = s − d"""
    yield from ()
    return s - d, ()


def exact_diffusion(s: Vector, d: Vector, c: Vector) -> Move:
    """s⁺⁺ = W (2 s⁺ − s − Δd)"""
    φ = s - d + c
    δ = yield φ
    return φ + δ, (c + δ,)


def local_exact_diffusion(s: Vector, d: Vector, c: Vector, steps: int) -> Move:
    """ED after s − d + c was taken `steps` − 1 times already; the flow corrects for all of them."""
    φ = s - d + c
    δ = yield φ
    return φ + δ, (c + (1 / steps) * δ,)


def edge_exact_diffusion(s: Vector, d: Vector, c: Vector) -> Move:
    """ED, with its flows kept by link.

    c = Σ_j F_ij, and F_ij ← (F_ij − F_ji)/2 + w_ij (φ_j − φ_i) repairs what a lost message broke.
    """
    c = yield Cumulative(s - d + c)
    return s - d + c, (c,)


def identity(s: Vector) -> Vector:
    """The proximal map of zero, and the share of a node that takes all."""
    return s


def nids(
    s: Vector,
    d: Vector,
    c: Vector,
    e: Vector,
    prox: Callable[[Vector], Vector] = identity,
    share: Callable[[Vector], Vector] = identity,
) -> Move:
    """ED, with the proximal map inside.

    It is exact for terms that differ from node to node; without a map e = 0, and it is ED. A node may take a share of
    the step and of the carry (`_nids`).
    """
    φ = s - share(d) + share(c) - e
    δ = yield φ
    c = c + δ
    v = s - share(d) + share(c)
    s = prox(v)
    return s, (c, v - s)


def extra(s: Vector, d: Vector, c: Vector, δ: Vector, prox: Callable[[Vector], Vector] = identity) -> Move:
    """s⁺⁺ = W (2 s⁺ − s) − Δd

    δ(s) is kept from the step before, so that one vector travels.
    """
    s = prox(s + δ - d + c)
    δ = yield s
    return s, (c + δ, δ)


def wave(s: Vector, d: Vector, prox: Callable[[Vector], Vector] = identity) -> Move:
    """EXTRA, with a wave kept by link.

    Neighbours then need no common clock.
    """
    F = yield Wave(s, wait_for=d)
    return prox(s - d + F), ()


def gradient_tracking(s: Vector, d: Vector, c: Vector) -> Move:
    """h⁺ = W (h + Δd), s⁺ = W (s − h⁺)

    with h = d + c.
    """
    δ = yield c + d
    c = c + δ
    φ = s - d - c
    δ = yield φ
    return φ + δ, (c,)


def semi_gradient_tracking(s: Vector, d: Vector, c: Vector) -> Move:
    """h⁺ = W (h + Δd), s⁺ = W s − h⁺

    with h = d + c.
    """
    δc, δs = yield c + d, s
    c = c + δc
    return s + δs - d - c, (c,)


def non_gradient_tracking(s: Vector, d: Vector, c: Vector, h: Vector) -> Move:
    """h⁺ = W h + Δd, s⁺ = W s − h⁺

    with h = d + c.
    """
    δh, δs = yield h, s
    c = c + δh
    h = d + c
    return s + δs - h, (c, h)


def no_flow_form(s: Vector, d: Vector, *carry: Vector) -> Move:
    """A placeholder for strategies that need direction and step size separately; they define `update`."""
    raise TypeError("this strategy takes a direction and a step size: call the strategy, not its flow form.")


class Strategy(eqx.Module):
    """How one level corrects for heterogeneity and mixes with its neighbours.

    A strategy is defined by polynomials A, B² and C in the mixing matrix W. With the displacement d, the direction
    times the step size, it moves s to s⁺ by

        s⁺ = C s − A d − B w,    w⁺ = w + B s⁺,    w⁰ = 0,

    and `flow_form` is the same recursion as a generator.

    Args:
        name: its name in settings and traces.
        flow_form: a generator function `flow_form(s, d, *carry)`. `delta = yield message` sends a message to the
            neighbours and receives Σ_j w_ij (m_j − m_i). It returns the new s and a tuple of carries.
        carries: the number of carries.
        A: the coefficients of A in I, W, W², …
        B2: the coefficients of B².
        C: the coefficients of C.
        default_rate: the step size where none is given; None if it must be given.
        proximal: how it takes a proximal map of s: `"after"` the update, `"inside"` it (`flow_form` then has an
            argument `prox`, and nodes may have different maps), or None if it cannot.
        prox: the proximal map of the level, which the problem gives.
        damping: κ, the share of its change that the first carry takes; 1 takes all of it. None lets it follow from the
            graph: 1 where that never changes, and `graph.damping` otherwise.
    """

    name: str = eqx.field(static=True)
    flow_form: Callable[..., Move] = eqx.field(static=True, default=no_flow_form)
    carries: int = eqx.field(static=True, default=0)
    A: tuple[float, ...] = eqx.field(static=True, default=())
    B2: tuple[float, ...] = eqx.field(static=True, default=())
    C: tuple[float, ...] = eqx.field(static=True, default=())
    default_rate: float | None = eqx.field(static=True, default=None)
    proximal: Literal["after", "inside"] | None = eqx.field(static=True, default=None)
    prox: Prox | None = None
    damping: float | None = eqx.field(static=True, default=1.0)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of a step as shapes, for two nodes and vectors of `ENTRIES` numbers.

        The strategy is traced on dummy vectors, with each array in its fields replaced by 1.0, so that the shapes of
        a problem do not matter. If that fails, because the strategy holds arrays of a fixed shape, it is assumed to
        send one plain vector; the network raises an error if it sends anything else.
        """
        return _messages(jax.tree.structure(replace(self, prox=None)))

    def _yields(self, *kinds: type[Message]) -> bool:
        return any(isinstance(message, kinds) for message in self.messages)

    @property
    def communicates(self) -> bool:
        """Whether nodes exchange anything; False for `"local"`."""
        return self.flow_form is not local

    @property
    def needs_links(self) -> bool:
        """Whether links keep a state for its messages."""
        return not all(isinstance(message, LinkFree) for message in self.messages)

    @property
    def keeps_link_flows(self) -> bool:
        """Whether the network keeps its flows for each link, so that lost messages do no harm."""
        return self._yields(Cumulative, Wave)

    @property
    def asynchronous(self) -> bool:
        """Whether a node may use the newest message of each neighbour, whenever that was sent."""
        return self._yields(Wave)

    @property
    def coded(self) -> bool:
        """Whether messages are encoded: compressed or noised (`decibel.privacy`)."""
        return self._yields(Coded, CodedWave)

    @property
    def pushes(self) -> bool:
        """Whether nodes pass on shares of what they hold, of which nothing may be lost."""
        return self._yields(Push)

    @property
    def takes_one_way_links(self) -> bool:
        """Whether it needs no doubly stochastic W: only rows of R and columns of C that sum to one."""
        return all(isinstance(message, Push | Pull) for message in self.messages)

    @property
    def sends_parts(self) -> bool:
        """Whether a message contains only a part of the vectors, and other messages the rest."""
        return self._yields(QuantizedScaled)

    @property
    def message_size(self) -> tuple[int, int] | None:
        """How many vectors, and how many single numbers, a node sends to each neighbour in a step.

        None where messages are encoded or shortened, so that their length depends on more than the vector's.
        """
        if self._yields(Coded, CodedWave, QuantizedScaled):
            return None
        size = sum(message.bytes(Fanout(1, 1, 1)) for message in self.messages)
        vectors, numbers = divmod(round(size) // jnp.result_type(float).itemsize, ENTRIES)
        return vectors, numbers

    @property
    def min_self_weight(self) -> float:
        """The least w_ii that it needs of a symmetric W: a third if nodes scale their flows, else zero."""
        return 1 / 3 if self._yields(Scaled, QuantizedScaled) else 0.0

    @property
    def requires_symmetric(self) -> bool:
        """Whether W must be symmetric. With damping the spectrum does not show this, but the carry still sums flows."""
        return self.requires_spectrum or self.requires_fixed_graph

    @property
    def requires_fixed_graph(self) -> bool:
        """Whether W must not change unless the carry is damped, since the carry sums flows: B² vanishes like I − W
        where nodes agree. That of gradient tracking, which averages directions, vanishes like (I − W)²."""
        if self.min_self_weight > 0:
            return True
        return bool(abs(np.polynomial.Polynomial(self.B2 or (0.0,)).deriv()(1.0)) > 1e-9)

    @property
    def requires_spectrum(self) -> bool:
        """Whether W must be symmetric with eigenvalues at which it is stable, as ED and EXTRA need λ_min(W) > −1/3."""
        return not np.all(self.stable_at(np.linspace(-0.99, 0.99, 67)))

    def stable_at(self, eigenvalue: float | np.ndarray) -> bool | np.ndarray:
        """Whether its recursion on an eigenvector of W converges to zero: the roots of t² − (1 + C − B²) t + C."""
        if not any(self.B2):
            return np.full_like(eigenvalue, True, bool)
        κ = 1.0 if self.damping is None else self.damping
        B2 = κ * np.polynomial.Polynomial(self.B2)(eigenvalue)
        C = np.polynomial.Polynomial(self.C)(eigenvalue)
        stable = (abs(C) < 1 - 1e-9) & (abs(1 + C - B2) < 1 + C - 1e-9)  # both roots lie in the unit circle
        return stable | (eigenvalue > 1 - 1e-6)  # where all nodes agree, nothing has to vanish

    @property
    def local_steps(self) -> int:
        """How many steps a node takes for each exchange; all but the last are `local_step`."""
        return 1

    @property
    def label(self) -> str:
        """Its name in a method's settings, with its parameters."""
        return self.name if self.damping in (None, 1.0) else f"{self.name}, damping {self.damping:g}"

    def with_default_damping(self, damping: float) -> Strategy:
        """The strategy with this damping unless it has its own."""
        return replace(self, damping=damping) if self.damping is None else self

    @property
    def nodes(self) -> int | None:
        """The number of nodes, if it has different step sizes for them; None if it is the same at all nodes."""
        return None

    def for_nodes(self, node_ids: Int[Array, " nodes"]) -> Strategy:
        """The strategy for the nodes with these ids."""
        return self

    def start(self, s: Vector) -> Level:
        """The level at a variable that all nodes share, with zero carries."""
        return Level(s, (s.zeros(),) * self.carries)

    def repair(self, carry: Carry) -> Carry:
        """The carry after nodes left or joined, with mean zero over nodes again.

        A carry that the network keeps for each link is reset to zero with it.
        """
        by_link = self.keeps_link_flows
        return tuple(c.zeros() if by_link else c.centred() for c in carry)

    def __call__(self, level: Level, direction: Vector, rate: Scalar, *, relax: Scalar | None = None) -> Move:
        """Moves a level along −direction.

        Args:
            level: s and its carry.
            direction: what the variable moves against, such as a gradient.
            rate: the step size.
            relax: η; takes s + η (s⁺ − s) instead of s⁺.
        """
        s, carry = yield from self.update(level, direction, rate)
        κ = (yield ASK_DAMPING) if self.damping is None else self.damping
        if κ != 1.0:
            old_sum = level.carry[0]
            new_sum, *other_carries = carry
            carry = (old_sum + κ * (new_sum - old_sum), *other_carries)
        if relax is not None:
            s = level.s + relax * (s - level.s)
        return Level(s, carry)

    def update(self, level: Level, direction: Vector, rate: Scalar) -> Move:
        """The new s and the new carry, by `flow_form` with the displacement d = rate · direction."""
        d = rate * direction
        if self.prox is None:
            return (yield from self.flow_form(level.s, d, *level.carry))
        if self.proximal == "inside":
            return (yield from self.flow_form(level.s, d, *level.carry, prox=partial(self.apply_prox, rate=rate)))
        s, carry = yield from self.flow_form(level.s, d, *level.carry)
        return self.apply_prox(s, rate), carry

    def begin_local_steps(self, level: Level, rate: Scalar) -> Move:
        """The level before its local steps, with what these use in addition to the carry."""
        yield from ()
        return level

    def local_step(self, level: Level, direction: Vector, rate: Scalar) -> Level:
        """One local step of a strategy that has such steps: s − d + c, without an exchange."""
        (c,) = level.carry
        return Level(level.s - rate * direction + c, level.carry)

    def apply_prox(self, s: Vector, rate: Scalar) -> Vector:
        """The proximal map of every node's s. Carries never see it, so that flows still cancel."""
        return s if self.prox is None else Vector(self.prox.over_nodes(s.tree, rate))

    def allows(self, prox: Prox) -> bool:
        """Whether the fixed point is exact with that map."""
        return self.proximal is not None if prox.nodes is None else self.proximal == "inside"


@cache
def _messages(structure: Any) -> tuple[Message, ...]:
    """What a strategy of that structure sends, whatever its numbers are."""
    strategy = jax.tree.unflatten(structure, [1.0] * structure.num_leaves).for_nodes(jnp.asarray(np.arange(2)))

    def step(s: Vector, rate: Array) -> tuple[Message, ...]:
        move = strategy.update(strategy.start(s), s, rate)
        messages = []
        answer = None
        while True:
            try:
                message = as_message(move.send(answer))
            except StopIteration:
                return tuple(messages)
            messages.append(message)
            answer = message.placeholder()

    dtype = jnp.result_type(float)
    s = Vector(jax.ShapeDtypeStruct((2, ENTRIES), dtype))
    try:
        return eqx.filter_eval_shape(step, s, jax.ShapeDtypeStruct((), dtype))
    except (TypeError, ValueError):  # a strategy with arrays that fit one problem only
        return (Plain(s),)


ZERO = (0.0,)
I = (1.0,)
W = (0.0, 1.0)
W2 = (0.0, 0.0, 1.0)
I_W = (1.0, -1.0)
I_W2 = (1.0, -2.0, 1.0)  # (I − W)²

STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        #        name         flow form               carries A   B²    C
        Strategy("diffusion", diffusion, 0, W, ZERO, W, proximal="after"),
        Strategy("consensus", consensus, 0, I, ZERO, W),
        Strategy("local", local, 0, I, ZERO, I),
        Strategy("ed", exact_diffusion, 1, W, I_W, W, proximal="after", damping=None),
        Strategy("extra", extra, 2, I, I_W, W, proximal="inside"),
        Strategy("nids", nids, 2, W, I_W, W, proximal="inside", damping=None),
        Strategy("gt", gradient_tracking, 1, W2, I_W2, W2, proximal="after"),
        Strategy("semi-gt", semi_gradient_tracking, 1, W, I_W2, W2),
        Strategy("non-gt", non_gradient_tracking, 2, I, I_W2, W2),
        Strategy("edge-ed", edge_exact_diffusion, 1, W, I_W, W),
        Strategy("wave", wave, 0, I, I_W, W, proximal="inside"),
    )
}


def polynomial(name: str, A: tuple[float, ...], B2: tuple[float, ...], C: tuple[float, ...]) -> Strategy:
    """A strategy from its polynomials in W, published or not.

    It exchanges one vector per power of W. A flow form written by hand is cheaper, if one is known.

    Args:
        name: its name in settings and traces.
        A: the coefficients of A, lowest power first.
        B2: the coefficients of B².
        C: the coefficients of C.
    """

    def apply(coefficients: tuple[float, ...], s: Vector) -> Move:
        constant, *higher = _in_flows(coefficients)
        total = constant * s
        for factor in higher:
            s = yield s
            total = total + factor * s
        return total

    def flow_form(s: Vector, d: Vector, c: Vector) -> Move:
        s = (yield from apply(C, s)) - (yield from apply(A, d)) + c
        return s, (c - (yield from apply(B2, s)),)

    return Strategy(name, flow_form, 1, A, B2, C)


def _in_flows(coefficients: tuple[float, ...]) -> list[float]:
    """Coefficients in powers of W − I instead of W."""
    degree = len(coefficients)
    return [sum(coefficients[k] * comb(k, j) for k in range(j, degree)) for j in range(degree)]


S = TypeVar("S", bound=Strategy)


def as_subclass(strategy: Strategy, subclass: type[S], **changes: Any) -> S:
    """The strategy as an instance of a subclass, with these fields changed or added."""
    return subclass(**{field.name: getattr(strategy, field.name) for field in fields(Strategy)} | changes)


class LocalSteps(Strategy):
    """Exact Diffusion with several steps for each exchange.

    Attributes:
        steps: the number of local steps for each exchange.
    """

    steps: int = eqx.field(static=True, default=1)

    @property
    def label(self) -> str:
        return f"{super().label}, {self.steps} local steps"

    @property
    def local_steps(self) -> int:
        return self.steps


@cache
def led(local_steps: int, *, damping: float | None = None) -> Strategy:
    """Local Exact Diffusion: several steps for each exchange, and the exact solution.

    Args:
        local_steps: how many steps; 1 is ED.
        damping: κ of c⁺ = c + κ δ/τ, as in `ed`.
    """
    validate_count("local_steps", local_steps)
    if local_steps == 1:
        return STRATEGIES["ed"] if damping is None else ed(damping=damping)
    flow_form = partial(local_exact_diffusion, steps=local_steps)
    single_step = ed(damping=damping)
    return as_subclass(single_step, LocalSteps, name="led", flow_form=flow_form, proximal=None, steps=local_steps)


def ed(*, damping: float | None = None) -> Strategy:
    """Exact Diffusion, `"ed"`, with a damped carry: c⁺ = c + κ δ(φ). It stays exact if the graph changes.

    Args:
        damping: κ, above 0 and at most 1. None takes 1 on a graph that never changes, and `graph.damping` otherwise.

    References:
        Condat, Richtárik, RandProx: Primal-Dual Optimization Algorithms with Randomized Proximal Updates, 2022. With
        phases drawn independently, this is an instance of it.
    """
    return damped(STRATEGIES["ed"], damping)


def damped(strategy: S, damping: float | None) -> S:
    """The strategy with that damping."""
    if damping is not None and not (is_number(damping) and 0 < damping <= 1):
        raise ValueError(f"damping={damping!r} must be above 0 and at most 1, or None: give one such as 0.3.")
    return replace(strategy, damping=None if damping is None else float(damping))


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
