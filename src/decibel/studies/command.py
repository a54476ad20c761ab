"""`decibel reproduce`: one study here, or several in processes of their own."""

from __future__ import annotations

from pathlib import Path

from ..core._optional import optional
from ..tasks.data import DataError
from . import NAMES, find, settings
from .reproduce import in_processes, reproduce
from .study import SIZES
from .verdicts import Verdict

with optional("rich", caller="decibel reproduce", extra="cli"):
    from rich.console import Console
    from rich.table import Table

COLOURS = {"holds": "green", "fails": "red", "equivalent": "cyan", "undecided": "yellow"}


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
    """The folder of the results, and the studies that were run in this process. One of `several` is left out where its
    data are not there; alone, that is an error."""
    if size not in SIZES:
        raise ValueError(f"--size {size} is not known: choose {', '.join(SIZES)}.")
    chosen = list(NAMES) if "all" in names else names
    for name in chosen:
        find(name)
    with optional("matplotlib", caller="decibel reproduce", extra="plot"):
        import matplotlib  # noqa: F401 - draws at the end
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
            _one(name, size, folder, fresh=fresh, tune=tune, console=console)
            done.append(name)
        except DataError as error:
            if len(chosen) == 1 and not several:
                raise
            console.print(f"  skipped: {error}", style="yellow", soft_wrap=True)
    return folder, done


def _one(name: str, size: str, folder: Path, *, fresh: bool, tune: bool, console: Console) -> None:
    study = find(name)
    say = lambda text: console.print(text, style="dim", soft_wrap=True, markup=False)  # noqa: E731
    console.print(f"[bold]{name}[/] ({size}): {study.title}")
    if tune:
        settings.search(study, size, say=say)
    verdicts = reproduce(study, size, folder, fresh=fresh, say=say)
    console.print(table(verdicts))
    console.print(f"Traces, verdicts and settings are in {folder / name}.", soft_wrap=True)


def table(verdicts: list[Verdict]) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for verdict in verdicts:
        colour = COLOURS[verdict.verdict]
        tally = [each.verdict for each in verdict.judged]
        counts = ", ".join(f"{tally.count(word)} {word}" for word in COLOURS if word in tally)
        made.add_row(verdict.claim, f"[{colour}]{verdict.verdict}[/]", verdict.text, f"[dim]checks: {counts}[/]")
    return made
