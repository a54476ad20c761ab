"""What goes wrong in a run, and when: everything is drawn from one seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from decibel.silo._federation import FaultTolerance

from .coded_links import CODES
from .disk import ERRORS
from .hostile import MANNERS
from .node import Peers

KINDS = ("calm", "short", "crash", "partition", "slow", "disk", "hostile", "storm", "orbax")
WEIGHTS = (1, 4, 5, 3, 2, 5, 4, 4, 1)
# Those with methods that need every message, as all do on graphs that change.
PEER_KINDS = ("calm", "short", "crash", "disk", "storm")
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
    hostile: tuple[int, ...] = ()
    manner: str = ""  # of the hostile, one of `hostile.MANNERS`
    faulty: int | None = None  # how many members the federation says may be
    starts: tuple[float, ...] = ()  # seconds, by site
    revokes: bool = False
    asynchronous: bool = False
    speeds: tuple[float, ...] = ()  # by site, how many times slower than the fastest
    code: str = ""  # of messages, one of `coded_links.CODES`
    limited: bool = False  # whether flows are
    rests: float = 0.0  # the tolerance of the stop rule; 0 is none
    lost: float = 0.0
    reordered: float = 0.0
    peers: Peers | None = None  # on a graph that changes
    faults: list[Fault] = field(default_factory=list)

    def compute_of(self, number: int) -> float:
        """Seconds of a step there, on average."""
        return self.compute * (self.speeds[number] if self.speeds else 1.0)

    @property
    def short(self) -> bool:
        """Nothing is away for as long as anyone's patience, and nobody starts again."""
        return self.kind in ("calm", "short")

    @property
    def orbax(self) -> bool:
        """Checkpoints are the product's."""
        return self.kind == "orbax"

    @property
    def exact(self) -> bool:
        return not self.hostile and (self.short or not self.lossy)

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
    def of(
        cls,
        seed: int,
        kind: str | None = None,
        *,
        asynchronous: bool = False,
        coded: bool = False,
        one_peer: bool = False,
    ) -> Schedule:
        """Of that kind, or of any with a common clock, or of any without; there messages may all be `coded`. With
        `one_peer` a site exchanges vectors with one other in a step, or with none."""
        chance = random.Random(f"schedule {seed}")
        drawn = chance.choices(*((ASYNC_KINDS, ASYNC_WEIGHTS) if asynchronous else (KINDS, WEIGHTS)))[0]
        kind = kind or (chance.choice(PEER_KINDS) if one_peer else drawn)
        if kind in ASYNC_KINDS:
            made = _async_run(seed, kind, chance, coded=coded)
        else:
            made = _run(seed, kind, chance, one_peer=one_peer)
        for adds in ADDS[made.kind]:
            adds(made, chance)
        made.faults.sort(key=lambda fault: fault.at)
        return made


LASTING = ("block", "slow", "break_disk", "hold_at_rest")


def _run(seed: int, kind: str, chance: random.Random, *, one_peer: bool) -> Schedule:
    sites = chance.choice([3, 4, 5, 5] if kind == "partition" or one_peer else [2, 3, 3, 4, 4, 5])
    lossy = not one_peer and (kind in ("partition", "slow", "hostile") or chance.random() < 0.7)
    quorums = {
        "hostile": ["continue"],
        "slow": ["continue"],
        "short": ["continue", "wait", "stop"],
        "partition": ["continue", "continue", "wait"],
    }
    quorum = chance.choice(quorums.get(kind, ["continue", "wait"])) if lossy else "continue"
    beat, missed = chance.choice([0.5, 1.0]), chance.choice([3, 5, 8]) if kind != "short" else 10
    deadline = chance.choice([1.5, 3.0]) if kind in ("slow", "storm") and lossy else 500.0
    if kind == "hostile":
        deadline = 2.0
    edges = _edges(sites, chance)
    return Schedule(
        seed, kind, sites, edges, FaultTolerance(quorum, beat, missed, deadline),
        steps=chance.randrange(20, 40) if kind == "partition" else chance.randrange(6, 18),
        levels=chance.choice([1, 1, 2]), lossy=lossy,
        checkpoint_every=chance.choice([1, 2, 4]), slowest=chance.choice([0.005, 0.05, 0.2]),
        compute=chance.choice([0.2, 0.6] if kind == "partition" else [0.02, 0.2, 0.6]),
        noisy=kind == "disk" or chance.random() < 0.1, peers=Peers.of(seed, edges) if one_peer else None,
    )  # fmt: skip


