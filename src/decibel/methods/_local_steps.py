"""K-GT and ProxSkip: several gradient steps at the node for one message, and still the exact solution; one level."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
from jax import Array

from ..core._numbers import validate_count
from ..core._types import Scalar
from ..core._vector import Vector
from ..network._communicator import Communicator
from ..oracles._oracle import Oracle
from ..strategies._table import Level, Strategy
from ..strategies._tracked import local_tracking
from ._entry import register
from ._method import Method, Rate, State

COIN = 2**29  # the draw that decides whether a step communicates


class KGt(Method):
    """K times w ← w − α (∇f(w) + c) from w = x; z = (x − w)/(α K); c⁺ = c + (W − I) z; x⁺ = W (x − η α K z)."""

    catalog_name = "k-gt"
    summary = "gradient tracking with local steps between messages"
    paper = "Liu, Lin, Koloskova, Stich, Decentralized Gradient Tracking with Local Steps, 2023"
    loops = 2
    defaults: ClassVar = {"alpha": 0.02}

    alpha: Rate
    relax: Rate
    local_steps: int = eqx.field(static=True)

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": local_tracking()}

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        (x, (c,)), K = state.x, self.local_steps
        α, η = self.rates(k)

        def descend(j: Array, point_and_sum: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
            w, total = point_and_sum
            d = oracle.draw(j).at(w).fx + c
            return w - α * d, total + d

        # (x − w)/α is the sum of the directions, which needs no division by a step size of zero.
        _, total = oracle.ledger.loop(K, descend, (x, x.zeros()))
        return State(network(x=self.strategies["x"](state.x, (1 / K) * total, η * α * K)))


class ProxSkip(Method):
    """φ = x − α ∇f + c; with probability p x⁺ = W φ and c⁺ = c + p (W − I) φ, otherwise x⁺ = φ."""

    catalog_name = "proxskip"
    summary = "Exact Diffusion that skips messages at random"
    paper = (
        "Mishchenko, Malinovsky, Stich, Richtárik, ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication "
        "Acceleration! Finally!, 2022"
    )
    may_skip_exchange: ClassVar = True
    strategy_names: ClassVar = {"x": "ed"}

    alpha: Rate
    probability: Scalar

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        x, (c,) = state.x
        (α,) = self.rates(k)
        φ = x - α * oracle.draw().at(x).fx + c

        def mix(φ: Vector) -> Level:
            δ = network.flow({"x": φ})["x"]
            return Level(φ + δ, (c + network.damping("x") * self.probability * δ,))

        communicates = jax.random.bernoulli(
            jax.random.fold_in(oracle.key, COIN), self.probability
        )  # the same at every node
        return State(oracle.ledger.cond(communicates, mix, lambda φ: Level(φ, (c,)), φ))


@register(KGt)
def k_gt(*, alpha: Rate, local_steps: int = 5, relax: Rate = 1.0) -> KGt:
    """K-GT (Liu, Lin, Koloskova, Stich, 2023): K = `local_steps` steps w ← w − α (∇f(w) + c) from w = x, their average
    z = (x − w)/(α K), the correction c⁺ = c + (W − I) z, and x⁺ = W (x − η α K z) with η = `relax`. Exact: at the fixed
    point c = −∇f_i + the mean, so that local steps stay where they are.

    Draws: a batch for each local step. Differs from the paper: c starts at zero instead of the first gradients'
    differences; its η_c and η_s are our `alpha` and `relax`. Reconstructed from memory.

    Args:
        alpha: the step size of local steps: a number, or a function of the step.
        local_steps: K, the steps between two messages.
        relax: η, the part of the way of the local steps that is taken, from 0 to 1.
    """
    validate_count("local_steps", local_steps, ": 5 is a good start")
    return KGt(alpha, relax, local_steps)


@register(ProxSkip)
def proxskip(*, alpha: Rate, probability: float = 0.5) -> ProxSkip:
    """ProxSkip (Mishchenko et al., 2022), its decentralized form with one gossip step, reconstructed: φ = x − α ∇f + c;
    with probability p, the same coin at every node, x⁺ = W φ and c⁺ = c + p (W − I) φ; otherwise x⁺ = φ, and nothing is
    sent. p = 1 is Exact Diffusion; a message in every 1/p-th step instead of coins is LED, `ed(local_steps=...)`. The
    solution is a fixed point whatever the coins are.

    Draws: one batch, and a coin. Differs from the paper: c = α h, which is a sum of flows. It runs on every engine but
    `db.Silo`, whose sites expect a message in each step.

    Args:
        probability: p, how often a step communicates, above 0 and at most 1.
    """
    if not 0 < probability <= 1:
        raise ValueError(
            f"probability={probability!r} must be above 0 and at most 1: give the share of steps that send."
        )
    return ProxSkip(alpha, float(probability))
