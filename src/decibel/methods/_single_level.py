"""One level: x⁺ = U(x, α r⁺), r⁺ = (1−θ) r + θ ∇f(x) on one batch. SPARKLE without a lower level is exactly this."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
from jax import Array

from ..core._vector import Vector
from ..network._communicator import Communicator
from ..oracles._oracle import Oracle
from ..strategies._table import Level, Strategy, led, strategy
from ._entry import register
from ._method import Method, Rate, State, rate


class SingleLevel(Method):
    """r⁺ = (1−θ) r + θ ∇f(x) moves x, by the strategy of the method."""

    defaults: ClassVar = {"alpha": 0.05}
    takes_prox: ClassVar = True
    strategy_name: ClassVar[str]

    alpha: Rate
    theta: Rate

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": strategy(self.strategy_name)}

    def with_strategies(self, change: Callable[[Strategy], Strategy]) -> Method:
        return AnyStrategy(self.alpha, self.theta, change(self.strategies["x"]))

    def start(self, x: Vector, y: Vector | None) -> State:
        return State(self.strategies["x"].start(x), memory=x.zeros())

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        mixing, α, θ = self.levels(oracle)["x"], rate(self.alpha, k), rate(self.theta, k)

        def direction(number: int | Array, x: Level, r: Vector) -> Vector:
            return (1 - θ) * r + θ * oracle.draw(number).at(x.s).fx

        def alone(j: Array, held: tuple[Level, Vector]) -> tuple[Level, Vector]:
            r = direction(j + 1, *held)
            return mixing.alone(held[0], r, α), r

        x, r = state.x, state.memory
        if mixing.local_steps > 1:
            x, r = oracle.ledger.loop(mixing.local_steps - 1, alone, (x, r))
        r = direction(0, x, r)
        return State(network(x=mixing(x, r, α)), memory=r)


class AnyStrategy(SingleLevel):
    """One level, moved by a strategy that is given."""

    mixing: Strategy

    @property
    def name(self) -> str:
        return self.mixing.name

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": self.mixing}


class Dsgd(SingleLevel):
    """x⁺ = W (x − α r⁺)"""

    catalog_name = "dsgd"
    summary = "decentralized SGD (biased where nodes differ)"
    paper = "Lian et al., 2017"
    strategy_name = "diffusion"


class Ed(SingleLevel):
    """x⁺⁺ = W (2 x⁺ − x − α Δr)"""

    catalog_name = "ed"
    summary = "Exact Diffusion, also D² and SPD"
    paper = "Yuan et al., 2019"
    strategy_name = "ed"


class Led(SingleLevel):
    """f = x, then τ times f ← f − α r + c; δ = (W − I) f, c ← c + δ/τ, x⁺ = f + δ"""

    catalog_name = "led"
    summary = "Local Exact Diffusion: several steps for each exchange"
    paper = "Alghunaim, Local Exact-Diffusion for Decentralized Optimization and Learning, 2023"

    local_steps: int = eqx.field(static=True)

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": led(self.local_steps)}


class Extra(SingleLevel):
    """x⁺⁺ = W (2 x⁺ − x) − α Δr"""

    catalog_name = "extra"
    summary = "EXTRA"
    paper = "Shi et al., 2015"
    strategy_name = "extra"


class Wave(SingleLevel):
    """x⁺ = x − α r⁺ + Σ_j (z_ij − ρ_ij x_i), z_ij ← ½ (z_ij + q_ji), q_ij = 2 ρ_ij x_i − z_ij, ρ_ij = 2 w_ij"""

    catalog_name = "wave"
    summary = "EXTRA by link in wave variables: exact without a common clock"
    paper = "ours"
    strategy_name = "wave"


class Gt(SingleLevel):
    """x⁺ = W (x − h), h⁺ = W (h + α Δr)"""

    catalog_name = "gt"
    summary = "gradient tracking, adapt then combine"
    paper = "Xu et al., 2015"
    strategy_name = "gt"


class Gnsd(SingleLevel):
    """x⁺ = W x − h, h⁺ = W h + α Δr"""

    catalog_name = "gnsd"
    summary = "gradient tracking that combines first"
    paper = "Lu et al., 2019"
    strategy_name = "non-gt"


@register(Dsgd)
def dsgd(*, alpha: Rate, theta: Rate = 1.0) -> Dsgd:
    """Decentralized SGD, adapt then combine: x⁺ = W (x − α ∇f). Biased where nodes differ. Draws: one batch.

    Args:
        alpha: the step size of x: a number, or a function of the step.
        theta: the weight of the newest sample in a running average of the gradient, from 0 to 1; 1 keeps no average.
    """
    return Dsgd(alpha, theta)


@register(Led, local_steps=4)
@register(Ed)
def ed(*, alpha: Rate, theta: Rate = 1.0, local_steps: int = 1) -> Ed | Led:
    """Exact Diffusion (= D², SPD): x⁺⁺ = W (2 x⁺ − x − α Δ∇f). Draws: one batch for each local step.

    Args:
        alpha: the step size of x: a number, or a function of the step.
        theta: the weight of the newest sample in a running average of the gradient, from 0 to 1; 1 keeps no average.
        local_steps: how many steps a node takes for each exchange (LED, Alghunaim, 2023).
    """
    return Ed(alpha, theta) if led(local_steps).local_steps == 1 else Led(alpha, theta, local_steps)


@register(Extra)
def extra(*, alpha: Rate, theta: Rate = 1.0) -> Extra:
    """EXTRA (Shi et al., 2015): x⁺⁺ = W (2 x⁺ − x) − α Δ∇f.

    Draws: one batch. Differs from the paper: its W̃ = (I + W)/2 form is `graph.lazy()`'s; here C = W as in SPARKLE's
    table.

    Args:
        alpha: the step size of x: a number, or a function of the step.
        theta: the weight of the newest sample in a running average of the gradient, from 0 to 1; 1 keeps no average.
    """
    return Extra(alpha, theta)


@register(Wave)
def wave(*, alpha: Rate, theta: Rate = 1.0) -> Wave:
    """EXTRA by link, in wave variables: exact where messages are late or lost and nodes differ in speed.

    Draws: one batch.

    Args:
        alpha: the step size of x: a number, or a function of the step. Keep α L + 2 (1 − w_ii) below 1.5 for a
            smoothness L.
        theta: the weight of the newest sample in a running average of the gradient, from 0 to 1; 1 keeps no average.
    """
    return Wave(alpha, theta)


@register(Gt)
def gt(*, alpha: Rate, theta: Rate = 1.0) -> Gt:
    """Gradient tracking, adapt then combine: x⁺ = W (x − α h), h⁺ = W (h + Δ∇f). Draws: one batch.

    GNSD does not adapt first: `gnsd`.

    Args:
        alpha: the step size of x: a number, or a function of the step.
        theta: the weight of the newest sample in a running average of the gradient, from 0 to 1; 1 keeps no average.
    """
    return Gt(alpha, theta)


@register(Gnsd)
def gnsd(*, alpha: Rate, theta: Rate = 1.0) -> Gnsd:
    """GNSD (Lu et al., 2019): gradient tracking that does not adapt first, x⁺ = W x − α h, h⁺ = W h + Δ∇f. Draws: one
    batch.

    Args:
        alpha: the step size of x: a number, or a function of the step.
        theta: the weight of the newest sample in a running average of the gradient, from 0 to 1; 1 keeps no average.
    """
    return Gnsd(alpha, theta)