def _async_run(seed: int, kind: str, chance: random.Random, *, coded: bool) -> Schedule:
    sites = chance.choice([2, 3, 3, 4, 4, 5])
    hostile = kind == "async-hostile"
    tolerance = FaultTolerance(
        "continue" if hostile else chance.choice(["continue", "continue", "wait"]), chance.choice([0.5, 1.0]),
        chance.choice([3, 5, 8]), 2.0 if hostile else chance.choice([2.0, 500.0]),
    )  # fmt: skip
    code = chance.choice([*CODES] if coded else ["", *CODES])
    often = 0.0 if hostile else 0.2 if kind in ("async-lossy", "async-disk", "async-storm") else 0.5  # it is long
    rests = (1e-4 if code else 1e-5) if chance.random() < often else 0.0
    lossy = kind in ("async-lossy", "async-storm")
    return Schedule(
        seed, kind, sites, _edges(sites, chance), tolerance, steps=5_000 if rests else chance.randrange(10, 40),
        levels=chance.choice([1, 1, 2]), lossy=True, checkpoint_every=chance.choice([5, 20] if rests else [1, 5, 20]),
        slowest=chance.choice([0.01, 0.1, 0.3]), compute=chance.choice([0.05, 0.1]), noisy=False, asynchronous=True,
        speeds=tuple(chance.choice([1.0, 1.0, 2.0, 10.0]) for _ in range(sites)), rests=rests,
        lost=chance.choice([0.0, 0.1, 0.3]) if lossy else 0.0, reordered=chance.choice([0.0, 0.3]) if lossy else 0.0,
        code=code, limited=chance.random() < 0.5,
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
    """Often the smaller part is slower meanwhile, and skips steps when both meet again."""
    for _ in range(chance.randrange(1, 3)):
        border = chance.randrange(1, made.sites)  # sites of a path or ring that are next to each other stay together
        half = [i < border if chance.random() < 0.9 else chance.random() < 0.5 for i in range(made.sites)]
        pairs = tuple((a, b) for a, b in made.edges if half[a] != half[b])
        seconds = made.tolerance.patience * (0.5 + 3 * chance.random())
        at = _when(made, chance)
        made.faults.append(Fault(at, "block", (pairs or made.edges[:1], seconds)))
        smaller = [i for i in range(made.sites) if half[i] == (2 * sum(half) < made.sites)]
        if smaller and chance.random() < 0.7:
            made.faults.append(Fault(at, "slow", (chance.choice(smaller), 0.9 * seconds)))


def _clocks(made: Schedule, chance: random.Random) -> None:
    """Clocks of machines are set back."""
    for _ in range(chance.randrange(3)):
        seconds = chance.choice([5.0, 500.0]) * chance.random()
        made.faults.append(Fault(_when(made, chance), "set_clock", (chance.randrange(made.sites), seconds)))


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
    """Who is at rest before others is away for as long as they need to come to rest without it; often nothing else
    goes wrong."""
    if made.rests and chance.random() < 0.5:
        if chance.random() < 0.7:
            made.faults.clear()
        back = made.tolerance.patience + 10 + 20 * chance.random()
        made.faults.append(Fault(0.0, "kill_at_rest", (back,)))


def _holds(made: Schedule, chance: random.Random) -> None:
    """Who is cut off returns and moves the others, while one that said that it was at rest is cut off and slow."""
    if made.rests and made.sites > 2 and chance.random() < 0.7:
        away = chance.randrange(made.sites)
        seconds = made.tolerance.patience + 10 + 10 * chance.random()
        made.faults[:] = [Fault(0.5 + chance.random(), "block", (_edges_of(away, made), seconds))]
        made.faults.append(Fault(2.0, "hold_at_rest", (seconds + 15 + 10 * chance.random(),)))


def _edges_of(site: int, made: Schedule) -> tuple[tuple[int, int], ...]:
    return tuple(edge for edge in made.edges if site in edge)


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


def _honest_crashes(made: Schedule, chance: random.Random) -> None:
    """Sometimes one of those that do not lie, where the others are enough to tell it that they run."""
    honest = [i for i in range(made.sites) if i not in made.hostile]
    if made.faulty is not None and len(honest) - 1 > made.faulty and chance.random() < 0.5:
        site = chance.choice(honest)
        for _ in range(chance.randrange(1, 3)):
            back = chance.choice([0.05, 0.5, 2.0]) * made.tolerance.patience * chance.random()
            made.faults.append(Fault(_when(made, chance), "kill", (site, back)))


def _late_returns(made: Schedule, chance: random.Random) -> None:
    """Sometimes one of those that do not lie is away until the others have finished."""
    honest = [i for i in range(made.sites) if i not in made.hostile]
    if made.faulty is not None and len(honest) - 1 > made.faulty and chance.random() < 0.3:
        back = _length(made) + 2 * made.tolerance.patience
        made.faults.append(Fault(_when(made, chance), "kill", (chance.choice(honest), back)))


def _restarts(made: Schedule, chance: random.Random) -> None:
    """All sites are started again, in the middle of a run. Who makes noise, or is revoked, keeps it from beginning."""
    if made.manner in ("replay", "saved") and not made.revokes and chance.random() < 0.4:
        made.faults.append(Fault(_when(made, chance), "restart_all", ()))


def _strangers(made: Schedule, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 4)):
        who = chance.choice(["another authority", "no neighbour", "another federation", "another problem", "no hello"])
        made.faults.append(Fault(_when(made, chance), "stranger", (chance.randrange(made.sites), who)))


