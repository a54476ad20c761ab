"""Strategies with a limit on every link's flow, which bounds how far a neighbour can move a node.

If links are at their limit B and all nodes are honest, the fixed point solves min Σ f_i(s_i) + B Σ ‖s_i − s_j‖ over
links: a total-variation penalty (Ben-Ameur, Bianchi and Jakubowicz, 2016), whose multipliers are flows of at most B.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import equinox as eqx

from ..core._names import hint
from ..core._numbers import is_number
from ..core._types import Scalar
from ..core._vector import Vector
from ..network._clip import FlowBound, Limit
from ..network._communicator import Move
from ..network._limited import Limited, LimitedPlain
from ..network._network import LEVELS
from ..network._wave import Wave
from ._table import STRATEGIES, Level, Strategy, as_subclass


class LimitedStrategy(Strategy):
    """A strategy whose links' flows are clipped before they are used.

    Attributes:
        limit: the largest norm of a link's flow divided by the step size, for all levels or by level.
    """

    limit: Limit = eqx.field(default=math.inf)

    @property
    def bounded(self) -> bool:
        """Whether every level has a limit; an infinite one only measures."""
        return all(map(math.isfinite, self.limits.values()))

    @property
    def limits(self) -> dict[str, float]:
        """The limit of each level."""
        by_level = self.limit if isinstance(self.limit, Mapping) else dict.fromkeys(LEVELS, self.limit)
        return {level: float(value) for level, value in by_level.items()}


class LimitedEdges(LimitedStrategy):
    """`"edge-ed"`, F_ij ← clip(F_ij) before it is used."""

    def update(self, level: Level, direction: Vector, rate: Scalar) -> Move:
        s = level.s - rate * direction
        (c,) = level.carry
        c = yield Limited(s + c, flow_bound=FlowBound(rate, self.limit))
        return s + c, (c,)


class LimitedMessage(LimitedStrategy):
    """A strategy that sends one message in a step, whose flows are clipped before they are used: `"diffusion"` and
    `"consensus"`, w_ij (φ_j − φ_i), and `"wave"`, in code or not, z_ij ← ρ_ij s_i + clip(z_ij − ρ_ij s_i)."""

    def update(self, level: Level, direction: Vector, rate: Scalar) -> Move:
        move = super().update(level, direction, rate)
        message = next(move)
        flow_bound = FlowBound(rate, self.limit)
        if isinstance(message, Wave):
            answer = yield replace(message, flow_bound=flow_bound)
        else:
            answer = yield LimitedPlain(message, flow_bound=flow_bound)
        try:
            move.send(answer)
        except StopIteration as end:
            return end.value
        raise TypeError(
            f"{self.name} sends several messages in a step, and a limit needs one: choose 'edge-ed' or 'wave'."
        )


class LocalWave(LimitedStrategy):
    """`"wave"`, in code or not, with several steps for each exchange: LT-ADMM (Ren et al., 2025).

    A node reads its messages first. Then it takes s ← s − d + Σ_j (z_ij − ρ_ij s_i) τ times with the same sum.

    Attributes:
        steps_per_exchange: τ.
    """

    steps_per_exchange: int = eqx.field(static=True, default=1)

    @property
    def local_steps(self) -> int:
        return self.steps_per_exchange

    @property
    def label(self) -> str:
        return f"{super().label}, {self.local_steps} local steps"

    def begin_local_steps(self, level: Level, rate: Scalar) -> Move:
        message = next(self.flow_form(level.s, level.s.zeros()))
        flow_bound = FlowBound(rate, self.limit)
        F = yield replace(message, wait_for=None, flow_bound=flow_bound, local_steps=self.local_steps)
        return Level(level.s, (F,))

    def update(self, level: Level, direction: Vector, rate: Scalar) -> Move:
        if not level.carry:
            level = yield from self.begin_local_steps(level, rate)
        return self.local_step(level, direction, rate).s, ()


def edge_ed(limit: float | Mapping[str, float]) -> LimitedStrategy:
    """Exact Diffusion by link (`"edge-ed"`), in which no link's flow exceeds a limit, whatever its other end sends.

    Each flow moves a node by at most `limit` times its step size. All flows together move it no more than if its
    gradient were wrong by degree · `limit`. If no flow reaches the limit this is `"edge-ed"`. Too low a limit keeps
    nodes from agreeing. Take 1.2 times the largest flow of a run without malicious nodes, which `decibel silo rehearse`
    reports.

    Args:
        limit: in the units of a level's gradient, for every level, or by level as `{"x": 3.0, "y": 1.0, "z": 0.5}`;
            infinity only measures.
    """
    return with_limit(STRATEGIES["edge-ed"], limit)


def wave(limit: float | Mapping[str, float]) -> LimitedStrategy:
    """EXTRA by link without a common clock (`"wave"`), in which no link's flow z_ij − ρ_ij s_i exceeds a limit.

    `edge_ed` explains the limit and how to find it. It holds whatever is late or lost, and for compressed messages too,
    as in `db.privacy.quantize(db.strategies.wave(3.0), 4)`. Flows depend on delays, so measure them with those of the
    real run.

    Args:
        limit: in the units of a level's gradient, for every level, or by level as `{"x": 3.0, "y": 1.0, "z": 0.5}`;
            infinity only measures.
    """
    return with_limit(STRATEGIES["wave"], limit)


def takes_limit(strategy: Strategy) -> bool:
    """Whether its flows can be limited: `"edge-ed"`, `"diffusion"`, `"consensus"`, and `"wave"`, compressed or not."""
    return strategy.asynchronous or strategy.flow_form in [
        STRATEGIES[name].flow_form for name in ("edge-ed", "diffusion", "consensus")
    ]


def with_limit(strategy: Strategy, limit: Limit) -> LimitedStrategy:
    """The strategy with this limit, instead of one that it may have."""
    limits = limit if isinstance(limit, Mapping) else {"every level": limit}
    for level, value in limits.items():
        if isinstance(limit, Mapping) and level not in LEVELS:
            raise ValueError(f"limit has {level!r}, which is no level: {hint(str(level), LEVELS)}")
        if not is_number(value) or not value > 0:
            raise ValueError(f"limit={limit!r} must be positive: give the largest size of a flow, such as 3.0.")
    if not limits:
        raise ValueError("limit={} names no level: give one such as {'x': 3.0}.")
    validated = {level: float(value) for level, value in limit.items()} if isinstance(limit, Mapping) else float(limit)
    name = (
        strategy.name.removesuffix(_limit_suffix(strategy.limit))
        if isinstance(strategy, LimitedStrategy)
        else strategy.name
    )
    name = name + _limit_suffix(validated)
    if isinstance(strategy, LocalWave):
        return replace(strategy, name=name, limit=validated)
    subclass = LimitedEdges if strategy.flow_form is STRATEGIES["edge-ed"].flow_form else LimitedMessage
    return as_subclass(strategy, subclass, name=name, limit=validated)


def _limit_suffix(limit: Limit) -> str:
    """What a strategy's name says about its limit; nothing if an infinite limit only measures."""
    by_level = limit if isinstance(limit, Mapping) else {"": limit}
    if all(map(math.isinf, by_level.values())):
        return ""
    return f" (limit {', '.join(f'{level} {value:g}'.strip() for level, value in by_level.items())})"
