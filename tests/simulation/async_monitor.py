"""What must hold of sites without a common clock: nobody waits, each message is used once and the newest that came, no
step is lost or invented, and what all end at by the stop rule is the solution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from decibel.network._links import LinkStatus
from decibel.silo.protocol._async_edge import MOST_ON_THE_WAY, AsyncEdge
from decibel.silo.protocol._async_site import AsyncSite
from decibel.silo.protocol._edge import Edge
from decibel.silo.protocol._frames import Data, Frame, parse

from .async_node import ALPHA, WaveNode, read_stamp, solution, unstamped
from .coded_links import CodedLinks, number_of
from .monitor import Monitor
from .node import Arrived

if TYPE_CHECKING:
    from .async_host import AsyncHost
    from .host import Host
    from .network import End
    from .world import World

SOON = 5.0  # seconds from SIGTERM to the end, beside a step under way
NEAR = 50  # tolerances of the stop rule between the end and the solution
Sent = tuple[int, int]  # the life and the step of the sender


class AsyncMonitor(Monitor):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._posted: dict[tuple[int, int, int, Sent], bytes] = {}  # by sender, receiver and level
        self._came: dict[tuple[int, int, int, int], Sent] = {}  # the newest, by receiver, its life, sender and level
        self._used: dict[tuple[int, int, int, int], Sent] = {}
        self._numbers: dict[tuple[int, ...], dict[int, int]] = {}  # the newest received, by exchange
        self._solution = solution(world.problem)
        self._was_done: set[int] = set()  # who was at rest, or had no step left, at some time
        self._last_sent: dict[End, dict[int, int]] = {}
        self._written: dict[tuple[int, ...], bytes] = {}  # by sender, receiver, level, number and incarnation
        self._taken: dict[tuple[int, int, int], np.ndarray] = {}  # messages, by receiver, level and slot

    # Steps

    def begins(self, host: Host, step: int) -> None:
        expected = self._next[host.number]
        if step != expected:
            self._fail(f"{host.name} begins step {step} where step {expected} is next")
        super().begins(host, step)

    def did_not_wait(self, host: Host, since: float) -> None:
        if self.world.scheduler.now > since:
            self._fail(f"{host.name} has waited, and a neighbour was there")

    def ends(self, host: Host, site: AsyncSite, node: WaveNode, step: int) -> None:
        if site.taken_model is not None:
            return
        if step < self.schedule.steps and not site.stopping and not site.end_reason:
            self._fail(f"{host.name} ends at step {step} without a reason")
        never = [other.name for other in self.world.honest if other.number not in self._was_done and other is not host]
        if site.end_reason and never:
            self._fail(f"{host.name} ends by the stop rule, and {', '.join(never)} never came to rest")
        error = float(np.abs(node.s - self._solution).max())
        if site.end_reason and error > NEAR * self.schedule.rests:
            self._fail(f"{host.name} ends by the stop rule, {error:g} from the solution")

    def told_to_stop(self, host: AsyncHost) -> None:
        life = host.lives

        def look() -> None:
            if host.is_up and host.lives == life:
                self._fail(f"{host.name} has not ended {SOON:g} seconds after it was told to stop")

        self.world.scheduler.after(SOON + self.world.longest_compute(host.number), f"{host.name} should be gone", look)

    def is_set_back(self, host: Host, step: int) -> None:
        """Checkpoints of that step and later ones are taken away; older ones may be gone by now."""
        self._durable[host.number] = {}

    # Messages

    def posts(self, host: Host, step: int, rows: list[np.ndarray], node: WaveNode) -> None:
        if isinstance(node.links, CodedLinks):
            for level, written in enumerate(node.links.written):
                for j, row, meaning in zip(self.world.neighbours[host.number], rows[level], written, strict=True):
                    self._written[host.number, j, level, *number_of(row)] = meaning.tobytes()
        for level, by_slot in enumerate(rows):
            for j, row in zip(self.world.neighbours[host.number], by_slot, strict=True):
                key = (host.number, j, level, (host.lives, step))
                if key in self._posted:
                    self._fail(f"{host.name} sends two messages of step {step} in one life")
                self._posted[key] = unstamped(row).tobytes()

    def sent(self, end: End, key: int, frame: bytes) -> None:
        """Numbers on a link only grow; the newest may be sent once more. Few are under way, and one more in a beat."""
        if key >= 0 and self.world.is_honest(end.owner) and isinstance(data := parse(frame), Data):
            waiting = end.pipe.under_way(key)
            since = self.world.scheduler.now - min((one.since for one in waiting), default=self.world.scheduler.now)
            if len(waiting) > MOST_ON_THE_WAY + 2 + since / self.schedule.tolerance.beat:
                self._fail(f"{end.owner} sends a message to {end.peer}, where {len(waiting)} are under way")
            last = self._last_sent.setdefault(end, {})
            if data.at.step < last.get(key, -1) or data.at.exchange != key:
                self._fail(f"{end.owner} sends message {data.at} to {end.peer} after {last}")
            last[key] = data.at.step

    def heard(self, host: Host, edge: Edge, frame: Frame, end: End) -> None:
        super().heard(host, edge, frame, end)
        if isinstance(frame, Data) and edge.stream is end and self.world.is_honest(edge.number):
            key = (host.number, host.lives, edge.number, frame.at.exchange)
            self._came[key] = max(self._came.get(key, (0, -1)), read_stamp(frame.tensor))

    def collected(self, host: Host, site: AsyncSite, level: int, found: Arrived) -> None:
        rows, arrived, states = found
        for slot, j in enumerate(self.world.neighbours[host.number]):
            edge, key = site.edges[j], (host.number, host.lives, j, level)
            if (states[slot] == LinkStatus.DROP_FLOW) == edge.holds_flow or (arrived[slot] and not edge.holds_flow):
                self._fail(
                    f"{host.name} and {edge.name}: link {LinkStatus(int(states[slot])).name}, holds {edge.holds_flow}"
                )
            if not self.world.is_honest(j):
                continue
            used, came = self._used.get(key, (0, -1)), self._came.get(key, (0, -1))
            if not arrived[slot]:
                if edge.holds_flow and came > used:
                    self._fail(f"{host.name} does not use message {came} of {edge.name}, which has come")
                continue
            one = read_stamp(rows[slot])
            if self._posted.get((j, host.number, level, one)) != unstamped(rows[slot]).tobytes():
                self._fail(f"{host.name} uses a message of {edge.name}, {one}, that was not sent")
            if one <= used:
                self._fail(f"{host.name} uses message {one} of {edge.name} after {used}")
            if one != came:
                self._fail(f"{host.name} uses message {one} of {edge.name}, and {came} has come")
            self._used[key] = one
            self._taken[host.number, level, slot] = rows[slot]

    def stepped(self, host: Host, node: WaveNode) -> None:
        """What was in code was read as it was written, and no flow is larger than its limit."""
        limit = self.world.flow_limit
        if limit is not None and np.linalg.norm(node.used, axis=-1).max() > (1 + 1e-5) * ALPHA * limit:
            self._fail(f"{host.name} uses flows beyond the limit of {ALPHA * limit:g}: {node.used}")
        if isinstance(node.links, CodedLinks):
            for (receiver, level, slot), row in self._taken.items():
                j, read = self.world.neighbours[receiver][slot], node.links.read[level][slot]
                written = self._written[j, receiver, level, *number_of(row)]
                if np.isfinite(read).all() and read.tobytes() != written:
                    self._fail(f"{host.name} reads {read} of {j}, which wrote {np.frombuffer(written, read.dtype)}")
        self._taken.clear()

    # After every event

    def look(self) -> None:
        for host in self.world.honest:
            if host.site is None:
                continue
            assert isinstance(host.site, AsyncSite)
            if host.site.done:
                self._was_done.add(host.number)
            for edge in host.watched:
                assert isinstance(edge, AsyncEdge)
                key = (host.number, host.incarnation, edge.number, edge.incarnation)
                if (before := self._numbers.get(key)) != edge._newest_step:
                    for exchange, number in (before or {}).items():
                        if edge._newest_step.get(exchange, -1) < number:
                            self._fail(
                                f"{host.name} goes back from message {number} of {edge.name}: {edge._newest_step}"
                            )
                    self._numbers[key] = dict(edge._newest_step)

    # At the end

    def at_the_end(self) -> None:
        super().at_the_end()
        if not self.schedule.rests:
            return
        near = NEAR * self.schedule.rests
        nodes: dict[int, WaveNode] = {}
        for host in self.world.hosts:
            assert host.finished is not None
            nodes[host.number] = node = self.world.node_of(host.number)
            node.state = host.finished
            if (error := float(np.abs(node.s - self._solution).max())) > near:
                self._fail(f"{host.name} ends {error:g} from the solution")
        for a, b in self.schedule.edges:
            if {a, b} & self.behind:  # who took another's model has its own links
                continue
            slots = self.world.neighbours[a].index(b), self.world.neighbours[b].index(a)
            total = nodes[a].flows[:, slots[0]] + nodes[b].flows[:, slots[1]]
            if np.abs(total).max() > near:
                self._fail(f"the flows of {a} and {b} do not cancel: {total}")
