"""DBSA and double-loop DSGD, Gossip-DSBO's baselines: gossip on y in inner loops that grow, an inverse at the node."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..network._communicator import Communicator
from ..oracles import hypergradient as inverses
from ..oracles._oracle import Oracle
from ..oracles.hypergradient import LocalHypergradient
from ..strategies._table import Level, strategy
from ._entry import register
from ._gossip_dsbo import GossipDsbo
from ._method import Method, Rate, State


class DbsaBase(Method):
    """Some steps y ← W y − β v(x, y), warm-started, then x⁺ = W x − α ∇̄f(x, y) with a local hypergradient.

    Draws, all independent: a lower batch for every inner step on y, and those of the hypergradient.
    """

    paper = GossipDsbo.paper
    loops = 2
    strategy_names: ClassVar = dict.fromkeys("xy", "consensus")

    alpha: Rate
    beta: Rate
    hypergradient: LocalHypergradient

    @abstractmethod
    def inner_steps(self, k: Array) -> Any:
        """How many steps on y iteration k takes."""

    @abstractmethod
    def steps_before(self, k: Array) -> Array:
        """How many steps on y all iterations before the k-th take."""

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        x, y = state.x, state.y
        mix = strategy("consensus")
        α, β = self.rates(k)

        def lower(j: Array, y: Level) -> Level:
            move = mix(y, oracle.draw(3 * j).at(x.s, y.s).v, β)
            return network(self.steps_before(k) + j, y=move)

        y = oracle.ledger.loop(self.inner_steps(k), lower, y)
        return State(network(x=mix(x, self.hypergradient(oracle.draw(2).at(x.s, y.s)), α)), y)


class Dbsa(DbsaBase):
    """⌈√(k+1)⌉ inner steps, or `lower_steps`."""

    catalog_name = "dbsa"
    summary = "gossip on y in a growing inner loop, local Neumann hypergradient (biased where nodes differ)"

    lower_steps: int | None = eqx.field(static=True)

    @property
    def sends(self) -> str:
        return "p + ⌈√t⌉ q numbers"

    def inner_steps(self, k: Array) -> Any:
        return self.lower_steps or _ceil_root(k + 1)

    def steps_before(self, k: Array) -> Array:
        if self.lower_steps:
            return k * self.lower_steps
        r = _ceil_root(k)  # ⌈√m⌉ is t for the 2t − 1 numbers m from (t − 1)² + 1 to t²
        return (r - 1) * r * (4 * r - 5) // 6 + r * (k - (r - 1) ** 2)


def _ceil_root(number: Array) -> Array:
    return jnp.ceil(jnp.sqrt(number.astype(jnp.float32))).astype(jnp.int32)


class DoubleLoopDsgd(DbsaBase):
    """k inner steps, at least one."""

    catalog_name = "double-loop-dsgd"
    summary = "as DBSA with t inner steps (biased where nodes differ)"

    @property
    def sends(self) -> str:
        return "p + t q numbers"

    def inner_steps(self, k: Array) -> Any:
        return jnp.maximum(k, 1)

    def steps_before(self, k: Array) -> Array:
        return k * (k - 1) // 2 + jnp.minimum(k, 1)


@register(Dbsa)
def dbsa(
    *, alpha: Rate, beta: Rate, lower_steps: int | None = None, terms: int = 10, scale: float | None = None
) -> Dbsa:
    """DBSA, Gossip-DSBO's baseline: iteration t takes ⌈√(t+1)⌉ gossip steps on y (or `lower_steps`), then a local
    Neumann hypergradient on fresh samples, x⁺ = W x − α ∇̄f. Biased if nodes differ: the inverse is local.

    Draws: a lower batch for each inner step; then an upper and a lower one, and one for each factor of the series.

    Args:
        lower_steps: the inner steps on y; None takes ⌈√(t+1)⌉ in iteration t.
    """
    return Dbsa(alpha, beta, inverses.neumann(terms, scale), lower_steps)


@register(DoubleLoopDsgd)
def double_loop_dsgd(*, alpha: Rate, beta: Rate, terms: int = 10, scale: float | None = None) -> DoubleLoopDsgd:
    """Double-loop DSGD, Gossip-DSBO's baseline for policy evaluation: iteration t estimates y*(x_t) from t batches
    (at least one), then x⁺ = W x − α ∇̄f with a local Neumann hypergradient. Draws: as DBSA.
    """
    return DoubleLoopDsgd(alpha, beta, inverses.neumann(terms, scale))
