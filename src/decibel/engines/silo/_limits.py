"""What a frame may say: every field is bounded by the signed federation, before anything is done about it.

And how much of it: a neighbour has an allowance of frames that carry no message, which grows with time.
"""

from __future__ import annotations

from typing import NamedTuple

from ._errors import Rejected
from ._federation import FaultTolerance, Federation
from ._frames import Data, Frame, Hello, Join, Position, Roll, Skip, Stand, Statement

LAST = 2**30 - 1  # the largest number of steps, where the federation names none
MOST_SAVED = 16  # steps that a site tells to have saved
SIGNATURE, CERTIFICATE = 80, 4096  # bytes
NOWHERE, FINISHED = Position(-1, -1), Position(2**62, 0)
BURST, PER_BEAT, PER_SECOND = 200, 4, 20  # frames without a message
NEWEST_BURST, NEWEST_PER_SECOND = 20_000, 5_000  # messages, where none is awaited
CATCH_UP = 4  # beats in which a neighbour that was away comes to where the others are
GOOD = 1000  # messages after which it is forgotten that an edge was suspended
LONGEST = 3600.0  # seconds before a suspended neighbour is heard again


class Limits(NamedTuple):
    """Of one federation."""

    sites: int
    steps: int

    @classmethod
    def of(cls, federation: Federation) -> Limits:
        return cls(len(federation.sites), LAST if federation.steps is None else federation.steps)

    @property
    def largest_roll(self) -> int:
        """Bytes of the longest frame that carries no message."""
        return 64 + self.sites * (32 + 4 * MOST_SAVED + SIGNATURE + CERTIFICATE)

    def validate(self, frame: Frame) -> None:
        match frame:
            case Roll(statements=statements) | Stand(statements=statements):
                self._statements(statements)
            case Join(step=step, got=got):
                self._step(step)
                if got != NOWHERE:
                    self._step(got.step)
            case Data(at=at):
                self._step(at.step)
            case Skip(step):
                self._step(step)
            case _:
                pass

    def _statements(self, statements: tuple[Statement, ...]) -> None:
        if len({one.site for one in statements}) < len(statements):
            raise Rejected("two statements of one site")
        for one in statements:
            if one.site >= self.sites:
                raise Rejected(f"a statement of site {one.site}, of {self.sites}")
            if len(one.saved) > MOST_SAVED or len(one.signature) > SIGNATURE or len(one.certificate) > CERTIFICATE:
                raise Rejected("a statement that is too long")
            for step in (one.step, *one.saved):
                self._step(step)

    def _step(self, step: int) -> None:
        if not 0 <= step <= self.steps:
            raise Rejected(f"step {step}, of {self.steps}")


def validate_greeting(hello: Frame, federation: bytes, problem: bytes, other: str, own: str) -> Hello:
    """HELLO, if it is of the same federation and the same problem; losses are compared in `_build`."""
    if not isinstance(hello, Hello):
        raise Rejected("no HELLO")
    if hello.federation != federation:
        raise Rejected(f"{other} and {own} have different federation files: compare them")
    if hello.problem != problem:
        raise Rejected(
            f"{other} and {own} run different problems: compare method, step sizes, batch_size, seed, x0 and y0"
        )
    return hello


class Allowance:
    """Spent by frames, and by messages that count for nothing; refilled by time."""

    def __init__(self, beat: float = 0.0, *, rate: float = 0.0, burst: int = BURST) -> None:
        self._rate, self._burst = rate or PER_SECOND + PER_BEAT / beat, float(burst)
        self._left, self._at = self._burst, 0.0

    def spend(self, now: float) -> None:
        self._left = min(self._burst, self._left + self._rate * (now - self._at)) - 1
        self._at = now
        if self._left < 0:
            raise Rejected("more frames than the protocol allows")


class Patience:
    """How long a site still waits for one neighbour, and how long it will not hear of it again after it gave up.

    A neighbour that joins from behind has a few beats to catch up. If the federation sets a share of the time
    (`waiting`), what a site waits for this neighbour alone, while all others have sent, is taken from that share. Each
    time the edge is suspended the pause is twice as long, until the neighbour has taken part for a while.
    """

    def __init__(self, rules: FaultTolerance) -> None:
        self._rules, self._most = rules, rules.waiting * rules.deadline
        self._left, self._at = self._most, 0.0
        self._strikes, self._used, self._again = 0, 0, 0.0
        self._joined: float | None = None  # when it joined from behind; None once it has caught up

    def joined(self, now: float, *, behind: bool) -> None:
        self._left, self._used = self._most, 0
        self._joined = now if behind else None

    def caught_up(self) -> None:
        self._joined = None

    def took_part(self) -> None:
        self._used += 1
        if self._used >= GOOD:
            self._strikes = 0

    def spend(self, now: float, seconds: float) -> None:
        self._left = min(self._most, self._left + self._rules.waiting * (now - self._at)) - seconds
        self._at = now

    def over(self, now: float) -> str:
        """Why it is not waited for any longer; nothing if it is."""
        if self._joined is not None and now > self._joined + CATCH_UP * self._rules.beat:
            return "and did not catch up"
        if self._rules.waiting < 1 and self._left <= 0:
            return "in its share of the time (waiting)"
        return ""

    def suspended(self, now: float) -> None:
        self._again = now + min(LONGEST, self._rules.patience * 2**self._strikes)
        self._strikes += 1

    def may_join(self, now: float) -> bool:
        return now >= self._again
