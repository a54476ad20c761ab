"""The league as a page and a figure."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import BytesIO, StringIO

import numpy as np
from matplotlib import rc_context, style
from matplotlib.figure import Figure

from .run import entry_of
from .score import BUDGETS, SOLVED, Against, League, Standing
from .tasks import DIVISIONS

TITLES = {"shared": "Shared lower level", "personal": "Personal lower level", "single": "Single level"}
HEADS: dict[Against, str] = {"step": "iterations", "bytes": "bytes", "seconds": "CPU seconds"}
COLOURS: dict[Against, str] = {"step": "#00695c", "bytes": "#c77700", "seconds": "#5e60ce"}
ENDS = ("median share", "least share", "largest share")

PEER = "sparkle-ed, one peer"

# The methods that a newcomer chooses between, and what they stand for.
CHOSEN: dict[str, tuple[str, ...]] = {
    "shared": (
        "sparkle-ed",
        "sparkle-gt",
        "sparkle-led",
        "sparkle-ada-ed",
        "d-soba",
        "ma-dsbo",
        PEER,
        "gossip-dsbo",
    ),
    "personal": ("interact", "spdb"),
}

HEAD = """# League table

Every method of the catalogue runs on eight small tasks with a lower level of its kind: shared, personal or none. All
methods get the same budget of iterations, of bytes, or of CPU seconds. The gap is the difference in the upper loss
between the start and the best known point. A number is the share of this gap that a method *leaves* when the budget is
spent: 100 % is the start, and 0 % the best known.

{chosen}
A cell has the median of {seeds} seeds, and in brackets the smallest and the largest. † The budget was not spent on
some task. "Diverged later": at least half of the seeds did, after {iterations} iterations.

**What to take from it**

- ED and gradient tracking end level at equal iterations. At equal bytes ED is ahead ({ed} against {gt}), since it
  sends half.
- D-SOBA, which does not correct for heterogeneity, leaves nearly twice as much ({soba}).
- Without a search for step sizes, `sparkle-ada-ed` leaves {ada} at equal iterations, and {ada_bytes} at equal bytes: it
  sends more.
- Inner loops and long series cost bytes: `gossip-dsbo` leaves {gossip} at equal bytes.
- More local steps between messages help at equal bytes, not at equal CPU seconds: `sparkle-led` leaves {led} and
  {led_seconds}, and `sparkle-ed` {ed} and {ed_seconds}.
- With one peer a step `sparkle-ed` leaves {peer} at equal iterations, in which it sends half. At equal bytes it takes
  twice the iterations, and leaves {peer_bytes}. The step sizes are those that are best after {iterations} iterations.
  In the next {iterations}, at least half of the seeds diverge on {later} of the 8 tasks. On the ring it was not run as
  long.

**What not to take from it.** Two methods often differ by a few tens of percent. Another search for step sizes would
change more than that. The brackets cover seeds only. We chose the eight tasks, and none is large, so overhead is most
of a step's time. At equal iterations, methods with several steps in an iteration have computed more.

All methods, also those with a strategy for each level, and all tasks are in [standings.csv](standings.csv). It has a
line for each method and task with the median over seeds, and one for each method with the mean over tasks.

![What every method leaves of the gap](figures/league.svg)

Dots are medians over seeds. Bars reach from the smallest to the largest seed.

## How it was made

    decibel league --out decibel-league

