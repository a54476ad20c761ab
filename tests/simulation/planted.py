"""Twenty-odd bugs, each put into the product's own code for the time of a run: what the simulation must find."""

from __future__ import annotations

import os as real
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from decibel.core import _files as files
from decibel.engines.silo import _edge as edges
from decibel.engines.silo import _site as sites
from decibel.engines.silo._async_edge import AsyncEdge
from decibel.engines.silo._async_site import AsyncSite
from decibel.engines.silo._edge import Edge
from decibel.engines.silo._federation import FaultTolerance
from decibel.engines.silo._frames import Bye, Position
from decibel.engines.silo._limits import Limits
from decibel.engines.silo._privacy import Privacy
from decibel.engines.silo._roll_call import RollCall
from decibel.engines.silo._site import Site
from decibel.engines.silo._trust import Trust
from decibel.network._links import LinkState

from . import streams
from .disk import CALLS

BUGS: dict[str, tuple[str, Callable[[], Any]]] = {}  # by name: the kind of schedule that meets it, and how it is put in


def bug(kind: str):
    """`kind` of schedules; the function returns what is to be patched."""

    def note(made: Callable[[], Any]) -> Callable[[], Any]:
        BUGS[made.__name__] = kind, made
        return made

    return note


@contextmanager
def planted(name: str) -> Iterator[None]:
    with BUGS[name][1]():
        yield


# Messages


@bug("short")
def what_was_lost_is_not_sent_again():
    return patch.object(Edge, "resend", lambda self, got: None)


@bug("short")
def new_messages_overtake_those_that_are_sent_again():
    def say_in_turn(self: Edge, at: Position, frame: bytes) -> None:
        self.outbox.append((at, frame))
        self.say(frame)

    return patch.object(Edge, "say_in_turn", say_in_turn)


@bug("crash")
def a_message_is_taken_for_that_of_the_next_position():
    take = Edge.take

    def wrong(self: Edge, at: Position):
        row, state = take(self, at)
        if row is None and self.inbox and self.open:
            row = self.inbox.pop(min(self.inbox))
        return row, state

    return patch.object(Edge, "take", wrong)


@bug("calm")
def only_one_message_may_wait():
    return patch.object(edges, "WINDOW", 1)


@bug("crash")
def jumps_are_not_told():
    return patch.object(Edge, "jump", lambda self, step: None)


# Conversations


@bug("crash")
def keeps_and_restore_are_swapped():
    settle = Edge.settle
    swapped = {LinkState.KEEPS: LinkState.RESTORE, LinkState.RESTORE: LinkState.KEEPS}

    def wrong(self: Edge, *views) -> None:
        before = self.epoch
        settle(self, *views)
        if self.epoch != before:
            self.tie = swapped.get(self.tie, self.tie)

    return patch.object(Edge, "settle", wrong)


@bug("crash")
def the_tie_is_made_in_the_first_step_of_this_end():
    def take(self: Edge, at: Position):
        for old in [place for place in self.inbox if place < at]:
            del self.inbox[old]
        if not self.takes_part(at.step):
            return None, LinkState.TIED if self.holds else LinkState.DROPPED
        if self.tied_at < 0:
            self.tied_at = at.step
        return self.inbox.pop(at, None), self.tie if at.step == self.tied_at else LinkState.TIED

    return patch.object(Edge, "take", take)


@bug("crash")
def who_starts_again_is_forgotten():
    close = Edge.close
    return patch.object(Edge, "close", lambda self, *, forget: close(self, forget=True))


@bug("partition")
def flows_are_forgotten_that_are_waited_for():
    return patch.object(FaultTolerance, "forgets", True)


# The site


@bug("short")
def no_sign_of_life_is_given():
    watch = Site.watch

    def wrong(self: Site) -> None:
        with patch.object(Edge, "say", lambda self, frame: None):
            watch(self)

    return patch.object(Site, "watch", wrong)


@bug("short")
def nobody_is_awaited_while_it_connects_again():
    awaited = Edge.awaited
    return patch.object(Edge, "awaited", lambda self, at: self.stream is not None and awaited(self, at))


@bug("hostile")
def revoked_keys_are_good():
    return patch("decibel.engines.silo._credentials.check", lambda certificate, *_, **__: _name(certificate))


@bug("crash")
def sites_start_from_the_newest_step_of_anyone():
    settle = RollCall._settle

    def wrong(self: RollCall, statements, around) -> int:
        settle(self, statements, around)
        own = self.known[self._number].saved
        self._start = max(own, default=0)
        return self._start

    return patch.object(RollCall, "_settle", wrong)


