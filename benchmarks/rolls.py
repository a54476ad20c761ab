"""What a flood of ROLLs costs a running site: `python -m benchmarks.rolls`.

A federation of 100 sites of which two run, as processes, over gRPC and mutual TLS; a step is an exchange and a pause
of 6 ms. Statements of all sites come once a beat. In every other phase a member also sends 20 ROLLs a second, each with
all 100 statements. Printed is the share of its steps that the site keeps, by wall-clock time and by its processor's,
which other programs on the machine change less.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from silo_hostile import PROBLEM, Conversation, Everyone, Member

from decibel.silo._federation import Federation
from decibel.silo.protocol._frames import Beat, Roll, Stand
from decibel.silo.protocol._lockstep_site import LockstepSite
from decibel.silo.run._connections import Connections
from decibel.silo.trust._credentials import Credentials

SITES = 100
ENTRIES = 1000
PAUSE = 0.006  # seconds of a step beside its exchange
PHASE = 3.0  # seconds
RATE = 20  # rolls a second
Rates = dict[str, list[tuple[float, float]]]  # by kind of phase, steps for each second and for each of the processor


def walk(folder: Path, federation: Federation, number: int, steps: Any, cpu: Any, ends: Event) -> None:
    """A site, in a process of its own, which counts its steps and the seconds of its processor."""
    credentials = Credentials.load(folder / f"site-{number}", f"site-{number}")
    site = LockstepSite(federation, number, PROBLEM, credentials, incarnation=1, tolerates_loss=True, say=print)
    site.expect(np.float64, (ENTRIES,))
    site._rendezvous.sign_own(0, [])
    site._rendezvous.start = 0  # most of the hundred do not run
    streams = Connections(site, credentials, print)
    streams.start()
    others = tuple(site.edges)
    out = np.empty((len(others), ENTRIES)), np.empty(len(others), bool), np.empty(len(others), np.int32)
    step = 0
    while not ends.is_set():
        step = site.begin_step(step) + 1
        time.sleep(PAUSE)
        site.exchange(others, np.zeros(ENTRIES), None, out)
        steps[number] = step
        cpu[number] = time.process_time()
    site.goodbye(False)
    streams.close()


def measure(rounds: int) -> Rates:
    """Of site 0, beside site 1; site 99 is the member."""
    with tempfile.TemporaryDirectory() as folder:
        members = Everyone(Path(folder), SITES, names=("site-0", "site-1", "site-99"))
        process = multiprocessing.get_context("spawn")
        ends = process.Event()
        steps = process.Array("l", 2)
        cpu = process.Array("d", 2)
        walks = [
            process.Process(target=walk, args=(Path(folder), members.federation, number, steps, cpu, ends))
            for number in range(2)
        ]
        for site in walks:
            site.start()
        while min(steps) < 50:
            time.sleep(0.1)
        line = Conversation(Member(Path(folder) / "site-99", "site-99"), 0, PROBLEM).read()
        rates: Rates = {"quiet": [], "flooded": []}
        for number, kind in enumerate(["quiet", "flooded"] * rounds):
            begun = time.monotonic()
            first, before = steps[0], cpu[0]
            _talk(line, members, 1 + number * int(PHASE), flooded=kind == "flooded")
            done = steps[0] - first
            rates[kind].append((done / (time.monotonic() - begun), done / (cpu[0] - before)))
        if not line.call.is_active():
            raise SystemExit("the site closed the member's stream, so that nothing was measured")
        ends.set()
        line.close()
        for site in walks:
            site.join(20)
            site.kill()
    return rates


def _talk(line: Conversation, members: Everyone, serial: int, *, flooded: bool) -> None:
    """For one phase: new statements once a second, and in a flood all of them again and again."""
    begun = time.monotonic()
    statements = ()
    for tick in range(int(PHASE * RATE)):
        if tick % RATE == 0:
            number = serial + tick // RATE
            statements = members.everyone(bytes(8 * SITES), serial=number, step=number, running=True)
            line.say(Stand(statements), Beat())
        if flooded:
            line.say(Roll(True, statements))
        time.sleep(max(0.0, begun + (tick + 1) / RATE - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="phases of each kind, which take turns")
    rates = measure(parser.parse_args().rounds)
    medians = {kind: np.median(found, axis=0) for kind, found in rates.items()}
    for kind, (by_clock, by_processor) in medians.items():
        print(f"{kind}: {by_clock:.1f} steps a second, {by_processor:.1f} for each second of its processor")
    shares = medians["flooded"] / medians["quiet"]
    print(f"kept under the flood: {shares[0]:.0%} of the steps a second, {shares[1]:.0%} by its processor")


if __name__ == "__main__":
    main()
