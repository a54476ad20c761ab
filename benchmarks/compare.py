"""What became slower: the ratios of a new run against those of a baseline."""

from __future__ import annotations

from typing import Any, NamedTuple

TOLERANCE = 0.25  # on an otherwise idle machine; ratios of loaded ones wander further


class Change(NamedTuple):
    name: str
    before: float
    now: float

    @property
    def factor(self) -> float:
        return self.now / self.before

    def __str__(self) -> str:
        return f"{self.name}: {self.before:.3g} → {self.now:.3g} (×{self.factor:.2f})"


class Comparison(NamedTuple):
    slower: list[Change]
    faster: list[Change]
    missing: list[str]  # in the baseline only
    added: list[str]  # in the new run only

    @property
    def good(self) -> bool:
        return not (self.slower or self.missing)


def compare(baseline: dict[str, Any], new: dict[str, Any], tolerance: float = TOLERANCE) -> Comparison:
    """`tolerance`: how much larger a ratio may be before it counts, as a part of the baseline's."""
    if baseline["benchmark"] != new["benchmark"]:
        raise ValueError(
            f"baseline is of {baseline['benchmark']!r} and the run of {new['benchmark']!r}: give one of both."
        )
    if not tolerance > 0:
        raise ValueError(f"tolerance={tolerance} must be positive: 0.25 allows a quarter more.")
    before, now = baseline["ratios"], new["ratios"]
    changes = [Change(name, before[name], now[name]) for name in before if name in now]
    return Comparison(
        slower=sorted((one for one in changes if one.factor > 1 + tolerance), key=lambda one: -one.factor),
        faster=sorted((one for one in changes if one.factor < 1 / (1 + tolerance)), key=lambda one: one.factor),
        missing=[name for name in before if name not in now],
        added=[name for name in now if name not in before],
    )
