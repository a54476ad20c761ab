"""Pages that need nothing else: no network, no script; readable on a phone, in print, in light and in dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from ..judging.results import Runs
from ..judging.verdicts import CANNOT_TELL, NO, PARTLY, YES, AnswerRecord, CheckRecord, ClaimRecord, asked
from ..type_aliases import JSON
from .figures import Style, label_of

STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #5b6875; --paper: #fff; --line: #d9e0e6; --card: #f6f8fa;
  --holds: #0a7d4f; --fails: #c22f3d; --undecided: #97690a; --equivalent: #1f6fb2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #a3aeb8; --paper: #14181d; --line: #323a43;
  --card: #1b2128; --holds: #3ecf8e; --fails: #ff7a85; --undecided: #f0b849; --equivalent: #6cb6ff; } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 76rem; padding: 1rem clamp(.8rem, 3vw, 2rem) 4rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.55 system-ui, sans-serif }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 1rem 0 .3rem } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem }
h1, h2, h3 { break-after: avoid }
p { max-width: 48rem } a { color: inherit } .soft { color: var(--soft) } small { color: var(--soft) }
table { border-collapse: collapse; font-size: .92rem } th, td { text-align: left; vertical-align: top;
  padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line) } th { font-weight: 600; color: var(--soft) }
.date { white-space: nowrap }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.wide { overflow-x: auto } @media (max-width: 40rem) { .wide table { min-width: 36rem } }
details { margin: .3rem 0 } summary { cursor: pointer; color: var(--soft) }
.verdict { font-weight: 700; white-space: nowrap } .holds { color: var(--holds) } .fails { color: var(--fails) }
.undecided { color: var(--undecided) } .equivalent { color: var(--equivalent) }
.cards td { padding-block: .25rem } .cards td:first-child { min-width: 20rem }
@media (max-width: 76rem) { .cards :is(table, tbody, td) { display: block } .cards thead { display: none }
  .cards tr { display: flow-root; border-bottom: 1px solid var(--line); padding: .5rem 0 }
  .cards td { border: 0; padding: .1rem 0 } .cards td:first-child { min-width: 0 }
  .cards td:not(:first-child) { display: inline-block; padding-right: .8rem }
  .cards .seeds::after { content: " seeds" } }
.claim { background: var(--card); border-left: .3rem solid var(--line); padding: .6rem .9rem; margin: .6rem 0;
  border-radius: .2rem } .claim.holds, .claim.fails, .claim.undecided, .claim.equivalent { color: inherit }
.claim.holds { border-color: var(--holds) } .claim.fails { border-color: var(--fails) }
.claim.undecided { border-color: var(--undecided) } .claim.equivalent { border-color: var(--equivalent) }
.claim p { margin: .2rem 0 }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: .8rem }
.panels figure, .graphs figure { margin: 0 } .panels figure { max-width: 30rem } .graphs figure { width: 10rem }
.panels svg { width: 100%; height: auto; color: var(--soft) }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .4rem 0; font-size: .92rem }
.legend svg { width: 2.2rem; height: .8rem; vertical-align: middle }
.graphs { display: flex; flex-wrap: wrap; gap: 1rem } .graphs svg { width: 10rem; height: auto; color: var(--soft) }
figcaption { font-size: .88rem; color: var(--soft) }
.tabs > input { position: absolute; opacity: 0 } .tabs > label { display: inline-block; padding: .15rem .7rem;
  border: 1px solid var(--line); border-radius: 1rem; margin: 0 .3rem .5rem 0; cursor: pointer; font-size: .9rem }
.tabs > input:checked + label { background: var(--ink); color: var(--paper) }
.tabs > input:focus-visible + label { outline: 2px solid var(--holds) } .tabs > .panels { display: none }
.tabs > input:nth-of-type(1):checked ~ .panels:nth-of-type(1) { display: grid }
.tabs > input:nth-of-type(2):checked ~ .panels:nth-of-type(2) { display: grid }
.tabs > input:nth-of-type(3):checked ~ .panels:nth-of-type(3) { display: grid }
.tabs > input:nth-of-type(4):checked ~ .panels:nth-of-type(4) { display: grid }
.tabs > input:nth-of-type(5):checked ~ .panels:nth-of-type(5) { display: grid }
@media print { body { max-width: none; font-size: 10pt } .tabs > .panels { display: grid }
  .tabs > input, .tabs > label { display: none } .panels { grid-template-columns: 1fr 1fr }
  .panels figure, .graphs figure, .claim > p, tr { break-inside: avoid } .wide { overflow: visible }
  details::details-content { content-visibility: visible; block-size: auto } }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"  # no script ever runs
WORDS = {"holds": "holds", "fails": "does not hold", "equivalent": "equivalent", "undecided": "undecided"}
ANSWERS = {YES: "holds", PARTLY: "equivalent", NO: "fails", CANNOT_TELL: "undecided"}  # in the colour of a verdict
OF_SEVERAL = {"holds": "hold", "fails": "do not hold", "equivalent": "end level", "undecided": "are undecided"}


def page(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def claim(verdict: ClaimRecord) -> str:
    kind = verdict["verdict"]
    said = f"<p>“{escape(verdict['says'])}”</p>" if verdict["says"] else ""
    finding = "".join(f"<p>{escape(text)}</p>" for text in (verdict["finding"], verdict["why"]) if text)
    answers = _answer("Reproduced", verdict["reproduced"]) if verdict["reproduced"] else ""
    answers += _answer("Survives" if answers else "Holds", verdict["survives"])
    return (
        f'<div class="claim {kind}"><p><strong>{escape(verdict["claim"])}</strong> {escape(verdict["text"])}'
        f" <small>{escape(verdict['whose'])}</small></p>{said}{answers}{finding}"
        f"<details><summary>Registered test: {WORDS[kind]}; {checks(verdict['checks'])}</summary>"
        f"{_rows(verdict['checks'])}</details></div>"
    )


def _answer(question: str, answer: AnswerRecord) -> str:
    shown = f"<p><strong>{question}?</strong> {word(answer['answer'])} {escape(answer['asks'])}</p>"
    if not answer["asks"] or not answer["checks"]:
        return shown
    return shown + f"<details><summary>{checks(answer['checks'])}</summary>{_rows(answer['checks'])}</details>"


def _rows(records: Sequence[CheckRecord]) -> str:
    rows = [
        [
            escape(check["text"]) + _parts(check),
            _number(check["mean"]),
            "± " + _number(check["margin"]),
            _number(check["spread"]),
            asked(check["low"], check["high"]) + _level(check),
            _least(check),
            word(check["verdict"]),
        ]
        for check in records
    ]
    headings = ["check", "mean", "margin", "spread", "should be", "p, corrected", "verdict"]
    return f'<div class="wide">{table(headings, rows, numbers=(1, 2, 3, 5))}</div>'


def checks(records: Sequence[CheckRecord]) -> str:
    """How many there are, and of every verdict."""
    words = ", ".join(counts([check["verdict"] for check in records]).values())
    return f"{'1 check' if len(records) == 1 else f'{len(records)} checks'}: {words}"


def counts(verdicts: Sequence[str]) -> dict[str, str]:
    """Of every verdict how often it is there, in words; verdicts go into attributes, and others are refused."""
    if unknown := set(verdicts) - set(WORDS):
        raise ValueError(f"verdicts.json has the verdict {min(unknown)!r}: it must be one of {', '.join(WORDS)}.")
    numbers = {kind: verdicts.count(kind) for kind in WORDS if kind in verdicts}
    return {kind: f"{count} {(WORDS if count == 1 else OF_SEVERAL)[kind]}" for kind, count in numbers.items()}


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    kinds = [' class="number"' if i in numbers else "" for i in range(max(map(len, [headings, *rows])))]
    cells = "".join(f'<th scope="col"{kind}>{escape(text)}</th>' for kind, text in zip(kinds, headings, strict=False))
    head = f"<thead><tr>{cells}</tr></thead>" if any(headings) else ""
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=False)) + "</tr>"
        for row in rows
    )
    return f"<table>{head}<tbody>{body}</tbody></table>"


def legend(styles: Mapping[str, Style]) -> str:
    items = []
    for label, (colour, dashes) in styles.items():
        pattern = "" if isinstance(dashes, str) else f' stroke-dasharray="{" ".join(f"{2 * d:g}" for d in dashes[1])}"'
        line = f'<svg viewBox="0 0 36 12"><path d="M1 6h34" stroke="{colour}" stroke-width="3"{pattern}/></svg>'
        items.append(f"<span>{line} {escape(label)}</span>")
    return f'<div class="legend">{"".join(items)}</div>'


def tabs(name: str, sheets: Mapping[str, Sequence[str]]) -> str:
    """Sheets of figures of which one shows, chosen without a script; in print all show."""
    if len(sheets) == 1:
        return panels(next(iter(sheets.values())))
    buttons = "".join(
        f'<input type="radio" name="{name}" id="{name}-{i}"{" checked" if i == 0 else ""}>'
        f'<label for="{name}-{i}">{escape(words)}</label>'
        for i, words in enumerate(sheets)
    )
    return f'<div class="tabs">{buttons}{"".join(map(panels, sheets.values()))}</div>'


def panels(figures: Sequence[str]) -> str:
    return f'<div class="panels">{"".join(f"<figure>{figure}</figure>" for figure in figures)}</div>'


def ends(runs: Sequence[Runs], columns: Sequence[str]) -> str:
    """The last values: mean and standard deviation over seeds."""
    rows = []
    for run in runs:
        cells = []
        for column in columns:
            values = run.last(column) if column in run.columns else np.array([np.nan])
            spread = f" ± {values.std(ddof=1):.2g}" if len(values) > 1 else ""
            cells.append(f"{values.mean():.4g}{spread}" if np.isfinite(values).all() else "–")
        diverged = sum(stop is not None for stop in run.stopped)
        note = f"{diverged} of {len(run.traces)} diverged" if diverged else ""
        rows.append([escape(run.case), escape(run.label), *cells, note])
    names = [label_of(column) for column in columns]
    noted = any(row[-1] for row in rows)
    headings = ["case", "run", *names, *(["note"] if noted else [])]
    return table(headings, [row[: len(headings)] for row in rows], numbers=range(2, 2 + len(columns)))


def plain(values: Mapping[str, JSON]) -> str:
    shown = {name: _listed(value) if name == "seeds" else _shown(value) for name, value in values.items()}
    return table([], [[escape(name.replace("_", " ")), escape(value)] for name, value in shown.items()])


def _listed(value: JSON) -> str:
    """Numbers that name something, and count nothing."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _shown(value: JSON) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def word(verdict: str) -> str:
    """A verdict or an answer, in its colour; what is neither is refused, since it goes into an attribute."""
    if verdict in ANSWERS:
        return f'<span class="verdict {ANSWERS[verdict]}">{verdict}</span>'
    return f'<span class="verdict {verdict}">{WORDS[verdict]}</span>'


def _parts(check: CheckRecord) -> str:
    """The cases that a check pools."""
    each = "; ".join(f"{part['text']}: {_number(part['mean'])} ± {_number(part['margin'])}" for part in check["parts"])
    return f"<br><small>{escape(each)}</small>" if len(check["parts"]) > 1 else ""


def _level(check: CheckRecord) -> str:
    return f"; level within {_number(check['level'])}" if check["level"] else ""


def _least(check: CheckRecord) -> str:
    """The p-value of what the verdict says; where it is undecided, of the claim."""
    name = {"fails": "fails", "equivalent": "level"}.get(check["verdict"], "holds")
    return f"{check['p'][name]:.2g}"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _number(value: float | str) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "–" if value == "nan" else escape(str(value))
