"""What loggers share: which process writes, finite numbers, and errors for missing libraries."""

from __future__ import annotations

import importlib
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


def needed(module: str, user: str, extra: str) -> Any:
    """A module that only this logger uses."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        sentence = f"db.loggers.{user} needs {package}: pip install 'decibel-opt[{extra}]'."
        raise ImportError(sentence) from None


def finite(row: Mapping[str, float]) -> dict[str, float]:
    """The numbers that charts can show."""
    return {name: float(value) for name, value in row.items() if math.isfinite(value)}


def flat(about: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings as one level: {"versions": {"jax": …}} becomes {"versions.jax": …}."""
    level: dict[str, Any] = {}
    for name, value in about.items():
        level |= flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return level
