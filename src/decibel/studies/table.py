"""`python -m decibel.studies.table RESULTS`: the verdicts of a folder of results as a table in Markdown."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from . import NAMES, find
from .verdicts import CheckRecord, ClaimRecord

HEADER = (
    "| claim | verdict | run again | checks that hold | the check nearest to its threshold, mean ± margin | seeds |"
)


def markdown(results: Path) -> str:
    """A row for each claim of every study: its verdict, and that of a second run, where the folder holds its verdicts
    as `again.json`; of its checks, how many hold, and the one that decides."""
    rows = [HEADER, "|---|---|---|---|---|---|"]
    for name in NAMES:
        judged, seeds = _claims(results / name / "verdicts.json")
        again, seeds_again = _claims(results / name / "again.json")
        for claim in (each.name for each in find(name).claims):
            if claim not in judged:
                rows.append(f"| {claim} `{name}` | not run at full size yet | | | | |")
                continue
            second = again[claim]["verdict"] if claim in again else ""
            if second and seeds_again != seeds:
                second += f" ({seeds_again} seeds)"
            rows.append(_row(judged[claim], name, second, seeds))
    return "\n".join(rows) + "\n"


def _claims(path: Path) -> tuple[dict[str, ClaimRecord], int]:
    """What a file of verdicts says of each claim, and from how many seeds."""
    saved = json.loads(path.read_text()) if path.exists() else {"claims": [], "seeds": []}
    return {claim["claim"]: claim for claim in saved["claims"]}, len(saved["seeds"])


def _row(claim: ClaimRecord, study: str, again: str, seeds: int) -> str:
    checks = claim["checks"]
    held = sum(check["verdict"] == "holds" for check in checks)
    nearest = min(checks, key=_distance)
    numbers = f"{_number(nearest['mean'])} ± {_number(nearest['margin'])}"
    if not any(isinstance(value, float) for value in nearest["values"]):
        numbers = "all runs diverged or never got there"
    text = f"{nearest['text']}: {numbers} (threshold: {nearest['side']} {_number(nearest['threshold'])})"
    verdicts = f"{claim['claim']} `{study}` | {claim['verdict']} | {again}"
    return f"| {verdicts} | {held} of {len(checks)} | {text} | {seeds} |"


def _distance(check: CheckRecord) -> float:
    """How many margins the mean lies on the right side of the threshold."""
    mean, margin, sign = float(check["mean"]), float(check["margin"]), 1 if check["side"] == "above" else -1
    if not math.isfinite(mean) or not math.isfinite(margin):
        return math.inf if check["verdict"] == "holds" else -math.inf
    return sign * (mean - check["threshold"]) / max(margin, 1e-12)


def _number(value: float | str) -> str:
    return f"{float(value):.3g}".replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="a folder that `decibel reproduce --out` wrote")
    print(markdown(parser.parse_args().results), end="")


if __name__ == "__main__":
    main()
