"""The study apps/mixtures-gradients with a decoder of 124 million weights: the learned and the uniform mixture.

    python docs/figures/mixture_large.py OUT          # about seven minutes on an H200
    python docs/figures/mixture_large.py OUT --tiny   # the same on a CPU, with hardly any steps

Both take as many gradients: the learned one 3,000 steps, whose shares move in every eighth, and the uniform one 3,750.
Writes OUT/mixture_large.json as runs end, and OUT/mixture_large.log after every row. Step sizes and seed were chosen
before it and not tuned.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import jax

import decibel as db
from decibel.core._files import atomic_write
from decibel_studies.experiments.apps_mixtures_gradients import CASE, SETUPS
from decibel_studies.experiments.mixture_runs import learned, planned

SEED = 4001
LARGE = replace(
    SETUPS["full"],
    width=832,
    layers=15,
    heads=13,
    context=512,
    windows=10_000,
    validation=32,
    test=256,
    batch_size=2,
    alpha=0.08,
    beta=5e-4,
)
TINY = SETUPS["smoke"]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("out", type=Path)
    options.add_argument("--tiny", action="store_true")
    options.add_argument("--only", choices=("learned", "uniform"))
    given = options.parse_args()
    jax.config.update("jax_enable_x64", False)
    setup = TINY if given.tiny else LARGE
    path = given.out / "mixture_large.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    arms = {
        "learned": learned(CASE, "learned", setup, setup.upper_every),
        "uniform": planned(CASE, "uniform", setup, setup.uniform),
    }
    for name, arm in arms.items():
        if name in found or given.only not in (None, name):
            continue
        task = arm.task(seed=SEED)
        begun = time.time()

        def note(step: int, row: dict[str, float], name: str = name, begun: float = begun) -> None:
            with (given.out / "mixture_large.log").open("a") as log:
                log.write(json.dumps({"run": name, "wall_seconds": time.time() - begun, **row}) + "\n")

        result = db.solve(
            task.problem,
            arm.method,
            arm.graph,
            steps=arm.steps,
            batch_size=arm.batch_size,
            seed=SEED,
            eval_every=arm.every,
            metrics=list(task.metrics),
            callbacks=[note],
            progress=False,
            engine=db.Simulator(keep_copy=False),
        )
        found[name] = {column: [float(f"{value:.6g}") for value in result.trace[column]] for column in result.trace}
        found[name]["wall_seconds"] = round(time.time() - begun, 1)
        found["about"] = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "seed": SEED}
        atomic_write(path, json.dumps(found) + "\n")
        print(f"{name}: {found[name]['wall_seconds']} s, test loss {found[name]['test_loss'][-1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
