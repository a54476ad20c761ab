"""The index of a report: every claim in a row, with its effect size and a small figure of its checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..table import effect
from ..verdicts import CheckRecord, ClaimRecord, as_number
from . import _page as page

WIDTH, LINE, REACH = 180, 13, 5.0  # of a figure: its width, the height of a check, and how many margins it shows
FORM = (
    "Each line is a check: the mean over seeds with its 90 % interval, in units of half that interval. Right of the "
    "bar it speaks for the claim, left of it against; a hollow point lies beyond the figure."
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
    tally = [row.claim["verdict"] for row in rows]
    counts = ", ".join(f"{tally.count(word)} {page.OF_SEVERAL[word]}" for word in page.WORDS if word in tally)
    table = page.table(
        ["claim", "whose", "verdict", "the check that decides: effect size and interval", "all checks", "study"],
        [_cells(row) for row in rows],
    )
    return (
        "<h1>Studies</h1><p>What papers on decentralized bilevel optimization claim, and what their experiments, run "
        f"again, show. Of {len(rows)} claims {counts}.</p>"
        f'<p class="soft">{FORM}</p><div class="cards">{table}</div>'
    )


def _cells(row: Row) -> list[str]:
    claim = row.claim
    seeds = f"{row.seeds} {'fresh' if row.fresh else 'old'} seeds"
    registered = f"registered {row.registered[:10]}" if row.registered and row.fresh else "registered afterwards"
    about = f"{seeds}, {registered if row.registered else f'run {row.date[:10]}'}"
    return [
        f"<strong>{escape(claim['claim'])}</strong> {escape(claim['text'])}",
        escape(claim["whose"]),
        page.word(claim["verdict"]),
        escape(effect(claim)),
        forest(claim["checks"]),
        f'<a href="{row.address}">{escape(row.study)}</a><br><small>{escape(about)}</small>',
    ]


def forest(checks: Sequence[CheckRecord]) -> str:
    """The checks of a claim as intervals beside their threshold."""
    height = LINE * len(checks) + 6
    place = lambda x: WIDTH / 2 + (WIDTH / 2 - 8) * max(-REACH, min(REACH, x)) / REACH  # noqa: E731
    parts = [f'<path d="M{place(0):.0f} 0v{height}" stroke="currentColor" stroke-width="1" stroke-dasharray="2 2"/>']
    for i, check in enumerate(checks):
        y, centre = 3 + LINE * (i + 0.5), _margins(check)
        inside = abs(centre) <= REACH
        low, high, at = place(centre - 1), place(centre + 1), place(centre)
        colour, fill = f"var(--{check['verdict']})", f"var(--{check['verdict']})" if inside else "var(--paper)"
        parts.append(
            f"<g><title>{escape(check['text'])}</title>"
            f'<path d="M{low:.1f} {y:.1f}H{high:.1f}" stroke="{colour}" stroke-width="2"/>'
            f'<circle cx="{at:.1f}" cy="{y:.1f}" r="3.5" fill="{fill}" stroke="{colour}" stroke-width="1.5"/></g>'
        )
    words = "; ".join(f"{check['text']}: {page.WORDS[check['verdict']]}" for check in checks)
    return (
        f'<svg class="forest" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(words)}">{"".join(parts)}</svg>'
    )


def _margins(check: CheckRecord) -> float:
    """How many margins the mean lies on the right side of its threshold, of the nearer one of two."""
    mean, margin, low, high = (as_number(check[name]) for name in ("mean", "margin", "low", "high"))
    distance = min(mean - low, high - mean)
    if not math.isfinite(distance) or not math.isfinite(margin):  # no run ended, or there is but one
        return {"holds": math.inf, "fails": -math.inf}.get(check["verdict"], 0.0)
    return distance / max(margin, 1e-12)