@bug("hostile")
def any_step_is_believed():
    return patch.object(RollCall, "confirmed", 2**30)


@bug("hostile")
def fields_have_no_bounds():
    return patch.object(Limits, "validate", lambda self, frame: None)


# Files


def _name(certificate) -> str:
    return certificate.subject.rfc4514_string().split("CN=")[1].split(",")[0]


@bug("disk")
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


@bug("disk")
def files_are_not_synced():
    return patch("simulation.world.CALLS_OF_FILES", _NoSync(folders=False))


@bug("disk")
def names_are_not_synced():
    return patch("simulation.world.CALLS_OF_FILES", _NoSync(folders=True))


@bug("disk")
def a_file_is_written_in_place():
    def write(path, content, mode: int = 0o644, *, durable: bool = True):
        number = files.os.open(path, real.O_WRONLY | real.O_CREAT | real.O_TRUNC, mode)
        with files.os.fdopen(number, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        return path

    return patch("decibel.engines.silo._privacy.atomic_write", write)


@bug("disk")
def messages_are_counted_after_they_are_sent():
    def charge(self: Privacy, noise: float, messages: int) -> None:
        before = self.sent
        if before:
            self._write(before, self.sums)
        self.sent = before + type(before)({noise: messages})

    return patch.object(Privacy, "_charge", charge)


@bug("disk")
def an_older_list_of_revoked_keys_is_taken():
    def take(self: Trust, raw: bytes, path) -> None:
        found = self._read(raw.decode(errors="replace"), path)
        self.revoked, self._kept, self._saved = found, raw.decode(), False

    return patch.object(Trust, "_take", take)


@bug("hostile")
def a_certificate_is_not_compared():
    def who(self, shown):
        return next(iter(edge for edge in self.site.edges.values() if not edge.dials))

    return patch.object(streams.Streams, "_who", who)


@bug("slow")
def waiting_does_not_wait():
    return patch.object(sites, "TICK", 0.0)


# Sites without a common clock


@bug("async-calm")
def a_message_is_used_twice():
    def collect(self: AsyncEdge, exchange: int):
        return self._mail.get(exchange), LinkState.TIED if self.holds else LinkState.DROPPED

    return patch.object(AsyncEdge, "collect", collect)


@bug("async-lossy")
def an_older_message_replaces_a_newer_one():
    receive = AsyncEdge.receive

    def wrong(self: AsyncEdge, data, *more) -> None:
        self._numbers.pop(data.at.exchange, None)
        receive(self, data, *more)

    return patch.object(AsyncEdge, "receive", wrong)


@bug("async-crash")
def who_was_set_back_is_not_heard():
    def begins_anew(self: AsyncEdge) -> None:
        self.open = self.running = self.finished = False

    return patch.object(AsyncEdge, "begins_anew", begins_anew)


@bug("async-calm")
def a_site_waits_for_messages_of_all():
    def may_go_on(self: AsyncSite) -> bool:
        return all(edge._mail or edge.finished or not edge.open for edge in self.edges.values())  # pyright: ignore

    return patch.object(AsyncSite, "_may_go_on", may_go_on)


@bug("async-crash")
def a_site_without_a_neighbour_is_at_rest():
    """The others come to rest without it, and its last word was that it was done."""

    def all_at_rest(self: AsyncSite) -> bool:
        self.done = self.rest.holds([number for number, edge in self.edges.items() if edge.open])
        if self.done and self._roll_call.others_done:
            self.ended = "all sites were at rest"
        return bool(self.ended)

    return patch.object(AsyncSite, "_all_at_rest", all_at_rest)


@bug("async-hostile")
def who_has_finished_waits_for_nobody():
    def goodbye(self: AsyncSite, finished: bool) -> None:
        with self.lock:
            self.bye = Bye("finished" if finished else "left")
            for edge in self.edges.values():
                self._say_bye(edge)
            self.running, self.closing, self.finished = False, True, finished

    return patch.object(AsyncSite, "goodbye", goodbye)


@bug("async-calm")
def a_site_ends_when_it_is_at_rest_itself():
    return patch.object(RollCall, "others_done", True)


@bug("async-crash")
def a_site_does_its_saved_step_again():
    agree = AsyncSite.agree

    def wrong(self: AsyncSite, steps) -> int:
        return max(0, agree(self, steps) - 1)

    return patch.object(AsyncSite, "agree", wrong)


@bug("async-crash")
def a_signal_is_not_noticed():
    return patch.object(AsyncSite, "stop", lambda self: None)
