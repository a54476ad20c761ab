"""Exact Diffusion by link with a limit on every link's flow, so that no neighbour can move a node without bound."""

from __future__ import annotations

import math
from collections.abc import Mapping

import equinox as eqx

from ..core._names import hint
from ..core._types import Scalar
from ..core._vector import Vector
from ..network._limited import Limit, Limited
from ..network._network import LEVELS
from ._table import STRATEGIES, Flows, Level, Strategy


class LimitedDiffusion(Strategy):
    """`"edge-ed"`, F_ij ← clip(F_ij) before it is used.

    Attributes:
        limit: the largest norm of a link's flow divided by the step size, for all levels or by level.
    """

    limit: Limit = eqx.field(default=math.inf)

    @property
    def integrates(self) -> bool:
        """Up to its limit only."""
        return not all(map(math.isfinite, self.limits.values()))

    @property
    def limits(self) -> dict[str, float]:
        """By level."""
        given = self.limit if isinstance(self.limit, Mapping) else dict.fromkeys(LEVELS, self.limit)
        return {level: float(value) for level, value in given.items()}

    def moved(self, level: Level, direction: Vector, rate: Scalar) -> Flows:
        s, (c,) = level.s - rate * direction, level.carry
        c = yield Limited((s + c, rate, self.limit))
        return s + c, (c,)


def edge_ed(limit: float | Mapping[str, float]) -> LimitedDiffusion:
    """Exact Diffusion by link (`"edge-ed"`), in which no link's flow exceeds a limit, whatever its other end sends.

    A node that adds ‖F_ij‖ ≤ `limit` times its step size for each of its links is moved by no more than if its gradient
    were wrong by degree · `limit`. Where no flow reaches the limit it is `"edge-ed"`. Too low a limit keeps nodes from
    agreeing: take 1.2 times the largest flow of a run in which nobody lies, which `decibel silo rehearse` reports.

    Args:
        limit: in the units of a level's gradient, for every level, or by level as `{"x": 3.0, "y": 1.0, "z": 0.5}`;
            infinity only measures.
    """
    row, given = STRATEGIES["edge-ed"], limit if isinstance(limit, Mapping) else {"every level": limit}
    for level, value in given.items():
        if isinstance(limit, Mapping) and level not in LEVELS:
            raise ValueError(f"limit has {level!r}, which is no level: {hint(str(level), LEVELS)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"limit={limit!r} must be positive: give the largest size of a flow, such as 3.0.")
    if not given:
        raise ValueError("limit={} names no level: give one such as {'x': 3.0}.")
    kept = {level: float(value) for level, value in given.items()}
    shown = ", ".join(
        f"{level} {value:g}" if isinstance(limit, Mapping) else f"{value:g}" for level, value in kept.items()
    )
    return LimitedDiffusion(
        row.name if all(map(math.isinf, kept.values())) else f"{row.name} (limit {shown})",
        row.move, row.carries, row.A, row.B2, row.C, requires_spectrum=True, per_link=True, vectors=row.vectors,
        limit=kept if isinstance(limit, Mapping) else kept["every level"],
    )  # fmt: skip
