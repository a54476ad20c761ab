"""How a claim is judged: paired tests with one number per seed, Holm's correction within the claim, and a verdict.

A check says that the mean over seeds of a number lies above a threshold, below it, or between two. It gets three
p-values: that it does, that it does not, and, where a band was registered, that what is compared is level, by two
one-sided tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypedDict

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from .results import Results, S

HOLDS = "holds"
FAILS = "fails"
EQUIVALENT = "equivalent"
UNDECIDED = "undecided"
CONFIDENCE = 0.95  # of each end of the interval
LEVEL = 1 - CONFIDENCE  # of a claim: all its checks, and all looks at it, together

# Whether the paper's experiment shows what the paper says, and whether a stronger test still does.
YES = "yes"
PARTLY = "partly"
NO = "no"
CANNOT_TELL = "cannot tell"


class Part(TypedDict):
    """One case of a pooled check: shown, and not judged apart."""

    text: str
    mean: float | str
    margin: float | str


class CheckRecord(TypedDict):
    """A check as verdicts.json holds it; numbers that are not finite are words."""

    text: str
    values: list[float | str]
    mean: float | str
    spread: float | str
    margin: float | str
    low: float | str
    high: float | str
    level: float
    p: dict[str, float]  # corrected: that it holds, that it fails, that both are level
    parts: list[Part]
    verdict: str


class AnswerRecord(TypedDict):
    """An answer to one of the two questions as verdicts.json holds it."""

    answer: str
    asks: str  # what is tested; empty where it is the registered test
    checks: list[CheckRecord]


class ClaimRecord(TypedDict):
    """A claim as verdicts.json holds it, with the verdict of its registered test."""

    claim: str
    text: str
    says: str
    whose: str
    verdict: str
    finding: str
    why: str
    looks: int  # how often it was judged with fresh seeds
    checks: list[CheckRecord]
    reproduced: AnswerRecord | None  # None for a claim of ours
    survives: AnswerRecord


@dataclass(frozen=True)
class Check:
    """A statement about a mean over seeds: it lies between `low` and `high`, of which one is mostly infinite.

    An infinity among the values stands for a run that diverged or never got there. With one the test is the sign test,
    which asks only on which side each value lies; otherwise it is Student's. `level` is how far from the threshold two
    methods count as level; `trim` is the share of the values that is left out at either end, so that single runs do not
    decide (Student's test of a trimmed mean is Tukey and McLaughlin's, 1963); `parts` are the checks that were pooled.
    """

    text: str
    values: tuple[float, ...]  # one per seed
    low: float = 0.0
    high: float = math.inf
    level: float = 0.0
    trim: float = 0.0
    parts: tuple[Check, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.trim < 0.5:
            raise ValueError(f"trim={self.trim} must be a share below 0.5, 0 for none.")

    @classmethod
    def of(
        cls, text: str, values: ArrayLike, threshold: float = 0.0, *, above: bool = True, level: float = 0.0
    ) -> Check:
        """The mean lies above the threshold, or below it."""
        ends = (threshold, math.inf) if above else (-math.inf, threshold)
        return cls.within(text, values, *ends, level=level)

    @classmethod
    def within(cls, text: str, values: ArrayLike, low: float, high: float, *, level: float = 0.0) -> Check:
        """The mean lies between the two."""
        each = tuple(float(value) for value in np.atleast_1d(np.asarray(values, float)))
        return cls(text, each, float(low), float(high), float(level))

    @property
    def finite(self) -> Float[np.ndarray, " seeds"]:
        values = np.asarray(self.values)
        return values[np.isfinite(values)]

    @property
    def mean(self) -> float:
        return float(self._kept.mean()) if self.finite.size else math.nan

    @property
    def _kept(self) -> Float[np.ndarray, " kept"]:
        """What is not left out at either end."""
        return stats.trimboth(self.finite, self.trim) if self.trim else self.finite

    @property
    def spread(self) -> float:
        """The standard deviation over seeds."""
        return float(self.finite.std(ddof=1)) if self.finite.size > 1 else math.nan

    @property
    def margin(self) -> float:
        """Half the width of the interval in which the mean lies, by Student's t: infinite for a single seed."""
        return float(stats.t.ppf(CONFIDENCE, self._freedom) * self._error) if self._freedom else math.inf

    @property
    def _freedom(self) -> int:
        """The degrees of freedom of Student's t."""
        return max(0, self._kept.size - 1)

    @property
    def _error(self) -> float:
        """The standard error of the mean, by the spread of values of which those left out are moved to the others."""
        kept, count = self._kept, self.finite.size
        winsorized = np.clip(self.finite, kept.min(), kept.max())
        return float(winsorized.std(ddof=1) / (kept.size / count * math.sqrt(count)))

    @property
    def threshold(self) -> float:
        """The finite end, or the nearer of two."""
        return min((end for end in (self.low, self.high) if math.isfinite(end)), key=lambda end: abs(self.mean - end))

    @property
    def p_holds(self) -> float:
        return max(self._beyond(self.low, 1), self._beyond(self.high, -1))

    @property
    def p_fails(self) -> float:
        ends: list[tuple[float, Literal[1, -1]]] = [(self.low, -1), (self.high, 1)]
        tests = [self._beyond(end, sign) for end, sign in ends if math.isfinite(end)]
        return min(1.0, len(tests) * min(tests))

    @property
    def p_level(self) -> float:
        """Of two one-sided tests: that the mean is within `level` of the threshold."""
        if not self.level:
            return 1.0
        end = self.low if math.isfinite(self.low) else self.high
        return max(self._beyond(end - self.level, 1), self._beyond(end + self.level, -1))

    def _beyond(self, end: float, sign: Literal[1, -1]) -> float:
        """The p-value of "the mean lies above (sign 1) or below `end`"."""
        if math.isinf(end):
            return 0.0
        values = sign * (np.asarray(self.values) - end)
        if len(values) < 2:
            return 1.0
        diverged = not np.isfinite(values).all()
        if diverged or (self.trim and not (self._freedom and self._error)):  # a trimmed mean needs some spread
            return float(stats.binom.sf(np.count_nonzero(values > 0) - 1, len(values), 0.5))  # NaN is on no side
        beyond, error = sign * (self.mean - end), self._error
        if error == 0:
            return 0.0 if beyond > 0 else 1.0
        return float(stats.t.sf(beyond / error, self._freedom))

    @property
    def verdict(self) -> str:
        """Of this check alone; among others of a claim see `corrected`."""
        return corrected([self])[0].verdict

    def __str__(self) -> str:
        diverged = len(self.values) - self.finite.size
        note = f", {diverged} of {len(self.values)} runs diverged or never got there" if diverged else ""
        return f"{self.text}: {self.mean:.4g} ± {self.margin:.2g} ({self.asked}?{note}) {self.verdict}"

    @property
    def asked(self) -> str:
        """Where the mean should lie, in words."""
        return asked(self.low, self.high)


