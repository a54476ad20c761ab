"""Bugs, each put into the product's own code for the time of a run: what the simulation must find."""

from __future__ import annotations

import os as real
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from decibel.core import _files as files
from decibel.engines import _checkpoint
from decibel.network import _coded_wave, _wave
from decibel.network._links import LinkStatus
from decibel.silo._federation import FaultTolerance, Federation
from decibel.silo.protocol import _edge as edges
from decibel.silo.protocol import _site as sites
from decibel.silo.protocol._async_edge import AsyncEdge
from decibel.silo.protocol._async_site import AsyncSite
from decibel.silo.protocol._edge import Edge
from decibel.silo.protocol._frame_limits import Limits
from decibel.silo.protocol._frames import Bye, Data, Join, Position, Statement
from decibel.silo.protocol._lockstep_site import LockstepSite
from decibel.silo.protocol._rendezvous import Rendezvous
from decibel.silo.protocol._site import Site
from decibel.silo.run._privacy_budget import PrivacyAccountant
from decibel.silo.trust._trust import Trust

from . import coded_links, streams
from .disk import CALLS
from .node import ENTRIES

SEEDS = 40  # of which at least one finds a bug


class Bug(NamedTuple):
    """The kind of schedules that meets it, a seed that finds it soon, and how it is put in."""

    kind: str
    seed: int
    plant: Callable[[], Any]
    one_peer: bool = False  # whether it needs a graph that changes

    @property
    def seeds(self) -> Iterator[int]:
        """All that are tried, the one that finds it first: which it is changes with `simulation` and the product."""
        yield self.seed
        yield from (seed for seed in range(SEEDS) if seed != self.seed)


BUGS: dict[str, Bug] = {}  # by name


def bug(kind: str, seed: int = 0, *, one_peer: bool = False):
    """The function returns what is to be patched."""

    def note(plant: Callable[[], Any]) -> Callable[[], Any]:
        BUGS[plant.__name__] = Bug(kind, seed, plant, one_peer)
        return plant

    return note


@contextmanager
def planted(name: str) -> Iterator[None]:
    with BUGS[name].plant():
        yield


# Messages


@bug("short", seed=3)
def what_was_lost_is_not_sent_again():
    return patch.object(Edge, "resend", lambda self, got: None)


@bug("short", seed=13)
def new_messages_overtake_those_that_are_sent_again():
    def send_in_order(self: Edge, at: Position, frame: bytes) -> None:
        self.outbox.append((at, frame))
        self.send(frame)

    return patch.object(Edge, "send_in_order", send_in_order)


@bug("calm", seed=0, one_peer=True)
def a_vector_goes_over_a_link_that_rests():
    send = LockstepSite._send_row

    def wrong(self: LockstepSite, edge: Edge, at: Position, row: np.ndarray) -> None:
        send(self, edge, at, row if row.size else np.ones(ENTRIES))

    return patch.object(LockstepSite, "_send_row", wrong)


@bug("calm", seed=0, one_peer=True)
def nothing_goes_over_a_link_that_rests():
    exchange = LockstepSite.exchange

    def wrong(self: LockstepSite, *arguments: Any, resting: Any = (), **options: Any) -> None:
        exchange(self, *arguments, **options)

    return patch.object(LockstepSite, "exchange", wrong)


@bug("crash", seed=1)
def a_message_is_taken_for_that_of_the_next_position():
    take = Edge.take

    def wrong(self: Edge, at: Position):
        row, state = take(self, at)
        if row is None and self.inbox and self.is_open:
            row = self.inbox.pop(min(self.inbox))
        return row, state

    return patch.object(Edge, "take", wrong)


@bug("calm", seed=7)
def only_one_message_may_wait():
    return patch.object(edges, "INBOX_MESSAGES", 1)


@bug("partition", seed=32)
def jumps_are_not_told():
    return patch.object(Edge, "send_skip", lambda self, step: None)


# Conversations


