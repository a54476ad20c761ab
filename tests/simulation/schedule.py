"""What goes wrong in a run, and when: everything is drawn from one seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from decibel.engines.silo._federation import FaultTolerance

from .disk import ERRORS

KINDS = ("calm", "short", "crash", "partition", "slow", "disk", "hostile", "storm")
WEIGHTS = (1, 4, 5, 3, 2, 5, 4, 4)
# Of sites without a common clock.
ASYNC_KINDS = (
    "async-calm",
    "async-lossy",
    "async-crash",
    "async-partition",
    "async-disk",
    "async-hostile",
    "async-storm",
)
ASYNC_WEIGHTS = (1, 3, 4, 3, 3, 3, 4)
GRAPHS = ("pair", "path", "ring", "star", "complete")


class Fault(NamedTuple):
    """`what` is a method of `World`, which is called at that time."""

    at: float
    what: str
    arguments: tuple


@dataclass
class Schedule:
    """`exact`: nothing is lost, so that the result must be that of a run without faults, bit for bit."""

    seed: int
    kind: str
    sites: int
    edges: tuple[tuple[int, int], ...]
    tolerance: FaultTolerance
    steps: int
    levels: int
    lossy: bool
    checkpoint_every: int
    slowest: float  # seconds of a frame
    compute: float  # seconds of a step
    noisy: bool
    hostile: int | None = None
    revokes: bool = False
    asynchronous: bool = False
    speeds: tuple[float, ...] = ()  # by site, how many times slower than the fastest
    rests: float = 0.0  # the tolerance of the stop rule; 0 is none
    lost: float = 0.0
    reordered: float = 0.0
    faults: list[Fault] = field(default_factory=list)

    def compute_of(self, number: int) -> float:
        """Seconds of a step there, on average."""
        return self.compute * (self.speeds[number] if self.speeds else 1.0)

    @property
    def short(self) -> bool:
        """Nothing is away for as long as anyone's patience, and nobody starts again."""
        return self.kind in ("calm", "short")

    @property
    def exact(self) -> bool:
        return self.hostile is None and (self.short or not self.lossy)

    @property
    def longest(self) -> float:
        """More seconds than sites without a common clock need undisturbed."""
        return 300.0 if self.rests else 2 * self.steps * self.compute * max(self.speeds)

    @property
    def end_of_faults(self) -> float:
        return max(
            (fault.at + (fault.arguments[-1] if fault.what in LASTING else 0) for fault in self.faults), default=0
        )

    @classmethod
    def of(cls, seed: int, kind: str | None = None, *, asynchronous: bool = False) -> Schedule:
        """Of that kind, or of any with a common clock, or of any without."""
        chance = random.Random(f"schedule {seed}")
        drawn = chance.choices(*((ASYNC_KINDS, ASYNC_WEIGHTS) if asynchronous else (KINDS, WEIGHTS)))[0]
        kind = kind or drawn
        made = (_async_run if kind in ASYNC_KINDS else _run)(seed, kind, chance)
        for adds in ADDS[made.kind]:
            adds(made, chance)
        made.faults.sort(key=lambda fault: fault.at)
        return made


LASTING = ("block", "slow", "break_disk")


def _run(seed: int, kind: str, chance: random.Random) -> Schedule:
    sites = chance.choice([2, 3, 3, 4, 4, 5])
    lossy = kind in ("partition", "slow", "hostile") or chance.random() < 0.7
    quorums = {"hostile": ["continue"], "slow": ["continue"], "short": ["continue", "wait", "stop"]}
    quorum = chance.choice(quorums.get(kind, ["continue", "wait"])) if lossy else "continue"
    beat, missed = chance.choice([0.5, 1.0]), chance.choice([3, 5, 8]) if kind != "short" else 10
    deadline = chance.choice([1.5, 3.0]) if kind in ("slow", "storm") and lossy else 500.0
    if kind == "hostile":
        deadline = 2.0
    return Schedule(
        seed, kind, sites, _edges(sites, chance), FaultTolerance(quorum, beat, missed, deadline),
        steps=chance.randrange(6, 18), levels=chance.choice([1, 1, 2]), lossy=lossy,
        checkpoint_every=chance.choice([1, 2, 4]), slowest=chance.choice([0.005, 0.05, 0.2]),
        compute=chance.choice([0.02, 0.2, 0.6]), noisy=kind == "disk" or chance.random() < 0.1,
    )  # fmt: skip


