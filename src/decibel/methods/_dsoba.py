"""D-SOBA, with second derivatives and with differences of gradients."""

from __future__ import annotations

from typing import ClassVar

from jax import Array

from ..network._communicator import Communicator
from ..oracles._oracle import Oracle
from ..oracles.hypergradient import auxiliary, difference
from ._auxiliary import Auxiliary
from ._entry import register
from ._method import Rate, State


class Dsoba(Auxiliary):
    """x⁺ = W (x − α h), y⁺ = W (y − β v), z⁺ = W (z − γ p), h⁺ = (1−θ) h + θ u, all at the old point."""

    catalog_name = "d-soba"
    summary = "diffusion on every level, all at the old point (biased where nodes differ)"
    paper = (
        "Kong et al., Decentralized Bilevel Optimization over Graphs: Loopless Algorithmic Update and Transient "
        "Iteration Complexity, 2024"
    )
    defaults: ClassVar = {"theta": 0.3}
    strategy_names: ClassVar = dict.fromkeys("xyz", "diffusion")

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        x, y, z, h, _ = state
        strategies = self.levels(oracle)
        α, β, γ, θ = self.rates(k)
        u, v, p = self.directions(oracle.draw(), x.s, y.s, z.s)
        new = (1 - θ) * h + θ * u
        x, y, z = network(x=strategies["x"](x, h, α), y=strategies["y"](y, v, β), z=strategies["z"](z, p, γ))
        return State(x, y, z, new)


class DsobaFo(Dsoba):
    """D-SOBA with H z and J z by differences of gradients."""

    catalog_name = "d-soba-fo"
    summary = "D-SOBA with gradient differences, no second derivatives"


@register(Dsoba)
def dsoba(*, alpha: Rate, beta: Rate, gamma: Rate, theta: Rate) -> Dsoba:
    """D-SOBA (Kong et al., 2024): diffusion on every level, all at the old point, x moving along the previous average.

    Draws: an upper and a lower batch. Differs from the paper: the overview's typo D_{x,i} is read as D_{x,j}, and every
    level has its own step size.

    Args:
        theta: the weight of the newest sample in the running average of the upper direction, from 0 to 1; 1 keeps no
            average.
    """
    return Dsoba(alpha, beta, gamma, theta, auxiliary())


@register(DsobaFo)
def dsoba_fo(
    *, alpha: Rate, beta: Rate, gamma: Rate, theta: Rate, delta: float = 1e-3, forward: bool = False
) -> DsobaFo:
    """D-SOBA-FO (Kong et al., 2024): D-SOBA with differences of gradients at y ± `delta` z (`forward=True`: y and
    y + `delta` z) on the same sample in place of second derivatives. Draws: an upper and a lower batch.

    Args:
        theta: the weight of the newest sample in the running average of the upper direction, from 0 to 1; 1 keeps no
            average.
        delta: the distance of the differences, in units of z.
        forward: take one-sided differences in place of central ones.
    """
    return DsobaFo(alpha, beta, gamma, theta, difference(delta, forward=forward))
