"""How old the messages are that a held site uses: `python -m benchmarks.held`.

Three sites without a common clock, as processes, of which one is stopped for 90 of every 100 ms (SIGSTOP). Printed are
the largest age of a message at that site, in its sender's steps and in seconds, and how far from the solution the two
other sites are after all their steps.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from quadratics import random_quadratic
from silo_fleet import Fleet
from silo_sites import ring
from silo_worker import RATES

import decibel as db

HELD = "site-2"
PERIOD = 0.1  # seconds
RUNS = 0.1  # of them the share in which the held site runs
COMPUTE = 0.003  # seconds of a step at the others


@contextmanager
def held(sites: Fleet) -> Iterator[None]:
    """The site is stopped and goes on, again and again."""
    over = threading.Event()
    process = sites.processes[HELD]

    def hold() -> None:
        while not over.is_set():
            process.send_signal(signal.SIGSTOP)
            time.sleep((1 - RUNS) * PERIOD)
            process.send_signal(signal.SIGCONT)
            time.sleep(RUNS * PERIOD)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def measure(steps: int) -> tuple[int, float, float]:
    """The largest age in steps and in seconds, and the largest distance from the solution."""
    behind: list[int] = [0]
    ages: list[float] = [0.0]
    with tempfile.TemporaryDirectory() as folder:
        federation = ring(3, asynchronous=True)
        sites = Fleet(Path(folder), federation, steps=steps, task="one level", pause={"all": COMPUTE})
        others = [name for name in sites.names if name != HELD]
        try:
            sites.start()
            sites.wait_for_step(20)
            with held(sites):
                while any(sites.processes[name].poll() is None for name in others):
                    neighbours = sites.status(HELD)["neighbours"].values()
                    talking = [one for one in neighbours if one["state"] == "talking"]
                    behind += [one["message_steps_behind"] for one in talking]
                    ages += [one["message_seconds_ago"] or 0.0 for one in talking]
                    time.sleep(1.0)
            x = np.stack([np.load(Path(folder) / f"{name}.npz")["x"] for name in others])
        finally:
            sites.end()
    problem = random_quadratic(3, seed=1, spread=2.0).single()
    exact = db.solve(problem, db.extra(**RATES["one level"]), federation.graph, steps=2000, metrics=[]).x
    return max(behind), max(ages), float(np.abs(x - np.asarray(exact)).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000, help="steps of every site")
    behind, age, error = measure(parser.parse_args().steps)
    print(f"oldest message at {HELD}: {behind} steps of its sender, {age:.2g} s")
    print(f"the other sites end {error:.2g} from the solution")


if __name__ == "__main__":
    import jax

    jax.config.update("jax_enable_x64", True)
    main()
