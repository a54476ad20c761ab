"""The verdicts of the results in the repository, which `decibel reproduce` shows beside its own."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TypedDict

PATH = Path(__file__).with_suffix(".json")


class Committed(TypedDict):
    """Of a claim: the verdict of its registered test, the answers to both questions, and the seeds."""

    verdict: str
    reproduced: str | None
    survives: str
    seeds: int


@cache
def _all() -> dict[str, dict[str, Committed]]:
    return json.loads(PATH.read_text()) if PATH.exists() else {}


def of(study: str) -> dict[str, Committed]:
    """By claim."""
    return _all().get(study, {})
