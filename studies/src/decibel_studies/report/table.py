"""`python -m decibel_studies.report.table RESULTS`: judges the results of a folder once more from their traces, and
writes what was found as Markdown: a table of the papers' claims and one of ours, and a page for every claim. With
`--docs` it draws the figure of every study, too."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from .. import NAMES, find
from ..files import write_file
from ..judging import committed
from ..judging.compare import power
from ..judging.registration import Look, Stated, stated
from ..judging.registration import find as find_registration
from ..judging.verdicts import LEVEL, AnswerRecord, CheckRecord, ClaimRecord, as_number, asked
from ..testbed.reproduce import Verdicts, judge
from . import draw
from .figures import BANDS

MARKS = ("<!-- python -m decibel_studies.report.table studies/results --docs docs -->", "<!-- to here -->")
OWN_FIGURES = {"systems/gossip-vs-allreduce": 'network.svg){ width="720" }'}  # that another script draws


class Row(NamedTuple):
    """A claim, with the results of its study."""

    study: str
    claim: ClaimRecord
    saved: Verdicts

    @property
    def stated(self) -> Stated:
        return stated(self.study, self.claim["claim"])


def rows(results: Path) -> list[Row]:
    """The claims of all studies with results, in the order of their names, the papers' numbers first."""
    paths = [(name, results / name / "verdicts.json") for name in NAMES]
    saved: list[tuple[str, Verdicts]] = [(name, json.loads(path.read_text())) for name, path in paths if path.exists()]
    every = [Row(name, claim, verdicts) for name, verdicts in saved for claim in verdicts["claims"]]
    return sorted(every, key=lambda row: _order(row.claim["claim"]))


def _order(name: str) -> tuple[str, int, str]:
    digits = "".join(filter(str.isdigit, name))
    return name[0], int(digits), name


def section(every: Sequence[Row]) -> str:
    """Both tables, between marks, as the page has them."""
    papers = ["| the paper says | reproduced | survives | what we found |", "|---|---|---|---|"]
    ours = ["| our claim | holds | what we found |", "|---|---|---|"]
    for row in every:
        claim, survives = row.claim, row.claim["survives"]["answer"]
        link = f"[{claim['claim']}](claims/{claim['claim']}.md)"
        if claim["reproduced"] is None:
            ours.append(f"| {link} {claim['text']} | {survives} | {claim['finding']} |")
        else:
            words, _, source = claim["says"].rpartition(" (")
            said = f"{link} “{words}” *{source.removesuffix(')')}*"
            papers.append(f"| {said} | {claim['reproduced']['answer']} | {survives} | {claim['finding']} |")
    tables = ["### The papers' claims", "", *papers, "", "### Claims of our own", "", *ours]
    return "\n".join([MARKS[0], *tables, "", MARKS[1], ""])


def page(row: Row) -> str:
    """What there is to know of a claim: the answers, the figure, details, every check, and its history."""
    claim, study = row.claim, find(row.study)
    name, reproduced = claim["claim"], claim["reproduced"]
    figure = OWN_FIGURES.get(row.study, f"studies/{row.study.replace('/', '-')}.svg)")
    parts = [f"# {name}: {claim['text']}", f"Study `{row.study}` · [all claims](../studies.md)"]
    if reproduced is not None:
        words, _, source = claim["says"].rpartition(" (")
        parts += [f"> {words}\n>\n> {source.removesuffix(')')}", _answer("Reproduced?", reproduced)]
    parts += [
        _answer("Survives?" if reproduced else "Holds?", claim["survives"]),
        f"**{claim['finding']}**",
        f"![{study.title}](../figures/{figure}",
        "" if row.study in OWN_FIGURES else BANDS,
        f"## The study\n\n{study.about}" + (f"\n\nDiffers from the paper: {study.differs}" if study.differs else ""),
        f"## Details\n\n{claim['why']}" if claim["why"] else "",
        *_checks(row),
        *_history(row),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _answer(question: str, answer: AnswerRecord) -> str:
    asks = answer["asks"] or "the registered test"
    joined = "." if not answer["checks"] else f", tested as: {asks}." if answer["asks"] else ", by the registered test."
    reason = f" {asks}" if not answer["checks"] else ""
    return f"**{question}** {answer['answer'].capitalize()}{joined}{reason}"


def _checks(row: Row) -> list[str]:
    claim = row.claim
    fresh = "seeds that nobody had looked at before" if row.saved["fresh"] else "seeds that were looked at before"
    about = (
        f"Numbers are means over {len(row.saved['seeds'])} {fresh}, ± half the 90 % confidence interval. “A less B” is "
        f"A − B, seed by seed.{_units(claim)} [How claims are judged](../evidence/judging.md#verdicts) explains the "
        "verdicts."
    )
    name = row.stated.get("test", claim["claim"])
    parts = [
        f"## Checks\n\n{about}",
        f"The registered test, {name}: **{claim['verdict']}**.\n\n{_table(claim['checks'])}",
    ]
    for question, answer in (("reproduced", claim["reproduced"]), ("survives", claim["survives"])):
        if answer is not None and answer["asks"] and answer["checks"]:
            apart = stated(row.study, f"{claim['claim']} {question}")["statistic"]
            when = "registered later, with its own runs" if apart else "added afterwards, on the same runs"
            word = question if claim["reproduced"] else "holds"
            head = f"“{word.capitalize()}”, {answer['asks']} ({when})"
            parts.append(f"{head}: **{answer['answer']}**.\n\n{_table(answer['checks'])}")
    return parts


def _table(checks: Sequence[CheckRecord]) -> str:
    lines = ["| check | mean | should be | |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {k['text']} | {_effect(k)} | {_wanted(k)} | {k['verdict']} |" for k in checks)])


