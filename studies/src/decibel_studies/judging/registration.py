"""What is fixed before the judged runs: a committed file for every study, from which the study takes its set-up.

`registered/NAME.json` holds the whole set-up of size "full" with its seeds, and for every claim whose it is, the
statistic and the tolerance. The study reads them from there, so that they cannot disagree with what is run.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from ..type_aliases import JSON
from .results import S

FOLDER = Path(__file__).parent.parent / "experiments" / "registered"
FIRST_FRESH = 1_000  # seeds below it were looked at in earlier runs and searches


class Look(TypedDict):
    """An earlier judgement of a claim with fresh seeds: under which name, and what was other than now."""

    test: str
    seeds: str
    verdict: str
    other: str


class Stated(TypedDict):
    """Of a claim: whose it is, what is tested, and what counts as level or as no worse; where it was judged with fresh
    seeds before, those judgements; and the name of the test, where another band, ring, metric or way of tuning has made
    it another one than the first."""

    whose: str
    statistic: str
    tolerance: float | None
    test: NotRequired[str]
    earlier: NotRequired[list[Look]]


@dataclass(frozen=True)
class Commits:
    """When a file of `registered/` was committed with the date that it has now, None where it was not yet, and when it
    was edited after that: in its note, say. A new date would make it another registration."""

    first: str | None
    later: tuple[str, ...] = ()


@dataclass(frozen=True)
class Registration:
    """A file of `registered/`.

    - `date`: when it was written, with the time; `commits` asks git.
    - `fresh`: whether the seeds were not looked at before; else traces of an earlier run are judged by these rules.
    - `note`: what is smaller than it should be, and what was looked at before.
    - `full`: the set-up; None where only whose claims these are is stated, and the study has the set-up in its file.
    """

    study: str
    date: str
    fresh: bool
    note: str
    claims: Mapping[str, Stated]
    full: Mapping[str, JSON] | None

    @property
    def path(self) -> Path:
        return path_of(self.study)

    def setup(self, kind: Callable[..., S]) -> S:
        """The set-up of size "full": every field of it is in the file, and nothing else."""
        names, full = {field.name for field in fields(cast("type[S]", kind))}, self.full or {}
        if names != set(full):
            differ = ", ".join(sorted(names ^ set(full)))
            raise ValueError(f"{self.path.name} and the set-up of {self.study} differ in {differ}: register it again.")
        return kind(**{name: _tuples(value) for name, value in full.items()})

    def tolerance(self, claim: str) -> float:
        """The one tolerance of a claim, for all methods."""
        value = self.claims[claim]["tolerance"]
        if value is None:
            raise ValueError(f"{self.path.name} registers no tolerance for {claim}: add one before the runs.")
        return float(value)

    def commits(self) -> Commits | None:
        """By git; None where it knows nothing of the file."""
        every = self._log()  # the latest first
        dated = self._log(f'-S"{self.date}"') if every else None
        if not every or dated is None:
            return None
        if not dated:
            return Commits(None)
        later = every[: every.index(dated[-1])]
        return Commits(dated[-1][1], tuple(date for _, date in reversed(later)))

    def _log(self, *options: str) -> list[tuple[str, str]] | None:
        """Name and date of every commit that changed the file, which may have moved; None where git does not answer."""
        command = ["git", "log", "--follow", "--diff-filter=AM", "--format=%H %aI", *options, "--", self.path.name]
        try:
            answer = subprocess.run(command, cwd=self.path.parent, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.SubprocessError):
            return None
        if answer.returncode:
            return None
        return [(name, date) for name, date in map(str.split, answer.stdout.splitlines())]


def path_of(study: str) -> Path:
    return FOLDER / f"{study.replace('/', '_').replace('-', '_')}.json"


@cache
def registered(study: str) -> Registration:
    """The registration of a study, which has one."""
    path = path_of(study)
    if not path.exists():
        raise ValueError(f"{study} is not registered: write {path.name} before its runs.")
    content, names = json.loads(path.read_text()), [field.name for field in fields(Registration)]
    return Registration(**{name: content[name] for name in names})  # a file may say more


def find(study: str) -> Registration | None:
    """The registration of a study, if there is one."""
    return registered(study) if path_of(study).exists() else None


def stated(study: str, claim: str) -> Stated:
    """What is registered of a claim; nothing where the study is not registered."""
    registration = find(study)
    nothing: Stated = {"whose": "", "statistic": "", "tolerance": None}
    return registration.claims.get(claim, nothing) if registration else nothing


def looks(study: str, claim: str) -> int:
    """How often a claim was judged with fresh seeds, this time included."""
    return 1 + len(stated(study, claim).get("earlier", []))


def _tuples(value: JSON) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
