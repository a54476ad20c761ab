"""What loggers share: which process writes, and finite numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import jax

from ...core._json import JSON, Provenance, Row
from .._callbacks import Callback


class Logger(Callback):
    """A callback that writes. Where a run has several processes, only the first does."""

    @property
    def writes(self) -> bool:
        return jax.process_index() == 0


def resumed(about: Provenance) -> int | None:
    """The step from which a run is continued."""
    return cast("int | None", about.get("resumed"))


def finite(row: Mapping[str, float]) -> Row:
    """The numbers that charts can show."""
    return {name: float(value) for name, value in row.items() if math.isfinite(value)}


def flat(about: Mapping[str, JSON], before: str = "") -> dict[str, JSON]:
    """Nested settings as one level: {"versions": {"jax": …}} becomes {"versions.jax": …}."""
    level: dict[str, JSON] = {}
    for name, value in about.items():
        level |= flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return level