@bug("crash", seed=7)
def keeps_and_restore_are_swapped():
    settle = Edge.open_link
    swapped = {LinkStatus.GIVE_FLOW: LinkStatus.TAKE_FLOW, LinkStatus.TAKE_FLOW: LinkStatus.GIVE_FLOW}

    def wrong(self: Edge, *views) -> None:
        before = self.epoch
        settle(self, *views)
        if self.epoch != before:
            self.status_at_first_exchange = swapped.get(self.status_at_first_exchange, self.status_at_first_exchange)

    return patch.object(Edge, "open_link", wrong)


@bug("crash", seed=7)
def the_tie_is_made_in_the_first_step_of_this_end():
    def take(self: Edge, at: Position):
        for old in [place for place in self.inbox if place < at]:
            del self.inbox[old]
        if not self.takes_part(at.step):
            return None, LinkStatus.CONTINUE if self.holds_flow else LinkStatus.DROP_FLOW
        if self.first_common_step < 0:
            self.first_common_step = at.step
        return self.inbox.pop(
            at, None
        ), self.status_at_first_exchange if at.step == self.first_common_step else LinkStatus.CONTINUE

    return patch.object(Edge, "take", take)


@bug("crash", seed=35)
def who_starts_again_is_forgotten():
    close = Edge.stop_exchanging
    return patch.object(Edge, "stop_exchanging", lambda self, *, forget: close(self, forget=True))


@bug("partition", seed=33)
def flows_are_forgotten_that_are_waited_for():
    return patch.object(FaultTolerance, "forgets", True)


@bug("hostile", seed=17)
def a_message_of_another_epoch_is_taken():
    receive = Edge.receive

    def wrong(self: Edge, data: Data, *more) -> None:
        receive(self, data._replace(epoch=self.epoch), *more)

    return patch.object(Edge, "receive", wrong)


@bug("hostile", seed=8)
def the_answer_to_an_earlier_question_is_taken():
    answered = Edge.on_joined

    def wrong(self: Edge, theirs: Join, *more) -> None:
        self.joining, self.join_epoch = True, theirs.new_epoch
        answered(self, theirs, *more)

    return patch.object(Edge, "on_joined", wrong)


# Statements


@bug("crash", seed=7)
def older_statements_are_taken():
    return patch.object(Rendezvous, "_is_news", lambda self, one: one.site != self._number)


@bug("hostile", seed=7)
def statements_of_an_earlier_start_count():
    return patch.object(Statement, "has_heard", lambda self, site, nonce: True)


@bug("hostile", seed=23)
def as_many_witnesses_suffice_as_may_lie():
    needed = Federation.confirmations_needed
    return patch.object(Federation, "confirmations_needed", property(lambda self: max(1, needed.__get__(self) - 1)))


@bug("hostile", seed=27)
def statements_need_no_signature():
    return patch.object(Rendezvous, "_is_valid", lambda self, one: True)


@bug("crash", seed=3)
def the_incarnation_is_the_time():
    return patch("simulation.host.next_incarnation", lambda home, time: time)


# The site


@bug("short", seed=27)
def no_sign_of_life_is_given():
    watch = Site.on_heartbeat

    def wrong(self: Site) -> None:
        with patch.object(Edge, "send", lambda self, frame: None):
            watch(self)

    return patch.object(Site, "on_heartbeat", wrong)


@bug("short", seed=7)
def nobody_is_awaited_while_it_connects_again():
    awaited = Edge.awaited
    return patch.object(Edge, "awaited", lambda self, at: self.stream is not None and awaited(self, at))


@bug("hostile", seed=35)
def revoked_keys_are_good():
    return patch("decibel.silo.trust._credentials.validated_name", lambda certificate, *_, **__: _name(certificate))


@bug("crash", seed=33)
def sites_start_from_the_newest_step_of_anyone():
    settle = Rendezvous._settle

    def wrong(self: Rendezvous, statements, around) -> None:
        settle(self, statements, around)
        self.start = max(self.saved, default=0)

    return patch.object(Rendezvous, "_settle", wrong)


