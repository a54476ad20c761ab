"""A machine with a site on it that has no common clock with others: the same calls, in the same order, as
`decibel.silo.run._async_run` makes."""

from __future__ import annotations

import numpy as np

from decibel.silo._errors import NotFinite, SiteLost
from decibel.silo.protocol._async_site import AsyncSite
from decibel.silo.protocol._site import STOP

from .async_monitor import AsyncMonitor
from .async_node import WaveNode, stamped, unstamped
from .checkpoints import Checkpoints
from .host import Host
from .node import Arrived


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
        world, schedule = self.world, self.world.schedule
        site, credentials = self._make(AsyncSite)
        node = world.node_of(self.number)
        site.set_exchanges([(level, 0) for level in range(schedule.levels)], [world.neighbours[self.number]])
        saves = self.saves = Checkpoints(self.disk)
        self._talk(site, node, credentials)  # pyright: ignore[reportArgumentType]
        try:
            self._lose_checkpoints(saves)
            step = saved = self._resume(site, node, saves)  # pyright: ignore[reportArgumentType]
            while step < schedule.steps and self._begin(site, node, step):
                self._sleep(world.compute_time(self.number))
                self._step(site, node)
                step += 1
                self.monitor.done(self, step)
                if step % schedule.checkpoint_every == 0:
                    self._save(site, saves, step, node)  # pyright: ignore[reportArgumentType]
                    saved = step
            if site.taken_model is not None:
                step = self._take_model(site, node)  # pyright: ignore[reportArgumentType]
            if step > saved:
                self._save(site, saves, step, node)  # pyright: ignore[reportArgumentType]
            saves.sync()
            self.monitor.on_disk(self, saves.synced)
            finished = step >= schedule.steps or bool(site.end_reason)
            self.is_leaving = True
            self.monitor.ends(self, site, node, step)
            if finished:
                self._finish(site, node, step)  # pyright: ignore[reportArgumentType]
            else:
                site.goodbye(False)
            self.monitor.reports(self, site)
        except (SiteLost, NotFinite, OSError, ValueError) as error:
            self._end_early(site, error)
            return node.state
        self.streams.close()
        return node.state if finished else None

    def _lose_checkpoints(self, saves: Checkpoints) -> None:
        """Whoever puts back an old folder sets the site back."""
        for newest in saves.steps[-self.set_back :] if self.set_back else []:
            self.monitor.is_set_back(self, newest)
            saves.delete(newest)
        if self.set_back:
            self.take_record_away()
        self.set_back = 0

    def _begin(self, site: AsyncSite, node: WaveNode, step: int) -> bool:
        """Sends what it has to say before the step; whether that begins."""
        rows = [stamped(q, self.lives, step) for q in node.waves(step, site.incarnation)]
        self.monitor.posts(self, step, rows, node)
        site.post(step, rows)
        may = site.running and any(edge.is_open or edge.finished for edge in site.edges.values())
        now = self.world.scheduler.now
        if site.begin_step(step) >= STOP:
            return False
        if may:
            self.monitor.did_not_wait(self, now)
        self.monitor.begins(self, step)
        return True

    def _step(self, site: AsyncSite, node: WaveNode) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        def collect(level: int) -> Arrived:
            slots = len(site.neighbour_of_slot[level])
            like = self.world.message
            rows = np.empty((slots, *like.shape), like.dtype)
            arrived = np.empty(slots, bool)
            states = np.empty(slots, np.int32)
            site.collect(level, (rows, arrived, states))
            self.monitor.collected(self, site, level, (rows, arrived, states))
            return unstamped(rows), arrived, states

        change, by_link = node.step(collect)
        self.monitor.stepped(self, node)
        if site.rest.rule is not None:
            site.note_change(change, by_link)
