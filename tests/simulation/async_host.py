"""A machine with a site on it that has no common clock with others: the same calls, in the same order, as
`engines.silo._async_run` makes."""

from __future__ import annotations

import numpy as np

from decibel.engines.silo._async_site import AsyncSite
from decibel.engines.silo._credentials import Credentials
from decibel.engines.silo._errors import NotFinite, SiteLost
from decibel.engines.silo._site import STOP

from .async_monitor import AsyncMonitor
from .async_node import WIDTH, WaveNode
from .checkpoints import Checkpoints
from .host import PROBLEM, Host
from .node import Arrived
from .papers import Signer
from .scheduler import VirtualClock
from .streams import Streams


class AsyncHost(Host):
    site: AsyncSite | None
    node: WaveNode | None
    monitor: AsyncMonitor
    set_back = 0  # checkpoints that are gone when it starts next

    def start(self) -> None:
        if not self.is_up:
            self.finished = None  # its links go on, too
        super().start()

    def stop(self) -> None:
        """As by SIGTERM."""
        if self.site is not None:
            self.monitor.told_to_stop(self)
            self.site.stop()

    def _run(self) -> bytes | None:
        world, schedule, home = self.world, self.world.schedule, self.disk.root
        credentials = Credentials.load(home, self.name)
        self.monitor.trusts(self, credentials)
        clock, signer = VirtualClock(world.scheduler, self.lives), Signer(self.number)
        site = AsyncSite(world.federation, self.number, PROBLEM, signer, say=self.say, clock=clock)
        node = WaveNode(world.problem, self.number, world.weights[self.number])
        for _ in range(schedule.levels):
            site.expect(np.float64, (WIDTH,))
        site.exchange_at([(level, 0) for level in range(schedule.levels)], [world.neighbours[self.number]])
        saves = Checkpoints(home / "checkpoints")
        self.site, self.node = site, node
        self.watched = [edge for other, edge in site.edges.items() if world.is_honest(other)]
        self.streams = Streams(self, site, credentials)
        self.streams.start()
        try:
            self._lose_checkpoints(saves)
            step = saved = self._resume(site, node, saves)  # pyright: ignore[reportArgumentType]
            while step < schedule.steps and self._begin(site, node, step):
                self._sleep(world.compute_time(self.number))
                self._step(site, node)
                step += 1
                self.monitor.done(self, step)
                if step % schedule.checkpoint_every == 0:
                    self._save(saves, step, node)  # pyright: ignore[reportArgumentType]
                    saved = step
            if step > saved:
                self._save(saves, step, node)  # pyright: ignore[reportArgumentType]
            self.monitor.on_disk(self, saves.sync())
            finished = step >= schedule.steps or bool(site.ended)
            self.is_leaving = True
            self.monitor.ends(self, site, node, step)
            site.goodbye(finished)
        except (SiteLost, NotFinite, OSError, ValueError):
            site.goodbye(False)
            self.streams.close()
            raise
        self.streams.close()
        return node.state if finished else None

    def _lose_checkpoints(self, saves: Checkpoints) -> None:
        """Whoever puts back an old folder sets the site back."""
        for newest in saves.steps[-self.set_back :] if self.set_back else []:
            self.monitor.is_set_back(self, newest)
            saves.delete(newest)
        self.set_back = 0

    def _begin(self, site: AsyncSite, node: WaveNode, step: int) -> bool:
        """Sends what it has to say before the step; whether that begins."""
        who = np.array([self.lives, step], float)
        rows = [np.concatenate([q, np.broadcast_to(who, (len(q), 2))], -1) for q in node.waves()]
        self.monitor.posts(self, step, rows)
        site.post(step, rows)
        may = site.running and any(edge.open or edge.finished for edge in site.edges.values())
        now = self.world.scheduler.now
        if site.begin(step) >= STOP:
            return False
        if may:
            self.monitor.did_not_wait(self, now)
        self.monitor.begins(self, step)
        return True

    def _step(self, site: AsyncSite, node: WaveNode) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        def collect(level: int) -> Arrived:
            slots = len(site.others[level])
            out = np.empty((slots, WIDTH)), np.empty(slots, bool), np.empty(slots, np.int32)
            site.collect(level, out)
            self.monitor.collected(self, site, level, out)
            return out

        change, by_link = node.step(collect)
        if site.rest.rule is not None:
            site.note(change, by_link)
