"""One run of the study apps/mixtures with a decoder of 124 million weights: the learned and the uniform mixture.

    python docs/figures/mixture_124m.py OUT          # about five minutes on an H200
    python docs/figures/mixture_124m.py OUT --tiny   # the same on a CPU, with hardly any steps

Writes OUT/mixture_124m.json as runs end. Steps, step size and seed were chosen before it and not tuned.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import jax

from decibel.core._files import atomic_write
from decibel_studies.experiments.apps_mixtures import CASE, SETUPS
from decibel_studies.experiments.data_mixtures import Mixture

SEED = 4001
LARGE = replace(
    SETUPS["full"], width=832, layers=15, heads=13, context=512, remat=True, chunk=1, windows=10_000, test=256,
    validation=32, steps=200, warm_up=20, rows=10, beta=1e-3,
)  # fmt: skip
TINY = replace(LARGE, width=32, layers=1, heads=1, context=16, windows=50, test=16, validation=8, steps=4, rows=2)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("out", type=Path)
    options.add_argument("--tiny", action="store_true")
    given = options.parse_args()
    setup, path = TINY if given.tiny else LARGE, given.out / "mixture_124m.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for way in ("learned", "uniform"):
        if way in found:
            continue
        begun = time.time()
        trace = Mixture(CASE, way, way, setup).run_seed(SEED)
        found[way] = {name: [float(f"{value:.6g}") for value in trace[name]] for name in trace}
        found["about"] = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "seed": SEED}
        found[way]["wall_seconds"] = round(time.time() - begun, 1)
        atomic_write(path, json.dumps(found) + "\n")
        print(f"{way}: {found[way]['wall_seconds']} s, test loss {found[way]['test_loss'][-1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