def _async_run(seed: int, kind: str, chance: random.Random) -> Schedule:
    sites = chance.choice([2, 3, 3, 4, 4, 5])
    hostile = kind == "async-hostile"
    tolerance = FaultTolerance(
        "continue" if hostile else chance.choice(["continue", "continue", "wait"]), chance.choice([0.5, 1.0]),
        chance.choice([3, 5, 8]), 2.0 if hostile else chance.choice([2.0, 500.0]),
    )  # fmt: skip
    rests = 0.0 if hostile else chance.choice([0.0, 1e-5])
    lossy = kind in ("async-lossy", "async-storm")
    return Schedule(
        seed, kind, sites, _edges(sites, chance), tolerance, steps=5_000 if rests else chance.randrange(10, 40),
        levels=chance.choice([1, 1, 2]), lossy=True, checkpoint_every=chance.choice([1, 5, 20]),
        slowest=chance.choice([0.01, 0.1, 0.3]), compute=chance.choice([0.05, 0.1]), noisy=False, asynchronous=True,
        speeds=tuple(chance.choice([1.0, 1.0, 2.0, 10.0]) for _ in range(sites)), rests=rests,
        lost=chance.choice([0.0, 0.1, 0.3]) if lossy else 0.0, reordered=chance.choice([0.0, 0.3]) if lossy else 0.0,
    )  # fmt: skip


def _edges(sites: int, chance: random.Random) -> tuple[tuple[int, int], ...]:
    graph = chance.choice(GRAPHS) if sites > 2 else "pair"
    path = [(i, i + 1) for i in range(sites - 1)]
    if graph == "star":
        return tuple((0, i) for i in range(1, sites))
    if graph == "complete":
        return tuple((i, j) for i in range(sites) for j in range(i + 1, sites))
    return tuple([*path, (0, sites - 1)] if graph == "ring" and sites > 2 else path)


def _length(made: Schedule) -> float:
    """About how long the run takes undisturbed."""
    if made.asynchronous:
        return 30.0 if made.rests else 1 + made.steps * made.compute * max(made.speeds)
    return 1 + made.steps * (made.compute + made.levels * made.slowest)


def _when(made: Schedule, chance: random.Random) -> float:
    return chance.random() * _length(made)


def _cuts(made: Schedule, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 6)):
        made.faults.append(Fault(_when(made, chance), "cut", chance.choice(made.edges)))


def _blocks(made: Schedule, chance: random.Random) -> None:
    """Too short to be noticed."""
    for _ in range(chance.randrange(3)):
        seconds = chance.random() * 0.3 * made.tolerance.patience
        made.faults.append(Fault(_when(made, chance), "block", ((chance.choice(made.edges),), seconds)))


def _partition(made: Schedule, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 3)):
        half = [chance.random() < 0.5 for _ in range(made.sites)]
        pairs = tuple((a, b) for a, b in made.edges if half[a] != half[b])
        seconds = made.tolerance.patience * (0.5 + 2 * chance.random())
        made.faults.append(Fault(_when(made, chance), "block", (pairs or made.edges[:1], seconds)))


def _crashes(made: Schedule, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 5)):
        what = chance.choice(["kill", "kill", "cut_power"])
        back = chance.choice([0.05, 0.5, 2.0]) * made.tolerance.patience * chance.random()
        made.faults.append(Fault(_when(made, chance), what, (chance.randrange(made.sites), back)))


def _terminations(made: Schedule, chance: random.Random) -> None:
    for _ in range(chance.randrange(3)):
        back = 2 * made.tolerance.patience * chance.random()
        made.faults.append(Fault(_when(made, chance), "terminate", (chance.randrange(made.sites), back)))


