"""`decibel launch`: several processes of one script on this machine, watched. Imports no JAX.

Every process runs `python -m decibel.engines.launch`. If one fails the others are ended, since they would wait for it
forever. An elastic launch continues without a process that was killed, and takes it back later. Every change starts the
same script again, which continues from its checkpoint (`engines._membership` says how).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import IO, NamedTuple

from ._environment import ABSENT, COORDINATOR, PROCESS, PROCESSES, free_address

TAIL = 20  # lines shown again of a process that failed
SETTLE = 0.2  # seconds in which processes that end count as having ended together
ABRUPT = 2.0  # seconds to end in where nothing can be saved any more


class Ended(NamedTuple):
    """A process ended; a negative status is the signal that killed it."""

    rank: int
    status: int

    @property
    def how(self) -> str:
        if self.status < 0:
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"failed with exit status {self.status}"

    @property
    def killed(self) -> bool:
        """Whether the process was killed from outside. JAX aborts processes whose coordinator is gone, so an abort is a
        consequence, not a cause.
        """
        return self.status < 0 and self.status != -signal.SIGABRT


class Elastic(NamedTuple):
    """Continue without processes that are killed, and take them back."""

    return_after: float = 30.0
    max_restarts: int = 10


def launch(script: Sequence[str], processes: int, *, elastic: Elastic | None = None, grace: float = 60.0) -> int:
    """Runs a script (with its arguments) in that many processes; returns the exit status."""
    everyone = set(range(processes))
    absent = set[int]()
    restarts = 0
    with hearing() as events:
        while True:
            group = Group(script, sorted(everyone - absent), sorted(absent), events)
            ended = group.watch(elastic.return_after if elastic and absent else None)
            if ended is not None:
                lost = group.lost(ended) if elastic else []
                if not (elastic and lost):
                    group.end(ABRUPT)
                    return group.report(ended)
                group.end(ABRUPT, first=signal.SIGKILL)  # without the lost one they can save nothing
                absent |= {process.rank for process in lost}
                restarts += 1
                lost_processes = ", ".join(f"process {process.rank} {process.how}" for process in lost)
                if absent == everyone or restarts > elastic.max_restarts:
                    limit = f"--max-restarts {elastic.max_restarts} is reached"
                    say(f"{lost_processes}; {'no process is left' if absent == everyone else limit}")
                    return 1
                say(f"{lost_processes}; continuing without {_named(absent)}")
            elif group.running:
                if group.told is None:
                    say(f"restarting with {_named(absent)}: all processes save and restart")
                    absent.clear()
                failed = [process for process in group.end(grace) if process.status > 0]
                if failed:
                    return group.report(failed[0])
            else:
                return 0
            if group.told is not None:
                say(f"terminated by {signal.Signals(group.told).name}")
                return 128 + group.told


class Group:
    """The processes of one start. Each is named by its place among all processes, also if some are absent."""

    def __init__(self, script: Sequence[str], ranks: list[int], absent: list[int], events: SimpleQueue) -> None:
        self._events, self.told = events, None
        self.running: dict[int, subprocess.Popen] = {}
        self.tails: dict[int, deque[str]] = {rank: deque(maxlen=TAIL) for rank in ranks}
        self._readers: list[threading.Thread] = []
        shared = {
            "JAX_PLATFORMS": "cpu",
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            COORDINATOR: free_address(),
            PROCESSES: str(len(ranks)),
            ABSENT: ",".join(map(str, absent)),
        }
        for number, rank in enumerate(ranks):
            # A session of its own: Ctrl-C reaches this launcher only, which passes it on as SIGTERM.
            process = subprocess.Popen(
                [sys.executable, "-m", "decibel.engines.launch", *script],
                env={**shared, PROCESS: str(number)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self.running[rank] = process
            assert process.stdout is not None and process.stderr is not None
            self._start(self._read, rank, process.stdout, sys.stdout)
            self._start(self._read, rank, process.stderr, sys.stderr)
            threading.Thread(target=self._wait, args=(rank, process), daemon=True).start()

    def watch(self, seconds: float | None) -> Ended | None:
        """The first process to fail; None if all have succeeded, when the time is over, or after a signal."""
        due = None if seconds is None else time.monotonic() + seconds
        while self.running and self.told is None and (ended := self._next(due)) is not None:
            if ended.status:
                return ended
        return None

    def lost(self, first: Ended) -> list[Ended]:
        """Which processes were killed from outside: the first to end, or those that end with it."""
        together, due = [first], time.monotonic() + SETTLE
        while self.running and (ended := self._next(due)) is not None:
            together.append(ended)
        return [process for process in together if process.killed] or [
            process for process in together[:1] if process.status < 0
        ]

    def end(self, grace: float, first: int = signal.SIGTERM) -> list[Ended]:
        """Ends all processes: a signal asks them to save and exit. They are killed after `grace` seconds or at a second
        Ctrl-C.
        """
        self._send(first)
        failures, due = [], time.monotonic() + grace
        while self.running:
            if (ended := self._next(due)) is not None:
                failures.append(ended)
                if ended.status and due is not None:  # the others cannot save without it
                    due = min(due, time.monotonic() + ABRUPT)
            elif self.running:
                if grace > ABRUPT:
                    say(f"killing {_named(self.running)}, which did not exit after the signal")
                self._send(signal.SIGKILL)
                due = None
        for reader in self._readers:
            reader.join(1.0)
        return failures

    def report(self, ended: Ended) -> int:
        say(f"process {ended.rank} {ended.how}; its last lines:")
        for line in self.tails[ended.rank]:
            print(f"    {line}", file=sys.stderr)
        return ended.status if ended.status > 0 else 128 - ended.status

    def _next(self, due: float | None) -> Ended | None:
        """The next to end; None when the time is over, or after a signal."""
        try:
            event = self._events.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
        except Empty:
            return None
        if isinstance(event, Ended):
            self.running.pop(event.rank, None)
            return event
        self.told = event
        return None

    def _send(self, number: int) -> None:
        for process in list(self.running.values()):
            if process.poll() is None:
                process.send_signal(number)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        reader = threading.Thread(target=target, args=arguments, daemon=True)
        reader.start()
        self._readers.append(reader)

    def _read(self, rank: int, pipe: IO[bytes], out: IO[str]) -> None:
        for raw in pipe:
            line = raw.decode(errors="replace").rstrip("\n")
            if line.startswith("[Gloo] Rank"):  # said at every start, and nothing that helps
                continue
            self.tails[rank].append(line)
            out.write(f"[{rank}] {line}\n")  # one write, so that lines stay whole
            out.flush()

    def _wait(self, rank: int, process: subprocess.Popen) -> None:
        self._events.put(Ended(rank, process.wait()))


@contextmanager
def hearing() -> Iterator[SimpleQueue]:
    """A queue of events: processes that end, and signals to this one."""
    events: SimpleQueue = SimpleQueue()
    before = {
        number: signal.signal(number, lambda number, _: events.put(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield events
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say(sentence: str) -> None:
    print(f"decibel launch: {sentence}", file=sys.stderr, flush=True)


def _named(ranks: Iterable[int]) -> str:
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) == 1:
        return f"process {numbers[0]}"
    return f"processes {', '.join(numbers[:-1])} and {numbers[-1]}"
