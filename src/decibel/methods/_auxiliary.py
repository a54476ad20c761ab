"""The recursion of SPARKLE and related methods: one loop, with an auxiliary level z instead of the inverse Hessian."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from jax import Array

from ..core._vector import Vector
from ..network._communicator import Communicator
from ..oracles._eval_config import Products
from ..oracles._oracle import Draw, Oracle
from ..oracles._penalty import Penalty
from ..strategies._table import Level
from ._method import Method, Rate, State


class Auxiliary(Method):
    """v(x, y) moves y, p(x, y, z) moves z, and r⁺ = (1−θ) r + θ u(x, y, z) moves x, each by the strategy of its level.

    Draws of a step: one upper batch, for both gradients of f. Simultaneous updates take one lower batch for v, H z and
    J z, since no direction depends on another. In alternating ones v, H z and J z⁺ have a lower batch each: z⁺ depends
    on the samples of H, and multiplied by J on the same samples it would shift the fixed point by γ Cov(J, H) z.
    """

    alpha: Rate
    beta: Rate
    gamma: Rate
    theta: Rate
    hypergradient: Products | Penalty
    takes_prox: ClassVar = True

    def first_memory(self, x: Vector, y: Vector | None) -> Vector:
        return x.zeros()

    def validate_prox_y(self) -> None:
        if not isinstance(self.hypergradient, Penalty):
            super().validate_prox_y()
        lower = self.strategies["y"]
        if lower.proximal != "after" or lower.default_rate is not None:
            raise ValueError(f"strategy {lower.name!r} on level y does not take prox_y: choose 'ed' or 'gt'.")
        # Both copies then take a step of the same length, each on its own objective.
        if callable(self.beta) or callable(self.gamma) or np.any(np.asarray(self.beta) != np.asarray(self.gamma)):
            raise ValueError("prox_y needs beta and gamma to be the same number: give both the same.")

    def directions(self, draw: Draw, x: Vector, y: Vector, z: Vector) -> tuple[Vector, Vector, Vector]:
        """u, v and p: what x, y and z move against, all at the old point and on one draw."""
        if isinstance(self.hypergradient, Penalty):
            return self.hypergradient.directions(draw, x, y, z)
        point = draw.at(x, y, self.hypergradient)
        return point.u(z), point.v, point.p(z)

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        return self.simultaneous(k, state, oracle, network)

    def lower_direction(self, draw: Draw, x: Vector, y: Vector, z: Vector) -> Vector:
        """v: what y moves against."""
        if isinstance(self.hypergradient, Penalty):
            return self.hypergradient.lower_direction(draw, x, y, z)
        return draw.at(x, y, self.hypergradient).v

    def lower_only(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        """A step in which only y moves: nothing is computed, drawn or sent for x and z."""
        x, y, z, r, _ = state
        strategy = self.levels(oracle)["y"]
        _, β, *_ = self.rates(k)

        def direction(draw_index: int | Array, y: Level) -> Vector:
            return self.lower_direction(oracle.draw(draw_index), x.s, y.s, z.s)

        def local_step(j: Array, y: Level) -> Level:
            return strategy.local_step(y, direction(j + 1, y), β)

        if strategy.local_steps > 1:
            y = network(y=strategy.begin_local_steps(y, β))
            y = oracle.ledger.loop(strategy.local_steps - 1, local_step, y)
        y = network(y=strategy(y, direction(0, y), β))
        if oracle.problem.prox_y is not None:
            y = y._replace(s=replace(strategy, prox=oracle.problem.prox_y).apply_prox(y.s, β))
        return State(x, y, z, r)

    def simultaneous(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        """All directions at (x, y, z), so that one vjp serves them and one message carries them.

        With local steps all levels move several times on their own, each on a new draw, before they exchange.
        """
        strategies = self.levels(oracle)
        α, β, γ, θ, *_ = self.rates(k)

        def directions(draw_index: int | Array, state: State) -> tuple[Vector, Vector, Vector]:
            u, v, p = self.directions(oracle.draw(draw_index), state.x.s, state.y.s, state.z.s)
            return (1 - θ) * state.memory + θ * u, v, p

        def local_step(j: Array, state: State) -> State:
            r, v, p = directions(j + 1, state)
            x = strategies["x"].local_step(state.x, r, α)
            y = strategies["y"].local_step(state.y, v, β)
            z = strategies["z"].local_step(state.z, p, γ)
            return State(x, y, z, r)

        state = state._replace(link_memory=())
        local_steps = strategies["y"].local_steps
        if local_steps > 1:
            x, y, z = network(
                x=strategies["x"].begin_local_steps(state.x, α),
                y=strategies["y"].begin_local_steps(state.y, β),
                z=strategies["z"].begin_local_steps(state.z, γ),
            )
            state = oracle.ledger.loop(local_steps - 1, local_step, State(x, y, z, state.memory))
        r, v, p = directions(0, state)
        x, y, z = network(
            x=strategies["x"](state.x, r, α),
            y=strategies["y"](state.y, v, β),
            z=strategies["z"](state.z, p, γ),
        )
        if oracle.problem.prox_y is not None:
            assert isinstance(self.hypergradient, Penalty)
            new = self.hypergradient.apply_prox(y.s, z.s, oracle.problem.prox_y, β)
            y, z = y._replace(s=new[0]), z._replace(s=new[1])
        return State(x, y, z, r)

    def alternating(self, k: Array, state: State, oracle: Oracle, network: Communicator, relax: Any = None) -> State:
        """Each direction at the newest point: v(x, y), p(x, y⁺, z), u(x, y⁺, z⁺).

        x takes the part `relax` of its step; None takes all of it.
        """
        x, y, z, r, _ = state
        strategies = self.levels(oracle)
        α, β, γ, θ, *_ = self.rates(k)
        assert isinstance(self.hypergradient, Products)
        draw = oracle.draw()
        y = network(y=strategies["y"](y, draw.at(x.s, y.s).v, β))
        point = draw.fresh_lower(0).at(x.s, y.s, self.hypergradient)
        z = network(z=strategies["z"](z, point.p(z.s), γ))
        u = point.fx - point.moved_to(draw.fresh_lower(1)).jacobian(z.s)
        r = (1 - θ) * r + θ * u
        x = network(x=strategies["x"](x, r, α, relax=relax))
        return State(x, y, z, r)
