"""The league as a page and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from decibel import CATALOG

from .score import BUDGETS, SOLVED, Against, League, Standing
from .tasks import DIVISIONS

TITLES = {"shared": "Shared lower level", "personal": "Personal lower level", "single": "Single level"}
HEADS: dict[Against, str] = {"step": "iterations", "bytes": "bytes", "seconds": "CPU seconds"}
COLOURS: dict[Against, str] = {"step": "#00695c", "bytes": "#c77700", "seconds": "#5e60ce"}
MIXED = ("diffusion", "consensus", "ed", "extra", "gt", "semi-gt", "non-gt")

HEAD = """# League table

Every method of the catalogue on eight small tasks of its own form, at three equal budgets. One command makes it,
continues where it was interrupted, and writes this page, the figure, the data and a file for [benchopt](#benchopt):

    decibel league --out decibel-league

**What is measured.** Φ(x̄), with the lower level solved by Newton's method at the average x̄ of the nodes, on all
samples. A method's number on a task is the share of the gap Φ(x₀) − Φ_min that is *left* when a budget is spent: 100
% is the start, 0 % the least Φ that {lbfgs} iterations of L-BFGS with exact hypergradients or any method here found.
The tables show the geometric mean over tasks, the median of {seeds} seeds and, in brackets, the least and the
largest. Shares below {solved} count as {solved}: the task is solved. A run that diverged counts as 100 %. Consensus
is not part of the number.

**Budgets.** {iterations} iterations; the bytes that {references} sends in {iterations} iterations; the CPU seconds
(of one process, all threads) that it needs for them. Every run goes on to {twice} iterations if it needs them to
spend the other two budgets; where even these were not enough on some task, the number has a †.

**Step sizes.** The same search for all: {candidates} candidates, {iterations} iterations each, on data of a seed that
is not judged, by Φ(x̄) at the end. The centre is the task's own step sizes (found for SPARKLE-ED, SPDB and, at one
level, those of the lower level), times the ratio of the method's default to the usual default; α is multiplied by
{upper}, β and γ by {lower}. A method with α alone tries {candidates} values of it over the same range, and one
without step sizes runs as it is. θ, inner loops, Neumann terms and penalties stay at their defaults: a method that
depends on them may do better than here.

**Set-up.** A ring of {nodes} nodes with lazy Metropolis weights, batches of {batch} samples, float32, {made}. Small
problems show the order of costs of a method, not its speed on an accelerator: here overhead is most of a step's time.

**What not to conclude.** A few tens of percent between two methods is less than what another search would change. The
figure's brackets are over seeds only; tasks are eight, chosen by us, and none is large.

**What is kept.** A record is used again where its set-up is the same, whatever the code or JAX that made it:
after a change to a method, a task or the search, delete its files below `runs/` of the folder, or take a new one.
"""

BENCHOPT = """
## benchopt

