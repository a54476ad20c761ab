"""The newest of what every site says about itself, signed by it. Sites pass it on and cannot change it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from .._errors import NotTrusted, Rejected
from .._federation import Federation
from ._frame_limits import Allowance
from ._frames import Report, Statement

if TYPE_CHECKING:
    from ..trust._signing import Purpose

T = TypeVar("T", Statement, Report)


class Signer(Protocol):
    """Signs for one site and checks others: its key, and the authority that certifies them."""

    def sign(self, purpose: Purpose, text: bytes) -> tuple[bytes, bytes]:
        """A signature, and the certificate to verify it by."""
        ...

    def has_signed(self, name: str, purpose: Purpose, certificate: bytes, signature: bytes, text: bytes) -> bool:
        """Whether a site of that name has signed it; raises `NotTrusted` if its certificate no longer holds."""
        ...


class Newest(Generic[T]):
    """What one site knows of all. Signatures are of `about` and the text."""

    def __init__(self, federation: Federation, number: int, signer: Signer, purpose: Purpose, about: bytes) -> None:
        self._names = federation.names
        self._number = number
        self._signer = signer
        self._purpose: Purpose = purpose
        self._about = about
        self.known: dict[int, T] = {}

    def keep_own(self, text: T) -> None:
        """What this site says now, signed."""
        signature, certificate = self._signer.sign(self._purpose, self._about + text.text())
        self.known[self._number] = text._replace(signature=signature, certificate=certificate)

    def checked(self, said: Iterable[T], allowance: Allowance, now: float) -> list[T]:
        """Those that are valid and newer than what is known. Checking signatures takes time and needs no lock;
        `allowance` limits their number.
        """
        held: list[T] = []
        for statement in said:
            if self._is_news(statement):
                allowance.spend(now)
                if self._holds(statement):
                    held.append(statement)
        return held

    def take(self, checked: Iterable[T]) -> bool:
        """Keeps those that are still newer; whether any is of a start that was not known."""
        news = False
        for statement in checked:
            if self._is_news(statement):
                news = news or statement.incarnation != self.incarnation_of(statement.site)
                self.known[statement.site] = statement
        return news

    def incarnation_of(self, site: int) -> int:
        """The newest that is known of a site; 0 if none is."""
        return self.known[site].incarnation if site in self.known else 0

    def newer_than(self, told: Mapping[int, tuple[int, int]]) -> list[T]:
        """What is newer than what somebody was told before, by site."""
        return [statement for statement in self.known.values() if told.get(statement.site, (-1, -1)) < statement.order]

    def _is_news(self, statement: T) -> bool:
        last = self.known.get(statement.site)
        return statement.site != self._number and (last is None or statement.order > last.order)

    def _holds(self, statement: T) -> bool:
        """Whether it was signed, and its certificate holds. Who passed it on may not know yet that a key was revoked,
        but has checked the signature."""
        name = self._names[statement.site]
        text = self._about + statement.text()
        try:
            if not self._signer.has_signed(name, self._purpose, statement.certificate, statement.signature, text):
                raise Rejected(f"a {self._purpose} of {name} that {name} has not signed")
        except NotTrusted:
            return False
        return True
