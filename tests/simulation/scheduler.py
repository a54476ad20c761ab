"""Virtual time, and tasks of which one runs at a time: what happens next depends on the seed and on nothing else.

The product's blocking code runs as it is, each task in a thread of its own. A task that waits hands the baton back; who
gets it next, and when, is an event like any other. Events at the same time come in an order that the seed chooses.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable

STILL = 10_000  # events at one time: somebody waits without waiting


class Killed(BaseException):
    """Ends a task where it waits; nothing of the product catches it."""


class Event:
    __slots__ = ("action", "cancelled", "what")

    def __init__(self, what: str, action: Callable[[], object]) -> None:
        self.what, self.action, self.cancelled = what, action, False

    def cancel(self) -> None:
        self.cancelled = True


class Scheduler:
    """`after_event` is called after every event, with the virtual world at rest."""

    def __init__(self, seed: int, after_event: Callable[[Event], None]) -> None:
        self.random, self.now, self.events = random.Random(f"scheduler {seed}"), 0.0, 0
        self.current: Task | None = None
        self._after_event = after_event
        self._heap: list[tuple[float, float, int, Event]] = []
        self._count = 0

    def after(self, seconds: float, what: str, action: Callable[[], object]) -> Event:
        event = Event(what, action)
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self.random.random(), self._count, event))
        return event

    def run(self, over: Callable[[], bool], until: float) -> bool:
        """Whether it was over in time."""
        here = 0
        while self._heap and not over():
            time, _, _, event = heapq.heappop(self._heap)
            if event.cancelled:
                continue
            if time > until:
                return False
            here = 0 if time > self.now else here + 1
            if here > STILL:
                raise AssertionError(f"time stands still at {self.now}: {event.what}, again and again")
            self.now = max(self.now, time)
            self.events += 1
            event.action()
            self._after_event(event)
        return over()


class Task:
    """A thread that runs only while the scheduler waits for it."""

    def __init__(self, scheduler: Scheduler, name: str, body: Callable[[], None]) -> None:
        self.scheduler, self.name, self._body = scheduler, name, body
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self.over = self._killed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                self._body()
        except Killed:
            pass
        except BaseException as error:
            self._error = error
        self.over = True
        self._back.release()

    def resume(self) -> None:
        """From the scheduler: until the task waits or ends; raises what it raised."""
        if self.over:
            return
        assert self.scheduler.current is None
        self.scheduler.current = self
        self._go.release()
        self._back.acquire()
        self.scheduler.current = None
        if self.over:
            self._thread.join()
            if self._error is not None:
                error, self._error = self._error, None
                raise error

    def pause(self) -> None:
        """In the task: until it is resumed."""
        self._back.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def sleep(self, seconds: float) -> None:
        self.scheduler.after(seconds, f"{self.name} goes on", self.resume)
        self.pause()

    def kill(self) -> None:
        """Nothing more of it runs but what unwinds it."""
        self._killed = True
        self.resume()


class Lock:
    """What a site uses of `threading.Condition`. Who is woken goes on a moment later, and others may come before."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._waiting = scheduler, []
        self._depth, self._owner = 0, None

    def __enter__(self) -> Lock:
        me = self._scheduler.current
        assert self._depth == 0 or self._owner is me, "a lock that is held was taken"
        self._depth, self._owner = self._depth + 1, me
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1

    def wait(self, timeout: float | None = None) -> bool:
        task = self._scheduler.current
        assert task is not None and self._depth, "only a task that holds the lock can wait"
        depth, self._depth = self._depth, 0
        woken: list[bool] = []
        waiting = [task, woken, None]

        def time_out() -> None:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                task.resume()

        if timeout is not None:
            waiting[2] = self._scheduler.after(timeout, f"{task.name} stops waiting", time_out)
        self._waiting.append(waiting)
        try:
            task.pause()
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            self._depth, self._owner = depth, task
        return bool(woken)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        until = None if timeout is None else self._scheduler.now + timeout
        while not predicate():
            left = None if until is None else until - self._scheduler.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return predicate()

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for task, woken, event in waiting:
            woken.append(True)
            if event is not None:
                event.cancel()
            soon = self._scheduler.random.random() * 1e-3
            self._scheduler.after(soon, f"{task.name} wakes", task.resume)


class VirtualClock:
    """`decibel.silo.protocol._clock.Clock` in virtual time; the time of day may be set back."""

    def __init__(self, scheduler: Scheduler, behind: float) -> None:
        self._scheduler = scheduler
        self._behind = behind

    def now(self) -> float:
        return self._scheduler.now + 1000.0  # never 0, which stands for never

    def time(self) -> int:
        return int(1e9 * (self._scheduler.now + 1000.0 - self._behind))

    def nonce(self) -> int:
        return self._scheduler.random.getrandbits(64)

    def lock(self) -> Lock:
        return Lock(self._scheduler)
