"""What `decibel silo watch` does: the whole federation, from the signed reports that one of its sites has kept."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from decibel.core import atomic_write, plain, read_file

from .._errors import NotTrusted
from ..observe._bulletin import FILE, load_reports
from ..observe._view import HEADINGS, View, page, view
from ..protocol._frame_limits import Limits
from ..protocol._frames import Report
from ..trust._authority import CERTIFICATE, REVOKED
from ..trust._certificates import load_certificate, read_revoked
from ..trust._credentials import Signatures, load_federation
from ..trust._order import Order, read_order


def watch(
    homes: Sequence[Path], public: Path | None, console: Console, *, every: float, once: bool, to_page: Path | None
) -> None:
    """Shows the federation until Ctrl-C, or once, or as a web page in a file."""
    if not homes:
        raise ValueError(f"no folder with {FILE} was found: name a site's folder, where the site has run.")
    if to_page is not None:
        atomic_write(to_page, page(look(homes, public)))
        console.print(f"{to_page} shows the federation as it is now.", soft_wrap=True, markup=False)
        return
    if once:
        console.print(_table(look(homes, public)))
        return
    with Live(_table(look(homes, public)), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(_table(look(homes, public)), refresh=True)


def look(homes: Sequence[Path], public: Path | None) -> View:
    """The newest report of every site, of those that are signed by it."""
    folder = public or homes[0]
    authority = load_certificate(folder / CERTIFICATE)
    federation = load_federation(folder, authority)
    revoked = read_revoked(read_file(folder / REVOKED), authority, federation.name, str(folder / REVOKED))
    names = [site.name for site in federation.sites]
    signatures = Signatures(authority, len(names))
    newest: dict[int, Report] = {}
    orders: list[Order] = []
    for home in homes:
        reports, order = _read(home / FILE, Limits.of(federation))
        if order:
            orders.append(read_order(order, authority, federation.name, str(home / FILE)))
        for report in reports:
            text = federation.hash + report.signed_bytes()
            try:
                good = signatures.has_signed(
                    names[report.site], "report", report.certificate, report.signature, text, revoked, datetime.now(UTC)
                )
            except NotTrusted:
                continue  # its certificate has ended or is revoked
            if not good:
                raise ValueError(f"{home / FILE} has a report that {names[report.site]} has not signed: get it again.")
            if report.site not in newest or report.order > newest[report.site].order:
                newest[report.site] = report
    order = max(orders, key=lambda order: order.number, default=None)
    return view(federation, newest.values(), order, time.time())


def _read(path: Path, limits: Limits) -> tuple[Sequence[Report], str]:
    try:
        content = json.loads(read_file(path))
        reports = load_reports(content["reports"])
        limits.validate(reports)
        return reports.reports, str(content["order"])
    except (KeyError, TypeError, RecursionError, ValueError) as error:
        reason = "" if isinstance(error, KeyError | TypeError) else f": {error}"
        raise ValueError(f"{path} cannot be read{reason or '.'}") from None


def _table(shown: View) -> Table:
    title = f"[bold]{escape(shown.federation)}[/]" + (f": {escape(plain(shown.order))}" if shown.order else "")
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in HEADINGS:
        table.add_column(heading)
    for row in shown.rows:
        style = None if row.is_well else "red"
        table.add_row(*(escape(plain(cell)) for cell in row.cells), style=style)
    return table
