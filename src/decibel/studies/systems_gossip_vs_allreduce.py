"""systems/gossip-vs-allreduce: what a round of averaging with neighbours costs, and one with everybody."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .exchange import Exchange
from .results import Results
from .study import Study
from .verdicts import Check, Claim

NEIGHBOURS, EVERYBODY = "neighbour averaging", "all-reduce"
GROWTH = 1.25  # "does not grow" allows this factor from the fewest to the most processes


@dataclass(frozen=True)
class Setup:
    entries: int = 25_500_000  # of ResNet-50
    processes: tuple[int, ...] = (4, 8, 16)
    rounds: int = 12
    seeds: tuple[int, ...] = (0, 1, 2)  # repetitions


SETUPS = {
    "smoke": Setup(1_000, (2,), rounds=2, seeds=(0,)),
    "small": Setup(2_500_000, (2, 4), rounds=6),
    "full": Setup(),
}


def case(processes: int) -> str:
    return f"{processes} processes"


def arms(setup: Setup) -> list[Exchange]:
    return [
        Exchange(case(count), label, kind, count, setup.entries, setup.rounds)
        for count in setup.processes
        for label, kind in ((NEIGHBOURS, "ring"), (EVERYBODY, "all"))
    ]


def cheaper_and_constant(results: Results[Setup]) -> list[Check]:
    time = {
        (count, label): results[case(count), label].mean("milliseconds")
        for count in results.setup.processes
        for label in (NEIGHBOURS, EVERYBODY)
    }
    checks = [
        Check.of(
            f"{case(count)}: log₁₀ of the milliseconds of a round, {EVERYBODY} less {NEIGHBOURS}",
            np.log10(time[count, EVERYBODY] / time[count, NEIGHBOURS]),
        )
        for count in results.setup.processes
    ]
    few, many = min(results.setup.processes), max(results.setup.processes)
    if few < many:
        text = f"log₁₀ of the milliseconds of {NEIGHBOURS}, {case(many)} less {case(few)}"
        growth = np.log10(time[many, NEIGHBOURS] / time[few, NEIGHBOURS])
        checks.append(Check.of(text, growth, np.log10(GROWTH), above=False))
    return checks


STUDY = Study(
    name="systems/gossip-vs-allreduce",
    title="A round with neighbours against a round with everybody",
    paper="SPARKLE and D-SOBA's slides (after Chen et al., ICML 2021): 150 against 278 ms on 256 GPUs",
    about="Processes of one machine, a ring of them, average a vector of the size of ResNet-50: each with its two "
    "neighbours, or all at once (all-reduce), by JAX's collectives over gloo on loopback. A round takes "
    "as long as its slowest process; a repetition is the mean of twelve rounds, after one that is not counted.",
    differs="One machine in the place of 256 GPUs: processes share cores and memory, so that time per round also "
    "grows where a network's would not.",
    setups=SETUPS,
    arms=arms,
    columns=("milliseconds",),
    claims=(
        Claim(
            "C24",
            "Averaging with neighbours is cheaper per round than all-reduce, and its cost does not grow with the "
            "number of processes.",
            cheaper_and_constant,
            why="On one machine a round with two neighbours is slower, by 29 to 46 %, and takes 1.6 times as long with "
            "16 processes as with 4. Every process sends its whole vector twice; in a ring all-reduce it sends it 2 (n "
            "− 1) / n times. What neighbours save is waiting, n − 1 steps one after the other, and loopback has almost "
            "none; and all processes share one memory, as machines of a network do not.",
        ),
    ),
)
