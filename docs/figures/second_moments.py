"""Second moments of `adam-ed` in label cleaning: of the averaged difference m̂ − e, or of the newest one g − e.

    DECIBEL_DATA=... python docs/figures/second_moments.py   # twenty minutes on a core

The task of the study adaptive/label-cleaning on two seeds that it does not use, with 1,500 of its 8,000 steps and
constant step sizes. Writes second_moments.json as runs end, and continues where it was interrupted.
"""

from __future__ import annotations

from itertools import product

from common import HERE, read, write

import decibel as db
from decibel import strategies
from decibel.graphs import adjusted_ring
from decibel_studies.experiments.adaptive_label_cleaning import SETUPS

SEEDS, RATES, STEPS = (100, 101), (1e-3, 3e-4), 1_500
SETUP = SETUPS["full"]


def main() -> None:
    make = SETUP.task(0.3)
    done = read("second_moments") if (HERE / "second_moments.json").exists() else []
    for seed, rate, averaged in list(product(SEEDS, RATES, (False, True)))[len(done) :]:
        task = make(seed=seed)
        adam = strategies.adam_ed(averaged=averaged)
        result = db.solve(
            task.problem,
            db.sparkle(adam, "ada-ed", beta=rate, gamma=rate, theta=SETUP.theta),
            adjusted_ring(SETUP.nodes, SETUP.weight),
            steps=STEPS,
            batch_size=SETUP.batch_size,
            seed=seed,
            metrics=task.metrics,
            eval_every=STEPS // 8,
            progress=False,
        )
        last = result.trace.last
        row = {column: round(float(last[column]), 4) for column in ("test_accuracy", "node_accuracy")}
        done.append({"seed": seed, "rate": rate, "averaged": averaged, **row})
        write("second_moments", done)
        print(done[-1], flush=True)


if __name__ == "__main__":
    main()
