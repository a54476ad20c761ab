"""What sites pass on for people: signed reports of how each site is doing, and the authority's newest order. Sites
cannot change them. No step depends on a report.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from decibel.core import atomic_write
from decibel.network import LEVELS

from .._errors import NotTrusted, Rejected
from ..protocol._edge import Edge
from ..protocol._frame_limits import MOST_AWAITED, MOST_STRAINED
from ..protocol._frames import STATES, Ordered, Report, Reports, Strained, parse, write
from ..protocol._signed_board import SignedBoard
from ..trust._order import Order
from ._site_status import state_and_detail

if TYPE_CHECKING:
    from ..protocol._site import Site
    from ..trust._credentials import Credentials

EVERY = 5.0  # seconds between two reports of a site
NEAR_LIMIT = 0.8  # of its limit, from which on a flow is named
FILE = "federation-status.json"  # in a site's folder


class Bulletin:
    """The newest reports of all sites, as one site knows them. Signatures are checked without the site's lock."""

    def __init__(self, site: Site, credentials: Credentials) -> None:
        self.site = site
        self._credentials = credentials
        self._names = [member.name for member in site.federation.sites]
        self._lock = threading.Lock()
        self._reports = SignedBoard[Report](site.federation, site.number, credentials, "report", site.federation.hash)
        self._passed_on: dict[int, dict[int, tuple[int, int]]] = {}  # by neighbour and site, what was passed on last
        self._signature_allowances = {
            number: site.limits.signature_allowance(site.fault_tolerance.beat) for number in site.edges
        }
        self._reported_at = 0.0
        self._order_passed_on = 0  # the number of the order that was passed on last
        site.bulletin = self

    @property
    def reports(self) -> list[Report]:
        with self._lock:
            return [report for _, report in sorted(self._reports.by_site.items())]

    @property
    def order(self) -> Order | None:
        """The authority's newest order."""
        return self._credentials.trust.order

    def greet(self, edge: Edge) -> None:
        """Tells the neighbour on a new stream all that is known."""
        self._passed_on.pop(edge.number, None)
        if self.order is not None:
            edge.send(write(Ordered(self._credentials.trust.order_text)))

    def hear(self, edge: Edge, frame: Reports | Ordered) -> None:
        """Takes what a neighbour passes on; raises `Rejected` if a signature is wrong."""
        if isinstance(frame, Ordered):
            self._hear_order(frame.text)
            return
        passed_on = self._passed_on.setdefault(edge.number, {})
        for report in frame.reports:
            passed_on[report.site] = max(passed_on.get(report.site, (0, 0)), report.order)
        news = self._reports.valid_news(frame.reports, self._signature_allowances[edge.number], self.site.clock.now())
        with self._lock:
            self._reports.take(news)

    def _hear_order(self, text: bytes) -> None:
        try:
            self._credentials.trust.take_order(text)
        except NotTrusted as error:
            raise Rejected(str(error)) from None
        self.obey()

    def obey(self) -> None:
        """Passes a new order on, and ends this site's run if it says so."""
        order = self.order
        if order is None or order.number <= self._order_passed_on:
            return
        self._order_passed_on = order.number
        frame = write(Ordered(self._credentials.trust.order_text))
        with self.site.lock:
            for edge in self.site.edges.values():
                edge.send(frame)
            if order.stop:
                self.site.order_to_stop(order.sentence)

    def send_reports(self, *, last: bool = False) -> None:
        """Called every `beat` and at the end: sends this site's own report, and newer ones of others."""
        now = time.monotonic()
        if now >= self._reported_at + EVERY or last:
            self._reported_at = now
            own_report = self._own_report()
            with self._lock:
                self._reports.keep_own(own_report)
        for edge in self.site.edges.values():
            if edge.stream is None:
                continue
            passed_on = self._passed_on.setdefault(edge.number, {})
            with self._lock:
                news = [report for report in self._reports.newer_than(passed_on) if report.site != edge.number]
            if news:
                passed_on.update((report.site, report.order) for report in news)
                with self.site.lock:
                    edge.send(write(Reports(tuple(news))))

    def _own_report(self) -> Report:
        site = self.site
        with site.lock:
            word, _ = state_and_detail(site, site.clock.now())
            numbers = {name: number for number, name in enumerate(self._names)}
            last = self._reports.by_site.get(site.number)
            return Report(
                site.number,
                site.incarnation,
                0 if last is None else last.serial + 1,
                int(time.time()),
                STATES.index(word),
                site.next_step if site.finished else site.health.step,
                site.goal,
                site.health.rate,
                tuple(numbers[name] for name in list(site.health.awaited)[:MOST_AWAITED]),
                tuple(_strained(site)[:MOST_STRAINED]),
            )

    def save(self, folder: Path) -> None:
        """Saves all with signatures, for `decibel silo watch`; errors of the disk are raised."""
        frame = base64.b64encode(write(Reports(tuple(self.reports)))).decode()
        content = {"federation": self.site.federation.name, "order": self._credentials.trust.order_text.decode()}
        atomic_write(folder / FILE, json.dumps(content | {"reports": frame}), durable=False)


def _strained(site: Site) -> list[Strained]:
    """Links whose flow is near its limit, the nearest first."""
    strained: list[Strained] = []
    for edge in site.edges.values():
        for level, flow in edge.flows.items():
            if flow.limit is not None and flow.now >= NEAR_LIMIT * flow.limit:
                strained.append(Strained(edge.number, LEVELS.index(level), min(flow.now / flow.limit, 1e6)))
    return sorted(strained, key=lambda link: -link.share)


def load_reports(frame: str) -> Reports:
    """The reports of a saved file; raises `ValueError` if it holds anything else."""
    reports = parse(base64.b64decode(frame, validate=True))
    if not isinstance(reports, Reports):
        raise ValueError("the file does not hold reports of sites.")
    return reports