def asked(low: float | str, high: float | str) -> str:
    low, high = as_number(low), as_number(high)
    if math.isinf(high):
        return f"above {low:.3g}"
    return f"below {high:.3g}" if math.isinf(low) else f"between {low:.3g} and {high:.3g}"


@dataclass(frozen=True)
class Judged:
    """A check among the others of its claim: p-values after Holm's correction, and what follows."""

    check: Check
    p_holds: float
    p_fails: float
    p_level: float

    @property
    def verdict(self) -> str:
        """Level comes before a failure: a difference within the band is none that was asked about."""
        ranked = ((self.p_holds, HOLDS), (self.p_level, EQUIVALENT), (self.p_fails, FAILS))
        return next((word for p, word in ranked if p <= LEVEL), UNDECIDED)

    def as_dict(self) -> CheckRecord:
        check = self.check
        p = {"holds": self.p_holds, "fails": self.p_fails, "level": self.p_level}
        return {
            "text": check.text,
            "values": [_plain(value) for value in check.values],
            "mean": _plain(check.mean),
            "spread": _plain(check.spread),
            "margin": _plain(check.margin),
            "low": _plain(check.low),
            "high": _plain(check.high),
            "level": check.level,
            "p": {name: float(f"{value:.3g}") for name, value in p.items()},
            "parts": [
                {"text": part.text, "mean": _plain(part.mean), "margin": _plain(part.margin)} for part in check.parts
            ],
            "verdict": self.verdict,
        }


def corrected(checks: Sequence[Check], looks: int = 0) -> list[Judged]:
    """The checks of a claim with p-values by Holm's step-down correction, for each of the three questions apart.

    A claim may be looked at again with other seeds. Look k spends the share 1/2ᵏ of the 5 %, so that all looks together
    spend no more, however many there are. Checks of no claim (0 looks) may err in 5 %.
    """
    raw = [[getattr(check, f"p_{name}") for check in checks] for name in ("holds", "fails", "level")]
    families = [holm([min(1.0, 2**looks * p) for p in family]) for family in raw]
    return [Judged(check, *own) for check, *own in zip(checks, *families, strict=True)]


