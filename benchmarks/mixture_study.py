"""The study apps/mixtures on a GPU in a given time: what a step costs, then the study's arms, seed by seed.

    python -m benchmarks.mixture_study OUT --seconds 470  # stops by itself; all is in OUT/results.tar
    python -m benchmarks.mixture_study OUT --tiny         # the same on a CPU, with hardly any steps

Every run is written as it ends, and what OUT has already is not run again. Three processes share the device, so that
one computes while another compiles. The step size of x is the one with the lowest validation loss on a seed that is
not judged.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from decibel.core._files import atomic_write

BEGUN, EVERY = time.time(), 5.0  # seconds between two archives
PILOT, GRID = 100, (0.003, 0.01, 0.03)
PARTS = {
    "learned": ["learned mixture", "learned, Hessian products"],
    "fixed": ["uniform mixture", "DoReMi", "ODM", "mixture by size", "mixture as the target"],
    "others": ["learned, complete graph", "learned, one node", "learned, nodes with all domains"],
}


def say(out: Path, text: str) -> None:
    line = f"[{time.time() - BEGUN:6.1f}] {text}"
    print(line, flush=True)
    with open(out / "log.txt", "a") as file:
        file.write(line + "\n")


def cost(out: Path, tiny: bool) -> None:
    from . import mixture, records

    path = out / "mixture-gpu.json"
    if not path.exists():
        note = lambda what: say(out, f"cost: {what}")  # noqa: E731
        mixture.measure(not tiny, note, lambda content: records.write(content, path))


def setup_of(tiny: bool, alpha: float) -> Any:
    from decibel.studies.apps_mixtures import SETUPS

    short = dict(
        width=16, layers=1, heads=1, context=16, windows=200, validation=8, test=16, batch_size=2, steps=4, rows=2
    )
    return replace(SETUPS["full"], alpha=alpha, **(short if tiny else {}))


def run(out: Path, name: str, arm: Any, seed: int) -> Any:
    """The trace of one seed, from the folder where it is there."""
    import jax

    from decibel.studies.results import Runs

    path = out / "traces" / f"{name.replace(' ', '-').replace(',', '')}--{seed}.npz"
    if not path.exists():
        begun = time.time()
        trace = arm.one(seed)
        about = {
            "seconds": round(time.time() - begun, 1),
            "jax": jax.__version__,
            "device": jax.devices()[0].device_kind,
        }
        Runs(arm.case, arm.label, [trace], about).save(path)
        say(out, f"{name}, seed {seed}: {about['seconds']} s, test {trace['test_loss'][-1]:.4f}")
    return Runs.load(path).traces[0]


def pilot(out: Path, tiny: bool) -> float:
    from decibel.studies.apps_mixtures import CASE, LEARNED
    from decibel.studies.mixing import Mixing

    path = out / "pilot.json"
    if not path.exists():
        arms = {alpha: Mixing(CASE, LEARNED, "learned", setup_of(tiny, alpha)) for alpha in GRID}
        last = {
            alpha: float(run(out, f"pilot {alpha}", arm, PILOT)["validation_loss"][-1]) for alpha, arm in arms.items()
        }
        found = {"alpha": min(last, key=lambda alpha: last[alpha]), "validation_loss": last, "seed": PILOT}
        atomic_write(path, json.dumps(found))
    return json.loads(path.read_text())["alpha"]


def work(out: Path, part: str, tiny: bool) -> None:
    from decibel.studies.apps_mixtures import arms

    if part == "others":
        while not (out / "pilot.json").exists():
            time.sleep(0.5)
    setup = setup_of(tiny, 0.0 if part == "fixed" else pilot(out, tiny))
    known = {arm.label: arm for arm in arms(setup)}
    for name in PARTS[part]:
        for seed in setup.seeds:
            run(out, name, known[name], seed)


def pack(out: Path) -> None:
    """All files in one, whole or not at all."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for path in sorted(out.rglob("*")):
            if path.is_file() and path.suffix in (".npz", ".json", ".txt", ".log"):
                archive.add(path, path.relative_to(out))
    atomic_write(out / "results.tar", held.getvalue())


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.mixture_study")
    options.add_argument("out", type=Path)
    options.add_argument("--seconds", type=float, default=470, help="after which it stops (default: %(default)s)")
    options.add_argument("--cost", type=float, default=120, help="of these, at most so many for the cost of a step")
    options.add_argument("--tiny", action="store_true", help="hardly any steps of a tiny model")
    options.add_argument("--part", help=argparse.SUPPRESS)
    given = options.parse_args()
    (given.out / "traces").mkdir(parents=True, exist_ok=True)
    if given.part:
        return cost(given.out, given.tiny) if given.part == "cost" else work(given.out, given.part, given.tiny)
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    command = [sys.executable, "-m", "benchmarks.mixture_study", str(given.out), *(["--tiny"] if given.tiny else [])]

    def until(seconds: float, parts: list[str]) -> None:
        logs = {part: open(given.out / f"{part}.log", "a") for part in parts}  # noqa: SIM115 - processes write there
        started = [
            subprocess.Popen([*command, "--part", part], env=environment, stdout=logs[part], stderr=subprocess.STDOUT)
            for part in parts
        ]
        while any(process.poll() is None for process in started) and time.time() - BEGUN < seconds:
            time.sleep(EVERY)
            pack(given.out)
        for part, process in zip(parts, started, strict=True):
            say(given.out, f"{part}: {'stopped' if process.poll() is None else f'ended with {process.returncode}'}")
            process.kill()
        pack(given.out)

    if given.cost:
        until(given.cost, ["cost"])
    until(given.seconds, list(PARTS))


if __name__ == "__main__":
    main()
