"""What a site records about itself: for whom it waits, who was missing, and its speed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._edge import Edge
    from ._rendezvous import Rendezvous

WORTH_TELLING = 1.0  # seconds; every step waits a little
RATE_SECONDS = 60.0  # seconds over which steps are counted for their rate


class Health:
    """What a site remembers of itself, under its lock. Seconds are those of its clock."""

    def __init__(self, now: float, rendezvous: Rendezvous, edges: Mapping[int, Edge]) -> None:
        self._rendezvous = rendezvous
        self._edges = edges
        self.compiling = False
        self.reason = ""  # why it has stopped
        self.awaited: dict[str, float] = {}  # the names of those for whom the site waits, and since when
        self.missing: dict[str, float] = {}  # for how many seconds each site was not there, in all
        self.without: list[str] = []  # neighbours that lack the model of a run that has finished
        self.expiries: dict[str, float] = {}  # Unix times at which the certificate and the list of revoked keys end
        self.step = 0
        self.updated = now
        self._steps: deque[tuple[float, int]] = deque()

    def set_awaited(self, names: Iterable[str], now: float) -> None:
        self.awaited = {name: self.awaited.get(name, now) for name in names}

    def absent(self, *, running: bool) -> list[str]:
        """The sites that should be there now and are not: all sites at the start, then the neighbours."""
        if not self._rendezvous.is_start_known:
            return self._rendezvous.absent
        return [edge.name for edge in self._edges.values() if running and not (edge.is_open or edge.finished)]

    def update(self, now: float, step: int, *, running: bool) -> None:
        """Called every `beat`: adds up who is missing and how fast steps are done."""
        for name in self.absent(running=running):
            self.missing[name] = self.missing.get(name, 0.0) + now - self.updated
        self.step = step
        self.updated = now
        if not running:
            self._steps.clear()  # the step from which it continues was not done now
        self._steps.append((now, step))
        while self._steps[0][0] < now - RATE_SECONDS and len(self._steps) > 2:
            self._steps.popleft()

    @property
    def rate(self) -> float:
        """Steps per second, of the last minute."""
        if not self._steps:
            return 0.0
        begun, first = self._steps[0]
        now, last = self._steps[-1]
        return max(0, last - first) / (now - begun) if now > begun else 0.0

    @contextmanager
    def compiles(self) -> Iterator[None]:
        self.compiling = True
        try:
            yield
        finally:
            self.compiling = False


def who_was_missing(seconds: Mapping[str, float]) -> str:
    long_gaps = {name: gap for name, gap in seconds.items() if gap >= WORTH_TELLING}
    return ", ".join(f"{name} was missing for {gap:.0f} s" for name, gap in long_gaps.items())
