"""Adam on a level: Exact Diffusion with Adam's steps, for neural networks, and two published methods beside it.

`adam-ed` is adaptive Exact Diffusion (`_adaptive`) for short and noisy runs. Momentum averages the direction before the
carry e is subtracted from it; averaging the difference m − e instead is wrong, since e moves at every step. The second
moments are of g − e, or of r (`averaged`), and neighbours agree on them. With bias corrections as Adam's,

    m ← β₁ m + (1−β₁) g,   r = m̂ − e,   v ← β₂ v + (1−β₂) (g − e)²,   b = √v̂ + ε,   φ = s − η r/b,
    F_i = Σ_j w_ij min(b_i, b_j)/η (φ_j − φ_i),   e⁺ = e + F,   s⁺ = φ + η F/b,   √v̂⁺ = Σ_j w_ij b_j − ε.

That neighbours average second moments is from Chen, Karimi, Zhao and Li (2022), who do so without a correction.

With constant steps it is biased where noise is skewed, as Adam is: v holds the newest sample, so that steps are shorter
after large ones (docs/evidence/adaptive.md).

`adam-diffusion` (DADAM) averages after a local step of Adam: where nodes differ, it ends near Σ D_i g_i = 0 and not at
the solution, however small its steps. `adam-gt` (GTAdam) takes Adam's steps along a tracked gradient h. The tracker
does not see the steps: where it rests, h is common to all nodes and h Σ D_i = 0, so that gradients sum to zero,
whatever the steps. With a constant step size it does not rest, since h vanishes together with its second moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..core._vector import Scalar, Vector, scale_nodes
from ..network._communicator import Move
from ._adaptive import Adaptive, AdaptiveFlows, divide, roots, squares
from ._table import STRATEGIES, Carry, Level, damped


class Adam(Adaptive):
    """Base class of strategies with Adam's steps. The last carries are the moments m and v and the number of steps.

    Attributes:
        momentum: β₁, of the average of directions.
        decay: β₂, of the average of their squares.
        epsilon: ε, which is added to the size of a direction.
    """

    momentum: float = eqx.field(static=True, default=0.9)
    decay: float = eqx.field(static=True, default=0.99)
    epsilon: float = eqx.field(static=True, default=1e-8)

    @property
    def label(self) -> str:
        return f"{super().label}, momentum {self.momentum:g}, decay {self.decay:g}"

    def start(self, s: Vector) -> Level:
        corrections = (s.zeros(),) * (self.carries - 3)
        return Level(s, (*corrections, s.zeros(), s.zeros(), Vector(jnp.zeros_like(s.squared_norms()))))

    def moments(self, carry: Carry, g: Vector, size: Callable[[Vector], Vector]) -> tuple[Carry, Vector, Vector]:
        """Returns the moments after adding g and size(m̂)², then m̂ and b = √v̂ + ε."""
        m, v, steps = carry[-3:]
        steps = Vector(steps.tree + 1)
        m = self.momentum * m + (1 - self.momentum) * g
        m_hat = scale_nodes(1 / _weight(self.momentum, steps), m)
        v = self.decay * v + (1 - self.decay) * squares(size(m_hat))
        v_hat = scale_nodes(1 / _weight(self.decay, steps), v)
        return (m, v, steps), m_hat, roots(v_hat, self.epsilon)


class AdamDiffusion(AdaptiveFlows, Adam):
    """Exact Diffusion with Adam's steps, and second moments on which neighbours agree.

    Attributes:
        agree: whether neighbours average their second moments.
        averaged: whether these are of m̂ − e instead of g − e.
    """

    agree: bool = eqx.field(static=True, default=True)
    averaged: bool = eqx.field(static=True, default=False)

    def local_move(self, s: Vector, carry: Carry, g: Vector, η: Scalar) -> tuple[Vector, Carry, Vector]:
        e = carry[0]
        moments, m_hat, b = self.moments(carry, g, lambda m_hat: (m_hat if self.averaged else g) - e)
        return s - η * divide(m_hat - e, b), (e, *moments), b

    def carry_after_exchange(self, carry: Carry, b: Vector, δ: Vector) -> Carry:
        e, m, v, steps = carry
        if self.agree:
            size = jax.tree.map(lambda b: jnp.square(b - jnp.asarray(self.epsilon, b.dtype)), (b + δ).tree)
            v = scale_nodes(_weight(self.decay, steps), Vector(size))
        return e, m, v, steps

    def zero_scale(self, carry: Carry) -> Vector:
        return carry[2].zeros()


class AdamThenDiffusion(Adam):
    """s⁺ = W (s − η m̂/(√v̂ + ε))"""

    corrects: ClassVar[bool] = False

    def adaptive_update(self, s: Vector, carry: Carry, g: Vector, η: Scalar) -> Move:
        moments, m_hat, b = self.moments(carry, g, lambda _: g)
        φ = s - η * divide(m_hat, b)
        δ = yield φ
        return φ + δ, *moments


class AdamTracking(Adam):
    """h⁺ = W h + Δg, s⁺ = W s − η m̂/(√v̂ + ε) with the moments of h⁺; h = g + c."""

    def adaptive_update(self, s: Vector, carry: Carry, g: Vector, η: Scalar) -> Move:
        c, h = carry[:2]
        δh, δs = yield h, s
        c = c + δh
        h = g + c
        moments, m_hat, b = self.moments(carry, h, lambda _: h)
        return s + δs - η * divide(m_hat, b), c, h, *moments


def _weight(factor: float, steps: Vector) -> jax.Array:
    """By node, the weight in an exponential average of everything but its start at zero."""
    return 1 - jnp.asarray(factor, steps.tree.dtype) ** steps.tree


def adam_ed(
    *,
    momentum: float = 0.9,
    decay: float = 0.99,
    agree: bool = True,
    averaged: bool = False,
    damping: float | None = None,
) -> AdamDiffusion:
    """Exact Diffusion with Adam's steps, for neural networks. It needs a symmetric W with w_ii ≥ 1/3.

    At a fixed point gradients sum to zero, whatever the steps. Like Adam, it needs falling step sizes to come to rest,
    and it is biased where the noise of gradients is skewed: the longer tail counts for less. Smaller steps do not
    remove the bias; a `decay` nearer to 1 and larger batches reduce it.

    Args:
        momentum: β₁ of Adam.
        decay: β₂ of Adam.
        agree: whether neighbours average their second moments, which costs nothing: both travel anyway.
        averaged: whether second moments are of m̂ − e, the difference by which a node moves, or of g − e, which has the
            noise of the newest batch.
        damping: κ of e⁺ = e + κ F, as in `ed`.
    """
    for name, value in (("momentum", momentum), ("decay", decay)):
        if not 0 <= value < 1:
            raise ValueError(f"{name}={value!r} must be at least 0 and below 1.")
    undamped = AdamDiffusion(
        "adam-ed" + ("" if agree else "-alone") + ("-averaged" if averaged else ""),
        carries=4,
        default_rate=1e-3,
        proximal="after",
        momentum=momentum,
        decay=decay,
        agree=agree,
        averaged=averaged,
    )
    return damped(undamped, damping)


STRATEGIES |= {
    strategy.name: strategy
    for strategy in (
        adam_ed(),
        AdamThenDiffusion("adam-diffusion", carries=3, default_rate=1e-3),
        AdamTracking("adam-gt", carries=5, default_rate=1e-3),
    )
}
