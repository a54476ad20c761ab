"""Adaptive Exact Diffusion: any step size per node and coordinate, and still the exact solution.

The carry by which Exact Diffusion corrects for heterogeneity has the units of displacements. So step sizes that differ
from node to node move its fixed point to Σ D_i ∇f_i = 0. Here the carry e has the units of gradients. With g the
direction, η the method's step size, and D = η/b the step sizes of a node for any b > 0,

    r = g − e,   φ = s − D r,   F_i = Σ_j w_ij min(b_i, b_j)/η (φ_j − φ_i),   e⁺ = e + F,   s⁺ = φ + D F.

Flows cancel over each link, whatever the step sizes, so Σ e_i = 0; where φ is common and F = 0, e_i = g_i, so Σ g_i =
0. One constant step size gives Exact Diffusion, and a constant step size for each node gives NIDS with uncoordinated
step sizes (Li, Shi and Yan, 2019). Gradient tracking has such a form, too: `_gt_ada`.

AdaGrad has b = √(Σ r²); r vanishes at the solution, so these sums converge and the rate stays linear. A node without a
gradient would close its links with b = 0. So b is at least half the average of its own and its neighbours' earlier b.

With τ local steps a node takes s ← s − D_t r τ times for each exchange, with the same e, and D in the last two formulas
is Σ_t D_t. A fixed point is as before, since r = 0 in every local step. With constant step sizes it is NIDS with τ
times the gradient steps, as Local Exact Diffusion is for one common step size (Alghunaim, 2023).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..core._vector import Scalar, Vector, scale_nodes
from ..network._communicator import Move
from ..network._messages import Message, Scaled
from ..network._quantized_scales import QuantizedScaled
from ..problem.prox import Prox
from ._table import STRATEGIES, Carry, Level, Strategy, damped

TINY = 1e-12


class Adaptive(Strategy):
    """Base class of strategies that choose a step size for each node from directions."""

    corrects: ClassVar[bool] = True  # whether the first carry is a correction, whose mean over nodes is zero

    def repair(self, carry: Carry) -> Carry:
        """The carry after nodes left or joined; the moments that determine step sizes stay."""
        return (carry[0].centred(), *carry[1:]) if self.corrects else carry

    def update(self, level: Level, direction: Vector, rate: Scalar) -> Move:
        moves = jnp.asarray(rate) > 0  # with a step size of zero nothing does
        η = jnp.where(moves, rate, jnp.ones_like(rate))
        new = yield from self.adaptive_update(level.s, level.carry, direction, η)
        s, *carry = jax.tree.map(lambda a, b: jnp.where(moves, a, b), new, (level.s, *level.carry))
        return s, tuple(carry)

    @abstractmethod
    def adaptive_update(self, s: Vector, carry: Carry, g: Vector, η: Scalar) -> Move:
        """The new s, followed by the new carry; g is the direction and η > 0 the step size."""

    def allows(self, prox: Prox) -> bool:
        """A projection of each entry alone is the same under any scaling. Others need one step size for all entries."""
        return self.proximal is not None and prox.is_box


class AdaptiveFlows(Adaptive):
    """Base class of strategies that scale flows by the step sizes of a node since the last exchange.

    The first carry is e. During local steps there is one more carry at the end, Σ_t 1/b_t.

    Attributes:
        steps_per_exchange: τ, of which all but the last are local steps.
    """

    steps_per_exchange: int = eqx.field(static=True, default=1)

    @property
    def local_steps(self) -> int:
        return self.steps_per_exchange

    @property
    def label(self) -> str:
        return super().label if self.local_steps == 1 else f"{super().label}, {self.local_steps} local steps"

    @abstractmethod
    def local_move(self, s: Vector, carry: Carry, g: Vector, η: Scalar) -> tuple[Vector, Carry, Vector]:
        """Returns φ = s − η r/b, the carry with the sums that determine b, and b."""

    @abstractmethod
    def carry_after_exchange(self, carry: Carry, b: Vector, δ: Vector) -> Carry:
        """The carry after an exchange of b, whose flow is δ. With local steps, b is the harmonic mean over them."""

    @abstractmethod
    def zero_scale(self, carry: Carry) -> Vector:
        """Zeros of b's shape."""

    def message(self, φ: Vector, b: Vector) -> Message:
        """What a node sends."""
        return Scaled((φ, b))

    def divide(self, r: Vector, b: Vector) -> Vector:
        """r/b."""
        return divide(r, b)

    def begin_local_steps(self, level: Level, rate: Scalar) -> Move:
        yield from ()
        return Level(level.s, (*level.carry, self.zero_scale(level.carry)))

    def local_step(self, level: Level, direction: Vector, rate: Scalar) -> Level:
        moves = jnp.asarray(rate) > 0
        η = jnp.where(moves, rate, jnp.ones_like(rate))
        s, carry, b = self.local_move(level.s, level.carry[:-1], direction, η)
        new = Level(s, (*carry, level.carry[-1] + inverse(b)))
        return jax.tree.map(lambda a, b: jnp.where(moves, a, b), new, level)

    def update(self, level: Level, direction: Vector, rate: Scalar) -> Move:
        s, carry = yield from super().update(level, direction, rate)
        return s, carry[: self.carries]

    def adaptive_update(self, s: Vector, carry: Carry, g: Vector, η: Scalar) -> Move:
        inverse_sums = carry[self.carries :]  # Σ_t 1/b_t of the local steps; empty without local steps
        φ, carry, b = self.local_move(s, carry[: self.carries], g, η)
        if inverse_sums:
            b = inverse(inverse_sums[0] + inverse(b))
        G, δ = yield self.message(φ, b)
        φ = self.apply_prox(φ + self.divide(G, b), η)
        if inverse_sums:
            b = self.local_steps * b
            δ = self.local_steps * δ
        e, *other_carries = self.carry_after_exchange(carry, b, δ)
        return φ, e + (1 / η) * G, *other_carries, *inverse_sums


