"""What a frame may contain: every field is checked against the signed federation before it is used.

A neighbour also has an allowance of frames that carry no message, which grows with time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .._errors import Rejected
from .._federation import FaultTolerance, Federation
from .._token_bucket import TokenBucket
from ..trust import LARGEST_ORDER
from ._frames import (
    STATES,
    Data,
    Frame,
    Hello,
    Join,
    Model,
    Ordered,
    Position,
    Receipt,
    Report,
    Reports,
    Roll,
    Skip,
    Stand,
    Statement,
)

MOST_STEPS = 2**30 - 1  # the largest number of steps, where the federation names none
MOST_SAVED = 16  # steps that a site tells to have saved
# Sites, and links, that a report names
MOST_AWAITED = 8
MOST_STRAINED = 8
# Bytes
SIGNATURE = 80
CERTIFICATE = 4096
NOWHERE = Position(-1, -1)
FINISHED = Position(2**62, 0)
# Frames without a message that a neighbour may send
BURST = 200
PER_BEAT = 4
PER_SECOND = 20
# Messages, where none is awaited
NEWEST_BURST = 20_000
NEWEST_PER_SECOND = 5_000
# Signatures to verify, for every site
SIGNATURES = 64
SIGNATURES_PER_BEAT = 4
FREE_DELAY = 0.1  # beats by which a message may be late for nothing: networks differ, and machines are busy
CATCH_UP_BEATS = 4  # beats in which a neighbour that was away must catch up with the others
FORGIVEN_AFTER = 1000  # messages after which it is forgotten that an edge was suspended
LONGEST_PAUSE = 3600.0  # seconds before a suspended neighbour is heard again
MOST_DOUBLED = 30  # times that the pause is doubled, which is far beyond the longest


class Limits(NamedTuple):
    """The limits of one federation on what frames may contain."""

    sites: int
    steps: int

    @classmethod
    def of(cls, federation: Federation) -> Limits:
        return cls(len(federation.sites), MOST_STEPS if federation.steps is None else federation.steps)

    @property
    def largest_roll(self) -> int:
        """Bytes of the longest frame that carries no message."""
        return 64 + self.sites * (48 + 4 * MOST_SAVED + self.heard + SIGNATURE + CERTIFICATE)

    @property
    def heard(self) -> int:
        """Bytes of the nonces of all sites."""
        return 8 * self.sites

    def signature_allowance(self, beat: float) -> Allowance:
        """How many signatures one neighbour may have this site verify: those of all sites several times a beat, and
        many more at the start, where all answer all."""
        return Allowance(SIGNATURES_PER_BEAT * self.sites / beat, SIGNATURES * self.sites)

    def validate(self, frame: Frame) -> None:
        match frame:
            case Roll(statements=statements) | Stand(statements=statements):
                self._statements(statements)
            case Join(step=step, last_received=got):
                self._step(step)
                if got != NOWHERE:
                    self._step(got.step)
            case Data(at=at) | Receipt(at):
                self._step(at.step)
            case Skip(step) | Model(step):
                self._step(step)
            case Reports(reports):
                self._reports(reports)
            case Ordered(text) if len(text) > LARGEST_ORDER:
                raise Rejected(f"an order of {len(text)} bytes")
            case _:
                pass

    def _statements(self, statements: tuple[Statement, ...]) -> None:
        if len({statement.site for statement in statements}) < len(statements):
            raise Rejected("two statements of one site")
        for statement in statements:
            if statement.site >= self.sites:
                raise Rejected(f"a statement of site {statement.site}, of {self.sites}")
            if (
                len(statement.saved) > MOST_SAVED
                or len(statement.signature) > SIGNATURE
                or len(statement.certificate) > CERTIFICATE
            ):
                raise Rejected("a statement that is too long")
            if len(statement.heard) != self.heard:
                raise Rejected(f"a statement of a site that has heard {len(statement.heard)} bytes, of {self.heard}")
            for step in (statement.step, *statement.saved):
                self._step(step)

    def _reports(self, reports: tuple[Report, ...]) -> None:
        if len({report.site for report in reports}) < len(reports):
            raise Rejected("two reports of one site")
        for report in reports:
            sites = (report.site, *report.awaited_sites, *(link.neighbour for link in report.strained))
            if (
                max(sites) >= self.sites
                or report.state >= len(STATES)
                or max(report.step, report.steps) > MOST_STEPS + 1
            ):
                raise Rejected("a report of what is not in the federation")
            if (
                len(report.awaited_sites) > MOST_AWAITED
                or len(report.strained) > MOST_STRAINED
                or len(report.certificate) > CERTIFICATE
            ):
                raise Rejected("a report that is too long")
            numbers = (report.rate, *(link.share for link in report.strained))
            if not all(map(math.isfinite, numbers)) or any(link.level > 2 for link in report.strained):
                raise Rejected("a report with a number that is not finite, or of an unknown level")

    def _step(self, step: int) -> None:
        if not 0 <= step <= self.steps:
            raise Rejected(f"step {step}, of {self.steps}")


def validate_greeting(hello: Frame, federation: Federation, run_hash: bytes, other: str, name: str) -> Hello:
    """Returns the HELLO if it names the same federation and the same run; `_compatibility` compares losses."""
    if not isinstance(hello, Hello):
        raise Rejected("no HELLO")
    if hello.federation_hash.hex() in federation.history:
        edition = federation.history.index(hello.federation_hash.hex()) + 1
        raise Rejected(
            f"{other} has edition {edition} of the federation file, and {name} has edition {federation.edition}: the "
            f"organiser has to send {other} the newest"
        )
    if hello.federation_hash != federation.hash:
        raise Rejected(f"{other} and {name} have different federation files: compare them")
    if hello.run_hash != run_hash:
        raise Rejected(
            f"{other} and {name} run different problems: compare method, step sizes, batch_size, seed, x0 and y0"
        )
    return hello


class Allowance(TokenBucket):
    """A budget of frames, and of messages that count for nothing, which raises once it is spent."""

    def spend(self, now: float) -> None:
        if not self.takes(now):
            raise Rejected("more frames or statements than the protocol allows")


class WaitBudget:
    """How long a site still waits for one neighbour, and how long it ignores the neighbour after it gave up.

    A neighbour has a budget of seconds for which the site waits for it while others have sent. Time in which the site
    is not held up refills it, so a neighbour takes at most the share `waiting` of the time. Leaving and joining again
    does not refill it. A neighbour that joins from behind has a few beats to catch up. Each time the edge is suspended
    the pause is twice as long, until the neighbour has taken part for a while.
    """

    def __init__(self, rules: FaultTolerance) -> None:
        self._rules = rules
        self._seconds_left = rules.deadline
        self._refilled_at = 0.0
        self._suspensions = 0
        self._messages_since_join = 0
        self._closed_until = 0.0
        self._behind_since: float | None = None  # when the neighbour joined from behind; None once it has caught up

    def on_join(self, now: float, *, behind: bool) -> None:
        self._messages_since_join = 0
        self._behind_since = now if behind else None

    def on_caught_up(self) -> None:
        self._behind_since = None

    def on_message(self) -> None:
        self._messages_since_join += 1
        if self._messages_since_join >= FORGIVEN_AFTER:
            self._suspensions = 0

    def spend(self, useful: float, seconds: float) -> None:
        """Takes seconds for which the site was held up. `useful` is the time so far in which it was not."""
        share = self._rules.waiting
        if share < 1:
            refill = share / (1 - share) * (useful - self._refilled_at)
            self._seconds_left = min(self._rules.deadline, self._seconds_left + refill) - seconds
            self._refilled_at = useful

    def exceeded_reason(self, now: float) -> str:
        """Why the site no longer waits for the neighbour; empty if it still does."""
        if self._behind_since is not None and now > self._behind_since + CATCH_UP_BEATS * self._rules.beat:
            return "and did not catch up"
        if self._seconds_left <= 0:
            return "in its share of the time (waiting)"
        return ""

    def on_suspend(self, now: float) -> None:
        self._closed_until = now + min(LONGEST_PAUSE, self._rules.patience * 2 ** min(self._suspensions, MOST_DOUBLED))
        self._suspensions += 1

    def may_join(self, now: float) -> bool:
        return now >= self._closed_until
