"""Several steps for each exchange, for strategies that stay exact with them."""

from __future__ import annotations

import math
from dataclasses import replace

from ..core._numbers import validate_count
from ._adaptive import AdaptiveFlows
from ._limited import LimitedStrategy, LocalWave
from ._table import STRATEGIES, Strategy, as_subclass, led


def with_local_steps(strategy: Strategy, local_steps: int) -> Strategy:
    """The strategy with that many steps for each exchange; unchanged for one step.

    Args:
        strategy: the strategy, one of `"ed"`, `"wave"`, `"ada-ed"` and `"adam-ed"` where there are several steps.
        local_steps: how many steps.
    """
    validate_count("local_steps", local_steps)
    if local_steps == 1:
        return strategy
    if strategy.flow_form is STRATEGIES["ed"].flow_form:
        return led(local_steps, damping=strategy.damping)
    if isinstance(strategy, AdaptiveFlows):
        return replace(strategy, steps_per_exchange=local_steps, proximal=None)
    if strategy.asynchronous:
        limit = strategy.limit if isinstance(strategy, LimitedStrategy) else math.inf
        return as_subclass(strategy, LocalWave, proximal=None, limit=limit, steps_per_exchange=local_steps)
    raise ValueError(
        f"local_steps={local_steps} needs the strategy 'ed', 'wave', 'ada-ed' or 'adam-ed', not {strategy.name!r}: "
        "change one of them."
    )
