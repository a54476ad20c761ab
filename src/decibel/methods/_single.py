"""A single-level method with any strategy."""

from __future__ import annotations

from ..core._names import suggests_names
from ..strategies._table import Strategy, strategy
from ._method import Rate
from ._single_level import SingleLevel, given_rate


@suggests_names
def single(mixing: str | Strategy, *, alpha: Rate | None = None, theta: Rate = 1.0) -> SingleLevel:
    """A single-level method with any strategy: `mixing` moves x by α r⁺, with r⁺ = (1−θ) r + θ ∇f(x).

    Draws: one batch for each local step of the strategy.

    Args:
        mixing: the strategy of x, as a name or a `db.Strategy`, such as `db.strategies.ed(damping=0.2)`.
        alpha: the step size of x: a number, or a function of the step. Adaptive strategies have a default.
        theta: the weight of the newest sample in a running average of the gradient, from 0 to 1; 1 keeps no average.
    """
    level = strategy(mixing)
    return SingleLevel(given_rate("alpha", alpha, level), theta, level)