def _hostile(made: Schedule, chance: random.Random) -> None:
    """One or two members lie. Others may start long after the first."""
    groups = [group for size in (1, 2) for group in combinations(range(made.sites), size)]
    groups = [group for group in groups if _connected_without(group, made)]
    if groups:
        made.hostile = max(chance.sample(groups, min(2, len(groups))), key=len)
        made.manner = chance.choice(["noise", *MANNERS])
        made.faulty = min(len(made.hostile) + chance.choice([0, 0, 1]), made.sites - 2)
        late = chance.choice([0.0, 5.0])
        made.starts = tuple(chance.random() * (1 if i in made.hostile else 1 + late) for i in range(made.sites))
        if chance.random() < 0.3:
            made.revokes = True
            made.faults.append(Fault(_when(made, chance), "publish", (chance.choice(made.hostile),)))
    _strangers(made, chance)


def _connected_without(group: tuple[int, ...], made: Schedule) -> bool:
    """Whether the others, two or more, can do without them."""
    others = [i for i in range(made.sites) if i not in group]
    reached = {*others[:1]}
    for _ in others:
        reached |= {b for a, b in (*made.edges, *((b, a) for a, b in made.edges)) if a in reached and b in others}
    return 2 <= len(reached) == len(others)


ADDS = {
    "calm": (),
    "short": (_cuts, _blocks, _pauses),
    "crash": (_crashes, _cuts, _clocks),
    "partition": (_partition, _cuts),
    "slow": (_slow, _blocks),
    "disk": (_disks, _crashes),
    "hostile": (_hostile, _honest_crashes, _restarts, _late_returns),
    "storm": (_cuts, _blocks, _partition, _crashes, _slow, _disks, _strangers),
    "orbax": (_crashes,),
    "async-calm": (),
    "async-lossy": (_cuts, _blocks, _slow),
    "async-crash": (_crashes, _clocks, _terminations, _set_backs, _cuts, _rests),
    "async-partition": (_partition, _cuts, _slow, _holds),
    "async-disk": (_disks, _crashes, _terminations),
    "async-hostile": (_hostile, _crashes),
    "async-storm": (_cuts, _blocks, _partition, _crashes, _terminations, _set_backs, _slow, _disks, _strangers),
}
