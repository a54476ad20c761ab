"""Runs schedules: `python -m simulation --seeds 10000`, `--from 5000 --seeds 1000` for a part of them, `--seed 17` for
one, with its trace, or `--bugs` for those that find planted bugs."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from . import Schedule, World
from .batch import run_seeds, search
from .planted import BUGS, SEEDS
from .schedule import ASYNC_KINDS, KINDS, PEER_KINDS

BATCH = 20  # schedules that a process runs before it reports
PROGRESS = 30.0  # seconds between two lines of progress


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, help=f"how many schedules: 1000, and {SEEDS} for every bug")
    parser.add_argument("--from", dest="first", metavar="SEED", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="this one only, and its last events")
    parser.add_argument("--kind", choices=(*KINDS, *ASYNC_KINDS), help="schedules of this kind only")
    parser.add_argument("--asynchronous", action="store_true", help="sites without a common clock")
    parser.add_argument("--coded", action="store_true", help="all messages in code; with --asynchronous")
    parser.add_argument("--one-peer", action="store_true", help="graphs that change, with one peer a step")
    parser.add_argument("--bugs", action="store_true", help="how many schedules find each bug that is planted")
    parser.add_argument("--all", action="store_true", help="do not end at the first seed that fails")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    given = parser.parse_args()
    if given.coded and not given.asynchronous:
        parser.error("--coded needs --asynchronous")
    if given.one_peer and (given.asynchronous or given.kind not in (None, *PEER_KINDS)):
        parser.error(f"--one-peer needs a kind of {', '.join(PEER_KINDS)}, or none")
    options = {"asynchronous": given.asynchronous, "coded": given.coded, "one_peer": given.one_peer}
    if given.seed is not None:
        return _show(Schedule.of(given.seed, given.kind, **options))
    if given.bugs:
        names = [name for name, bug in BUGS.items() if bug.kind in (ASYNC_KINDS if given.asynchronous else KINDS)]
        return _find_bugs(names, range(given.first, given.first + (given.seeds or SEEDS)), given.jobs)
    begun = told = time.monotonic()
    kinds: Counter[str] = Counter()
    coded = events = failed = 0
    run = partial(run_seeds, given.kind, **options)
    last = given.first + (given.seeds or 1000)
    batches = [range(first, min(first + BATCH, last)) for first in range(given.first, last, BATCH)]
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as processes:
        for report in (report for batch in processes.map(run, batches) for report in batch):
            kinds[report.kind] += 1
            coded += report.coded
            events += report.events
            failed += bool(report.failure)
            if report.failure:
                print(f"seed {report.seed} ({report.kind}): {report.failure}", flush=True)
                if not given.all:
                    processes.shutdown(cancel_futures=True)
                    break
            if time.monotonic() > told + PROGRESS:
                told = time.monotonic()
                print(f"{kinds.total()} of {last - given.first} schedules, {failed} failed", flush=True)
    names = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(f"{kinds.total()} schedules ({names}; {coded} in code), {events} events", end=" ")
    print(f"in {time.monotonic() - begun:.0f} s; {failed} failed")
    return int(failed > 0)


def _find_bugs(names: list[str], seeds: range, jobs: int) -> int:
    missed = 0
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as processes:
        for result in processes.map(partial(search, seeds), names):
            missed += not result.found or bool(result.failures)
            soonest = "" if result.soonest is None else f", soonest by {result.soonest}"
            print(f"{result.bug} ({result.kind}): {len(result.found)} of {len(seeds)}{soonest}", flush=True)
            print(*result.failures, sep="\n", end="\n" if result.failures else "")
    print(f"{len(names) - missed} of {len(names)} planted bugs were found")
    return int(missed > 0)


def _show(schedule: Schedule) -> int:
    world = World(schedule)
    try:
        world.run()
    finally:
        print(*world.trace, sep="\n")
        print(schedule, f"digest {world.digest:08x}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