def _rests(made: Schedule, chance: random.Random) -> None:
    """Who is at rest before others is away for as long as they need to come to rest without it."""
    if made.rests and chance.random() < 0.5:
        back = made.tolerance.patience + 10 + 20 * chance.random()
        made.faults.append(Fault(0.0, "kill_at_rest", (back,)))


def _set_backs(made: Schedule, chance: random.Random) -> None:
    for _ in range(chance.randrange(3)):
        back = 2 * made.tolerance.patience * chance.random()
        some = chance.randrange(1, 4)
        made.faults.append(Fault(_when(made, chance), "set_back", (chance.randrange(made.sites), some, back)))


def _slow(made: Schedule, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 3)):
        seconds = made.tolerance.deadline * (0.5 + 2 * chance.random()) if made.tolerance.deadline < 100 else 3.0
        made.faults.append(Fault(_when(made, chance), "slow", (chance.randrange(made.sites), seconds)))


def _pauses(made: Schedule, chance: random.Random) -> None:
    if chance.random() < 0.5:
        seconds = 2 * made.tolerance.patience * chance.random()  # its signs of life still come
        at = 3.0 + _when(made, chance)  # at the start nobody waits longer than its patience
        made.faults.append(Fault(at, "slow", (chance.randrange(made.sites), seconds)))


def _disks(made: Schedule, chance: random.Random) -> None:
    """For a while some calls fail; or the power is cut in one of the next calls."""
    for _ in range(chance.randrange(1, 5)):
        site, at = chance.randrange(made.sites + 1), _when(made, chance)  # the last is the organiser's
        fault = chance.choice([*ERRORS, "short", "cut", "any"])
        often = chance.choice([0.02, 0.1, 0.5, 1.0])
        made.faults.append(Fault(at, "break_disk", (site, fault, often, chance.random() * _length(made))))
    made.revokes = True
    for _ in range(chance.randrange(1, 4)):
        made.faults.append(Fault(_when(made, chance), "publish", (None,)))
    if chance.random() < 0.3:
        made.faults.append(Fault(_when(made, chance), "put_back", (chance.randrange(made.sites),)))


def _strangers(made: Schedule, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 4)):
        who = chance.choice(["another authority", "no neighbour", "another federation", "another problem", "no hello"])
        made.faults.append(Fault(_when(made, chance), "stranger", (chance.randrange(made.sites), who)))


def _hostile(made: Schedule, chance: random.Random) -> None:
    if candidates := [i for i in range(made.sites) if _connected_without(i, made)]:
        made.hostile = chance.choice(candidates)
        if chance.random() < 0.3:
            made.revokes = True
            made.faults.append(Fault(_when(made, chance), "publish", (made.hostile,)))
    _strangers(made, chance)


def _connected_without(i: int, made: Schedule) -> bool:
    """Whether the others, two or more, can do without it."""
    reached = {(i + 1) % made.sites}
    for _ in range(made.sites):
        reached |= {b for a, b in (*made.edges, *((b, a) for a, b in made.edges)) if a in reached and b != i}
    return 2 <= len(reached) == made.sites - 1


ADDS = {
    "calm": (),
    "short": (_cuts, _blocks, _pauses),
    "crash": (_crashes, _cuts),
    "partition": (_partition, _cuts),
    "slow": (_slow, _blocks),
    "disk": (_disks, _crashes),
    "hostile": (_hostile,),
    "storm": (_cuts, _blocks, _partition, _crashes, _slow, _disks, _strangers),
    "async-calm": (),
    "async-lossy": (_cuts, _blocks, _slow),
    "async-crash": (_crashes, _terminations, _set_backs, _cuts, _rests),
    "async-partition": (_partition, _cuts, _slow),
    "async-disk": (_disks, _crashes, _terminations),
    "async-hostile": (_hostile, _crashes),
    "async-storm": (_cuts, _blocks, _partition, _crashes, _terminations, _set_backs, _slow, _disks, _strangers),
}