@bug("hostile", seed=1)
def any_step_is_believed():
    return patch.object(Rendezvous, "confirmed_step", 2**30)


@bug("hostile", seed=2)
def fields_have_no_bounds():
    return patch.object(Limits, "validate", lambda self, frame: None)


@bug("crash", seed=7)
def steps_that_others_did_count_as_done():
    begin = LockstepSite.begin_step

    def wrong(self: LockstepSite, step: int) -> int:
        begun = begin(self, step)
        self.steps_done = self.next_step
        return begun

    return patch.object(LockstepSite, "begin_step", wrong)


# The end


@bug("crash", seed=13)
def a_finished_run_is_begun_again():
    return patch("simulation.host.read", lambda home: None)


@bug("hostile", seed=20)
def one_word_is_enough_that_a_run_is_over():
    return patch.object(Rendezvous, "is_over", property(lambda self: any(one.done for one in self._fresh())))


# Files


def _name(certificate) -> str:
    return certificate.subject.rfc4514_string().split("CN=")[1].split(",")[0]


@bug("disk", seed=3)
def checkpoints_are_not_synced():
    return patch.object(files, "sync_tree", lambda folder: None)


class _NoSync:
    """`os` without fsync, for files or for folders."""

    def __init__(self, *, folders: bool) -> None:
        self._folders = folders

    def __getattr__(self, name: str):
        return getattr(CALLS, name)

    def fsync(self, number: int) -> None:
        if CALLS.is_folder(number) != self._folders:
            CALLS.fsync(number)


@bug("disk", seed=28)
def files_are_not_synced():
    return patch("simulation.world.CALLS_OF_FILES", _NoSync(folders=False))


@bug("disk", seed=7)
def names_are_not_synced():
    return patch("simulation.world.CALLS_OF_FILES", _NoSync(folders=True))