def holm(p: Sequence[float]) -> list[float]:
    """p-values such that all of them together are wrong no more often than one alone may be (Holm, 1979)."""
    order = np.argsort(p)
    raised = np.maximum.accumulate([(len(p) - rank) * p[i] for rank, i in enumerate(order)])
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(raised, 1.0)
    return adjusted.tolist()


def together(judged: Sequence[Judged]) -> str:
    """A claim holds where all its checks do and fails where one does; where others are level, so are the methods."""
    verdicts = {each.verdict for each in judged}
    if FAILS in verdicts or not judged:
        return FAILS
    return UNDECIDED if UNDECIDED in verdicts else EQUIVALENT if EQUIVALENT in verdicts else HOLDS


@dataclass(frozen=True)
class Answer:
    """The answer to one question, with the checks that it follows from; with none of them nobody can tell."""

    asks: str
    checks: tuple[Check, ...]
    looks: int
    open: str  # the word where nothing is settled

    @property
    def answer(self) -> str:
        """Yes where every check holds and no where none does and one speaks against it."""
        verdicts = {each.verdict for each in corrected(self.checks, self.looks)}
        if verdicts == {HOLDS}:
            return YES
        if HOLDS in verdicts:
            return PARTLY
        return NO if verdicts & {FAILS, EQUIVALENT} else self.open

    def as_dict(self) -> AnswerRecord:
        checks = [each.as_dict() for each in corrected(self.checks, self.looks)]
        return {"answer": self.answer, "asks": self.asks, "checks": checks}


@dataclass(frozen=True)
class Verdict(Generic[S]):
    """A claim with the checks of its registered test, and the answers to both questions."""

    claim: Claim[S]
    checks: tuple[Check, ...]
    reproduced: Answer | None
    survives: Answer
    whose: str = ""
    looks: int = 1

    @property
    def judged(self) -> list[Judged]:
        return corrected(self.checks, self.looks)

    @property
    def verdict(self) -> str:
        return together(self.judged)

    def as_dict(self) -> ClaimRecord:
        return {
            "claim": self.claim.name,
            "text": self.claim.text,
            "says": self.claim.says,
            "whose": self.whose,
            "verdict": self.verdict,
            "finding": self.claim.finding,
            "why": self.claim.why,
            "looks": self.looks,
            "checks": [each.as_dict() for each in self.judged],
            "reproduced": self.reproduced.as_dict() if self.reproduced else None,
            "survives": self.survives.as_dict(),
        }


@dataclass(frozen=True)
class Test(Generic[S]):
    """What is asked, and the function from results to the checks it comes down to; without one the text of the paper
    does not say enough to ask."""

    asks: str
    judge: Callable[[Results[S]], Sequence[Check]] | None = None


@dataclass(frozen=True)
class Claim(Generic[S]):
    """A claim, and how it is tested.

    - `text`, `judge`: what the registered test asks, and the function from results to the checks it comes down to.
    - `says`: the paper's words; none for a claim of ours.
    - `finding`: what was found, in a sentence. `why`: details.
    - `reproduced`, `survives`: tests that answer these questions where the registered one does not.
    """

    name: str
    text: str
    judge: Callable[[Results[S]], Sequence[Check]]
    why: str = field(default="", compare=False)
    says: str = ""
    finding: str = field(default="", compare=False)
    reproduced: Test[S] | None = None
    survives: Test[S] | None = None

    def __call__(self, results: Results[S], whose: str = "", looks: int = 1) -> Verdict[S]:
        checks = tuple(self.judge(results))

        def answer(test: Test[S] | None, nothing: str) -> Answer:
            if test is None:
                return Answer("", checks, looks, nothing)
            return Answer(test.asks, tuple(test.judge(results)) if test.judge else (), looks, nothing)

        reproduced = answer(self.reproduced, CANNOT_TELL) if self.says else None
        return Verdict(self, checks, reproduced, answer(self.survives, UNDECIDED), whose, looks)


def only(judge: Callable[[Results[S]], Sequence[Check]], *words: str) -> Callable[[Results[S]], Sequence[Check]]:
    """Of the checks those whose text has one of the words."""
    return lambda results: [check for check in judge(results) if any(word in check.text for word in words)]


def as_number(value: float | str) -> float:
    """What `verdicts.json` holds as a number or, where it is not finite, as a word."""
    return {"inf": math.inf, "-inf": -math.inf}.get(value, math.nan) if isinstance(value, str) else value


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
