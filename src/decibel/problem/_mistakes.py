"""What a run notices about its problem before the first step, without computing or compiling anything."""

from __future__ import annotations

from ._dependence import missing_dependence
from ._overlap import SAMPLED, overlap
from ._problem import Problem

DISTINCT = 8  # rows at least, of which half are shared


class ProblemWarning(UserWarning):
    """Warns of losses that do not depend on x or y as they must, or of validation data that are trained on."""


def suspected_mistakes(problem: Problem) -> list[str]:
    """A sentence for each thing that is probably a mistake. Requires bound data."""
    sentences = [missing_dependence(problem), _shared_rows(problem)]
    return [sentence for sentence in sentences if sentence]


def _shared_rows(problem: Problem) -> str:
    if problem.own_lower_data is None:  # one array for both levels, or one level: that is meant
        return ""
    seen = overlap(problem.upper_data, problem.lower_data, max_rows=SAMPLED)
    if seen.rows < DISTINCT or seen.share < 0.5:
        return ""
    return (
        f"{seen.shared} of {seen.rows} rows of upper_data that were looked at are also in lower_data, so that x is "
        "validated on what y is trained on: split them, or give both levels the same arrays if that is meant."
    )
