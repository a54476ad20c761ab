"""D-AdaST and AdaSDBO: steps from sums of squared gradients, on which nodes agree by mixing the sums themselves.

Each node and level has one number m, m⁺ = W (m + ‖d‖²) for its direction d. Nodes whose steps differ would end at a
weighted solution; the mixed sums, and so the steps, differ less and less in relation to their size. Variables move by
diffusion, without a correction: what a constant step size would leave as a bias vanishes as the steps do. Messages that
arrive late (`faults.late`) may turn a sum negative, after which nothing bounds the steps.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ..core._vector import Vector, nonzero_divisor, scale_nodes
from ..network._communicator import Communicator
from ..oracles._oracle import Oracle, Point
from ..strategies._table import Level
from ._entry import register
from ._method import Method, Rate, State

PerLevel = dict[str, Float[Array, " nodes"]]


class StepsizeTracking(Method):
    """s⁺ = W (s − a d), where a is a node's step: the level's rate times the mixed sums' `step_factors`."""

    @property
    def sends(self) -> str:
        return f"{super().sends.removesuffix(' numbers')} + {len(self.strategy_names)} numbers"

    @abstractmethod
    def step_factors(self, sums: PerLevel) -> PerLevel:
        """What multiplies the step size of each level, at every node."""

    @abstractmethod
    def directions(self, point: Point, levels: dict[str, Level]) -> dict[str, Vector]:
        """The direction of each level."""

    def first_memory(self, x: Vector, y: Vector | None) -> dict[str, Vector]:
        return {level: Vector(jnp.zeros_like(x.squared_norms())) for level in self.strategy_names}

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        levels = {name: getattr(state, name) for name in self.strategy_names}
        d = self.directions(oracle.draw().at(state.x.s, state.y.s), levels)
        sums = {name: m + Vector(d[name].squared_norms()) for name, m in state.memory.items()}
        flows = network.flow(dict(sums))
        sums = {name: m + flows[name] for name, m in sums.items()}
        factor = self.step_factors({name: nonzero_divisor(m.tree) for name, m in sums.items()})
        moves = {
            name: self.strategies[name](levels[name], scale_nodes(factor[name], d[name]), rate)
            for name, rate in zip(levels, self.rates(k), strict=True)
        }
        return State(**dict(zip(moves, network(**moves), strict=True)), memory=sums)


class DAdast(StepsizeTracking):
    """x⁺ = W (x − α ∇_x f / max(m_x, m_y)^0.6), y⁺ = W (y − β ∇_y g / m_y^0.4)."""

    catalog_name = "d-adast"
    summary = "minimax with adaptive step sizes that nodes agree on (a bias that vanishes slowly)"
    paper = (
        "Huang, Li, Shen, He, Xu, Achieving Near-Optimal Convergence for Distributed Minimax Optimization with "
        "Adaptive Stepsizes, 2024"
    )
    defaults: ClassVar = {"alpha": 0.5, "beta": 0.5}
    strategy_names: ClassVar = dict.fromkeys("xy", "diffusion")

    alpha: Rate
    beta: Rate

    def step_factors(self, sums: PerLevel) -> PerLevel:
        return {"x": jnp.maximum(sums["x"], sums["y"]) ** -0.6, "y": sums["y"] ** -0.4}

    def directions(self, point: Point, levels: dict[str, Level]) -> dict[str, Vector]:
        return {"x": point.fx, "y": point.v}


class AdaSdbo(StepsizeTracking):
    """y⁺ = W (y − β v/b), z⁺ = W (z − γ p/c), x⁺ = W (x − α u/(a c)), with a² = m_x, b² = m_y, c² = max(m_y, m_z)."""

    catalog_name = "adasdbo"
    summary = "adaptive step sizes that nodes agree on, nothing to tune (a bias that vanishes slowly)"
    paper = "Zhai, Yan, Zhang, Problem-Parameter-Free Decentralized Bilevel Optimization, 2025"
    strategy_names: ClassVar = dict.fromkeys("xyz", "diffusion")

    alpha: Rate
    beta: Rate
    gamma: Rate

    def step_factors(self, sums: PerLevel) -> PerLevel:
        a, b, c = (jnp.sqrt(sums[level]) for level in "xyz")
        c = jnp.maximum(b, c)
        return {"x": 1 / (a * c), "y": 1 / b, "z": 1 / c}

    def directions(self, point: Point, levels: dict[str, Level]) -> dict[str, Vector]:
        z = levels["z"].s
        return {"x": point.u(z), "y": point.v, "z": point.p(z)}


@register(DAdast)
def d_adast(*, alpha: Rate, beta: Rate) -> DAdast:
    """D-AdaST (Huang et al., 2024), for problems of `Problem.minimax`: x descends and y ascends on f, without z. Steps
    are α / max(m_x, m_y)^0.6 and β / m_y^0.4, TiAda's, with m⁺ = W (m + ‖gradient‖²) for both levels.

    Draws: an upper and a lower batch. On other bilevel problems x would follow ∇_x f alone. Differs from the paper: y
    is not projected, and ∇_x f and ∇_y f have batches of their own. Reconstructed from memory.

    Args:
        alpha: the factor of x's steps: a number, or a function of the step.
        beta: the factor of y's steps, likewise.
    """
    return DAdast(alpha, beta)


@register(AdaSdbo)
def adasdbo(*, alpha: Rate = 10.0, beta: Rate = 1.0, gamma: Rate = 1.0) -> AdaSdbo:
    """AdaSDBO (Zhai, Yan, Zhang, 2025), reconstructed from the abstract: one loop with steps β/b of y, γ/c of z and
    α/(a c) of x, where a² = m_x, b² = m_y, c² = max(m_y, m_z), and m⁺ = W (m + ‖direction‖²) for every level.

    S-TFBO (Yang et al., 2024) is the same on one node. Draws: an upper and a lower batch, for all directions.

    The bias of diffusion vanishes as the steps do, y's with 1/√k and x's with 1/k where nodes differ;
    `sparkle("ada-ed")` is exact. x's steps are divided by two sums, so that they depend on the scale of the losses:
    `alpha` = 10 served on losses scaled by 0.1 to 10, where 1 was too small for most.

    Args:
        alpha: the factor of x's steps: a number, or a function of the step.
        beta: the factor of y's steps, likewise.
        gamma: the factor of z's steps, likewise.
    """
    return AdaSdbo(alpha, beta, gamma)
