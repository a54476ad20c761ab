"""What `decibel silo run` and `decibel silo status` do."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from decibel import Status
from decibel.cli import FAILED
from decibel.core import JSON, plain

from .._errors import BudgetSpent, SiteLost
from .._logging import Log, configure
from ..observe._site_status import ENDED, STATUS_FILE, write_state
from ..protocol._health import WORTH_TELLING, who_was_missing
from ..run._finished import FILE as FINISHED
from ..run._finished import read as read_finished
from ._federation_method import method_of
from ._flows import explain, saturated
from ._join import load_problem
from ._privacy_plan import spending

if TYPE_CHECKING:
    from decibel import Result

    from ..run._silo import Silo

SOLUTION = "solution.npz"
STALE = 10.0  # seconds after which a note is old


class Neighbour(TypedDict):
    """A neighbour, as a site records it."""

    state: str
    why: str
    flows: dict[str, dict[str, JSON]]
    their_step: NotRequired[int | None]  # of the newest message, where sites have no common clock
    message_steps_behind: NotRequired[int]
    message_seconds_ago: NotRequired[float | None]
    steps_since_message: NotRequired[int]


class Note(TypedDict):
    """What a site records about itself."""

    site: str
    step: int
    state: str
    detail: str
    missing: dict[str, float]
    neighbours: dict[str, Neighbour]
    had_finished: NotRequired[bool]  # whether this run had ended before the site was started
    time: float


def run(
    name: str,
    engine: Callable[[], Silo],
    problem: str,
    console: Console,
    *,
    log_format: str = "text",
    interrupted_status: int = 0,
) -> None:
    """Runs one site's part of the run that the federation file describes, and continues where it was.

    A site that has finished repeats no step. It stays for a while to give its model to neighbours that were away.
    """
    configure(log_format)
    log = Log(name)

    def say(sentence: str) -> None:
        """The result, on standard output; among lines of JSON as one of them."""
        if log_format == "json":
            log(sentence)
        else:
            console.print(sentence, soft_wrap=True, markup=False)

    try:
        site = engine()
        with _warnings_as(log) if log_format == "json" else nullcontext():
            if _finish(site, problem, say, interrupted_status):
                _solve(site, problem)  # stays, and gives the model
    except (ValueError, TypeError, OSError, SiteLost, BudgetSpent) as error:
        if log_format == "json":
            log.error(plain(error, longest=1000))
            raise typer.Exit(FAILED) from None
        if isinstance(error, RuntimeError):
            raise ValueError(str(error)) from None  # a sentence, as all that is no bug
        raise


def _finish(engine: Silo, problem: str, say: Callable[[str], None], interrupted_status: int) -> bool:
    """Runs a site to its end and saves its model, or gives the model of a run that had finished before. Returns whether
    a neighbour lacks the model, so that the site should stay.
    """
    home = engine.home
    name = engine.name
    result = _solve(engine, problem)
    note = read_note(home)
    if note and note.get("had_finished"):
        if _saved_step(home) < result.step:  # it was killed before its model was saved
            _save(result, home)
        say(f"{name} has finished this run before: its model is {home / SOLUTION}.")
        say(f"To do it again, move {home / 'checkpoints'} and {home / FINISHED} away.")
        return False
    _save(result, home)
    last = ", ".join(f"{key} {value:.6g}" for key, value in result.trace.last.items() if key not in ("step", "seconds"))
    done = f", with {result.steps_done} steps done here" if result.steps_done < result.step else ""
    say(f"{name} is at step {result.step}{done}: {last}")
    if result.message:
        say(f"{name} {result.status}: {plain(result.message, longest=1000)}")
    absent = who_was_missing(note["missing"]) if note else ""
    say(f"{name}: {absent or 'nobody was missing'}.")
    if result.status is Status.INTERRUPTED:
        raise typer.Exit(interrupted_status)
    finished = read_finished(home)
    if engine.stay is None or finished is None or not finished.without:
        return False
    who = ", ".join(finished.without)
    say(f"{name} finished without {who}, stays for {engine.stay:g} s, and gives the model to sites that return.")
    return True


def _save(result: Result, home: Path) -> None:
    result.trace.save(home / "trace.npz")
    result.save(home / SOLUTION, trace=False)  # somebody may publish it


def _saved_step(home: Path) -> int:
    """The step of the model in a site's folder; −1 if there is none."""
    from decibel import Result

    return Result.load(home / SOLUTION).step if (home / SOLUTION).exists() else -1


