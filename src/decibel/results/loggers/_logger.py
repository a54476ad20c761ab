"""What loggers share: which process writes, and finite numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax

from .._callbacks import Callback


class Logger(Callback):
    """A callback that writes. Where a run has several processes, only the first does."""

    @property
    def writes(self) -> bool:
        return jax.process_index() == 0


def finite(row: Mapping[str, float]) -> dict[str, float]:
    """The numbers that charts can show."""
    return {name: float(value) for name, value in row.items() if math.isfinite(value)}


def flat(about: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings as one level: {"versions": {"jax": …}} becomes {"versions.jax": …}."""
    level: dict[str, Any] = {}
    for name, value in about.items():
        level |= flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return level
