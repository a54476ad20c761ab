"""A machine with a site on it: its lives from start to end, crash or power cut, and its disk through all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from decibel.engines.silo._credentials import Credentials
from decibel.engines.silo._edge import Edge
from decibel.engines.silo._errors import NotFinite, SiteLost
from decibel.engines.silo._privacy import Budgets, Privacy
from decibel.engines.silo._site import Site

from .checkpoints import Checkpoints
from .disk import CALLS, Disk, PowerCut
from .hostile import Nobody
from .monitor import Monitor, Violation
from .node import ENTRIES, Arrived, Node
from .papers import Signer
from .scheduler import Task, VirtualClock
from .streams import Streams

if TYPE_CHECKING:
    from .world import World

PROBLEM, NOISE, DELTA = bytes(32), 8.0, 1e-5
NOBODY = Nobody()


class Host:
    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.name = world.federation.sites[number].name
        self.disk = Disk(world.folder / self.name, f"disk {world.schedule.seed} {number}")
        self.task: Task | None = None
        self.site: Site | None = None
        self.node: Node | None = None
        self.watched: list[Edge] = []  # those of its edges whose other end is honest
        self.streams: Streams | None = None
        self.listener: Streams | None = None
        self.lives, self.is_off, self._ending, self.is_leaving = 0, False, False, False
        self.finished: bytes | None = None  # the state at the end
        self.back_at = self._began = 0.0

    @property
    def monitor(self) -> Monitor:
        """Who watches it."""
        return self.world.monitor if self.world.is_honest(self.number) else NOBODY  # pyright: ignore[reportReturnType]

    @property
    def is_up(self) -> bool:
        return self.task is not None

    @property
    def up_for(self) -> float:
        return self.world.scheduler.now - self._began if self.is_up else 0.0

    @property
    def misses_somebody(self) -> bool:
        """Whether it may wait for a neighbour that is down, and that has not told it that it has finished."""
        if self.site is None or self.is_leaving:
            return False
        edges = self.site.edges.values()
        return any(not self.world.hosts[edge.number].is_up and not edge.finished for edge in edges)

    def say(self, sentence: str) -> None:
        self.world.note(f"{self.name} says: {sentence}")

    def describe(self) -> str:
        site = self.site
        if site is None:
            return f"{self.name} is down, in life {self.lives}"
        edges = [
            f"{edge.name}: stream {edge.stream is not None}, open {edge.open}, running {edge.running}, finished "
            f"{edge.finished}, joining {edge.joining}, holds {edge.holds}, first {edge.first}, theirs {edge.theirs}"
            for edge in site.edges.values()
        ]
        return f"{self.name}, life {self.lives}, running {site.running}, at {site._at}, next {site.next}; " + "; ".join(
            edges
        )

    # Lives

    def start(self) -> None:
        if self.is_up:
            return
        self.lives += 1
        self.is_off, self.is_leaving, self._began = False, False, self.world.scheduler.now
        self.world.network.switch_on(self.number)
        self.disk.start()
        self.world.note(f"{self.name} starts, life {self.lives}")
        self.task = Task(self.world.scheduler, self.name, self._live)
        self.resume_task()

    def resume_task(self) -> None:
        assert self.task is not None
        self.task.resume()

    def _live(self) -> None:
        try:
            state = self._run()
        except PowerCut:
            if not self._ending:
                self._gone("loses its power", silently=True)
        except Violation:
            raise
        except Exception as error:
            # A disk that fails it may end a site; the operator starts it again.
            self._gone(f"ends: {error!r}", silently=False)
            self.monitor.exited(self, error)
        else:
            self.finished = self.finished if state is None else state
            self._gone("was told to stop" if state is None else "has finished", silently=False)
            if state is not None:
                self.monitor.has_finished(self)

    def kill(self) -> None:
        """As by SIGKILL: what it wrote is in the system's cache, and its connections are reset."""
        self._end_by("is killed", silently=False)

    def cut_power(self) -> None:
        self.disk.cut_power()
        self._end_by("loses its power", silently=True)

    def guarded(self, action: Callable[[], None]) -> None:
        """In one of the site's other threads: a power cut in a call of the disk takes the task, too."""
        try:
            action()
        except PowerCut:
            self._end_by("loses its power", silently=True)
        except Violation:
            raise
        except Exception:
            if self.world.is_honest(self.number):
                raise
            self._end_by("fails, which a liar may", silently=False)

    def _end_by(self, what: str, *, silently: bool) -> None:
        if self.task is None:
            return
        was, self.disk.off, self._ending = self.disk.off, True, True  # while its task unwinds nothing is written
        self.task.kill()
        self.disk.off, self._ending = was, False
        self._gone(what, silently=silently)

    def _gone(self, what: str, *, silently: bool) -> None:
        self.world.note(f"{self.name} {what}")
        self.world.network.lose(self.number, silently=silently)
        CALLS.crash(self.disk)
        self.is_off = silently
        self.task = self.site = self.node = self.streams = self.listener = None
        self.monitor.gone(self)

    # One life

    def _run(self) -> bytes | None:
        """Its state at the end; None where it ends before."""
        world, schedule, home = self.world, self.world.schedule, self.disk.root
        credentials = Credentials.load(home, self.name)
        self.monitor.trusts(self, credentials)
        clock = VirtualClock(world.scheduler, self.lives)
        signer, federation = Signer(self.number), world.federation
        site = Site(federation, self.number, PROBLEM, signer, lossy=schedule.lossy, say=self.say, clock=clock)
        node = Node(world.problem, self.number, world.weights[self.number], lossy=schedule.lossy)
        for _ in range(schedule.levels):
            site.expect(np.float64, ((2 if schedule.lossy else 1) * ENTRIES,))
        privacy = Privacy(home, Budgets(None, None, DELTA)) if schedule.noisy else None
        self.monitor.counted(self, privacy)
        saves = Checkpoints(home / "checkpoints")
        self.site, self.node = site, node
        self.watched = [edge for other, edge in site.edges.items() if world.is_honest(other)]
        self.streams = Streams(self, site, credentials)
        self.streams.start()
        try:
            step = self._resume(site, node, saves)
            while step < schedule.steps:
                self._sleep(world.compute_time(self.number))
                step = site.begin(step)
                self.monitor.begins(self, step)
                self._step(site, node, privacy)
                step += 1
                self.monitor.done(self, step)
                if step % schedule.checkpoint_every == 0 or step >= schedule.steps:
                    self._save(saves, step, node)
            self.monitor.on_disk(self, saves.sync())
            self.is_leaving = True
            site.goodbye(True)
        except (SiteLost, NotFinite, OSError, ValueError):
            site.goodbye(False)
            self.streams.close()
            raise
        self.streams.close()
        return node.state

    def _sleep(self, seconds: float) -> None:
        assert self.task is not None
        self.task.sleep(seconds)

    def _resume(self, site: Site, node: Node, saves: Checkpoints) -> int:
        saved = saves.steps
        self.monitor.finds_saved(self, saves)
        step = site.agree(saved)
        if not step:
            return 0
        state = saves.load(step)
        if state is None:
            saves.delete(step)  # so that the next start does not offer it
            raise ValueError(f"the checkpoint of step {step} is damaged.")
        node.state = state
        self.monitor.resumed(self, step, state)
        for newer in [one for one in saved if one > step]:
            saves.delete(newer)  # of a future that will not be
        return step

    def _save(self, saves: Checkpoints, step: int, node: Node) -> None:
        self.monitor.saves(self, step, node.state)
        saves.save(step, node.state)
        self.monitor.on_disk(self, saves._synced)

    def _step(self, site: Site, node: Node, privacy: Privacy | None) -> None:
        others = self.world.neighbours[self.number]
        running = node.step()
        rows = next(running)
        for level in range(self.world.schedule.levels):
            if privacy is not None:
                privacy._charge(NOISE, 1)
            arrived = self._exchange(site, others, rows)
            with suppress(StopIteration):
                rows = running.send(arrived)
            self.monitor.exchanged(self, site, node, level, others, arrived)

    def _exchange(self, site: Site, others: tuple[int, ...], rows: np.ndarray) -> Arrived:
        width = rows.shape[-1]
        out = np.empty((len(others), width)), np.empty(len(others), bool), np.empty(len(others), np.int32)
        self.monitor.sends(self, site, others, rows)
        site.exchange(others, rows, None, out)
        return out
