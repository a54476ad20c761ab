"""MDBO and VRDBO: gradient tracking of momentum and of STORM on both levels, an inverse at the node."""

from __future__ import annotations

from typing import ClassVar

from jax import Array

from ..network._communicator import Communicator
from ..oracles import estimators
from ..oracles import hypergradient as inverses
from ..oracles._oracle import Oracle
from ._entry import register
from ._implicit import Implicit
from ._method import Rate, State, rate


class MdboBase(Implicit):
    """s⁺ = s + η (W s − h − s) on both levels, where h tracks the step and η is `relax`."""

    paper = (
        "Gao, Gu, Thai, On the Convergence of Distributed Stochastic Bilevel Optimization Algorithms over a Network, "
        "2022"
    )
    strategy_names: ClassVar = dict.fromkeys("xy", "non-gt")
    defaults: ClassVar = {"theta": 0.3}

    relax: Rate

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        return self.simultaneous(k, state, oracle, network, rate(self.relax, k))


class Mdbo(MdboBase):
    """With momentum."""

    catalog_name = "mdbo"
    summary = "momentum and tracking, local Neumann hypergradient (biased where nodes differ)"


class Vrdbo(MdboBase):
    """With STORM."""

    catalog_name = "vrdbo"
    summary = "MDBO with STORM (biased where nodes differ)"


@register(Mdbo)
def mdbo(
    *, alpha: Rate, beta: Rate, theta: Rate, relax: Rate = 1.0, terms: int = 10, scale: float | None = None
) -> Mdbo:
    """MDBO (Gao et al., 2022), reconstructed: randomized Neumann hypergradient, momentum and gradient tracking on both
    levels, x⁺ = x + η (W x − α p − x) with η = `relax`. Biased for a shared lower level: the inverse is local.

    Draws: an upper and a lower batch, for v and J; one number k < `terms` of factors for a node's batch, and a lower
    batch for each factor; a further one for L where `scale` is None.

    Args:
        theta: the weight of the newest sample in the momentum of both directions, from 0 to 1.
    """
    return Mdbo(alpha, beta, inverses.neumann(terms, scale, randomized=True), estimators.momentum(theta), relax)


@register(Vrdbo)
def vrdbo(
    *, alpha: Rate, beta: Rate, theta: Rate, relax: Rate = 1.0, terms: int = 10, scale: float | None = None
) -> Vrdbo:
    """VRDBO (Gao et al., 2022), reconstructed: MDBO's directions in a STORM estimator; as biased as MDBO.

    Draws: MDBO's, the same (and the same k and L) at both points of a difference.

    Args:
        theta: the weight of the newest sample in STORM, from 0 to 1.
    """
    return Vrdbo(alpha, beta, inverses.neumann(terms, scale, randomized=True), estimators.storm(theta), relax)