class AdaptiveDiffusion(AdaptiveFlows):
    """Exact Diffusion with AdaGrad's step sizes: D = η/b, b = √v + 1e-12, v ← v + r², with the method's step size as η.

    Attributes:
        scalar: one step size for each node and level (v ← v + ‖r‖²) instead of one for each coordinate.
        scale_every: k, to send b with one byte per entry, and each entry only in every k-th message. None sends all of
            b in each message.
    """

    scalar: bool = eqx.field(static=True, default=False)
    scale_every: int | None = eqx.field(static=True, default=None)

    def start(self, s: Vector) -> Level:
        zeros = Vector(jnp.zeros_like(s.squared_norms())) if self.scalar else s.zeros()
        return Level(s, (s.zeros(), zeros, zeros))

    def local_move(self, s: Vector, carry: Carry, g: Vector, η: Scalar) -> tuple[Vector, Carry, Vector]:
        e, sums, floor = carry
        r = g - e
        b, sums = self.next_scale(r, sums, floor)
        return s - η * self.divide(r, b), (e, sums, floor), b

    def carry_after_exchange(self, carry: Carry, b: Vector, δ: Vector) -> Carry:
        e, sums, floor = carry
        return e, sums, _largest(floor, 0.5 * (b + δ))

    def zero_scale(self, carry: Carry) -> Vector:
        return carry[1].zeros()

    def message(self, φ: Vector, b: Vector) -> Message:
        return super().message(φ, b) if self.scale_every is None else QuantizedScaled((φ, b), self.scale_every)

    def next_scale(self, r: Vector, sums: Vector, floor: Vector) -> tuple[Vector, Vector]:
        """b, and the sums with r²."""
        sums = sums + (Vector(r.squared_norms()) if self.scalar else squares(r))
        return _largest(roots(sums, TINY), floor), sums

    def divide(self, r: Vector, b: Vector) -> Vector:
        return scale_nodes(1 / b.tree, r) if self.scalar else divide(r, b)

    def allows(self, prox: Prox) -> bool:
        """With one step size for all coordinates of a node, any projection is exact.

        At a fixed point φ is common, and n = φ − s is normal to the set at the common s. Then g_i − e_i = −n/D_i, so
        Σ g_i = −n Σ 1/D_i is normal too, for numbers D_i.
        """
        return super().allows(prox) or (self.scalar and self.proximal is not None and prox.is_projection)


def divide(r: Vector, b: Vector) -> Vector:
    """r/b, entry by entry."""
    return Vector(jax.tree.map(jnp.divide, r.tree, b.tree))


def inverse(b: Vector) -> Vector:
    """1/b, entry by entry."""
    return Vector(jax.tree.map(jnp.reciprocal, b.tree))


def squares(v: Vector) -> Vector:
    """v², entry by entry."""
    return Vector(jax.tree.map(jnp.square, v.tree))


def roots(v: Vector, ε: float) -> Vector:
    """√v + ε, entry by entry."""
    return Vector(jax.tree.map(lambda leaf: jnp.sqrt(leaf) + jnp.asarray(ε, leaf.dtype), v.tree))


def _largest(a: Vector, b: Vector) -> Vector:
    return Vector(jax.tree.map(jnp.maximum, a.tree, b.tree))


def ada_ed(*, scalar: bool = False, scale_every: int | None = None, damping: float | None = None) -> AdaptiveDiffusion:
    """Adaptive Exact Diffusion: AdaGrad's step size for every node and coordinate, and still the exact solution.

    It needs a symmetric W with w_ii ≥ 1/3. Like AdaGrad, it does not depend on the scale of gradients. If it starts
    where all gradients are rounding errors, it leaves that point before it returns.

    Args:
        scalar: one step size for each node and level instead of one for each coordinate. A message is then a vector and
            a number instead of two vectors.
        scale_every: k, to send the second vector with one byte per entry, and each entry only in every k-th message.
            With 10 a message is little longer than the first vector. Nodes mix an entry once it has been sent, so they
            do not mix all entries in the first k steps.
        damping: κ of e⁺ = e + κ F, as in `ed`.
    """
    if scale_every is not None:
        if scalar:
            raise ValueError("scale_every is for a step by coordinate: leave it out, or leave out scalar=True.")
        if isinstance(scale_every, bool) or not isinstance(scale_every, int) or scale_every < 1:
            raise ValueError(f"scale_every={scale_every!r} must be a positive integer.")
    name = "ada-ed-scalar" if scalar else "ada-ed" if scale_every is None else f"ada-ed-every-{scale_every}"
    undamped = AdaptiveDiffusion(
        name, carries=3, default_rate=0.3, proximal="after", scalar=scalar, scale_every=scale_every
    )
    return damped(undamped, damping)


STRATEGIES |= {strategy.name: strategy for strategy in (ada_ed(), ada_ed(scalar=True))}
