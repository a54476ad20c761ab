"""A view of the whole federation, from the signed reports of its sites: as rows, as JSON, and as a page."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import NamedTuple

from decibel.network import LEVELS

from .._federation import Federation
from ..protocol._frames import STATES, Report
from ..trust._order import Order
from ._bulletin import EVERY
from ._site_status import ENDED

STALE = 3 * EVERY  # seconds after which a report is late
STYLE = """
:root { color-scheme: light dark; --soft: #5b6875; --line: #d9e0e6; --bad: #c22f3d }
@media (prefers-color-scheme: dark) { :root { --soft: #a3aeb8; --line: #323a43; --bad: #ff7a85 } }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif }
h1 { font-size: 1.4rem } p { color: var(--soft) } .bad { color: var(--bad) } .wide { overflow-x: auto }
table { border-collapse: collapse; width: 100% } th { text-align: left; color: var(--soft); font-weight: 600 }
th, td { padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
.name, .number { white-space: nowrap } .number { text-align: right; font-variant-numeric: tabular-nums }
"""
HEADINGS = ("site", "state", "step", "steps/s", "reported", "near its limit")


class SiteRow(NamedTuple):
    """One site. Its step and its age in seconds are None where it has never reported."""

    site: str
    state: str
    step: int | None
    steps: int
    rate: float
    age: float | None
    near_limit: tuple[str, ...]

    @property
    def is_well(self) -> bool:
        return self.state.split()[0] in ("starting", "compiling", "waiting", "running", "finished")

    @property
    def cells(self) -> tuple[str, ...]:
        """As people read it, in the order of `HEADINGS`."""
        if self.step is None or self.age is None:
            return self.site, self.state, "", "", "", ""
        step = f"{self.step} of {self.steps}"
        return self.site, self.state, step, f"{self.rate:.3g}", f"{self.age:.0f} s ago", ", ".join(self.near_limit)


class View(NamedTuple):
    """All sites, and why the authority has stopped them; nothing if it has not."""

    federation: str
    order: str
    rows: tuple[SiteRow, ...]


def view(federation: Federation, reports: Iterable[Report], order: Order | None, now: float) -> View:
    """The view at a Unix time."""
    report_of = {report.site: report for report in reports}
    names = [site.name for site in federation.sites]
    rows = tuple(_row(name, report_of.get(number), names, now) for number, name in enumerate(names))
    return View(federation.name, order.sentence if order is not None and order.stop else "", rows)


def _row(name: str, report: Report | None, names: list[str], now: float) -> SiteRow:
    if report is None:
        return SiteRow(name, "no report", None, 0, 0.0, None, ())
    age = max(0.0, now - report.time)
    state = STATES[report.state]
    if age > STALE and state not in ENDED:
        state = f"no report for {age:.0f} s (was {state})"
    elif report.awaited_sites and state == "waiting":
        state = f"waiting for {', '.join(names[number] for number in report.awaited_sites)}"
    strained = tuple(f"{LEVELS[link.level]} from {names[link.neighbour]}: {link.share:.0%}" for link in report.strained)
    return SiteRow(name, state, report.step, report.steps, report.rate, age, strained)


def page(shown: View) -> str:
    """The view as a web page. It needs no script, and reloads every few seconds."""
    rows = "".join(_html(row) for row in shown.rows)
    order = f'<p class="bad">{escape(shown.order)}</p>' if shown.order else ""
    headings = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{EVERY:g}">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(shown.federation)}</title>'
        f"<style>{STYLE}</style></head><body><h1>Federation {escape(shown.federation)}</h1>{order}"
        f'<div class="wide"><table><thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table></div>'
        "<p>Every site signs its report, by its own clock. The last column names flows that are near flow_limit.</p>"
        "</body></html>"
    )


def _html(row: SiteRow) -> str:
    site, state, *numbers, strained = (escape(cell) for cell in row.cells)
    bad = "" if row.is_well else ' class="bad"'
    cells = "".join(f'<td class="number">{number}</td>' for number in numbers)
    return f'<tr><td class="name">{site}</td><td{bad}>{state}</td>{cells}<td>{strained}</td></tr>'
