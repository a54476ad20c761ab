"""One run of a whole silo under one schedule: machines, the network between them, an organiser, and an operator who
starts again what has ended."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections import deque
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np

from decibel.core import _files as files
from decibel.engines._checkpoint import CheckpointWarning
from decibel.silo._federation import Federation, Member, StopRule
from decibel.silo.protocol._frames import KINDS, MAGIC
from decibel.silo.trust._certificates import certificate_fingerprint, pem
from decibel.silo.trust._signing import key_pem
from decibel.silo.trust._trust import Memory

from .async_host import AsyncHost
from .async_monitor import AsyncMonitor
from .async_node import WaveNode, largest_flow, stamped
from .disk import CALLS
from .host import PROBLEM, Host
from .hostile import Conspiracy
from .monitor import Monitor, Violation
from .network import End, Network
from .node import ENTRIES, Problem, weights
from .organiser import Organiser
from .papers import papers
from .schedule import Fault, Schedule
from .scheduler import Event, Scheduler
from .strangers import visit

CALLS_OF_FILES = CALLS  # what stands in the place of `os`
NAMES = {number: kind.__name__ for kind, number in KINDS.items()}
LAST = 80  # lines of the trace that are kept
REST = 2.0  # seconds of the stop rule
ALONE = 30.0  # seconds after which a site does not finish any more, if all its honest neighbours have
BOUND = 60.0  # virtual seconds for what is left of a run once nothing goes wrong any more, beside waiting


class World:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.trace: deque[str] = deque(maxlen=LAST)
        self.digest = 0
        self.scheduler = Scheduler(schedule.seed, self._after_event)
        self.network = Network(self.scheduler, schedule.slowest, _named)
        self.folder = Path(tempfile.mkdtemp(dir=_memory())).resolve()
        self.problem = Problem.of(schedule.sites, schedule.levels)
        self.flow_limit = largest_flow(self.problem) if schedule.limited else None
        sites = tuple(Member(f"site-{i}", f"127.0.0.1:{7400 + i}") for i in range(schedule.sites))
        rule = StopRule(schedule.rests, REST) if schedule.rests else None
        self.federation = Federation(
            "test", sites, schedule.edges, steps=schedule.steps, fault_tolerance=schedule.tolerance,
            asynchronous=schedule.asynchronous, stop=rule, flow_limit=self.flow_limit, faulty=schedule.faulty,
        )  # fmt: skip
        self.neighbours = tuple(tuple(self.federation.neighbours(i)) for i in range(schedule.sites))
        self.weights = weights(self.neighbours, schedule.peers)
        self.hosts = [(AsyncHost if schedule.asynchronous else Host)(self, i) for i in range(schedule.sites)]
        self.honest = [host for host in self.hosts if self.is_honest(host.number)]
        self.organiser = Organiser(self)
        self._slow_until = [0.0] * schedule.sites
        self.message = self._message()
        about = self.federation.hash + PROBLEM
        self.conspiracy = Conspiracy(
            schedule.seed, schedule.hostile, schedule.manner, schedule.sites, schedule.steps, about, self.message
        )
        self.monitor = Monitor(self)
        if schedule.asynchronous:
            self.monitor = AsyncMonitor(self)
            self.network.sent = self.monitor.sent
            self.network.lost, self.network.reordered = schedule.lost, schedule.reordered

    # Who is who

    def is_honest(self, number: int) -> bool:
        return number not in self.schedule.hostile and number < self.schedule.sites

    def node_of(self, number: int) -> WaveNode:
        limit = np.inf if self.flow_limit is None else self.flow_limit
        around = self.neighbours[number], self.weights[number]
        return WaveNode(self.problem, number, *around, limit=limit, code=self.schedule.code)

    def _message(self) -> np.ndarray:
        """One of those that sites send, of zeros."""
        if self.schedule.asynchronous:
            return np.zeros_like(stamped(self.node_of(0).waves()[0], 0, 0)[0])
        return np.zeros((2 if self.schedule.lossy else 1) * ENTRIES)

    def key_of(self, number: int) -> str:
        return papers().prints[number]

    def compute_time(self, number: int) -> float:
        """Of one step."""
        slow = max(0.0, self._slow_until[number] - self.scheduler.now)
        return slow + self.schedule.compute_of(number) * (0.5 + self.scheduler.random.random())

    def longest_compute(self, number: int) -> float:
        """Of a step that is under way or begins now."""
        return max(0.0, self._slow_until[number] - self.scheduler.now) + 1.5 * self.schedule.compute_of(number)

    def corrupt(self, *ends: End) -> None:
        """What a hostile member sends by these is no longer what an honest one would."""
        for end in ends:
            if end.owner in self.schedule.hostile:
                end.lie = partial(self._lie, end)

    def _lie(self, end: End, frame: bytes) -> list[bytes]:
        return self.conspiracy.lie(end.owner, end.peer, frame, under_way=self.monitor.under_way)

    # The run

    def run(self) -> None:
        """Raises `Violation` where something does not hold."""
        before = files.os
        files.os = CALLS_OF_FILES
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CheckpointWarning)  # torn ones are met often
                self._run()
        finally:
            for host in self.hosts:
                if host.task is not None:
                    host.disk.off = True
                    host.task.kill()
                if host.saves is not None:
                    host.saves.close()
            CALLS.clear()
            files.os = before
            shutil.rmtree(self.folder)

    def _run(self) -> None:
        self._furnish()
        for fault in self.schedule.faults:
            self.scheduler.after(fault.at, f"fault: {fault.what}{fault.arguments}", lambda f=fault: self._occur(f))
        for host, begins in zip(self.hosts, self.schedule.starts or self._starts(), strict=True):
            host.back_at = begins
            self.scheduler.after(begins, f"{host.name} is started", host.start)
        self.scheduler.after(1.0, "the operator looks", self._operate)
        patience = self.schedule.tolerance.patience + min(self.schedule.tolerance.deadline, 10.0)
        until = self.schedule.end_of_faults + BOUND + 10 * patience
        until += self.schedule.longest if self.schedule.asynchronous else 3 * self.schedule.steps
        if self.schedule.hostile and not self.schedule.asynchronous:
            until += 2 * self.schedule.steps * self.schedule.levels * self.schedule.tolerance.deadline
        if not self.scheduler.run(self._over, until):
            for host in self.hosts:
                self.note(host.describe())
            late = ", ".join(host.name for host in self.honest if host.finished is None)
            raise Violation(f"{late} has not finished after {until:.0f} seconds")
        self.monitor.at_the_end()

    def _starts(self) -> list[float]:
        return [self.scheduler.random.random() for _ in self.hosts]

    def _over(self) -> bool:
        return all(host.finished is not None or self._left_behind(host) for host in self.honest)

    def _left_behind(self, host: Host) -> bool:
        """It waits for neighbours who have no model to give, so that people copy one. Or a liar has held it up until
        all its honest neighbours had finished, and for long since: alone it does not go on."""
        around = [self.hosts[j] for j in self.neighbours[host.number] if self.is_honest(j)]
        if around and all(other.lacks_model for other in around):
            return True
        if not self.schedule.hostile:
            return False
        if any(other.finished is None for other in around):
            return False
        return self.scheduler.now > max(other.finished_at for other in around) + ALONE

    def _furnish(self) -> None:
        """Every machine's folder, as `join` and `sign` leave it."""
        made = papers()
        signed = made.authority.sign_federation(self.federation).encode()
        revoked = made.authority.sign_revoked(self.organiser.revoked)
        trust = Memory(certificate_fingerprint(made.authority.certificate), revoked, datetime.fromtimestamp(0, UTC))
        for host in self.hosts:
            CALLS.add(host.disk)
            for name, content in (
                ("key.pem", key_pem(made.keys[host.number])),
                ("certificate.pem", pem(made.certificates[host.number])),
                ("authority.pem", pem(made.authority.certificate)),
                ("federation.json", signed),
                ("revoked.json", revoked.encode()),
                ("trust.json", trust.text.encode()),
                ("incarnation", b"1\n"),  # of an earlier run
            ):
                host.disk.put(name, content)
            host.disk.make("checkpoints")
        self.organiser.begin(revoked)

    def _after_event(self, event: Event) -> None:
        line = f"{self.scheduler.now:9.4f} {event.what}"
        self.trace.append(line)
        self.digest = crc32(line.encode(), self.digest)
        self.monitor.look()

    def note(self, line: str) -> None:
        line = f"{self.scheduler.now:9.4f}   {line}".replace(str(self.folder), "…")
        self.trace.append(line)
        self.digest = crc32(line.encode(), self.digest)

    # The operator

    def _operate(self) -> None:
        """Starts again what has ended before its time: all of it, where the method needs every site, and who has
        finished, where somebody waits for it at the start."""
        self.scheduler.after(1.0, "the operator looks", self._operate)
        down = [host for host in self.hosts if not host.is_up and host.finished is None]
        if any(host.back_at > self.scheduler.now for host in down):
            return
        everyone = any(host.up_for > 8 and host.misses_somebody for host in self.honest)
        if down and not self.schedule.lossy:
            everyone = True
            for host in self.hosts:
                host.kill()
            if any(host.wants_all_back for host in down):
                for host in self.hosts:
                    host.wants_all_back = False
                    host.take_record_away()
        for host in self.hosts:
            if not host.is_up and (host in down or everyone):
                host.back_at = self.scheduler.now + 5
                host.start()

    # What goes wrong

    def _occur(self, fault: Fault) -> None:
        getattr(self, f"_{fault.what}")(*fault.arguments)

    def _cut(self, a: int, b: int) -> None:
        self.network.cut(a, b)
        self.network.cut(b, a)

    def _block(self, pairs: tuple[tuple[int, int], ...], seconds: float) -> None:
        self.network.block(list(pairs))
        self.scheduler.after(seconds, f"{pairs} can talk again", lambda: self.network.heal(list(pairs)))

    def _slow(self, site: int, seconds: float) -> None:
        self._slow_until[site] = self.scheduler.now + seconds

    def _kill(self, site: int, back: float) -> None:
        self.hosts[site].kill()
        self.hosts[site].back_at = self.scheduler.now + back

    def _restart_all(self) -> None:
        if any(host.finished is not None for host in self.hosts):
            return
        for host in self.hosts:
            host.kill()
            host.back_at = self.scheduler.now + self.scheduler.random.random()

    def _set_clock(self, site: int, seconds: float) -> None:
        self.hosts[site].clock_behind += seconds

    def _cut_power(self, site: int, back: float) -> None:
        self.hosts[site].cut_power()
        self.hosts[site].back_at = self.scheduler.now + back

    def _terminate(self, site: int, back: float) -> None:
        self.hosts[site].stop()
        self.hosts[site].back_at = self.scheduler.now + back

    def _kill_at_rest(self, back: float) -> None:
        """One that all know to be at rest; and another is set back, which moves all but the first."""
        sites = [host.site for host in self.hosts if host.site is not None and not host.is_leaving]
        known = [{one.site for one in site._rendezvous._fresh() if one.done} | {site.number} for site in sites]
        resting = set.intersection(*known) if len(sites) == self.schedule.sites else set()
        if not resting:
            self.scheduler.after(0.05, "nobody is at rest", lambda: self._kill_at_rest(back))
            return
        first = min(resting)
        other = (first + 1) % self.schedule.sites
        self._kill(first, back)
        self._set_back(other, 3, 0.0)
        self.scheduler.after(0.5, f"{other} is started", self.hosts[other].start)

    def _hold_at_rest(self, seconds: float) -> None:
        """One that has said that it is at rest, until then; the step in which it hears of the others is long."""
        resting = [host.number for host in self.hosts if host.site is not None and host.site.done]
        if self.scheduler.now > seconds:
            return
        if not resting:
            self.scheduler.after(0.05, "nobody is at rest", lambda: self._hold_at_rest(seconds))
            return
        pairs = tuple(edge for edge in self.schedule.edges if resting[0] in edge)
        self._slow(resting[0], seconds - self.scheduler.now + 2 * REST)
        self._block(pairs, seconds - self.scheduler.now)

    def _set_back(self, site: int, checkpoints: int, back: float) -> None:
        self._kill(site, back)
        self.hosts[site].set_back = checkpoints

    def _break_disk(self, site: int, fault: int | str, often: float, seconds: float) -> None:
        disk = self.organiser.disk if site >= self.schedule.sites else self.hosts[site].disk
        disk.break_for(fault, often)
        self.scheduler.after(seconds, f"the disk of {site} is well again", disk.heal)

    def _publish(self, site: int | None) -> None:
        if site is not None and not self.monitor.under_way:  # a run waits at its start for every member
            self.scheduler.after(1.0, "the organiser waits", lambda: self._publish(site))
        else:
            self.organiser.publish(site)

    def _put_back(self, site: int) -> None:
        self.organiser.put_back(site)

    def _stranger(self, site: int, who: str) -> None:
        visit(self, site, who)


def _named(frame: bytes) -> str:
    return NAMES.get(frame[4], "bytes") if len(frame) > 4 and frame.startswith(MAGIC) else "bytes"


def _memory() -> str | None:
    """Where temporary files are not on a real disk, if there is such a place."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
