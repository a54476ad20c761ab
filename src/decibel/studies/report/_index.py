"""The index of a report: every claim in a row, with its effect size and a small figure of its checks."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..table import deciding, effect, number
from ..verdicts import EQUIVALENT, HOLDS, CheckRecord, ClaimRecord, as_number
from . import _page as page

WIDTH, HEIGHT, REACH = 130, 54, 5.0  # of a figure: its width, most of its height, and how many margins it shows
DIGITS = 6  # behind the point, at most
LINES = (5.0, 11.0)  # of a figure: the least and the largest distance of two checks
SHORT, LEAST = 12, 5  # words of a claim that is not cut, and of what is left of another
ENDS = re.compile(r"[.;:](?= )|,(?= (?:and|while|where|against) )")  # where a claim may be cut
FORM = (
    "Claims on decentralized bilevel optimization, of papers and ours. Effect: of the check that decides, a mean over "
    "seeds ± half its 90\u00a0% interval. Figures: a line for every check; right of the bar it speaks for the claim, "
    "hollow it lies beyond the figure. Point at a text for more."
)


@dataclass(frozen=True)
class Row:
    """A claim with the page of its study."""

    claim: ClaimRecord
    study: str
    address: str
    seeds: int
    fresh: bool
    date: str
    registered: str | None


def index(rows: Sequence[Row]) -> str:
    counts = page.counts([row.claim["verdict"] for row in rows])
    found = ", ".join(f'<span class="{kind}">{words}</span>' for kind, words in counts.items())
    headings = ["claim", "verdict", "effect", "allowed", "checks", "whose", "seeds", "run"]
    table = page.table(headings, [_cells(row) for row in rows])
    return (
        f'<h1>Studies</h1><p class="counts">{len(rows)} claims: {found}.</p>'
        f'<p class="soft">{FORM}</p><div class="cards">{table}</div>'
    )


def _cells(row: Row) -> list[str]:
    claim = row.claim
    text = short(claim["text"], whole=claim["verdict"] != HOLDS)
    return [
        f'<a href="{row.address}" title="{escape(row.study)}"><strong>{escape(claim["claim"])}</strong></a> '
        + _told(text, claim["text"]),
        page.word(claim["verdict"]),
        f'<span title="{escape(effect(claim))}">{size(claim)}</span>',
        f'<span class="allowed">{allowed(deciding(claim))}</span>',
        forest(claim["checks"]),
        _told(claim["whose"].split("; ")[0], claim["whose"]),
        f'<span class="seeds" title="{escape(_seeds(row))}">{row.seeds}{"" if row.fresh else " old"}</span>',
        f'<span class="date">{escape(row.date[:10])}</span>',
    ]


def _told(text: str, whole: str) -> str:
    """A few words, and more where one points at them."""
    return escape(text) if text == whole else f'<span title="{escape(whole)}">{escape(text)}</span>'


def _seeds(row: Row) -> str:
    registered = f"registered {row.registered[:10]}" if row.registered and row.fresh else "registered afterwards"
    return f"{row.seeds} {'fresh' if row.fresh else 'old'} seeds" + (f", {registered}" if row.registered else "")


def short(text: str, *, whole: bool) -> str:
    """A claim in few words. Of one that holds every part holds; of another a part may, and all parts are kept."""
    text = re.sub(r" \([^()]*\)", "", text)
    ends = [] if whole or len(text.split()) <= SHORT else [text[: end.start()] for end in ENDS.finditer(text)]
    return next((f"{start}\u00a0…" for start in ends if len(start.split()) >= LEAST), text)


def size(claim: ClaimRecord) -> str:
    """The effect of the check that decides, to the digits that its margin leaves."""
    check = deciding(claim)
    lost, runs = sum(isinstance(value, str) for value in check["values"]), len(check["values"])
    if lost == runs:
        return "no run ended" if lost else ""
    mean, margin = as_number(check["mean"]), as_number(check["margin"])
    digits = 1 - math.floor(math.log10(margin)) if 0 < margin < math.inf else -1
    few = (lambda value: f"{value:.{digits}f}".replace("-", "−")) if 0 <= digits <= DIGITS else number
    return f"{few(mean)}\u00a0±{few(margin)}" + (f", without {lost} of {runs}" if lost else "")


def allowed(check: CheckRecord) -> str:
    """Where the mean should lie; of a check that is level, within what it is so."""
    low, high = as_number(check["low"]), as_number(check["high"])
    if math.isinf(high):
        ends = _beyond("&gt;", low)
    else:
        ends = _beyond("&lt;", high) if math.isinf(low) else f"{number(low)}\u00a0to\u00a0{number(high)}"
    return f"{ends}, level within\u00a0{number(check['level'])}" if check["verdict"] == EQUIVALENT else ends


def _beyond(sign: str, end: float) -> str:
    return f"{sign}\u00a0{number(end)}" if end < 0 else f"{sign}{number(end)}"  # apart from another sign


def forest(checks: Sequence[CheckRecord]) -> str:
    """The checks of a claim as intervals beside their threshold."""
    line = min(LINES[1], max(LINES[0], HEIGHT / max(1, len(checks))))
    height, dot = line * len(checks) + 6, 0.13 * line + 1.8
    place = lambda x: WIDTH / 2 + (WIDTH / 2 - 8) * max(-REACH, min(REACH, x)) / REACH  # noqa: E731
    bar = f"M{place(0):.0f} 0v{height:.0f}"
    parts = [f'<path d="{bar}" stroke="currentColor" stroke-width="1" stroke-dasharray="2 2"/>']
    for i, check in enumerate(checks):
        y, centre = 3 + line * (i + 0.5), _margins(check)
        inside = abs(centre) <= REACH
        low, high, at = place(centre - 1), place(centre + 1), place(centre)
        colour, fill = f"var(--{check['verdict']})", f"var(--{check['verdict']})" if inside else "var(--paper)"
        parts.append(
            f"<g><title>{escape(check['text'])}</title>"
            f'<path d="M{low:.1f} {y:.1f}H{high:.1f}" stroke="{colour}" stroke-width="2"/>'
            f'<circle cx="{at:.1f}" cy="{y:.1f}" r="{dot:.1f}" fill="{fill}" stroke="{colour}" stroke-width="1.5"/></g>'
        )
    return (
        f'<svg class="forest" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" role="img" '
        f'aria-label="{page.checks(checks)}">{"".join(parts)}</svg>'
    )


def _margins(check: CheckRecord) -> float:
    """How many margins the mean lies on the right side of its threshold, of the nearer one of two."""
    mean, margin, low, high = (as_number(check[name]) for name in ("mean", "margin", "low", "high"))
    distance = min(mean - low, high - mean)
    if not math.isfinite(distance) or not math.isfinite(margin):  # no run ended, or there is but one
        return {"holds": math.inf, "fails": -math.inf}.get(check["verdict"], 0.0)
    return distance / max(margin, 1e-12)
