"""SPARKLE, D-SOBA and SOBA: one loop, with an auxiliary level z in place of the inverse Hessian."""

from __future__ import annotations

import equinox as eqx
from jax import Array

from ..core._vector import Vector
from ..graphs._graph import Levels
from ..network._communicator import Communicator
from ..oracles._eval_config import Products
from ..oracles._oracle import Oracle
from ..oracles.hypergradient import auxiliary, difference
from ..problem._problem import Problem
from ..strategies._table import Strategy, strategy
from ._method import Method, Rate, State, rate


class Sparkle(Method):
    """y⁺ = L_y(y, β v(x, y)); z⁺ = L_z(z, γ p(x, y⁺, z)); r⁺ = (1−θ) r + θ u(x, y⁺, z⁺); x⁺ = U_x(x, α r⁺).

    `simultaneous` takes all three directions at (x, y, z), so that one vjp serves them and one message carries them;
    `lag` moves x along the old r; `relax` moves it only that part of the way.

    Draws of a step: one upper batch, for both gradients of f. Simultaneous updates take one lower batch for v, H z and
    J z, since no direction depends on another. In alternating ones v, H z and J z⁺ have a lower batch each: z⁺ depends
    on the samples of H, and multiplied by J on the same samples it would shift the fixed point by γ Cov(J, H) z.
    """

    lower: Strategy
    upper: Strategy
    alpha: Rate
    beta: Rate
    gamma: Rate
    theta: Rate
    hypergradient: Products
    label: str = eqx.field(static=True)
    simultaneous: bool = eqx.field(static=True)
    lag: bool = eqx.field(static=True, default=False)
    centralized: bool = eqx.field(static=True, default=False)
    relax: Rate | None = None

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": self.upper, "y": self.lower, "z": self.lower}

    def start(self, x: Vector, y: Vector | None) -> State:
        assert y is not None
        return State(self.upper.start(x), self.lower.start(y), self.lower.start(y.zeros()), memory=x.zeros())

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        return (self._simultaneous if self.simultaneous else self._alternating)(k, state, oracle, network)

    def _alternating(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        (x, y, z, r), L, U = state[:4], self.lower, self.upper
        α, β, γ, θ = (rate(value, k) for value in (self.alpha, self.beta, self.gamma, self.theta))
        draw = oracle.draw()
        y = network(y=L(y, β * draw.at(x.s, y.s).v))
        here = draw.fresh_lower(0).at(x.s, y.s, self.hypergradient)
        z = network(z=L(z, γ * here.p(z.s)))
        u = here.fx - here.moved_to(draw.fresh_lower(1)).jacobian(z.s)
        r = (1 - θ) * r + θ * u
        x = network(x=U(x, α * r, relax=rate(self.relax, k)))
        return State(x, y, z, r)

    def _simultaneous(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        (x, y, z, h), L, U = state[:4], self.lower, self.upper
        α, β, γ, θ = (rate(value, k) for value in (self.alpha, self.beta, self.gamma, self.theta))
        here = oracle.draw().at(x.s, y.s, self.hypergradient)
        r = (1 - θ) * h + θ * here.u(z.s)
        d = α * (h if self.lag else r)
        x, y, z = network(x=U(x, d, relax=rate(self.relax, k)), y=L(y, β * here.v), z=L(z, γ * here.p(z.s)))
        return State(x, y, z, r)

    def validate(self, problem: Problem, graphs: Levels, batch_size: int | None) -> None:
        super().validate(problem, graphs, batch_size)
        if self.centralized and graphs.x.rho > 1e-12:
            raise ValueError(
                f"{self.name} is centralized, and {graphs.x.name} does not average exactly: use "
                "db.graphs.complete(nodes), or db.dsoba(...) on this graph."
            )


def sparkle(
    lower: str | Strategy,
    upper: str | Strategy | None = None,
    *,
    alpha: Rate,
    beta: Rate,
    gamma: Rate,
    theta: Rate = 1.0,
    updates: str = "simultaneous",
    hypergradient: Products | None = None,
) -> Sparkle:
    """SPARKLE-L-U (Zhu et al., 2024): strategy `lower` for y and z, `upper` (the same if None) for x.

    `alpha`, `beta`, `gamma` are the step sizes of x, y, z and `theta` the weight of the newest sample in the running
    average of the upper direction; numbers or schedules. `updates="simultaneous"` takes all directions at the old
    point: one vjp, one lower batch and one message per step; `"alternating"`, the paper's, each at the newest: three of
    each. With both tuned, it was no better for the same bytes and worse for the same samples. `hypergradient` is
    `db.hypergradient.auxiliary()`, the default, or `.difference(delta)`, which needs no second derivatives.

    Draws: an upper batch, and one lower batch for all levels (`"alternating"`: one for each).

    Differs from the paper: runs in flow form; C = W for ED (the paper's table prints W²); at the old point by default.
    """
    if updates not in ("simultaneous", "alternating"):
        raise ValueError(f"updates={updates!r} is not known: choose 'simultaneous' or 'alternating'.")
    low = strategy(lower)
    up = low if upper is None else strategy(upper)
    label = f"sparkle-{low.name}" if low.name == up.name else f"sparkle-{low.name}-{up.name}"
    products = _products(hypergradient)
    return Sparkle(low, up, alpha, beta, gamma, theta, products, label, simultaneous=updates == "simultaneous")


def dsoba(*, alpha: Rate, beta: Rate, gamma: Rate, theta: Rate) -> Sparkle:
    """D-SOBA (Kong et al., 2024): diffusion on every level, all at the old point, x moving along the previous average.

    Draws: an upper and a lower batch. Differs from the paper: the overview's typo D_{x,i} is read as D_{x,j}, and every
    level has its own step size.
    """
    return _dsoba("d-soba", auxiliary(), alpha, beta, gamma, theta)


def dsoba_fo(
    *, alpha: Rate, beta: Rate, gamma: Rate, theta: Rate, delta: float = 1e-3, forward: bool = False
) -> Sparkle:
    """D-SOBA-FO (Kong et al., 2024): D-SOBA with differences of gradients at y ± `delta` z (`forward=True`: y and
    y + `delta` z) on the same sample in place of second derivatives. Draws: an upper and a lower batch."""
    return _dsoba("d-soba-fo", difference(delta, forward=forward), alpha, beta, gamma, theta)


def _dsoba(label: str, products: Products, alpha: Rate, beta: Rate, gamma: Rate, theta: Rate) -> Sparkle:
    mix = strategy("diffusion")
    return Sparkle(mix, mix, alpha, beta, gamma, theta, products, label, simultaneous=True, lag=True)


def _products(hypergradient: Products | None) -> Products:
    if hypergradient is None:
        return auxiliary()
    if not isinstance(hypergradient, Products):
        raise TypeError(
            f"hypergradient={hypergradient!r} does not fit a shared lower level: give db.hypergradient.auxiliary() or "
            "db.hypergradient.difference(delta)."
        )
    return hypergradient


def soba(*, alpha: Rate, beta: Rate, gamma: Rate, theta: Rate = 1.0) -> Sparkle:
    """SOBA (Dagréou et al., 2022): one node, or the complete graph, which averages exactly.

    Draws: an upper and a lower batch. Differs from the paper: `theta` below 1 adds a running average of the upper
    direction.
    """
    mix = strategy("diffusion")
    return Sparkle(mix, mix, alpha, beta, gamma, theta, auxiliary(), "soba", simultaneous=True, centralized=True)


def lopa(
    tracking: bool = False, *, alpha: Rate, beta: Rate, gamma: Rate, theta: Rate = 1.0, tau: Rate = 1.0
) -> Sparkle:
    """LoPA, as SPARKLE's authors name it, reconstructed: y⁺ = y − β ∇_y g and z⁺ = z − γ p stay at the node, q⁺ =
    (1−θ) q + θ u, and x⁺ = x + τ (W x − α q⁺ − x); with `tracking`, q⁺ is tracked (LoPA-GT).

    Draws: an upper batch, and a lower one for each of ∇_y g, H z and J z⁺.
    """
    label, mix = ("lopa-gt", "non-gt") if tracking else ("lopa", "consensus")
    return Sparkle(
        strategy("local"),
        strategy(mix),
        alpha,
        beta,
        gamma,
        theta,
        auxiliary(),
        simultaneous=False,
        label=label,
        relax=tau,
    )
