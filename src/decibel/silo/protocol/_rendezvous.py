"""The signed statements of all sites, and what follows from them: where to start, where to skip to, when to end.

Sites pass statements on, and cannot change them. A statement counts for a site only if it contains the nonce that this
site has drawn at its start. So it was made since then, by a site that has heard of this one. Statements of an earlier
run, of an earlier start, or to another site do not count. Every site computes where to start from the statements alone.
To give up or skip something, a site needs the statements of more members than may be faulty
(`Federation.confirmations_needed`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from .._federation import Federation
from ._edge import Edge
from ._frame_limits import MOST_SAVED
from ._frames import Roll, Stand, Statement, nonces_of, write
from ._signed_board import SignedBoard, Signer


class Rendezvous(SignedBoard[Statement]):
    """The statements of all sites, as one site knows them. `nonce` is a random number that the site has drawn at its
    start; `may_rejoin` says whether the site may enter an ongoing run.
    """

    def __init__(
        self,
        federation: Federation,
        number: int,
        run_hash: bytes,
        signer: Signer,
        *,
        incarnation: int,
        nonce: int,
        may_rejoin: bool,
    ) -> None:
        super().__init__(federation, number, signer, "statement", federation.hash + run_hash)
        self._came_later = {number for number, site in enumerate(federation.sites) if site.since > 1}
        self._confirmations_needed = federation.confirmations_needed
        self._may_rejoin = may_rejoin
        self._incarnation = incarnation
        self._nonce = nonce
        self.saved: tuple[int, ...] = ()  # the steps that this site had saved at its start
        self.start: int | None = None  # the step to start from; None as long as it is not known
        # The statements from which `start` was computed; none at a site that rejoins
        self.start_statements: tuple[Statement, ...] = ()

    @property
    def is_start_known(self) -> bool:
        """Whether it is known from which step to start."""
        return self.start is not None

    @property
    def absent(self) -> list[str]:
        """The sites from which nothing was heard since this site has started."""
        fresh = {statement.site for statement in self._fresh()}
        return [name for number, name in enumerate(self._names) if number not in {*fresh, self._number}]

    # What this site says

    def sign_own(
        self, step: int, saved: Sequence[int] | None = None, *, running: bool = False, done: bool = False
    ) -> None:
        """Signs this site's own statement: where it is, what it had saved at its start, and of whom it has heard."""
        if saved is not None:
            self.saved = tuple(sorted(saved))[-MOST_SAVED:]
        last = self.by_site.get(self._number)
        statement = Statement(self._number, self._incarnation, self._nonce, 0, step, self.saved, running, done)
        heard = nonces_of([*self.by_site.values(), statement], len(self._names))
        if last is not None and last._replace(serial=0, signature=b"", certificate=b"") == statement._replace(
            heard=heard
        ):
            return
        self.keep_own(statement._replace(heard=heard, serial=0 if last is None else last.serial + 1))

    def send_roll(self, edges: Iterable[Edge], *, running: bool = False) -> None:
        """Sends the statements from which the start was computed or, before that, all that are known so far."""
        statements = self.start_statements or tuple(self.by_site.values())
        frame = write(Roll(running, statements))
        for edge in edges:
            edge.note_passed_on(statements)
            edge.send(frame)

    def send_news(self, edges: Iterable[Edge]) -> None:
        """Sends over each edge the statements that are newer than those which were passed on over it."""
        for edge in edges:
            news = self.newer_than(edge.passed_on)
            if news and edge.stream is not None:
                edge.send(write(Stand(tuple(edge.without_certificates(news)))))
                edge.note_passed_on(news)

    # What others say

    def complete_set(self, statements: Sequence[Statement]) -> tuple[Statement, ...]:
        """Returns the statements if they suffice to compute the start, else none. They suffice if they are valid and
        their sites have all heard of each other, and of this site since it started. Needs no lock."""
        if self.is_start_known or not self._complete(statements):
            return ()
        return tuple(statements) if all([self._is_valid(statement) for statement in statements]) else ()

    def _complete(self, statements: Sequence[Statement]) -> bool:
        """Whether these are statements of all sites, each at its start, and each has heard of all the others as they
        are in these statements."""
        if len(statements) < len(self._names) or any(statement.running for statement in statements):
            return False
        heard = nonces_of(statements, len(self._names))
        return all(
            statement.heard == heard and statement.has_heard(self._number, self._nonce) for statement in statements
        )

    def _fresh(self) -> list[Statement]:
        """The others' statements that were made since this site has started."""
        others = [statement for site, statement in self.by_site.items() if site != self._number]
        return [statement for statement in others if statement.has_heard(self._number, self._nonce)]

    # What follows

    def decide_start(self, edges: Collection[Edge]) -> None:
        """Computes the step to start from, if it can be known by now: the newest that all have saved. A site that may
        rejoin a run starts from its own newest if others run already."""
        if self.is_start_known or self._number not in self.by_site:
            return
        self.sign_own(0)
        offers = [
            edge.their_start_statements for edge in edges if edge.stream is not None and edge.their_start_statements
        ]
        everyone = tuple(self.by_site.values())
        if offers or self._complete(everyone):
            self._settle(offers[0] if offers else everyone, edges)
        elif (self._may_rejoin and self._under_way) or self.is_over:
            self.start = max(self.saved, default=0)
            self.send_roll(edges)

    def _settle(self, statements: tuple[Statement, ...], edges: Collection[Edge]) -> None:
        """Fixes the step from which all sites start, so that both ends of every edge remember the same flow. A site
        that came with a later edition of the federation and has saved nothing starts where the others do, and remembers
        none."""
        self.start_statements = statements
        steps = [{0, *statement.saved} for statement in statements if not self._is_new(statement)]
        self.start = max(set.intersection(*steps)) if steps else 0
        for edge in edges:
            edge.holds_flow = self.start == 0 or self.start in self.saved
        self.send_roll(edges)

    def _is_new(self, statement: Statement) -> bool:
        return statement.site in self._came_later and not statement.saved

    @property
    def new_members(self) -> list[str]:
        """The sites that came with a later edition and had saved nothing when the start was computed."""
        return [self._names[statement.site] for statement in self.start_statements if self._is_new(statement)]

    @property
    def saved_by_others(self) -> dict[str, tuple[int, ...]]:
        """The steps that each of the others had saved when the start was computed."""
        return {
            self._names[statement.site]: statement.saved
            for statement in self.start_statements
            if statement.site != self._number
        }

    @property
    def _under_way(self) -> bool:
        """Whether others run already: more than may be faulty say so, or one does and nobody is missing."""
        fresh = self._fresh()
        running = sum(statement.running for statement in fresh)
        return running >= self._confirmations_needed or (running > 0 and len(fresh) == len(self._names) - 1)

    @property
    def is_over(self) -> bool:
        """Whether others have finished: more than may be faulty say that they are done."""
        return sum(statement.done for statement in self._fresh()) >= self._confirmations_needed

    @property
    def somebody_is_not_done(self) -> bool:
        """Whether a site that is there says that it is not done."""
        return not all(statement.done for statement in self._fresh())

    @property
    def finished_by_few(self) -> list[str]:
        """The sites that say they have finished, if too few to believe them do and all others are at their start; else
        empty."""
        fresh = self._fresh()
        everyone = len(fresh) == len(self._names) - 1
        if self.is_over or not everyone or any(statement.running and not statement.done for statement in fresh):
            return []
        return [self._names[statement.site] for statement in fresh if statement.done]

    @property
    def others_done(self) -> bool:
        """Whether every other site says that it is done."""
        fresh = self._fresh()
        return len(fresh) == len(self._names) - 1 and all(statement.done for statement in fresh)

    @property
    def confirmed_step(self) -> int:
        """A step that an honest site has reached, whatever faulty ones say."""
        steps = sorted((statement.step for statement in self._fresh()), reverse=True)
        return steps[self._confirmations_needed - 1] if len(steps) >= self._confirmations_needed else 0