The command takes about an hour on one core. It continues where it was interrupted, and writes this page, the figure,
`standings.csv` and a file for [benchopt](#benchopt).

**What is measured.** Φ(x̄), with the lower level solved by Newton's method at the average x̄ of the nodes, on all
samples. The best known is the least Φ that {lbfgs} iterations of L-BFGS with exact hypergradients or any method here
found. Means over tasks are geometric. Shares below {solved} count as {solved}: the task is solved. A run that diverged
counts as 100 %. Consensus is not part of the number.

**Budgets.** {iterations} iterations; the bytes that {references} send in {iterations} iterations; and the CPU
seconds (of one process, all threads) that they need for them. Every run goes on to {twice} iterations if it needs
them to spend the other two budgets.

**Step sizes.** The same search for all: {candidates} candidates, {iterations} iterations each, on data of a seed that
is not judged, by Φ(x̄) at the end. The centre is the task's own step sizes, times the ratio of the method's default
to the usual default. The task's step sizes were found for SPARKLE-ED and SPDB; a single level takes those of the
lower level. Methods whose steps have their own length, such as Adam's, are searched around their own defaults. α is
multiplied by {upper}, β and γ by {lower}. A method with α alone tries {candidates} values of it over the same range,
and one without step sizes runs as it is. θ, inner loops, Neumann terms and penalties stay at their defaults: a method
that depends on them may do better than here.

**Set-up.** A ring of {nodes} nodes with lazy Metropolis weights, batches of {batch} samples, float32, {made}.
Rows named "one peer" exchange with [one peer a step](evidence/one-peer.md) instead, on a hypercube of as many nodes.

**What is kept.** A record with the same set-up is used again, whatever code or JAX made it. After a change to a
method, a task or the search, delete its files below `runs/` of the folder, or use a new folder.
"""

BENCHOPT = """
## benchopt

`league.csv`, which the command writes beside this page, has the columns of [benchopt](https://benchopt.github.io):
`benchopt plot benchmarks/benchopt -f league.csv` draws it, in the browser or with matplotlib.

`benchmarks/benchopt` is a benchmark in benchopt's layout: `objective.py` measures Φ(x̄) and the share of the gap that
is left, `datasets/league.py` has the tasks above as its parameter, and `solvers/decibel.py` the methods of the
catalogue.

    benchopt run benchmarks/benchopt -s decibel[method=sparkle-ed] -d league -n 5

**To add your own method**, write a file in `solvers/`. A solver receives the losses, the nodes' data, the starts
and the mixing matrix as plain arrays, and returns every node's x. It needs nothing from Decibel.

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
        **_takeaways(league),
        chosen=_chosen(league),
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
    return "".join([text, _run_so_far(league), BENCHOPT])


def _takeaways(league: League) -> dict[str, str]:
    """The numbers of the sentences, where there are rows."""

    def left(method: str, against: Against) -> str:
        ready = method in league.methods("shared")
        return _percent(league.row("shared", method).median(against)) if ready else "–"

    return {
        "ed": left("sparkle-ed", "bytes"),
        "ed_seconds": left("sparkle-ed", "seconds"),
        "gt": left("sparkle-gt", "bytes"),
        "soba": left("d-soba", "step"),
        "ada": left("sparkle-ada-ed", "step"),
        "ada_bytes": left("sparkle-ada-ed", "bytes"),
        "later": str(len(league.row("shared", PEER).diverged_later)) if PEER in league.methods("shared") else "–",
        "peer": left(PEER, "step"),
        "peer_bytes": left(PEER, "bytes"),
        "gossip": left("gossip-dsbo", "bytes"),
        "led": left("sparkle-led", "bytes"),
        "led_seconds": left("sparkle-led", "seconds"),
    }


def _chosen(league: League) -> str:
    heads = " | ".join(HEADS[against] for against in BUDGETS)
    lines = [f"| method | level | {heads} | |", "|---|---|---|---|---|---|"]
    for division, names in CHOSEN.items():
        ready = league.methods(division) if division in DIVISIONS else []
        for row in league.standing(division, [name for name in names if name in ready]):
            cells = " | ".join(_cell(row, against) for against in BUDGETS)
            lines.append(f"| `{row.method}` | {division} | {cells} | {_remarks(row)} |")
    return "\n".join(lines) + "\n"


def _listed(factors: Sequence[float]) -> str:
    return ", ".join(f"{factor:g}" for factor in factors)


def _run_so_far(league: League) -> str:
    """How many methods have rows; the page does not change where the catalogue grows."""
    ready = {entry_of(name).name for division in DIVISIONS for name in league.methods(division)}
    return (
        f"\n{len(ready)} methods have been run on all their tasks. The others of the catalogue have no row yet: the "
        "command continues with them.\n"
    )


def _cell(row: Standing, against: Against) -> str:
    low, high = (_percent(end).removesuffix(" %") for end in (row.left[against].min(), row.left[against].max()))
    return f"{_percent(row.median(against))} ({low}–{high}){' †' if row.short[against] else ''}"


def _remarks(row: Standing) -> str:
    said = [f"{row.inner} steps in an iteration"] if row.inner > 1 else []
    said += ["all samples in every step"] if row.full else []
    said += [f"diverged: {'; '.join(row.diverged)}"] if row.diverged else []
    said += [f"diverged later: {'; '.join(row.diverged_later)}"] if row.diverged_later else []
    return ". ".join(said)


def standings(league: League) -> str:
    """CSV: a line for each method and task, and one for each method over all tasks."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    shares = [f"{end} of the gap left after equal {HEADS[against]}" for against in BUDGETS for end in ENDS]
    writer.writerow(["level", "method", "task", "steps in an iteration", *shares, "remark"])
    for division in DIVISIONS:
        for row in league.standing(division):
            about = [division, row.method]
            for task, left in row.tasks.items():
                remark = "diverged" if task in row.diverged else ""
                writer.writerow([*about, task, row.inner, *_ends(left), remark])
            for task, why in row.why.items():
                writer.writerow([*about, task, row.inner, *[""] * len(shares), why])
            if row.applies:
                writer.writerow([*about, "all", row.inner, *_ends(row.left), _remarks(row)])
    return file.getvalue()


def _ends(left: Mapping[Against, np.ndarray]) -> list[str]:
    """Of every budget the median over seeds, the least and the largest."""
    return [f"{end(left[against]):.3g}" for against in BUDGETS for end in (np.median, np.min, np.max)]


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"


def figure(league: League) -> Figure:
    """What every method leaves, on three budgets, with the least and the largest over seeds; mixtures are left out."""
    standings: dict[str, list[Standing]] = {}
    for division in DIVISIONS:
        names = [name for name in league.methods(division) if not entry_of(name).mixture]
        standings[division] = [row for row in league.standing(division, names) if row.applies]
    counts = [max(len(rows), 1) for rows in standings.values()]
    drawn = Figure(figsize=(7.5, 0.23 * sum(counts) + 2.4))
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
        axis.set_yticks(places, [row.method for row in rows])
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.set(xscale="log", title=TITLES[division])
        axis.grid(visible=False, axis="y")
    lines, labels = axes[0, 0].get_legend_handles_labels()
    drawn.legend(lines, [f"equal {label}" for label in labels], loc="outside upper center", ncols=len(labels))
    axes[-1, 0].set_xlabel("share of the gap in Φ that is left, % (left is better)")
    axes[-1, 0].set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    return drawn


def svg(league: League) -> bytes:
    file = BytesIO()
    with style.context("decibel_studies.house"), rc_context({"svg.hashsalt": "league", "svg.fonttype": "none"}):
        figure(league).savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
