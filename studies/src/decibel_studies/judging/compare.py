"""Checks that two arms of a study come down to: differences and ratios, seed by seed, and over several cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .results import Runs
from .verdicts import Check

WORDS = {
    "heldout_loss": "held-out loss",
    "node_accuracy": "accuracy of the nodes' own networks",
    "node_test_loss": "test loss of the nodes' own models",
    "train_loss": "training loss",
    "whole_accuracy": "accuracy on all digits alike",
}


def higher(
    ours: Runs,
    theirs: Runs,
    column: str,
    *,
    tolerance: float = 0.0,
    level: float = 0.0,
    against: str | None = None,
    share: float = 0.1,
    trim: float = 0.0,
) -> Check:
    """Ours − theirs at the end, the last `share` of the rows, for what should be large.

    A tolerance makes it "not lower by more than that"; within `level` both are level. `against` ends both at the
    cost of that name which both have spent; `trim` leaves out that share of the seeds at either end.
    """
    first, second = _ends(column, against, ours, theirs, share=share)
    check = _difference(ours, theirs, column, first, second, tolerance, level, against)
    if not trim:
        return check
    return replace(check, text=f"{check.text} (trimmed by {100 * trim:g} %)", trim=trim)


def lower(
    ours: Runs, theirs: Runs, column: str, *, tolerance: float = 0.0, level: float = 0.0, against: str | None = None
) -> Check:
    """Theirs − ours at the end, for what should be small."""
    first, second = _ends(column, against, theirs, ours)
    return _difference(theirs, ours, column, first, second, tolerance, level, against, diverged=1)


def smaller(
    ours: Runs, theirs: Runs, column: str, *, factor: float = 1.0, level: float = 1.0, against: str | None = None
) -> Check:
    """log₁₀(theirs / ours) at the end, for errors that span decades; a factor makes it "not larger by more", and within
    the factor `level` both are level."""
    mine, other = (np.log10(np.maximum(end, 1e-300)) for end in _ends(column, against, ours, theirs))
    text = f"{ours.case}: log₁₀ of {_words(column)}{_at(against)}, {theirs.label} less {ours.label}"
    return less(text, mine, other, 0.0 - math.log10(factor), level=math.log10(level))


def faster(ours: Runs, theirs: Runs, column: str, against: str = "samples") -> Check:
    """Theirs − ours of the average height of a falling curve, over the cost that both have spent."""
    _paired(ours, theirs)
    limit = spent_by_all(against, ours, theirs)
    mine, other = (runs.mean(column, against, limit) for runs in (ours, theirs))
    cost = "steps" if against == "step" else against
    text = f"{ours.case}: {_words(column)} averaged over {cost}, {theirs.label} less {ours.label}"
    return less(text, mine, other)


def less(text: str, ours: np.ndarray, theirs: np.ndarray, threshold: float = 0.0, *, level: float = 0.0) -> Check:
    """Theirs − ours, seed by seed, for what should be small."""
    return Check.of(text, settle(theirs - ours, ours=ours, theirs=theirs), threshold, level=level)


def lowest(tried: Sequence[Runs], column: str) -> Runs:
    """The arm whose column ends lowest on average over seeds."""
    return min(tried, key=lambda runs: float(np.nan_to_num(np.mean(runs.last(column)), nan=np.inf)))


def sooner(ours: Runs, theirs: Runs, column: str, level: float, against: str = "samples") -> Check:
    """log₁₀(theirs / ours) of the cost of reaching a level; a run that never reaches it counts as infinite."""
    _paired(ours, theirs)
    mine, other = (runs.reach(column, level, against) for runs in (ours, theirs))
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.log10(np.maximum(other, 1)) - np.log10(np.maximum(mine, 1))
    values[np.isposinf(mine)] = -np.inf
    text = (
        f"{ours.case}: log₁₀ of the {against} until {_words(column)} is {level:.3g}, {theirs.label} less {ours.label}"
    )
    return Check.of(text, values)


def pooled(text: str, checks: Sequence[Check]) -> Check:
    """One check of several that ask the same in several cases: the mean over cases, seed by seed. A run that diverged
    in any case counts as diverged."""
    table = np.array([check.values for check in checks])
    with np.errstate(invalid="ignore"):
        values = table.mean(0)
    for infinite in (np.inf, -np.inf):  # what speaks against comes last
        values = np.where((table == infinite).any(0), infinite, values)
    values = np.where(np.isnan(table).any(0), np.nan, values)
    return replace(checks[0], text=text, values=tuple(values.tolist()), parts=tuple(checks))


def power(value: float) -> str:
    """A power of ten in print, such as 10⁻⁶."""
    exponent = str(round(math.log10(value)))
    return "10" + exponent.translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def spent_by_all(against: str, *arms: Runs) -> float:
    """The cost that all runs have spent which did not diverge."""
    ends = [
        trace[against][-1]
        for runs in arms
        for trace, stopped in zip(runs.traces, runs.stopped, strict=True)
        if not stopped
    ]
    return min(ends, default=0.0)


def settle(values: np.ndarray, *, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """A run of ours that diverged speaks against, one of theirs for the statement."""
    values = np.where(np.isnan(theirs), np.inf, values)
    return np.where(np.isnan(ours), -np.inf, values)


def _ends(column: str, against: str | None, *arms: Runs, share: float = 0.1) -> list[np.ndarray]:
    _paired(*arms)
    if against is None:
        return [runs.last(column, share) for runs in arms]
    limit = spent_by_all(against, *arms)
    return [runs.last(column, share, against=against, limit=limit) for runs in arms]


def _paired(*arms: Runs) -> None:
    """Differences are taken run by run, so that both must have the same data."""
    seeds = [[trace.provenance.get("seed") for trace in runs.traces] for runs in arms]
    if any(other != seeds[0] for other in seeds):
        names = " and ".join(f"{runs.label} ({runs.case})" for runs in arms)
        raise ValueError(f"{names} were run with different seeds: compare arms that have the same.")


def _difference(
    a: Runs,
    b: Runs,
    column: str,
    first: np.ndarray,
    second: np.ndarray,
    tolerance: float,
    level: float,
    against: str | None,
    *,
    diverged: int = 0,
) -> Check:
    case = a.case if a.case == b.case else f"{a.case} and {b.case}"
    labels = (a.label, b.label) if a.label != b.label else (f"{a.label}, {a.case}", f"{b.label}, {b.case}")
    ours, theirs = (second, first) if diverged else (first, second)
    text = f"{case}: {_words(column)}{_at(against)}, {labels[0]} less {labels[1]}"
    return Check.of(text, settle(first - second, ours=ours, theirs=theirs), 0.0 - tolerance, level=level)


def _at(against: str | None) -> str:
    return "" if against is None else f" at equal {against}"


def _words(column: str) -> str:
    return WORDS.get(column, column.replace("_", " "))
