"""`python -m decibel.studies.table RESULTS`: the verdicts of a folder of results as a table in Markdown, and a
paragraph on every claim that did not hold."""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path

from ..core._files import atomic_write
from . import NAMES, find
from .reproduce import Verdicts
from .verdicts import EQUIVALENT, FAILS, HOLDS, UNDECIDED, CheckRecord, ClaimRecord, as_number, asked

HEADER = "| claim | whose | verdict | the check that decides: effect size and interval | seeds |"
MARKS = ("<!-- python -m decibel.studies.table docs/results --into docs/studies.md -->", "<!-- to here -->")
DECIDES = {HOLDS: "holds", FAILS: "fails", EQUIVALENT: "level", UNDECIDED: "holds"}


def markdown(results: Path) -> str:
    """A row for each claim of every study: whose it is, its verdict, and the check that decides."""
    rows = [HEADER, "|---|---|---|---|---|"]
    for name in NAMES:
        saved = _saved(results / name / "verdicts.json")
        again = {
            claim["claim"]: claim["verdict"] for claim in (_saved(results / name / "again.json") or _NONE)["claims"]
        }
        for claim in find(name).claims:
            judged = next((each for each in saved["claims"] if each["claim"] == claim.name), None) if saved else None
            if saved is None or judged is None:
                rows.append(f"| {claim.name} `{name}` | | not run at full size yet | | |")
                continue
            second = f" (again: {again[claim.name]})" if claim.name in again else ""
            words = f"{claim.name} `{name}` | {judged['whose']} | {judged['verdict']}{second} | {effect(judged)}"
            rows.append(f"| {words} | {len(saved['seeds'])} {'fresh' if saved['fresh'] else 'old'} |")
    return "\n".join(rows) + "\n"


_NONE: dict[str, list[ClaimRecord]] = {"claims": []}


def paragraphs(results: Path) -> str:
    """Why a claim did not hold, for each that did not, and what there is to say on others."""
    found = [claim for name in NAMES for claim in (_saved(results / name / "verdicts.json") or _NONE)["claims"]]
    told = [f"**{claim['claim']}, {claim['verdict']}.** {claim['why']}" for claim in found if claim["why"]]
    return "\n\n".join(textwrap.fill(text, 120, break_long_words=False) for text in told) + "\n"


def counts(results: Path) -> str:
    """How many claims there are of every verdict, those of the papers' numbers first."""
    found = [claim for name in NAMES for claim in (_saved(results / name / "verdicts.json") or _NONE)["claims"]]
    words = [claim["verdict"] for claim in found]
    kinds = (HOLDS, EQUIVALENT, UNDECIDED, FAILS)
    return ", ".join(f"{words.count(word)} {word}" for word in kinds if word in words) + f", of {len(words)}"


def _saved(path: Path) -> Verdicts | None:
    return json.loads(path.read_text()) if path.exists() else None


def deciding(claim: ClaimRecord) -> CheckRecord:
    """Of the checks with the claim's verdict: the one that came nearest to another, or failed most clearly."""
    word = claim["verdict"]
    own = [check for check in claim["checks"] if check["verdict"] == word] or claim["checks"]
    strength = lambda check: check["p"][DECIDES[word]]  # noqa: E731
    return min(own, key=strength) if word == FAILS else max(own, key=strength)


def effect(claim: ClaimRecord) -> str:
    """The check that decides, with the effect size, its interval, and where it should lie."""
    check = deciding(claim)
    numbers = f"{number(check['mean'])} ± {number(check['margin'])}"
    lost = sum(isinstance(value, str) for value in check["values"])
    if lost == len(check["values"]):
        numbers = "no run ended" if lost else ""
    elif lost:
        numbers += f", {lost} of {len(check['values'])} diverged or never got there"
    level = f", level within {number(check['level'])}" if check["level"] else ""
    return f"{check['text']}: {numbers} ({asked(check['low'], check['high']).replace('-', '−')}{level})"


def number(value: float | str) -> str:
    return f"{as_number(value):.3g}".replace("-", "−")


def section(results: Path) -> str:
    """All of it, between marks, as a page has it."""
    return f"{MARKS[0]}\n{counts(results)} claims.\n\n{markdown(results)}\n{paragraphs(results)}\n{MARKS[1]}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="a folder that `decibel reproduce --out` wrote")
    parser.add_argument("--into", type=Path, help="a page, whose part between two marks is replaced")
    given = parser.parse_args()
    made, page = section(given.results), given.into
    if page is None:
        print(made, end="")
        return
    before, rest = page.read_text().split(MARKS[0] + "\n")
    atomic_write(page, before + made + rest.split(MARKS[1] + "\n")[1])


if __name__ == "__main__":
    main()
