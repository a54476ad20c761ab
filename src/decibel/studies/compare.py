"""Checks that two arms of a study come down to: differences and ratios, seed by seed."""

from __future__ import annotations

import math

import numpy as np

from .runs import Runs
from .verdicts import Check


def higher(ours: Runs, theirs: Runs, column: str, *, tolerance: float = 0.0) -> Check:
    """Ours − theirs at the end, for what should be large; a tolerance makes it "not lower by more than that"."""
    return _difference(ours, theirs, column, ours.last(column), theirs.last(column), tolerance)


def lower(ours: Runs, theirs: Runs, column: str, *, tolerance: float = 0.0) -> Check:
    """Theirs − ours at the end, for what should be small."""
    return _difference(theirs, ours, column, theirs.last(column), ours.last(column), tolerance, diverged=1)


def smaller(ours: Runs, theirs: Runs, column: str, *, factor: float = 1.0) -> Check:
    """log₁₀(theirs / ours) at the end, for errors that span decades; a factor makes it "not larger by more"."""
    mine, other = (np.log10(np.maximum(runs.last(column), 1e-300)) for runs in (ours, theirs))
    text = f"{ours.case}: log₁₀ of {_words(column)}, {theirs.label} less {ours.label}"
    return Check.of(text, settle(other - mine, ours=mine, theirs=other), 0.0 - math.log10(factor))


def faster(ours: Runs, theirs: Runs, column: str, against: str = "samples") -> Check:
    """Theirs − ours of the average height of a falling curve, over the cost that both have spent."""
    limit = spent_by_all(against, ours, theirs)
    mine, other = (runs.mean(column, against, limit) for runs in (ours, theirs))
    text = f"{ours.case}: {_words(column)} averaged over {against}, {theirs.label} less {ours.label}"
    return Check.of(text, settle(other - mine, ours=mine, theirs=other))


def sooner(ours: Runs, theirs: Runs, column: str, level: float, against: str = "samples") -> Check:
    """log₁₀(theirs / ours) of the cost of reaching a level; a run that never reaches it counts as infinite."""
    mine, other = (runs.reach(column, level, against) for runs in (ours, theirs))
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.log10(np.maximum(other, 1)) - np.log10(np.maximum(mine, 1))
    values[np.isposinf(mine)] = -np.inf
    text = (
        f"{ours.case}: log₁₀ of the {against} until {_words(column)} is {level:.3g}, {theirs.label} less {ours.label}"
    )
    return Check.of(text, values)


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


def _difference(
    a: Runs, b: Runs, column: str, first: np.ndarray, second: np.ndarray, tolerance: float, *, diverged: int = 0
) -> Check:
    case = a.case if a.case == b.case else f"{a.case} and {b.case}"
    labels = (a.label, b.label) if a.label != b.label else (f"{a.label}, {a.case}", f"{b.label}, {b.case}")
    ours, theirs = (second, first) if diverged else (first, second)
    text = f"{case}: {_words(column)}, {labels[0]} less {labels[1]}"
    return Check.of(text, settle(first - second, ours=ours, theirs=theirs), 0.0 - tolerance)


def _words(column: str) -> str:
    return column.replace("_", " ")
