"""Runs schedules: `python -m simulation --seeds 10000`, or `--seed 17` for one, with its trace."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from . import Schedule, World
from .schedule import ASYNC_KINDS, KINDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many schedules")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="this one only, and its last events")
    parser.add_argument("--kind", choices=(*KINDS, *ASYNC_KINDS), help="schedules of this kind only")
    parser.add_argument("--asynchronous", action="store_true", help="sites without a common clock")
    parser.add_argument("--all", action="store_true", help="do not end at the first seed that fails")
    given = parser.parse_args()
    seeds = [given.seed] if given.seed is not None else range(given.first, given.first + given.seeds)
    begun, cpu = time.monotonic(), time.process_time()
    counts, failed, events = Counter(), 0, 0
    for seed in seeds:
        world = World(Schedule.of(seed, given.kind, asynchronous=given.asynchronous))
        counts[world.schedule.kind] += 1
        try:
            world.run()
        except Exception as error:
            failed += 1
            print(f"seed {seed} ({world.schedule.kind}): {type(error).__name__}: {error}")
            if not given.all:
                print(*world.trace, sep="\n")
                raise
        events += world.scheduler.events
        if given.seed is not None:
            print(*world.trace, sep="\n")
            print(world.schedule, f"digest {world.digest:08x}")
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    took = f"{time.monotonic() - begun:.1f} s ({time.process_time() - cpu:.1f} s of the processor)"
    print(f"{sum(counts.values())} schedules ({kinds}), {events} events in {took}; {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