`league.csv`, which the command writes beside this page, has the columns of [benchopt](https://benchopt.github.io):
`benchopt plot benchmarks/benchopt -f league.csv` draws it, in the browser or with matplotlib.

`benchmarks/benchopt` is a benchmark in benchopt's layout: `objective.py` measures Φ(x̄) and the share of the gap that
is left, `datasets/league.py` has the tasks above as its parameter, and `solvers/decibel.py` the methods of the
catalogue.

    benchopt run benchmarks/benchopt -s decibel[method=sparkle-ed] -d league -n 5

**To add your own method**, write a file in `solvers/`. A solver is given the losses, the nodes' data, the starts and
the mixing matrix as plain arrays, and returns every node's x: it needs nothing of Decibel.

```text
from benchopt import BaseSolver

class Solver(BaseSolver):
    name = "mine"
    parameters = {"alpha": [0.1], "beta": [0.3]}
    sampling_strategy = "iteration"

    def set_objective(self, problem, W, batch_size, seed):
        self.problem, self.W = problem, W     # problem.upper(x, y, batch), problem.upper_data, problem.x0, ...

    def run(self, iterations):
        self.x = ...                          # leaves (nodes, ...)

    def get_result(self):
        return {"x": self.x}
```

Or register it with Decibel ([A method from a paper](new-method.md)): then `decibel league --method mine` runs it on
all tasks with the search above, and adds its row.
"""


def page(league: League) -> str:
    """The page in Markdown."""
    setup = league.setup
    references = ", ".join(f"`{division.reference}` ({name})" for name, division in DIVISIONS.items())
    text = HEAD.format(
        lbfgs=200,
        seeds=len(setup.seeds),
        solved=_percent(SOLVED),
        iterations=setup.every * setup.rows,
        twice=2 * setup.every * setup.rows,
        references=references,
        candidates=setup.candidates,
        upper=_listed(setup.upper),
        lower=_listed(setup.lower),
        nodes=8,
        batch=setup.batch_size,
        made=", ".join(league.made[name] for name in ("versions", "date", "machine")),
    )
    text += _missing(league)
    parts = [text, "\n![What every method leaves of the gap](figures/league.svg)\n"]
    for division in DIVISIONS:
        if any(form == division for form, _ in league.start) and league.methods(division):
            parts += ["\n", *_division(league, division)]
    return "".join([*parts, BENCHOPT])


def _listed(factors: Sequence[float]) -> str:
    return ", ".join(f"{factor:g}" for factor in factors)


def _missing(league: League) -> str:
    """Which methods of the catalogue have no row yet."""
    ready = {name for division in DIVISIONS for name in league.methods(division)}
    missing = [name for name, entry in CATALOG.items() if name not in ready and entry.form in DIVISIONS]
    if not missing:
        return f"\n**Complete.** All {len(ready)} methods of the catalogue on all tasks that they apply to.\n"
    mixed = sum(CATALOG[name].mixture for name in missing)
    named = ", ".join(f"`{name}`" for name in missing if not CATALOG[name].mixture)
    some = f"{mixed} mixtures of SPARKLE{' and ' + named if named else ''}" if mixed else named
    return (
        f"\n**Not complete.** {len(ready)} of {len(ready) + len(missing)} methods have been run on all tasks so far. "
        f"Not yet: {some}. The command continues with them.\n"
    )


def _division(league: League, division: str) -> list[str]:
    named = [name for name in league.methods(division) if not CATALOG[name].mixture]
    parts = [f"## {TITLES[division]}\n\n", _standing(league.standing(division, named)), "\nThe best on each task:\n\n"]
    parts.append(_tasks(league, division))
    if division == "shared":
        parts += ["\n", *_mixtures(league)]
    return parts


def _standing(rows: list[Standing]) -> str:
    heads = " | ".join(HEADS[against] for against in BUDGETS)
    lines = [f"| method | {heads} | |", "|---|---|---|---|---|"]
    for row in rows:
        cells = [_cell(row, against) if row.applies else "–" for against in BUDGETS]
        lines.append(f"| `{row.method}` | {' | '.join(cells)} | {_remarks(row)} |")
    return "\n".join(lines) + "\n"


def _cell(row: Standing, against: Against) -> str:
    low, high = (_percent(end).removesuffix(" %") for end in (row.left[against].min(), row.left[against].max()))
    return f"{_percent(row.median(against))} ({low}–{high}){' †' if row.short[against] else ''}"


def _remarks(row: Standing) -> str:
    said = ["all samples in every step"] if row.full else []
    said += [f"diverged: {'; '.join(row.diverged)}"] if row.diverged else []
    reasons: dict[str, list[str]] = {}
    for task, why in row.why.items():
        reasons.setdefault(why, []).append(task)
    for why, tasks in reasons.items():
        where = f"to {'; '.join(tasks)}" if row.applies else "here"
        said.append(f"does not apply {where}: {why}")
    return ". ".join(said)


def _tasks(league: League, division: str) -> str:
    heads = " | ".join(f"least after the {HEADS[against]}" for against in BUDGETS)
    lines = [f"| task | Φ(x₀) | least Φ | {heads} |", "|---|---|---|---|---|---|"]
    for form, task in league.start:
        if form == division:
            ends = [league.best(division, task, against) for against in BUDGETS]
            cells = " | ".join(f"`{name}` {_percent(max(left, SOLVED))}" for name, left in ends)
            start, least = np.median(league.start[form, task]), np.median(league.least[form, task])
            lines.append(f"| {task} | {start:.3g} | {least:.3g} | {cells} |")
    return "\n".join(lines) + "\n"


def _mixtures(league: League) -> list[str]:
    ready = set(league.methods("shared"))

    def cell(name: str) -> str:
        return _percent(league.row("shared", name).median("step")) if name in ready else "–"

    lines = [f"| y, z \\ x | {' | '.join(MIXED)} |", "|---|" + "---|" * len(MIXED)]
    for lower in MIXED:
        names = [f"sparkle-{lower}" if lower == upper else f"sparkle-{lower}-{upper}" for upper in MIXED]
        lines.append(f"| {lower} | {' | '.join(cell(name) for name in names)} |")
    about = "Mixtures, at equal iterations: the strategy of y and z in the row, that of x in the column.\n\n"
    return [about, "\n".join(lines) + "\n"]


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"


def figure(league: League) -> Figure:
    """What every method leaves, on three budgets, with the least and the largest over seeds; mixtures are left out."""
    named = {division: [n for n in league.methods(division) if not CATALOG[n].mixture] for division in DIVISIONS}
    standings = {
        division: [row for row in league.standing(division, names) if row.applies] for division, names in named.items()
    }
    counts = [max(len(rows), 1) for rows in standings.values()]
    drawn = Figure(figsize=(8, 0.21 * sum(counts) + 2.2), layout="constrained")
    axes = drawn.subplots(
        len(standings), 1, sharex=True, height_ratios=[count + 1.5 for count in counts], squeeze=False
    )
    for axis, (division, rows) in zip(axes[:, 0], standings.items(), strict=True):
        places = np.arange(len(rows))
        for offset, against in zip((-0.22, 0.0, 0.22), BUDGETS, strict=True):
            many = np.array([100 * row.left[against] for row in rows]).reshape(len(rows), -1)
            middle = np.median(many, axis=1)
            axis.hlines(places + offset, many.min(1), many.max(1), color=COLOURS[against], alpha=0.35, linewidth=2)
            axis.plot(middle, places + offset, "o", color=COLOURS[against], markersize=3.5, label=HEADS[against])
        axis.set_yticks(places, [row.method for row in rows], fontsize=7)
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.set(xscale="log", title=TITLES[division])
        axis.grid(alpha=0.2, axis="x")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(frameon=False, title="equal", loc="lower left", fontsize=8)
    axes[-1, 0].set_xlabel("share of the gap in Φ that is left, % (left is better)")
    axes[-1, 0].set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    return drawn


def svg(league: League) -> bytes:
    file = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "league", "svg.fonttype": "none"}):
        figure(league).savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
