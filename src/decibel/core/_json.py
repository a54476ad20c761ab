"""Plain values: what can be written as JSON. Nothing here needs JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
Provenance: TypeAlias = dict[str, JSON]  # of a run: versions, seed, graph and settings
Row: TypeAlias = dict[str, float]  # of a trace: a value per column
