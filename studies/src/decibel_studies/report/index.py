"""The index of a report: the papers' claims with two answers each, and ours with one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..judging.verdicts import ClaimRecord
from . import page as page

FORM = (
    "Reproduced: whether the paper's experiment, as far as its text fixes it, shows what the paper says. Survives: "
    "whether a stronger test still does, with tuned rivals, equal costs or other graphs."
)


@dataclass(frozen=True)
class ClaimRow:
    """A claim with the page of its study."""

    claim: ClaimRecord
    study: str
    address: str
    seeds: int
    fresh: bool


def claims_table(rows: Sequence[ClaimRow]) -> str:
    papers = [row for row in rows if row.claim["reproduced"] is not None]
    ours = [row for row in rows if row.claim["reproduced"] is None]
    parts = [f'<h1>Studies</h1><p class="soft">{FORM}</p>']
    for title, some, answers in (
        ("The papers' claims", papers, ["reproduced", "survives"]),
        ("Claims of our own", ours, ["holds"]),
    ):
        if some:
            table = page.table(["claim", *answers, "what we found", "seeds"], [_cells(row) for row in some])
            parts.append(f'<h2>{title}</h2><div class="cards">{table}</div>')
    return "".join(parts)


def _cells(row: ClaimRow) -> list[str]:
    claim = row.claim
    answers = [page.word(answer["answer"]) for answer in (claim["reproduced"], claim["survives"]) if answer]
    return [
        f'<a href="{row.address}" title="{escape(row.study)}"><strong>{escape(claim["claim"])}</strong></a> '
        + escape(claim["says"] or claim["text"]),
        *answers,
        escape(claim["finding"]),
        f'<span class="seeds">{row.seeds}{"" if row.fresh else " old"}</span>',
    ]
