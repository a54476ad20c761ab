"""Types that studies share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from jax import Array

from decibel import Graph, GraphSequence, metrics

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
PyTree: TypeAlias = Any
Rate: TypeAlias = float | Callable[[Array], Array]  # a step size: a number, or a function of the step
Snapshot: TypeAlias = metrics.Snapshot
Metric: TypeAlias = Callable[[Snapshot], Any]
Topology: TypeAlias = Graph | GraphSequence