def _effect(check: CheckRecord) -> str:
    lost = sum(isinstance(value, str) for value in check["values"])
    if lost == len(check["values"]):
        return "no run ended"
    shown = _measured(as_number(check["mean"]), as_number(check["margin"]))
    return f"{shown}, {lost} of {len(check['values'])} diverged or never got there" if lost else shown


def _wanted(check: CheckRecord) -> str:
    level = f", level within {_number(check['level'])}" if check["level"] else ""
    return asked(check["low"], check["high"]).replace("-", "−") + level


def _number(value: float | str) -> str:
    return f"{as_number(value):.3g}".replace("-", "−")


def _measured(mean: float, margin: float) -> str:
    """A mean with as many decimals as its margin, which has two digits; no more than three digits in all."""
    if not math.isfinite(mean) or not 0 < margin < math.inf:
        return f"{_number(mean)} ± {_number(margin)}"
    if margin < 1e-6 < abs(mean):
        return f"{_number(mean)} ± less than 10⁻⁶"
    if max(abs(mean), margin) < 1e-4:
        scale = math.floor(math.log10(max(abs(mean), margin)))
        return f"({_measured(mean / 10**scale, margin / 10**scale)}) × {power(10**scale)}"
    decimals = 1 - math.floor(math.log10(margin))
    if abs(mean) > margin:
        decimals = min(decimals, 2 - math.floor(math.log10(abs(mean))))
    decimals = max(decimals, 0)
    rounded = round(mean, decimals) or 0.0  # no −0
    return f"{rounded:,.{decimals}f} ± {margin:,.{decimals}f}".replace("-", "−")


def _units(claim: ClaimRecord) -> str:
    """What the numbers of a claim's checks are, where they need it."""
    answers = [answer for answer in (claim["reproduced"], claim["survives"]) if answer is not None]
    checks = [*claim["checks"], *(check for answer in answers for check in answer["checks"])]
    words = {
        " A difference of 0.0969 in log₁₀ is a factor of 1.25, and one of 0.301 a factor of two.": any(
            "log₁₀" in check["text"] for check in checks
        ),
        " Accuracies lie between 0 and 1.": any(
            word in check["text"] for check in checks for word in ("accuracy", "precision", "error rate")
        ),
        " “Level within” gives the band within which two methods count as equal.": any(
            check["level"] for check in checks
        ),
    }
    return "".join(sentence for sentence, needed in words.items() if needed)


def _history(row: Row) -> list[str]:
    stated_now, registration = row.stated, find_registration(row.study)
    looks = [*stated_now.get("earlier", [])]
    name = stated_now.get("test", row.claim["claim"])
    seeds = row.saved["seeds"]
    now: Look = {
        "test": name,
        "seeds": f"{seeds[0]}–{seeds[-1]}",
        "verdict": row.claim["verdict"],
        "other": "this one",
    }
    lines = ["| look | test | seeds | verdict | what was different |", "|---|---|---|---|---|"]
    lines += [
        f"| {i} | {look['test']} | {look['seeds']} | {look['verdict']} | {look['other']} |"
        for i, look in enumerate([*looks, now], 1)
    ]
    share = 100 * LEVEL / 2 ** (len(looks) + 1)
    parts = [
        f"## History\n\nWhose claim: {stated_now['whose']}. Registered on {_date(row.saved['registered'])}: "
        f"{stated_now['statistic']}.",
        "\n".join(lines),
        f"A look is one time that results were judged. The error level of this look is {share:.2g} %, and that of all "
        "looks together 5 %. "
        "A test with another band, ring, metric or way of tuning has another name.",
    ]
    return [*parts, f"Note of the registration: {registration.note}"] if registration and registration.note else parts


def _date(written: str | None) -> str:
    return f"{datetime.fromisoformat(written).astimezone(UTC):%Y-%m-%d at %H:%M UTC}" if written else "no date"


def remembered(every: Sequence[Row]) -> str:
    """What `decibel reproduce` shows beside its own verdicts."""
    known: dict[str, dict[str, committed.Committed]] = {}
    for row in every:
        reproduced = row.claim["reproduced"]
        known.setdefault(row.study, {})[row.claim["claim"]] = {
            "verdict": row.claim["verdict"],
            "reproduced": None if reproduced is None else reproduced["answer"],
            "survives": row.claim["survives"]["answer"],
            "seeds": len(row.saved["seeds"]),
        }
    return json.dumps(known, indent=1) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="a folder that `decibel reproduce --out` wrote")
    parser.add_argument("--docs", type=Path, help="the folder with studies.md, whose tables are replaced, and figures")
    given = parser.parse_args()
    for name in NAMES:
        if (given.results / name / "verdicts.json").exists():
            judge(find(name), given.results)
    every = rows(given.results)
    if given.docs is None:
        print(section(every), end="")
        return
    text = (given.docs / "studies.md").read_text()
    before, rest = text.split(MARKS[0] + "\n")
    write_file(given.docs / "studies.md", before + section(every) + rest.split(MARKS[1] + "\n")[1])
    for row in every:
        write_file(given.docs / "claims" / f"{row.claim['claim']}.md", page(row))
    write_file(committed.PATH, remembered(every))
    for name in {row.study for row in every} - set(OWN_FIGURES):
        draw(name, given.results, given.docs / "figures" / "studies" / f"{name.replace('/', '-')}.svg")


if __name__ == "__main__":
    main()
