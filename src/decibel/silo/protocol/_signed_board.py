"""The newest statement or report of every site, signed by it. Sites pass these on and cannot change them."""

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


class SignedBoard(Generic[T]):
    """The newest statement, or report, of every site, as one site knows them. A signature is of `context` and of the
    bytes of the statement."""

    def __init__(self, federation: Federation, number: int, signer: Signer, purpose: Purpose, context: bytes) -> None:
        self._names = federation.names
        self._number = number
        self._signer = signer
        self._purpose: Purpose = purpose
        self._context = context
        self.by_site: dict[int, T] = {}

    def keep_own(self, statement: T) -> None:
        """Signs what this site says now, and keeps it."""
        signature, certificate = self._signer.sign(self._purpose, self._context + statement.signed_bytes())
        self.by_site[self._number] = statement._replace(signature=signature, certificate=certificate)

    def valid_news(self, candidates: Iterable[T], allowance: Allowance, now: float) -> list[T]:
        """The candidates that are valid and newer than what is known. Checking signatures takes time and needs no lock;
        `allowance` limits their number.
        """
        valid: list[T] = []
        for statement in candidates:
            if self._is_news(statement):
                allowance.spend(now)
                if self._is_valid(statement):
                    valid.append(statement)
        return valid

    def take(self, valid: Iterable[T]) -> bool:
        """Keeps the statements that are still newer; returns whether one is of a start that was not known."""
        some_site_restarted = False
        for statement in valid:
            if self._is_news(statement):
                some_site_restarted |= statement.incarnation != self.incarnation_of(statement.site)
                self.by_site[statement.site] = statement
        return some_site_restarted

    def incarnation_of(self, site: int) -> int:
        """The newest incarnation that is known of a site; 0 if none is."""
        return self.by_site[site].incarnation if site in self.by_site else 0

    def newer_than(self, passed_on: Mapping[int, tuple[int, int]]) -> list[T]:
        """The statements that are newer than those which were passed on to somebody before, by site."""
        return [
            statement
            for statement in self.by_site.values()
            if passed_on.get(statement.site, (-1, -1)) < statement.order
        ]

    def _is_news(self, statement: T) -> bool:
        last = self.by_site.get(statement.site)
        return statement.site != self._number and (last is None or statement.order > last.order)

    def _is_valid(self, statement: T) -> bool:
        """Whether the site has signed the statement, and its certificate is valid.

        Only a wrong signature raises: the site that passed the statement on has checked it, but may not know yet that a
        key was revoked.
        """
        name = self._names[statement.site]
        text = self._context + statement.signed_bytes()
        try:
            if not self._signer.has_signed(name, self._purpose, statement.certificate, statement.signature, text):
                raise Rejected(f"a {self._purpose} of {name} that {name} has not signed")
        except NotTrusted:
            return False
        return True
