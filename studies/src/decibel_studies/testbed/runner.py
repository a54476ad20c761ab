"""`decibel reproduce`: one study here, or several in processes of their own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from scipy.stats import norm

from decibel.tasks.data import DataError

from .. import NAMES, SIZES, find
from ..judging import committed
from ..judging.committed import Committed
from ..judging.verdicts import EQUIVALENT, FAILS, HOLDS, LEVEL, UNDECIDED, Check, Verdict
from . import step_sizes
from .reproduce import in_processes, reproduce
from .study import Study

COLOURS = {HOLDS: "green", FAILS: "red", EQUIVALENT: "cyan", UNDECIDED: "yellow"}


def run(
    names: list[str],
    size: str,
    out: Path | None,
    *,
    fresh: bool,
    tune: bool,
    jobs: int,
    several: bool,
    console: Console,
) -> tuple[Path, list[str]]:
    """Runs studies, and prints what they found.

    Args:
        names: of the studies; "all" is every one.
        size: of their set-ups.
        out: the folder of the results; None is one in the working folder.
        fresh: run again what has results.
        tune: search step sizes first.
        jobs: studies to run in parallel, each in a process of its own.
        several: whether this is one of those processes: a study whose data are missing is then left out.
        console: to print on.

    Returns:
        The folder of the results, and the studies that were run in this process.
    """
    if size not in SIZES:
        raise ValueError(f"--size {size} is not known: choose {', '.join(SIZES)}.")
    chosen = list(NAMES) if "all" in names else names
    for name in chosen:
        find(name)
    folder = out or Path("decibel-results") / size
    if len(chosen) > 1 and jobs > 1:
        options = [*(["--fresh"] if fresh else []), *(["--tune"] if tune else [])]
        failed = []
        for name, said, wrong in in_processes(chosen, size, folder, jobs=jobs, options=options):
            console.print(said.rstrip(), markup=False)
            failed += [name] if wrong else []
        if failed:
            raise ValueError(f"{', '.join(sorted(failed))} failed: see the output above.")
        return folder, []
    done: list[str] = []
    for name in chosen:
        try:
            _reproduce(name, size, folder, fresh=fresh, tune=tune, console=console)
            done.append(name)
        except DataError as error:
            if len(chosen) == 1 and not several:
                raise
            console.print(f"  skipped: {error}", style="yellow", soft_wrap=True)
    return folder, done


def _reproduce(name: str, size: str, folder: Path, *, fresh: bool, tune: bool, console: Console) -> None:
    study = find(name)
    say = partial(console.print, style="dim", soft_wrap=True, markup=False)
    console.print(f"[bold]{name}[/] ({size}): {study.title}")
    if tune:
        step_sizes.search(study, size, say=say)
    verdicts = reproduce(study, size, folder, fresh=fresh, say=say)
    known = committed.of(name)
    console.print(table(verdicts, known))
    if size != "full" and known:
        for sentence in beside_committed(study, size, verdicts, known):
            console.print(sentence, soft_wrap=True, markup=False)
    console.print(f"Traces, verdicts and settings are in {folder / name}.", soft_wrap=True)


def table(verdicts: Sequence[Verdict[Any]], known: Mapping[str, Committed]) -> Table:
    """A row for each claim: its verdict here and the committed one."""
    shown = Table("claim", "here", "committed", "", box=None, padding=(0, 2, 0, 0))
    for verdict in verdicts:
        name, colour = verdict.claim.name, COLOURS[verdict.verdict]
        there = known[name]["verdict"] if name in known else "none yet"
        tally = [each.verdict for each in verdict.judged]
        counts = ", ".join(f"{tally.count(word)} {word}" for word in COLOURS if word in tally)
        ours = f"[{colour}]{verdict.verdict}[/]"
        shown.add_row(name, ours, there, f"{verdict.claim.text} [dim]checks: {counts}[/]")
    return shown


def beside_committed(
    study: Study[Any], size: str, verdicts: Sequence[Verdict[Any]], known: Mapping[str, Committed]
) -> list[str]:
    """Why verdicts of this size may differ from those at full size, and what this size is too small to decide."""
    chosen, full = (dataclasses.asdict(study.setup(name)) for name in (size, "full"))
    others = [name.replace("_", " ") for name in full if chosen[name] != full[name] and name != "seeds"]
    seeds, most = len(chosen["seeds"]), len(full["seeds"])
    what = f"{seeds} {'seed' if seeds == 1 else 'seeds'} instead of {most}"
    if others:
        what += f", and other {', '.join(others)}"
    said = [f"The committed verdicts are those of size full. This size has {what}."]
    for verdict in verdicts:
        name = verdict.claim.name
        if name not in known or verdict.verdict == known[name]["verdict"]:
            continue
        if verdict.verdict == UNDECIDED:
            weak = [each.check for each in verdict.judged if each.verdict == UNDECIDED]
            check = max(weak, key=lambda check: needed(check, verdict.looks))
            least = needed(check, verdict.looks)
            some = f"about {least:,} seeds" if math.isfinite(least) else "more seeds than can be told"
            said.append(f"{name}: too few seeds to decide. “{check.text}” would need {some} of this set-up.")
        else:
            said.append(
                f"{name}: {verdict.verdict} here, {known[name]['verdict']} at full size. This is another experiment: "
                "it does not test what was registered, and does not contradict it."
            )
    return said


def needed(check: Check, looks: int) -> float:
    """The seeds with which an effect of this size would be settled: the interval shrinks with their root."""
    distance = abs(check.mean - check.threshold)
    if not (math.isfinite(check.margin) and distance > 0):
        return math.inf
    wider = norm.isf(LEVEL / 2**looks) / norm.isf(LEVEL)
    return math.ceil(len(check.values) * (wider * check.margin / distance) ** 2) + 1
