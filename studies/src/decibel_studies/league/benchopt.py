"""The runs of the league as a table that benchopt reads: a line for each row of each run."""

from __future__ import annotations

import csv
from io import StringIO

from .score import League

COLUMNS = (
    "objective_name",
    "dataset_name",
    "solver_name",
    "sampling_strategy",
    "idx_rep",
    "stop_val",
    "time",
    "objective_value",
    "objective_gap",
    "objective_megabytes",
    "run_date",
    "platform",
    "platform-release",
    "platform-architecture",
    "system-cpus",
    "version-numpy",
)


def table(league: League) -> str:
    """CSV, for `benchopt plot BENCHMARK -f FILE`. A run that diverged ends at its last finite row."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    made = league.made
    where = [made["date"], made["versions"], "", made["machine"], "1", made["numpy"]]
    for (division, task, method), record in league.records.items():
        curves = record["curves"]
        if curves is None:
            continue
        start, least = league.start[division, task], league.least[division, task]
        for row, step in enumerate(curves["step"]):
            for seed, value in enumerate(curves["value"][row]):
                if value is None:
                    continue
                gap = max((value - least[seed]) / (start[seed] - least[seed]), 1e-9)
                costs = [f"{value:.6g}", f"{gap:.4g}", f"{curves['bytes'][row] / 1e6:.6g}"]
                head = [f"decentralized bilevel, {division}", task, method, "iteration"]
                writer.writerow([*head, seed, step, f"{curves['seconds'][row]:.4g}", *costs, *where])
    return file.getvalue()
