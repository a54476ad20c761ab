"""What a frame may say: every field is bounded by the signed federation, before anything is done about it.

And how much of it: a neighbour has an allowance of frames that carry no message, which grows with time.
"""

from __future__ import annotations

from typing import NamedTuple

from ._errors import Rejected
from ._federation import Federation
from ._frames import Data, Frame, Hello, Join, Position, Roll, Skip, Stand, Statement

LAST = 2**30 - 1  # the largest number of steps, where the federation names none
MOST_SAVED = 16  # steps that a site tells to have saved
SIGNATURE, CERTIFICATE = 80, 4096  # bytes
NOWHERE = Position(-1, -1)
BURST, PER_BEAT, PER_SECOND = 200, 4, 20  # frames without a message


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
    """HELLO, if it is of the same federation and the same problem."""
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

    def __init__(self, beat: float) -> None:
        self._rate, self._left, self._at = PER_SECOND + PER_BEAT / beat, float(BURST), 0.0

    def spend(self, now: float) -> None:
        self._left = min(float(BURST), self._left + self._rate * (now - self._at)) - 1
        self._at = now
        if self._left < 0:
            raise Rejected("more frames than the protocol allows")


class WaitingTime:
    """How long a site will still wait for one neighbour: a share of the time that passes, and all of it by default."""

    def __init__(self, share: float, deadline: float) -> None:
        self._share, self._most = share, share * deadline
        self._left, self._at = self._most, 0.0

    def spend(self, now: float, seconds: float = 0.0) -> None:
        self._left = min(self._most, self._left + self._share * (now - self._at)) - seconds
        self._at = now

    @property
    def over(self) -> bool:
        return self._share < 1 and self._left <= 0

    def enough(self, now: float) -> bool:
        """Whether one that was set aside may come back."""
        self.spend(now)
        return self._share >= 1 or self._left >= self._most / 2
