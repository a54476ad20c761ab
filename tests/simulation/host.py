"""A machine with a site on it: its lives from start to end, crash or power cut, and its disk through all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from decibel.silo._errors import FinishedByFew, NotFinite, NothingInCommon, SiteLost
from decibel.silo.protocol._edge import Edge
from decibel.silo.protocol._frames import Model
from decibel.silo.protocol._incarnation import next_incarnation
from decibel.silo.protocol._lockstep_site import LockstepSite
from decibel.silo.protocol._site import STOP, Site
from decibel.silo.run._finished import FILE as FINISHED
from decibel.silo.run._finished import Finished, read, write
from decibel.silo.run._privacy_budget import Budgets, PrivacyAccountant
from decibel.silo.trust._credentials import Credentials

from .checkpoints import Checkpoints, OrbaxCheckpoints, Saved
from .disk import CALLS, Disk, PowerCut
from .hostile import Accomplice
from .monitor import Monitor, Violation
from .node import Arrived, Node
from .papers import Signer
from .scheduler import Task, VirtualClock
from .streams import Streams

if TYPE_CHECKING:
    from .world import World

AnySite = TypeVar("AnySite", bound=Site)
PROBLEM, NOISE, DELTA = bytes(32), 8.0, 1e-5
STAY = 30.0  # seconds for which a site that had finished gives its model


class Host:
    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.name = world.federation.sites[number].name
        self.disk = Disk(world.folder / self.name, f"disk {world.schedule.seed} {number}")
        self.task: Task | None = None
        self.site: LockstepSite | None = None
        self.node: Node | None = None
        self.watched: list[Edge] = []  # those of its edges whose other end is honest
        self.saves: Checkpoints | OrbaxCheckpoints | None = None
        self.streams: Streams | None = None
        self.listener: Streams | None = None
        self.incarnation = 0
        self.begins_again = self.wants_all_back = False
        self.clock_behind = 0.0  # seconds
        self.lives, self.is_off, self._ending, self.is_leaving = 0, False, False, False
        self.finished: bytes | None = None  # the state at the end
        self.has_record = False  # whether its folder says that it has finished
        self.lacks_model = False  # whether it ended without a model, since too few of its neighbours give the same
        self.back_at = self.began = self.finished_at = 0.0

    @cached_property
    def monitor(self) -> Monitor:
        """Who watches it."""
        watches = self.world.monitor if self.world.is_honest(self.number) else Accomplice(self.world.conspiracy)
        return watches  # pyright: ignore[reportReturnType]

    @property
    def is_up(self) -> bool:
        return self.task is not None

    @property
    def up_for(self) -> float:
        return self.world.scheduler.now - self.began if self.is_up else 0.0

    @property
    def misses_somebody(self) -> bool:
        """Whether it may wait for a site that is down: at its start for any, and then for a neighbour that has not told
        it that it has finished."""
        if self.site is None or self.is_leaving:
            return False
        if not self.site._rendezvous.is_start_known:
            return not all(host.is_up for host in self.world.hosts)
        edges = self.site.edges.values()
        if self.site.asks_for_model:
            return any(not self.world.hosts[edge.number].is_up and edge.offer is None for edge in edges)
        return any(not self.world.hosts[edge.number].is_up and not edge.finished for edge in edges)

    def say(self, sentence: str) -> None:
        self.world.note(f"{self.name} says: {sentence}")

    def describe(self) -> str:
        site = self.site
        if site is None:
            return f"{self.name} is down, in life {self.lives}"
        edges = [
            f"{edge.name}: stream {edge.stream is not None}, open {edge.is_open}, running {edge.running}, finished "
            f"{edge.finished}, joining {edge.joining}, holds {edge.holds_flow}, first {edge.first_step}, "
            f"theirs {edge.their_position}"
            for edge in site.edges.values()
        ]
        return (
            f"{self.name}, life {self.lives}, running {site.running}, at {site._position}, next {site.next_step}; "
            + "; ".join(edges)
        )

    # Lives

    def start(self) -> None:
        if self.is_up:
            return
        self.lives += 1
        self.is_off, self.is_leaving, self.began = False, False, self.world.scheduler.now
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
            # As the operator decides.
            self.begins_again = isinstance(error, NothingInCommon)
            self.wants_all_back = isinstance(error, FinishedByFew)
        else:
            self.finished = self.finished if state is None else state
            self.finished_at = self.world.scheduler.now
            self._gone("was told to stop" if state is None else "has finished", silently=False)
            if state is not None:
                self.monitor.has_finished(self)

    def kill(self) -> None:
        """As by SIGKILL: what it wrote is in the system's cache, and its connections are reset."""
        if self.saves is not None:
            self.saves.interrupt(self.disk.chance)
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
        if self.saves is not None:
            self.saves.close()
        self.is_off = silently
        self.task = self.site = self.node = self.saves = self.streams = self.listener = None
        self.monitor.gone(self)

    # One life

    def _run(self) -> bytes | None:
        """Its state at the end; None where it ends before."""
        world, schedule = self.world, self.world.schedule
        site, credentials = self._make(LockstepSite, tolerates_loss=schedule.lossy, restart=self.begins_again)
        damping = 1.0 if schedule.peers is None else schedule.peers.damping
        node = Node(world.problem, self.number, world.weights[self.number], lossy=schedule.lossy, damping=damping)
        if schedule.peers is not None:
            site.expect_empty(world.message.dtype)
        privacy = PrivacyAccountant(self.disk.root, Budgets(None, None, DELTA)) if schedule.noisy else None
        self.monitor.counted(self, privacy)
        saves = self.saves = self.checkpoints(len(node.state))
        self._talk(site, node, credentials)
        try:
            step = self._resume(site, node, saves)
            while step < schedule.steps:
                self._sleep(world.compute_time(self.number))
                step = site.begin_step(step)
                if step == STOP:
                    step = self._take_model(site, node)
                    self._save(site, saves, step, node)
                    break
                self.monitor.begins(self, step)
                self._step(site, node, privacy)
                step += 1
                self.monitor.done(self, step)
                if step % schedule.checkpoint_every == 0 or step >= schedule.steps:
                    self._save(site, saves, step, node)
            saves.sync()
            self.monitor.on_disk(self, saves.synced)
            self.is_leaving = True
            self._finish(site, node, step)
            self.monitor.reports(self, site)
        except (SiteLost, NotFinite, OSError, ValueError) as error:
            self._end_early(site, error)
        self.streams.close()
        return node.state

    def _make(self, kind: type[AnySite], **options: Any) -> tuple[AnySite, Credentials]:
        """The site of this life, and what it identifies itself by."""
        home = self.disk.root
        credentials = Credentials.load(home, self.name)
        self.monitor.trusts(self, credentials)
        clock = VirtualClock(self.world.scheduler, self.clock_behind)
        signer = Signer(self.number, self.monitor.signs)
        self.incarnation = next_incarnation(home, clock.time())
        self.monitor.incarnates(self)
        options |= {"incarnation": self.incarnation, "say": self.say, "clock": clock}
        return kind(self.world.federation, self.number, PROBLEM, signer, **options), credentials

    def _talk(self, site: Site, node: Node, credentials: Credentials) -> None:
        """Opens its streams, once all is known that it sends."""
        world = self.world
        for _ in range(world.schedule.levels):
            site.expect(world.message.dtype, world.message.shape)
        site.expect_model(node.s.ravel())
        self.site, self.node = site, node
        self.watched = [edge for other, edge in site.edges.items() if world.is_honest(other)]
        self.streams = Streams(self, site, credentials)
        self.streams.start()

    def _take_model(self, site: Site, node: Node) -> int:
        """That of the others, who have finished without this site; the step of it."""
        assert site.taken_model is not None
        self.monitor.left_behind(self)
        self.monitor.takes_model(self, site.taken_model.row)
        self.lacks_model = False
        node.s = site.taken_model.row.reshape(node.s.shape).copy()
        return site.taken_model.step

    def _finish(self, site: Site, node: Node, step: int) -> None:
        site.model = Model(step, node.s.ravel())
        self.monitor.gives_model(self, site.model.row)
        site.goodbye(True)
        with suppress(OSError):
            hashes = self.world.federation.hash.hex(), PROBLEM.hex()
            write(self.disk.root, Finished(*hashes, step, site.end_reason, list(site.health.without)))
            self.has_record = True

    def take_record_away(self) -> None:
        """As people do who want a finished run to go on."""
        self.disk.take_away(FINISHED)
        self.has_record = False

    def _end_early(self, site: Site, error: Exception) -> None:
        """Raises, unless its neighbours' models differ: then somebody copies one, and it need not be started again."""
        site.goodbye(False)
        assert self.streams is not None
        self.streams.close()
        if not (isinstance(error, SiteLost) and site.asks_for_model):
            raise error
        self.lacks_model = True
        self.monitor.left_behind(self)

    def checkpoints(self, size: int) -> Checkpoints | OrbaxCheckpoints:
        """Of a state of so many bytes."""
        if not self.world.schedule.orbax:
            return Checkpoints(self.disk)
        self.disk.foreign = "checkpoints"
        return OrbaxCheckpoints(self.disk, size)

    def _sleep(self, seconds: float) -> None:
        assert self.task is not None
        self.task.sleep(seconds)

    def _resume(self, site: Site, node: Node, saves: Checkpoints | OrbaxCheckpoints) -> int:
        self.monitor.finds_saved(self, saves)
        before = read(self.disk.root)
        if before is not None and site.continues_after(before.step):
            self.take_record_away()
            before = None
        if before is not None and before.step in saves.steps:
            site.resume_finished(before.step, before.why, before.without, STAY)
            found = saves.restore(lambda steps: before.step)
        else:
            found = saves.restore(site.agree_on_start)
        if found is None:
            self.monitor.on_restart(self, site.next_step)
            return 0
        step, site.steps_done, node.state = found
        self.monitor.resumed(self, step, node.state)
        return step

    def _save(self, site: Site, saves: Checkpoints | OrbaxCheckpoints, step: int, node: Node) -> None:
        self.monitor.saves(self, step, node.state)
        saves.save(Saved(step, site.steps_done, node.state))
        self.monitor.on_disk(self, saves.synced)

    def _step(self, site: LockstepSite, node: Node, privacy: PrivacyAccountant | None) -> None:
        schedule = self.world.schedule
        around = self.world.neighbours[self.number]
        running = node.step()
        rows = next(running)
        for level in range(schedule.levels):
            others = (
                around
                if schedule.peers is None
                else schedule.peers.among(self.number, around, site._position.step, level)
            )
            if privacy is not None:
                privacy._charge(NOISE, 1)
            arrived = self._exchange(site, others, rows)
            with suppress(StopIteration):
                rows = running.send(arrived)
            self.monitor.exchanged(self, site, node, level, others, arrived)

    def _exchange(self, site: LockstepSite, others: tuple[int, ...], rows: np.ndarray) -> Arrived:
        width = rows.shape[-1]
        resting = tuple(sorted({*self.world.neighbours[self.number]} - {*others}))
        out = np.empty((len(others), width)), np.empty(len(others), bool), np.empty(len(others), np.int32)
        self.monitor.sends(self, site, others, rows)
        site.exchange(others, rows, None, out, resting=resting)
        return out
