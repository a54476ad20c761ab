"""The network between sites: connections that carry frames in order, late, and not at all once they are cut.

Between two streams there is no order. Where the way between two sites is blocked, frames wait as TCP's do; a stream
that is cut loses what was under way from some frame on. A machine that is off says nothing; once it is on again it
resets what it does not know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal, NamedTuple

from .scheduler import Event, Scheduler

Item = bytes | Literal["end", "reset"]
BUFFER = 40  # frames that have left a process, and wait where nothing replaces them


class End:
    """One end of a connection, and the `Stream` that a site sends by. `owner` and `peer` are numbers of machines."""

    def __init__(self, network: Network, owner: int, peer: int) -> None:
        self.network, self.owner, self.peer = network, owner, peer
        self.on_frame: Callable[[bytes], None] = lambda raw: None
        self.on_close: Callable[[], None] = lambda: None
        self.lie: Callable[[bytes], list[bytes]] | None = None  # of a hostile owner
        self.certificate: object = None  # what the other end has shown
        self.ended = self.closed = self.lost = False
        self.pipe: Pipe  # to the other end
        self.other: End

    def send(self, frame: bytes) -> None:
        if not self.ended:
            for one in [frame] if self.lie is None else self.lie(frame):
                self.pipe.put(one)

    def send_newest(self, key: int, frame: bytes) -> None:
        self.network.sent(self, key, frame)
        if not self.ended:
            for one in [frame] if self.lie is None else self.lie(frame):
                self.pipe.put_newest(key, one)

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self.pipe.put("end")

    def hang_up(self) -> None:
        """The local reader finds out a moment later."""
        if not self.closed:
            self.ended = self.closed = True
            self.pipe.reset()
            self.network.scheduler.after(1e-4, f"{self.owner} ends reading from {self.peer}", self._over)

    def lose(self, *, silently: bool) -> None:
        """The process is gone: the system resets its connections, unless the machine is off."""
        self.on_frame, self.on_close = lambda raw: None, lambda: None
        self.lost = silently
        if not self.closed and not silently:
            self.ended = self.closed = True
            self.pipe.reset()

    def arrive(self, item: Item) -> None:
        if self.lost:
            if not self.network.is_off(self.owner):
                self.lost, self.ended, self.closed = False, True, True
                self.pipe.reset()
        elif self.closed:
            return
        elif isinstance(item, bytes):
            self.on_frame(item)
        elif item == "end":
            self._over()
        else:
            self.ended = self.closed = True
            self._over()

    def _over(self) -> None:
        over, self.on_close = self.on_close, lambda: None
        over()


class Waiting(NamedTuple):
    """What is under way in a pipe: when it is ready to arrive, what it may be replaced by, and when it was sent."""

    item: Item
    ready: float
    key: int | None
    since: float


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: Network, source: int, target: End) -> None:
        self.network, self.source, self.target = network, source, target
        self._queue: deque[Waiting] = deque()
        self._event: Event | None = None

    def put(self, item: Item, key: int | None = None) -> None:
        now = self.network.scheduler.now
        self._queue.append(Waiting(item, now + self.network.delay(), key, now))
        self.pump()

    def under_way(self, key: int) -> list[Waiting]:
        return [waiting for waiting in self._queue if waiting.key == key]

    def put_newest(self, key: int, frame: bytes) -> None:
        """In the place of an older frame of that key, if that has not left yet: the system's buffers hold some. Where
        the network loses messages, or lets one overtake another, it is these."""
        chance = self.network.scheduler.random
        if chance.random() < self.network.lost:
            return
        behind = [place for place, waiting in enumerate(self._queue) if waiting.key == key and place > 0]
        if behind and (behind[-1] >= BUFFER or (behind[-1] == len(self._queue) - 1 and chance.random() < 0.3)):
            self._queue[behind[-1]] = self._queue[behind[-1]]._replace(item=frame)
        elif behind and chance.random() < self.network.reordered:
            self._queue.insert(behind[-1], self._queue[behind[-1]]._replace(item=frame))
        else:
            self.put(frame, key)

    def pump(self) -> None:
        if self._event is None and self._queue and not self.network.is_blocked(self.source, self.target.owner):
            item, ready, _, _ = self._queue[0]
            what = f"{self.source} → {self.target.owner}: {item if isinstance(item, str) else self.network.named(item)}"
            self._event = self.network.scheduler.after(max(0.0, ready - self.network.scheduler.now), what, self._arrive)

    def _arrive(self) -> None:
        self._event = None
        if not self.network.is_blocked(self.source, self.target.owner):
            self.target.arrive(self._queue.popleft().item)
            self.pump()

    def reset(self) -> None:
        """Of what is under way, the first few still arrive."""
        kept = self.network.scheduler.random.randrange(len(self._queue) + 1)
        while len(self._queue) > kept:
            self._queue.pop()
        if not self._queue and self._event is not None:
            self._event.cancel()
            self._event = None
        self.put("reset")


class Network:
    """`slowest` seconds is the longest that a frame takes where nothing is wrong."""

    def __init__(self, scheduler: Scheduler, slowest: float, named: Callable[[bytes], str]) -> None:
        self.scheduler, self.slowest, self.named = scheduler, slowest, named
        self.lost = self.reordered = 0.0  # shares of messages of which only the newest counts
        self.sent: Callable[[End, int, bytes], None] = lambda end, key, frame: None
        self._blocked: dict[frozenset[int], int] = {}
        self._off: set[int] = set()
        self._ends: list[End] = []

    def delay(self) -> float:
        return self.slowest * self.scheduler.random.random() ** 2

    def connect(self, dialler: int, listener: int) -> tuple[End, End]:
        self._ends = [end for end in self._ends if not (end.closed and end.other.closed)]
        here, there = End(self, dialler, listener), End(self, listener, dialler)
        here.other, there.other = there, here
        here.pipe, there.pipe = Pipe(self, dialler, there), Pipe(self, listener, here)
        self._ends += [here, there]
        return here, there

    def is_blocked(self, a: int, b: int) -> bool:
        return self._blocked.get(frozenset((a, b)), 0) > 0

    def is_off(self, machine: int) -> bool:
        return machine in self._off

    def block(self, pairs: list[tuple[int, int]]) -> None:
        for pair in pairs:
            self._blocked[frozenset(pair)] = self._blocked.get(frozenset(pair), 0) + 1

    def heal(self, pairs: list[tuple[int, int]]) -> None:
        for pair in pairs:
            self._blocked[frozenset(pair)] -= 1
        for end in list(self._ends):
            end.pipe.pump()

    def cut(self, a: int, b: int) -> None:
        """Every connection between two machines is reset at both ends."""
        for end in [end for end in self._ends if (end.owner, end.peer) == (a, b)]:
            end.pipe.reset()
            end.other.pipe.reset()
            end.ended = end.other.ended = True

    def lose(self, machine: int, *, silently: bool) -> None:
        """The processes of a machine are gone; `silently` with the machine."""
        if silently:
            self._off.add(machine)
        for end in [end for end in self._ends if end.owner == machine]:
            end.lose(silently=silently)

    def switch_on(self, machine: int) -> None:
        self._off.discard(machine)
