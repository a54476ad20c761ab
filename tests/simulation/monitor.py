"""What must hold, whatever the schedule: checked as things happen, and over all sites after every event."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from decibel.network._links import LinkStatus
from decibel.silo._errors import FinishedByFew, NothingInCommon, SiteLost
from decibel.silo.observe._site_status import closing_line, status_facts
from decibel.silo.protocol._edge import Edge
from decibel.silo.protocol._frames import Bye, Data, Frame, Join, Position, Roll, Stand, Statement
from decibel.silo.protocol._lockstep_site import LockstepSite
from decibel.silo.protocol._rendezvous import Rendezvous
from decibel.silo.protocol._shared_model import SAME
from decibel.silo.protocol._site import Site
from decibel.silo.run._privacy_budget import PrivacyAccountant, read
from decibel.silo.trust._credentials import Credentials

from .node import Arrived, Node, undisturbed

if TYPE_CHECKING:
    from .checkpoints import Checkpoints, OrbaxCheckpoints
    from .host import Host
    from .network import End
    from .world import World

TIES = {
    (True, True): LinkStatus.CONTINUE,
    (True, False): LinkStatus.GIVE_FLOW,
    (False, True): LinkStatus.TAKE_FLOW,
    (False, False): LinkStatus.START_AT_ZERO,
}


class Violation(AssertionError):
    """Something that must hold does not."""


class Seen(NamedTuple):
    """An edge after the last event."""

    epoch: int = 0
    is_open: bool = False
    holds_flow: bool = False


class Monitor:
    def __init__(self, world: World) -> None:
        self.world, self.schedule = world, world.schedule
        self._next = [0] * world.schedule.sites  # the step that each begins next
        self._furthest = [0] * world.schedule.sites
        self._sent: dict[tuple, bytes] = {}
        self._flows: dict[tuple, np.ndarray] = {}
        self._epochs: dict[tuple[int, int], int] = {}  # in which an exchange was begun
        self._seen: dict[tuple[int, int, int], Seen] = {}
        self._openings: dict[tuple, tuple[Seen, LinkStatus]] = {}
        self._signed: dict[tuple[int, bytes], float] = {}  # when an honest site has signed a text
        self._known: dict[tuple[int, int, int], Statement] = {}  # what a site knows of another in a life
        self._asked = 0, 0  # what an edge asked for, and its epoch, before the last frame
        self._said: dict[tuple[int, int], object] = {}  # the last frame that told of an end
        self._steps_done = [0] * world.schedule.sites
        # By step, the states that were saved, and how many steps had been done then.
        self._saved: list[dict[int, dict[bytes, int]]] = [{} for _ in range(world.schedule.sites)]
        self._durable: list[dict[int, bytes]] = [{} for _ in range(world.schedule.sites)]
        self._last: list[dict[int, bytes]] = [{} for _ in range(world.schedule.sites)]
        self._trusted = [0] * world.schedule.sites
        self._incarnations = [0] * world.schedule.sites
        self._noisy = [0] * world.schedule.sites
        self.behind: set[int] = set()  # who was away when the others finished
        self._models: dict[int, np.ndarray] = {}  # those that honest sites give

    def _fail(self, sentence: str) -> None:
        raise Violation(sentence)

    # Nobody uninvited, and nobody honest turned away

    def connected(self, host: Host, edge: Edge, end: End) -> None:
        if end.peer != edge.number or end.owner != host.number:
            self._fail(f"machine {end.peer}, which was not invited, is connected to {host.name} as {edge.name}")
        streams = host.streams
        if streams is not None and self.world.key_of(edge.number) in streams.credentials.trust.revoked.keys:
            self._fail(f"{edge.name}, which {host.name} knows to be revoked, is connected to it")

    def keeps_out(self, host: Host, number: int) -> None:
        """Some time after a key was revoked in a site's folder."""
        edge = host.site.edges.get(number) if host.site is not None else None
        if edge is not None and edge.stream is not None:
            self._fail(f"{edge.name} is revoked and still connected to {host.name}")

    def rejected(self, host: Host, edge: Edge, end: End, error: str) -> None:
        if self.world.is_honest(end.peer):
            self._fail(f"{host.name} rejected {edge.name}, which is honest: {error}")

    def heard(self, host: Host, edge: Edge, frame: Frame, end: End) -> None:
        self._asked = edge.join_epoch, edge.epoch
        if isinstance(frame, Bye | Join):
            self._said[host.number, edge.number] = frame
        peers = self.schedule.peers
        if isinstance(frame, Data) and peers is not None:
            (met,) = peers.among(host.number, [edge.number], *frame.at)
            if bool(frame.tensor.size) != (met >= 0):
                self._fail(f"{edge.name} sends {host.name} {frame.tensor.size} entries in {frame.at}, for peer {met}")

    def received(self, host: Host, edge: Edge, frame: Frame) -> None:
        """After what it leads to."""
        if isinstance(frame, Data) and frame.epoch != edge.epoch and edge.inbox.get(frame.at) is frame.tensor:
            self._fail(f"{host.name} keeps a message of epoch {frame.epoch} of {edge.name}, in epoch {edge.epoch}")
        if isinstance(frame, Join) and frame.answer and edge.epoch not in self._asked:
            self._fail(f"{host.name} and {edge.name} talk in epoch {edge.epoch}, which {host.name} has not asked for")
        if isinstance(frame, Roll | Stand) and host.site is not None:
            self._look_at_statements(host, host.site._rendezvous)

    # Statements: those of the honest are their own, fresh, and not replaced by older ones

    def signs(self, number: int, text: bytes) -> None:
        self._signed.setdefault((number, text), self.world.scheduler.now)

    def _look_at_statements(self, host: Host, rendezvous: Rendezvous) -> None:
        for site, one in rendezvous.by_site.items():
            key = (host.number, host.lives, site)
            last = self._known.get(key)
            if last is one:
                continue
            self._known[key] = one
            if last is not None and one.order < last.order:
                self._fail(f"{host.name} goes back from statement {last.order} of site {site} to {one.order}")
        for one in (*rendezvous._fresh(), *rendezvous.start_statements):
            signed = self._signed.get((one.site, rendezvous._context + one.signed_bytes()), -1.0)
            if self.world.is_honest(one.site) and signed < host.began:
                self._fail(f"{host.name} counts statement {one.order} of site {one.site}, made before it was started")

    # Steps: none lost, none invented, each with the messages that were sent for it

    def begins(self, host: Host, step: int) -> None:
        i, expected = host.number, self._next[host.number]
        if host.has_record:
            self._fail(f"{host.name} begins step {step} of a run that has finished there")
        if step < expected:
            self._fail(f"{host.name} begins step {step} again, after step {expected - 1}")
        if step > expected:
            others = (
                [other.number for other in self.world.honest] if self.schedule.hostile else self.world.neighbours[i]
            )
            there = max(self._furthest[j] for j in others if j != i)
            if not self.schedule.lossy or self.schedule.short:
                self._fail(f"{host.name} skips from step {expected} to {step}")
            if step > there:
                self._fail(f"{host.name} skips to step {step}, and nobody honest is beyond {there}")
        if step >= self.schedule.steps:
            self._fail(f"{host.name} begins step {step} of {self.schedule.steps}")
        self._next[i] = step + 1
        self._steps_done[i] += 1
        self._furthest[i] = max(self._furthest[i], step + 1)

    @property
    def under_way(self) -> bool:
        """Whether every honest site has begun a step."""
        return all(self._furthest[host.number] for host in self.world.honest)

    def sends(self, host: Host, site: LockstepSite, others: tuple[int, ...], rows: np.ndarray) -> None:
        at = Position(site._position.step, site._position.exchange + 1)
        self._noisy[host.number] += self.schedule.noisy
        for slot, j in enumerate(others):
            if j < 0:
                continue
            edge = site.edges[j]
            self._epochs[host.number, j] = edge.epoch
            if edge.takes_part(at.step):
                key = (host.number, host.incarnation, j, edge.incarnation, edge.epoch, at)
                if key in self._sent:
                    self._fail(f"{host.name} sends {edge.name} two messages of {at} in epoch {edge.epoch}")
                self._sent[key] = (rows if rows.ndim == 1 else rows[slot]).tobytes()

    def exchanged(
        self, host: Host, site: LockstepSite, node: Node, level: int, others: tuple[int, ...], arrived: Arrived
    ) -> None:
        rows, where, _ = arrived
        for slot, j in enumerate(others):
            if j < 0:
                if where[slot] or rows[slot].any():
                    self._fail(f"{host.name} takes a message in {site._position} over a link that rests")
                continue
            edge, epoch, at = site.edges[j], self._epochs[host.number, j], site._position
            if not where[slot]:
                if self.schedule.exact:
                    self._fail(f"{host.name} has no message from {edge.name} of {at}, and none was lost")
                continue
            if not self.world.is_honest(j):
                continue
            key = (j, edge.incarnation, host.number, host.incarnation, epoch, at)
            if self._sent.get(key) != rows[slot].tobytes():
                self._fail(f"{host.name} takes a message from {edge.name} of {at} that was not sent for it")
            if self.schedule.lossy:
                self._compare_flows(host, edge, (epoch, at), node.F[level][slot])

    def _compare_flows(self, host: Host, edge: Edge, when: tuple, flow: np.ndarray) -> None:
        """Where both ends took the message of the other, F_ij = −F_ji bit for bit."""
        ends = sorted([(host.number, host.incarnation), (edge.number, edge.incarnation)])
        other = self._flows.pop((*ends, *when), None)
        if other is None:
            self._flows[(*ends, *when)] = flow.copy()
        elif not np.array_equal(flow, -other):
            self._fail(f"the flows of {host.name} and {edge.name} do not cancel at {when}: {flow} and {other}")

    def done(self, host: Host, step: int) -> None:
        if not np.isfinite(host.node.s).all():  # pyright: ignore[reportOptionalMemberAccess]
            self._fail(f"{host.name} diverges in step {step}")

    def exited(self, host: Host, error: Exception) -> None:
        """What may end a site's run early."""
        if isinstance(error, SiteLost):
            if self.schedule.short:
                self._fail(f"{host.name} gives up though nothing was away for long: {error}")
            if self.schedule.lossy and self.schedule.tolerance.quorum != "stop":
                self._fail(f"{host.name} gives up, and its method need not: {error}")
        elif isinstance(error, FinishedByFew):
            if self.schedule.lossy or not any(other.finished is not None for other in self.world.hosts):
                self._fail(f"{host.name} ends, and nobody has finished without it: {error}")
        elif isinstance(error, NothingInCommon):
            if not self._saved[host.number]:
                self._fail(f"{host.name} does not begin again, and has saved nothing: {error}")
        elif not (isinstance(error, OSError | ValueError) and host.disk.struck):
            self._fail(f"{host.name} ends: {error!r}")

    def left_behind(self, host: Host) -> None:
        """The others have finished without it, at least one that is honest."""
        over = [other for other in self.world.honest if other.finished is not None or other.is_leaving]
        if not any(other is not host for other in over):
            self._fail(f"{host.name} is told that the others have finished, and nobody honest has")
        self.behind.add(host.number)

    def gives_model(self, host: Host, row: np.ndarray) -> None:
        self._models[host.number] = row.copy()

    def takes_model(self, host: Host, row: np.ndarray) -> None:
        """It is near that of an honest neighbour, unless those that it has may all lie."""
        around = self.world.neighbours[host.number]
        if len(around) < self.world.federation.confirmations_needed:
            return
        honest = [self._models[j] for j in around if j in self._models]
        if not any(np.linalg.norm(row - one) <= 1.1 * SAME * np.linalg.norm(one) for one in honest):
            self._fail(f"{host.name} takes a model that no honest neighbour has")

    def has_finished(self, host: Host) -> None:
        if self.schedule.exact and host.number not in self.behind:
            schedule = self.schedule
            states = undisturbed(self.world.neighbours, schedule.levels, schedule.lossy, schedule.steps, schedule.peers)
            if host.finished != states[host.number]:
                self._fail(f"{host.name} ends elsewhere than a run without faults")

    def reports(self, host: Host, site: Site) -> None:
        """What people and programs are told at the end is what was done here."""
        done = self._steps_done[host.number]
        if status_facts(site)["steps_done"] != done or (site.finished and f"{done} steps" not in closing_line(site)):
            self._fail(f"{host.name} has done {done} steps, and says {closing_line(site)!r}")

    def gone(self, host: Host) -> None:
        self._next[host.number] = 0
        self._steps_done[host.number] = 0

    # What is saved stays, and is resumed bit for bit

    def saves(self, host: Host, step: int, state: bytes) -> None:
        self._saved[host.number].setdefault(step, {})[state] = self._steps_done[host.number]
        self._last[host.number][step] = state
        self._durable[host.number].pop(step, None)

    def on_disk(self, host: Host, steps) -> None:
        self._durable[host.number] = {step: self._last[host.number][step] for step in steps}

    def finds_saved(self, host: Host, saves: Checkpoints | OrbaxCheckpoints) -> None:
        durable = self._durable[host.number]
        if durable:
            newest = max(durable)
            if newest not in saves.steps:
                self._fail(f"{host.name} has lost the checkpoint of step {newest}")
            if not saves.holds(newest, durable[newest]):
                self._fail(f"{host.name} has lost what was in the checkpoint of step {newest}")

    def on_restart(self, host: Host, step: int) -> None:
        """Without a checkpoint, where the sites have agreed on that of a step, 0 for none."""
        if step in self._durable[host.number]:
            self._fail(f"{host.name} cannot read the checkpoint of step {step}, which is on the disk")
        self._durable[host.number] = {}  # set aside

    def resumed(self, host: Host, step: int, state: bytes) -> None:
        known = self._saved[host.number].get(step, {})
        if state not in known:
            self._fail(f"{host.name} resumes at step {step} what it never saved")
        self._steps_done[host.number] = known[state]
        self._durable[host.number] = {s: one for s, one in self._durable[host.number].items() if s <= step}
        self._next[host.number] = step

    def trusts(self, host: Host, credentials: Credentials) -> None:
        number = credentials.trust.revoked.number
        if number < self._trusted[host.number]:
            self._fail(f"{host.name} trusts list {number}, after list {self._trusted[host.number]}")
        if credentials.trust._saved:
            self._trusted[host.number] = number

    def counted(self, host: Host, privacy: PrivacyAccountant | None) -> None:
        if privacy is not None and sum(privacy.messages_sent.values()) < self._noisy[host.number]:
            self._fail(
                f"{host.name} has sent {self._noisy[host.number]} noisy messages, and counts "
                f"{sum(privacy.messages_sent.values())}"
            )

    def incarnates(self, host: Host) -> None:
        last = self._incarnations[host.number]
        if host.incarnation <= last:
            self._fail(f"{host.name} is started with incarnation {host.incarnation}, after {last}")
        self._incarnations[host.number] = host.incarnation

    # After every event

    def look(self) -> None:
        for host in self.world.honest:
            if host.site is None:
                continue
            for edge in host.watched:
                key = (host.number, host.lives, edge.number)
                if self._seen.get(key) != (edge.epoch, edge.is_open, edge.holds_flow):
                    self._look_at(host, edge, key)

    def _look_at(self, host: Host, edge: Edge, key: tuple[int, int, int]) -> None:
        before, seen = self._seen.get(key, Seen()), Seen(edge.epoch, edge.is_open, edge.holds_flow)
        self._seen[key] = seen
        if host.is_leaving:
            return  # nothing more is exchanged
        if seen.is_open and (seen.epoch != before.epoch or not before.is_open):
            self._opened(host, edge, before)
        elif before.is_open and not seen.is_open and self.schedule.short:
            self._fail(f"{host.name} ends its conversation with {edge.name} without a reason")
        elif before.holds_flow and not seen.holds_flow and self.schedule.short:
            self._fail(f"{host.name} forgets the flow of {edge.name}, which was never away for long")
        if before.holds_flow and not seen.holds_flow and self.schedule.tolerance.quorum == "wait":
            said = self._said.get((host.number, edge.number))
            if not (isinstance(said, Join) and not said.holds_flow):
                self._fail(f"{host.name} forgets the flow of {edge.name}, for which it is to wait")

    def _opened(self, host: Host, edge: Edge, before: Seen) -> None:
        """Both ends of a new conversation know which of them remembers its flow."""
        ends = (host.number, host.incarnation), (edge.number, edge.incarnation)
        self._openings[(*ends, edge.epoch)] = before, edge.status_at_first_exchange
        other = self._openings.get((ends[1], ends[0], edge.epoch))
        if other is None:
            return
        (theirs, their_tie), (mine, my_tie) = other, (before, edge.status_at_first_exchange)
        holds = (
            mine.holds_flow and (theirs.holds_flow or not mine.is_open),
            theirs.holds_flow and (mine.holds_flow or not theirs.is_open),
        )
        if (my_tie, their_tie) != (TIES[holds], TIES[holds[::-1]]):
            self._fail(
                f"{host.name} and {edge.name} open epoch {edge.epoch} as {my_tie.name} and {their_tie.name}, where "
                f"{holds} remember"
            )

    def at_the_end(self) -> None:
        """What is in the folders once all is over, and the power is cut once more."""
        for host in self.world.honest:
            host.disk.heal()
            host.disk.cut_power()
            host.disk.start()
            if self.schedule.noisy and sum(read(host.disk.root).messages.values()) < self._noisy[host.number]:
                self._fail(f"{host.name} has sent more noisy messages than it counts")
            self._reads_saved(host)
            self.trusts(host, Credentials.load(host.disk.root, host.name))
        if missing := self.world.organiser.missing():
            self._fail(f"{len(missing)} signatures were handed out that the ledger does not have")

    def _reads_saved(self, host: Host) -> None:
        durable = self._durable[host.number]
        if durable:
            newest = max(durable)
            saves = host.checkpoints(len(durable[newest]))
            found = saves.restore(lambda saved: newest)
            saves.close()
            if found is None or (found.step, found.state) != (newest, durable[newest]):
                self._fail(f"{host.name} has lost the checkpoint of step {newest}")
