"""From curves to a standing: the share of the gap in Φ that a method leaves when a budget is spent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, cast

import numpy as np

from ..files import write_file
from .run import Budget, Curves, Extremes, MethodRecord, Setup, budget_of, entry_of
from .tasks import DIVISIONS

Against = Literal["step", "bytes", "seconds"]
Shares = dict[Against, np.ndarray]  # by budget, (seeds,) what is left of the gap
BUDGETS: tuple[Against, ...] = ("step", "bytes", "seconds")
SOLVED = 1e-3  # of the gap: below it a task counts as solved, and no method is better than another


class Packed(TypedDict):
    """All that the page is made from, in one file."""

    made: dict[str, str]
    setup: dict[str, object]
    levels: list[Extremes]
    records: list[MethodRecord]


def pack(
    path: Path, made: dict[str, str], setup: dict[str, object], levels: list[Extremes], records: list[MethodRecord]
) -> None:
    """Writes the file, a line for each record."""
    lines = [
        "{",
        f'"made": {json.dumps(made)},',
        f'"setup": {json.dumps(setup)},',
        '"levels": [\n' + ",\n".join(json.dumps(row) for row in levels) + "\n],",
        '"records": [\n' + ",\n".join(json.dumps(row) for row in records) + "\n]",
        "}\n",
    ]
    write_file(path, "\n".join(lines))


def read(path: Path) -> Packed:
    return cast(Packed, json.loads(path.read_text()))


@dataclass(frozen=True)
class Standing:
    """A method in its division.

    - `left`: by budget, the geometric mean over tasks of the share of the gap that is left, seed by seed.
    - `diverged`: tasks on which at least half of the runs diverged. `diverged_later`: those on which they did so in the
      further iterations that spend the other budgets. `why`: tasks that it does not apply to.
    - `applies`: whether it does to any task.
    - `full`: whether its steps take all samples. `inner`: the steps of its longest loop within an iteration.
    - `tasks`: of every task the share that is left, by budget and seed.
    - `short`: by budget, whether it did not spend it on some task within twice the iterations.
    """

    method: str
    left: Shares
    diverged: tuple[str, ...]
    diverged_later: tuple[str, ...]
    why: dict[str, str]
    applies: bool
    full: bool
    inner: int
    tasks: dict[str, Shares]
    short: dict[Against, bool]

    def median(self, against: Against) -> float:
        return float(np.median(self.left[against]))


class League:
    """The standings of all divisions, from what was packed."""

    def __init__(self, packed: Packed) -> None:
        fields = {key: tuple(v) if isinstance(v, list) else v for key, v in packed["setup"].items()}
        self.made, self.setup = packed["made"], Setup(**fields)  # pyright: ignore[reportArgumentType]
        self.records = {(row["division"], row["task"], row["method"]): row for row in packed["records"]}
        self.start = {(row["division"], row["task"]): np.array(row["start"]) for row in packed["levels"]}
        self.least = {(row["division"], row["task"]): np.array(row["least"]) for row in packed["levels"]}
        for record in packed["records"]:  # a method may find less than L-BFGS did
            if record["curves"] is not None:
                at = record["division"], record["task"]
                least = np.nanmin(_values(record["curves"]), axis=0, initial=np.inf)
                self.least[at] = np.minimum(self.least[at], least)
        self.budgets = {at: budget_of(self.records[(*at, DIVISIONS[at[0]].reference)], self.setup) for at in self.start}

    def methods(self, division: str) -> list[str]:
        """Those with a record on every task."""
        tasks = [task for form, task in self.start if form == division]
        names = dict.fromkeys(name for form, _, name in self.records if form == division)
        return [name for name in names if all((division, task, name) in self.records for task in tasks)]

    def gap(self, division: str, task: str, method: str, against: Against) -> np.ndarray:
        """The share of Φ(x0) − least Φ that is left when the budget is spent, of every seed; NaN where it diverged."""
        curves = self.records[division, task, method]["curves"]
        assert curves is not None
        at = division, task
        share = (_values(curves) - self.least[at]) / (self.start[at] - self.least[at])
        spent = np.asarray(curves[against], float)
        return at_cost(spent, share, self._limit(self.budgets[at], against))

    def _limit(self, budget: Budget, against: Against) -> float:
        return float(self.setup.every * self.setup.rows) if against == "step" else budget[against]

    def row(self, division: str, method: str) -> Standing:
        tasks: dict[str, Shares] = {}
        diverged: list[str] = []
        later: list[str] = []
        why: dict[str, str] = {}
        short, full = dict.fromkeys(BUDGETS, False), False
        for form, task in self.start:
            if form != division:
                continue
            record = self.records[division, task, method]
            if (curves := record["curves"]) is None:
                why[task] = record["why"] or ""
                continue
            full |= "batch_size" in record["settings"]
            gaps: Shares = {against: self.gap(division, task, method, against) for against in BUDGETS}
            tasks[task] = {against: np.clip(np.nan_to_num(gaps[against], nan=1.0), SOLVED, 1.0) for against in BUDGETS}
            alive = np.isfinite(_values(curves)[-1]).any()
            for against in BUDGETS:
                short[against] |= bool(alive and curves[against][-1] < self._limit(self.budgets[form, task], against))
            if np.isnan(gaps["step"]).mean() >= 0.5:
                diverged.append(task)
            elif max(np.isnan(gap).mean() for gap in gaps.values()) >= 0.5:
                later.append(task)
        left: Shares = {
            against: np.exp(np.mean([np.log(shares[against]) for shares in tasks.values()], axis=0))
            if tasks
            else np.ones(len(self.setup.seeds))
            for against in BUDGETS
        }
        inner = steps_inside(method)
        return Standing(method, left, tuple(diverged), tuple(later), why, bool(tasks), full, inner, tasks, short)

    def standing(self, division: str, names: Iterable[str] | None = None) -> list[Standing]:
        """The rows of a division, the best at equal iterations first."""
        rows = [self.row(division, name) for name in (self.methods(division) if names is None else names)]
        return sorted(rows, key=lambda row: (row.median("step"), row.method))


def steps_inside(method: str) -> int:
    """The steps of the longest loop within an iteration: 1 where an iteration is one step."""
    example = entry_of(method)()
    loops = [getattr(example, name, None) or 1 for name in ("local_steps", "lower_steps", "auxiliary_steps")]
    return max([*loops, *(strategy.local_steps for strategy in example.strategies.values())])


def at_cost(spent: np.ndarray, share: np.ndarray, limit: float) -> np.ndarray:
    """(seeds,) the share when `limit` is spent: between two rows by its logarithm, the last row where a run ended
    before; NaN from the row on where it diverged."""
    row = int(np.searchsorted(spent, limit, side="left"))
    if row >= len(spent):
        return share[-1]
    if row == 0:
        return share[0]
    weight = (limit - spent[row - 1]) / (spent[row] - spent[row - 1])
    ends = np.log(np.maximum(share[row - 1 : row + 1], 1e-12))
    return np.exp((1 - weight) * ends[0] + weight * ends[1])


def _values(curves: Curves) -> np.ndarray:
    return np.array([[np.nan if value is None else value for value in row] for row in curves["value"]], float)