@contextmanager
def _warnings_as(log: Log) -> Generator[None]:
    """Python's warnings as lines of the log."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: log.warning(plain(message, longest=1000))
        yield


def _solve(engine: Silo, problem: str) -> Result:
    from decibel import privacy, solve

    home = engine.home
    name = engine.name
    federation = engine.credentials.federation
    if federation.method is None or federation.steps is None:
        raise ValueError("the federation file names no method or no steps: add both, or call solve(engine=db.Silo()).")
    write_state(home / STATUS_FILE, name, "starting", f"loading {problem}")
    try:
        loaded = load_problem(problem)
    except BaseException as error:
        write_state(home / STATUS_FILE, name, "stopped", str(error))
        raise
    records = federation.privacy.get("records")
    return solve(
        loaded,
        method_of(federation),
        federation.graph,
        steps=federation.steps,
        batch_size=federation.batch_size,
        seed=federation.seed,
        eval_every=federation.eval_every,
        engine=engine,
        checkpoint=home / "checkpoints",
        checkpoint_every=federation.checkpoint_every,
        resume=True,
        sampling=federation.sampling,
        privacy=None if records is None else privacy.records(**records),
    )


def read_note(home: Path) -> Note | None:
    """What a site has recorded about itself; None if it never ran."""
    path = home / STATUS_FILE
    return json.loads(path.read_text()) if path.is_file() else None


def status(homes: list[Path], console: Console) -> None:
    """The status of the sites whose folders are here, from their status files."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("site", "step", "", "neighbours"):
        table.add_column(heading)
    below: list[str] = []
    for home in homes:
        noted = read_note(home)
        if noted is None:
            table.add_row(home.name, "", "never ran", "")
            continue
        others = ", ".join(_neighbour(name, neighbour) for name, neighbour in noted["neighbours"].items())
        word, more = in_words(noted, time.time())
        shown = (noted["site"], noted["step"], word, others)
        table.add_row(*(escape(plain(cell)) for cell in shown))
        if any(saturated(neighbour["flows"]) for neighbour in noted["neighbours"].values()):
            more.append(explain(_gone(noted)))
        if spent := spending(home):
            more.append(spent)
        below += [f"{noted['site']}: {sentence}" for sentence in more]
    console.print(table)
    for line in below:
        console.print(plain(line, longest=1000), soft_wrap=True, markup=False)


def in_words(noted: Note, now: float) -> tuple[str, list[str]]:
    """The state of a site and for whom it waits. Then sentences: why it was refused or stopped, why a neighbour is not
    there, who was missing.
    """
    word = noted["state"]
    detail = noted["detail"]
    old = now - noted["time"]
    sentences = [
        f"{name} is {neighbour['state']}: {neighbour['why']}"
        for name, neighbour in noted["neighbours"].items()
        if neighbour["why"]
    ]
    if word in ENDED:
        absent = who_was_missing(noted["missing"])
        return word, [sentence for sentence in (f"{word}, since {detail}" if detail else "", absent) if sentence]
    if word == "starting" and not noted["neighbours"]:  # and notes nothing while it loads
        return f"starting, for {old:.0f} s" + (f": {detail}" if detail else ""), []
    if old >= STALE:
        return f"no update for {old:.0f} s (was {word})", sentences
    return f"{word} {detail}" if word == "waiting" else word, sentences


def _gone(noted: Note) -> list[str]:
    """The neighbours that are not there, or were missing for a while."""
    away = [name for name, neighbour in noted["neighbours"].items() if neighbour["state"] in ("away", "connected")]
    return away + [name for name, gap in noted["missing"].items() if gap >= WORTH_TELLING and name not in away]


def _neighbour(name: str, neighbour: Neighbour) -> str:
    """A neighbour in words. Without a common clock, also the age of its newest message."""
    return f"{name} {neighbour['state']}{_newest_message(neighbour)}{saturated(neighbour['flows'])}"


def _newest_message(neighbour: Neighbour) -> str:
    age = neighbour.get("message_seconds_ago")
    if age is None:
        return ""
    behind = neighbour.get("message_steps_behind", 0)
    since = neighbour.get("steps_since_message", 0)
    return f" (step {neighbour.get('their_step')}, {behind} steps old, {age:.3g} s old, used {since} steps ago)"
