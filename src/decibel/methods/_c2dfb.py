"""C²DFB: inner loops on two copies of the lower variable, whose messages may be compressed."""

from __future__ import annotations

import equinox as eqx
from jax import Array

from ..core._numbers import validate_count
from ..core._vector import Vector
from ..graphs._graph import Levels
from ..network._communicator import Communicator
from ..oracles._oracle import Oracle
from ..oracles._penalty import AtCopies
from ..problem._problem import Problem
from ..strategies._residuals import top_residuals
from ..strategies._table import Level, Strategy, strategy
from ._copies import validate_strength
from ._entry import register
from ._method import Method, Rate, State, rate


class C2dfb(Method):
    """`lower_steps` times y ← GT(y, β (∇_y g(x, y) + ∇_y f(x, y)/λ)) and z ← GT(z, γ ∇_y g(x, z)), warm-started; then
    x⁺ = GT(x, α (∇_x f(x, y) + λ (∇_x g(x, y) − ∇_x g(x, z))))."""

    catalog_name = "c2dfb"
    summary = "first derivatives only: inner loops on two copies of y, whose messages may be compressed (error O(1/λ))"
    paper = (
        "Wen, Liu, Abdelmoniem, Zhou, Xu, A Communication and Computation Efficient Fully First-order Method for "
        "Decentralized Bilevel Optimization, 2024"
    )
    loops = 2

    alpha: Rate
    beta: Rate
    gamma: Rate
    strength: Rate
    lower_steps: int = eqx.field(static=True)
    inner: Strategy

    def __check_init__(self) -> None:
        validate_strength(self.strength)
        validate_count("lower_steps", self.lower_steps)

    @property
    def strategies(self) -> dict[str, Strategy]:
        return {"x": strategy("non-gt"), "y": self.inner, "z": self.inner}

    @property
    def sends(self) -> str:
        return super().sends if self.inner.coded else "2p + 4 T q numbers"

    def validate(self, problem: Problem, graphs: Levels, batch_size: int | None) -> None:
        super().validate(problem, graphs, batch_size)
        for graph in (graphs.y, graphs.z):
            if self.inner.coded and len(graph.phases) > 1:
                raise ValueError(
                    f"{self.name} compresses for a graph that stays, and {graph.name} changes: give one graph, or "
                    "share=1 and mixing=1."
                )

    def first_z(self, x: Vector, y: Vector) -> Vector:
        return y

    def step(self, k: Array, state: State, oracle: Oracle, network: Communicator) -> State:
        x, y, z, *_ = state
        strategies = self.strategies
        α, β, γ = self.rates(k)
        λ = rate(self.strength, k)

        def lower(j: Array, copies: tuple[Level, Level]) -> tuple[Level, Level]:
            y, z = copies
            point = AtCopies.of(oracle.draw(j + 1), x.s, y.s, z.s)
            moves = {"y": strategies["y"](y, point.gy + (1 / λ) * point.fy, β), "z": strategies["z"](z, point.gz, γ)}
            return network(k * self.lower_steps + j, **moves)

        y, z = oracle.ledger.loop(self.lower_steps, lower, (y, z))
        point = AtCopies.of(oracle.draw(), x.s, y.s, z.s)
        return State(network(x=strategies["x"](x, point.fx + λ * point.gap, α)), y, z)


@register(C2dfb)
def c2dfb(
    *,
    alpha: Rate,
    beta: Rate,
    gamma: Rate,
    strength: Rate = 10.0,
    lower_steps: int = 5,
    share: float = 1.0,
    mixing: float = 1.0,
) -> C2dfb:
    """C²DFB (Wen et al., 2024), reconstructed from the abstract: T inner steps of gradient tracking on y, the minimizer
    of g + f/λ, and on z, the minimizer of g; then a step of gradient tracking on x along ∇_x f(x, y) +
    λ (∇_x g(x, y) − ∇_x g(x, z)). With `share` below 1 the inner messages are the largest entries of what variable and
    tracker have new beyond a reference point, which their neighbours know; nothing is lost, only late.

    Draws: an upper and a lower batch for each of T steps and for x, the same at both copies. Differs from the paper: y
    and z share their loop and its messages; a variable and its tracker are compressed as one vector, by their largest
    entries; by default nothing is compressed.

    Args:
        beta: the step size of y, the copy that f pulls at, likewise.
        gamma: the step size of z, the copy that minimizes g, likewise.
        strength: λ: a number, or a function of the step.
        lower_steps: T, the inner steps in each iteration.
        share: the share of entries that inner messages send, above 0; 1 sends all, and no positions.
        mixing: factor of the inner flows, above 0 and at most 1: the smaller the share the smaller it must be.
    """
    plain = share == 1 and mixing == 1
    inner = strategy("non-gt") if plain else top_residuals("non-gt", share, mixing)
    return C2dfb(alpha, beta, gamma, strength, lower_steps, inner)
