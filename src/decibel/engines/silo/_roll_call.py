"""Who is there: what every site says of itself, signed by it, and what follows when all have spoken.

Sites pass statements on, and cannot change them. Where to start is computed by every site from the statements, and from
nothing else; a neighbour's own word is never enough to give up a step or to skip one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from ._edge import Edge
from ._errors import NotTrusted, Rejected
from ._federation import Federation
from ._frames import Roll, Statement, write
from ._limits import MOST_SAVED


class Signer(Protocol):
    """Of one site: its key, and the authority that certifies others."""

    def sign_statement(self, text: bytes) -> tuple[bytes, bytes]:
        """A signature, and the certificate to verify it by."""
        ...

    def check_statement(self, name: str, certificate: bytes, signature: bytes, text: bytes) -> bool:
        """Whether a site of that name has signed it; raises `NotTrusted` if its certificate no longer holds."""
        ...


class RollCall:
    """What one site knows of all."""

    def __init__(self, federation: Federation, number: int, problem: bytes, incarnation: int, signer: Signer) -> None:
        self._names = [site.name for site in federation.sites]
        self._number, self._incarnation, self._signer = number, incarnation, signer
        self._about = federation.hash + problem
        self._certificates: dict[int, bytes] = {}
        self._saved: tuple[int, ...] = ()
        self.known: dict[int, Statement] = {}
        self.settled, self._start = False, 0
        self.counted: tuple[Statement, ...] = ()  # by which the first step was settled; none at a site that returns

    @property
    def absent(self) -> list[str]:
        return [name for number, name in enumerate(self._names) if number not in {*self.known, self._number}]

    def say(self, step: int, saved: Sequence[int] | None = None, *, done: bool = False) -> None:
        """This site's own statement: where it is, at its start what it has saved, and whether it is done."""
        if saved is not None:
            self._saved = tuple(sorted(saved))[-MOST_SAVED:]
        own = Statement(self._number, self._incarnation, step, self._saved, done=done)
        if (old := self.known.get(self._number)) is None or (*old[:4], old.done) != (*own[:4], done):
            signature, certificate = self._signer.sign_statement(self._about + own.text())
            self.known[self._number] = own._replace(signature=signature, certificate=certificate)

    def take(self, statements: Iterable[Statement]) -> bool:
        """Keeps those that are newer and hold; whether any was new by more than its step."""
        news = False
        for one in statements:
            old = self.known.get(one.site)
            if one.site == self._number or (old is not None and one[1:3] <= old[1:3]):
                continue
            if (held := self._verified(one)) is not None:
                news = news or old is None or old.incarnation != one.incarnation
                self.known[one.site] = held
        return news

    def _verified(self, one: Statement) -> Statement | None:
        """With its certificate, if it holds. Who passed it on may not know yet that a key was revoked, but has checked
        the signature."""
        certificate = one.certificate or self._certificates.get(one.site, b"")
        name, text = self._names[one.site], self._about + one.text()
        try:
            if not self._signer.check_statement(name, certificate, one.signature, text):
                raise Rejected(f"a statement of {name} that {name} has not signed")
        except NotTrusted:
            return None
        self._certificates[one.site] = certificate
        return one._replace(certificate=certificate)

    def settle(self, saved: Sequence[int], edges: Collection[Edge], *, returns: bool) -> int | None:
        """The step to start from, None as long as it is not known: the newest that all have saved. A site that may
        return while others run takes its own newest."""
        if self.settled:
            return self._start
        for edge in edges:
            if edge.stream is not None and edge.basis:
                return self._settle(edge.basis, edges)
            if edge.stream is not None and edge.running and returns:
                self.settled, self._start = True, max(saved, default=0)
                self.tell(edges)
                return self._start
        everyone = tuple(self.known.values())
        return self._settle(everyone, edges) if len(everyone) == len(self._names) else None

    def _settle(self, statements: tuple[Statement, ...], edges: Collection[Edge]) -> int:
        """All start from the same step, and both ends of every edge remember the same."""
        self.settled, self.counted = True, statements
        self._start = max(set.intersection(*({0, *one.saved} for one in statements)))
        for edge in edges:
            edge.holds = True
        self.tell(edges)
        return self._start

    def basis(self, roll: Roll) -> tuple[Statement, ...]:
        """The statements by which a neighbour has settled, if it counted this site as it is now, and all others. Who
        passes on what was not signed is rejected here, on arrival."""
        own = self.known.get(self._number)
        if own is None or not roll.settled or len(roll.statements) < len(self._names):
            return ()
        if not any(one[:2] == own[:2] for one in roll.statements):
            return ()
        held = [self._verified(one) for one in roll.statements if one.site != self._number]
        good = tuple(one for one in held if one is not None)
        return (own, *good) if len(good) == len(held) else ()

    def tell(self, edges: Collection[Edge], *, running: bool = False) -> None:
        """The statements that were counted, or all that are known so far."""
        frame = write(Roll(self.settled, running, self.counted or tuple(self.known.values())))
        for edge in edges:
            edge.say(frame)

    def positions(self, told: dict[int, Statement]) -> tuple[Statement, ...]:
        """The statements that are newer than those that were `told`, which is brought up to date. A certificate that
        was sent is not sent again."""
        new = [one for one in self.known.values() if one.site not in told or told[one.site][1:3] < one[1:3]]
        sent = {site: one.certificate for site, one in told.items()}
        told.update({one.site: one for one in new})
        return tuple(one._replace(certificate=b"") if sent.get(one.site) == one.certificate else one for one in new)

    @property
    def others_done(self) -> bool:
        """Whether every other site's newest statement says that it is done."""
        others = [one.done for site, one in self.known.items() if site != self._number]
        return len(others) == len(self._names) - 1 and all(others)

    @property
    def confirmed(self) -> int:
        """A step that somebody has reached even if one site lies: the second largest, of three sites or more."""
        steps = sorted(one.step for site, one in self.known.items() if site != self._number)
        wanted = 2 if len(self._names) > 2 else 1
        return steps[-wanted] if len(steps) >= wanted else 0
