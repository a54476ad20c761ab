"""How a claim is judged: checks with one number per seed, an interval for their mean, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypedDict

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from .results import Results, S

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
CONFIDENCE = 0.95  # of each end of the interval


class CheckRecord(TypedDict):
    """A check as verdicts.json holds it; numbers that are not finite are words."""

    text: str
    values: list[float | str]
    mean: float | str
    spread: float | str
    margin: float | str
    threshold: float
    side: str
    verdict: str


class ClaimRecord(TypedDict):
    """A claim as verdicts.json holds it."""

    claim: str
    text: str
    verdict: str
    why: str
    checks: list[CheckRecord]


@dataclass(frozen=True)
class Check:
    """A statement about a mean over seeds: it lies above (or below) `threshold`.

    An infinity stands for a run that diverged: above the threshold or below it, it speaks for the statement or against.
    """

    text: str
    values: tuple[float, ...]  # one per seed
    threshold: float = 0.0
    above: bool = True

    @classmethod
    def of(cls, text: str, values: ArrayLike, threshold: float = 0.0, *, above: bool = True) -> Check:
        return cls(text, tuple(float(value) for value in np.atleast_1d(np.asarray(values, float))), threshold, above)

    @property
    def finite(self) -> Float[np.ndarray, " seeds"]:
        values = np.asarray(self.values)
        return values[np.isfinite(values)]

    @property
    def mean(self) -> float:
        return float(self.finite.mean()) if self.finite.size else math.nan

    @property
    def spread(self) -> float:
        """The standard deviation over seeds."""
        return float(self.finite.std(ddof=1)) if self.finite.size > 1 else math.nan

    @property
    def margin(self) -> float:
        """Half the width of the interval in which the mean lies, by Student's t: infinite for a single seed."""
        count = self.finite.size
        return float(stats.t.ppf(CONFIDENCE, count - 1) * self.spread / math.sqrt(count)) if count > 1 else math.inf

    @property
    def verdict(self) -> str:
        """Holds or fails where the whole interval lies on one side of the threshold."""
        sign = 1 if self.above else -1
        values = sign * np.asarray(self.values)
        if np.isnan(values).any() or np.isneginf(values).any():
            return FAILS
        if np.isposinf(values).any() and not self.finite.size:
            return HOLDS
        distance = sign * (self.mean - self.threshold)
        return UNDECIDED if abs(distance) <= self.margin else HOLDS if distance > 0 else FAILS

    def __str__(self) -> str:
        side = "above" if self.above else "below"
        diverged = len(self.values) - self.finite.size
        note = f", {diverged} of {len(self.values)} runs diverged or never got there" if diverged else ""
        return f"{self.text}: {self.mean:.4g} ± {self.margin:.2g} ({side} {self.threshold:.4g}?{note}) {self.verdict}"

    def as_dict(self) -> CheckRecord:
        return {
            "text": self.text,
            "values": [value if math.isfinite(value) else str(value) for value in self.values],
            "mean": _plain(self.mean),
            "spread": _plain(self.spread),
            "margin": _plain(self.margin),
            "threshold": self.threshold,
            "side": "above" if self.above else "below",
            "verdict": self.verdict,
        }


def together(checks: Sequence[Check]) -> str:
    """A claim holds where all its checks do, and fails where one fails."""
    verdicts = {check.verdict for check in checks}
    return FAILS if FAILS in verdicts or not checks else UNDECIDED if UNDECIDED in verdicts else HOLDS


@dataclass(frozen=True)
class Verdict:
    claim: str
    text: str
    checks: tuple[Check, ...]
    why: str = ""

    @property
    def verdict(self) -> str:
        return together(self.checks)

    def as_dict(self) -> ClaimRecord:
        return {
            "claim": self.claim,
            "text": self.text,
            "verdict": self.verdict,
            "why": self.why,
            "checks": [check.as_dict() for check in self.checks],
        }


@dataclass(frozen=True)
class Claim(Generic[S]):
    """What a paper says, the function from results to the checks it comes down to, and, where it did not hold at full
    size, why."""

    name: str
    text: str
    judge: Callable[[Results[S]], Sequence[Check]]
    why: str = field(default="", compare=False)

    def __call__(self, results: Results[S]) -> Verdict:
        return Verdict(self.name, self.text, tuple(self.judge(results)), self.why)


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
