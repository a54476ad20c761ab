"""Plain values: what can be written as JSON. Nothing here needs JAX."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
Provenance: TypeAlias = dict[str, JSON]  # of a run: versions, seed, graph and settings
Row: TypeAlias = dict[str, float]  # of a trace: a value per column


def without_nan(value: object) -> object:
    """The same with null for NaN and infinity, for which JSON has no word."""
    if isinstance(value, dict):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