@bug("disk", seed=9)
def a_file_is_written_in_place():
    def write(path, content, mode: int = 0o644, *, durable: bool = True):
        number = files.os.open(path, real.O_WRONLY | real.O_CREAT | real.O_TRUNC, mode)
        with files.os.fdopen(number, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        return path

    return patch("decibel.silo.run._privacy_budget.atomic_write", write)


@bug("disk", seed=3)
def messages_are_counted_after_they_are_sent():
    def charge(self: PrivacyAccountant, noise: float, messages: int) -> None:
        before = self.messages_sent
        if before:
            self._write(before, self.sums)
        self.messages_sent = before + type(before)({noise: messages})

    return patch.object(PrivacyAccountant, "_charge", charge)


@bug("disk", seed=9)
def an_older_list_of_revoked_keys_is_taken():
    def take(self: Trust, raw: bytes, path) -> None:
        found = self._read(raw.decode(errors="replace"), path)
        self.revoked, self._saved = found, False
        self._memory = self._memory._replace(revoked=raw.decode())

    return patch.object(Trust, "_take", take)


@bug("hostile", seed=12)
def a_certificate_is_not_compared():
    def who(self, shown):
        return next(iter(edge for edge in self.site.edges.values() if not edge.dials))

    return patch.object(streams.Streams, "_who", who)


@bug("slow", seed=3)
def waiting_does_not_wait():
    return patch.object(sites, "TICK", 0.0)


@bug("orbax", seed=33)
def checkpoints_of_orbax_are_not_synced():
    return patch.object(_checkpoint, "sync_tree", lambda folder: None)


# Sites without a common clock


@bug("async-calm", seed=1)
def a_message_is_used_twice():
    def collect(self: AsyncEdge, exchange: int):
        return self._mail.get(exchange), LinkStatus.CONTINUE if self.holds_flow else LinkStatus.DROP_FLOW

    return patch.object(AsyncEdge, "collect", collect)


@bug("async-lossy", seed=1)
def an_older_message_replaces_a_newer_one():
    receive = AsyncEdge.receive

    def wrong(self: AsyncEdge, data, *more) -> None:
        self._newest_step.pop(data.at.exchange, None)
        receive(self, data, *more)

    return patch.object(AsyncEdge, "receive", wrong)


@bug("async-partition", seed=6)
def receipts_are_not_awaited():
    return patch.object(AsyncEdge, "_may_send", lambda self, exchange: True)


@bug("async-crash", seed=30)
def who_was_set_back_is_not_heard():
    def on_restart(self: AsyncEdge) -> None:
        self.is_open = self.running = self.finished = False

    return patch.object(AsyncEdge, "on_restart", on_restart)


@bug("async-calm", seed=7)
def a_site_waits_for_messages_of_all():
    def may_continue(self: AsyncSite) -> bool:
        return all(edge._mail or edge.finished or not edge.is_open for edge in self.edges.values())  # pyright: ignore

    return patch.object(AsyncSite, "_may_continue", may_continue)


@bug("async-crash", seed=36)
def a_site_without_a_neighbour_is_at_rest():
    """The others come to rest without it, and its last word was that it was done."""

    def all_at_rest(self: AsyncSite) -> bool:
        self.done = self.rest.is_at_rest([number for number, edge in self.edges.items() if edge.is_open])
        if self.done and self._rendezvous.others_done:
            self.end_reason = "all sites were at rest"
        return bool(self.end_reason)

    return patch.object(AsyncSite, "_all_at_rest", all_at_rest)


@bug("async-partition", seed=17)
def who_has_not_read_where_this_site_is_may_be_at_rest():
    """It was cut off or slow, and said that it was done before."""
    return patch.object(AsyncEdge, "has_answered", True)


@bug("async-hostile", seed=7)
def who_has_finished_waits_for_nobody():
    def goodbye(self: AsyncSite, finished: bool) -> None:
        with self.lock:
            self.bye = Bye("finished" if finished else "left")
            for edge in self.edges.values():
                self._say_bye(edge)
            self.running, self.closing, self.finished = False, True, finished

    return patch.object(AsyncSite, "goodbye", goodbye)


@bug("async-calm", seed=36)
def a_site_ends_when_it_is_at_rest_itself():
    return patch.object(Rendezvous, "others_done", True)


@bug("async-crash", seed=6)
def a_site_does_its_saved_step_again():
    agree = AsyncSite.agree_on_start

    def wrong(self: AsyncSite, steps) -> int:
        return max(0, agree(self, steps) - 1)

    return patch.object(AsyncSite, "agree_on_start", wrong)


@bug("async-crash", seed=27)
def a_signal_is_not_noticed():
    return patch.object(AsyncSite, "stop", lambda self: None)


# What is compiled


@contextmanager
def _compiled_with(where: Any, name: str, wrong: Callable[..., Any]) -> Iterator[None]:
    """Programs that were compiled before, or are compiled meanwhile, do not count."""
    with patch.object(where, name, wrong):
        coded_links.programs.cache_clear()
        try:
            yield
        finally:
            coded_links.programs.cache_clear()


@bug("async-hostile", seed=19)
def flows_have_no_limit():
    return _compiled_with(_wave, "cut_levels", lambda F, content, within, sizes: (F, sizes))


@bug("async-lossy", seed=16)
def a_code_is_read_with_another_base():
    receive = _coded_wave._receive

    def wrong(receiver, number, of, *more):
        return receive(receiver, number, receiver.numbers[..., 0], *more)

    return _compiled_with(_coded_wave, "_receive", wrong)


@bug("async-crash", seed=8)
def a_receipt_of_another_incarnation_counts():
    acknowledge = _coded_wave._acknowledge

    def wrong(sender, arrives, ack):
        return acknowledge(sender, ack != 0, ack)

    return _compiled_with(_coded_wave, "_acknowledge", wrong)
