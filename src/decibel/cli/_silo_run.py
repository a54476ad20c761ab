"""What `decibel silo run` and `decibel silo status` do."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..core._json import JSON
from ..core._text import plain
from ..engines.silo._errors import BudgetSpent, SiteLost
from ..engines.silo._health import who_was_missing
from ..engines.silo._logging import Log, configure
from ..engines.silo._privacy import read as read_spent
from ..engines.silo._status import ENDED, note_state
from ._common import FAILED
from ._silo_command import load_problem, method_of, save_solution
from ._silo_flows import saturated

if TYPE_CHECKING:
    from ..engines.silo._engine import Silo
    from ..results._result import Result

STATUS = "status.json"
STALE = 10.0  # seconds after which a note is old


class Neighbour(TypedDict):
    """One of a site, as the site notes it."""

    state: str
    why: str
    flows: dict[str, dict[str, JSON]]
    their_step: NotRequired[int | None]  # of the newest message, where sites have no common clock
    message_seconds_ago: NotRequired[float | None]
    steps_since_message: NotRequired[int]


class Note(TypedDict):
    """What a site notes of itself."""

    site: str
    step: int
    state: str
    detail: str
    missing: dict[str, float]
    neighbours: dict[str, Neighbour]
    time: float


def run(
    name: str,
    problem: str,
    home: Path,
    console: Console,
    *,
    budget: float | None = None,
    record_budget: float | None = None,
    delta: float = 1e-5,
    progress_every: float | None = None,
    metrics_port: int | None = None,
    log_format: str = "text",
) -> None:
    """One site's part of the run that the federation file describes; continues where it was."""
    configure(log_format)
    log = Log(name)

    def say(sentence: str) -> None:
        """The result, on standard output; among lines of JSON as one of them."""
        if log_format == "json":
            log(sentence)
        else:
            console.print(sentence, soft_wrap=True, markup=False)

    try:
        from ..engines.silo._engine import Silo

        limits = {"budget": budget, "record_budget": record_budget, "delta": delta}
        engine = Silo(home, name, **limits, progress_every=progress_every, metrics_port=metrics_port)
        with _warnings_as(log) if log_format == "json" else nullcontext():
            result = _solve(engine, problem)
    except (ValueError, TypeError, OSError, SiteLost, BudgetSpent) as error:
        if log_format == "json":
            log.error(plain(error, longest=1000))
            raise typer.Exit(FAILED) from None
        if isinstance(error, RuntimeError):
            raise ValueError(str(error)) from None  # a sentence, as all that is no bug
        raise
    result.trace.save(home / "trace.npz")
    save_solution(result.x, result.y, home / "solution.npz")
    last = ", ".join(f"{key} {value:.6g}" for key, value in result.trace.last.items() if key not in ("step", "seconds"))
    say(f"{name} is at step {result.step}: {last}")
    if result.message:
        say(f"{name} {result.status}: {plain(result.message, longest=1000)}")
    note = read_note(home)
    absent = who_was_missing(note["missing"]) if note else ""
    say(f"{name}: {absent or 'nobody was missing'}.")


@contextmanager
def _warnings_as(log: Log) -> Generator[None]:
    """Python's warnings as lines of the log."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: log.warning(plain(message, longest=1000))
        yield


def _solve(engine: Silo, problem: str) -> Result:
    from ..solver import _solve as solver
    from ..strategies import privacy

    home, name = engine.home, engine.name
    federation = engine.credentials.federation
    if federation.method is None or federation.steps is None:
        raise ValueError("the federation file names no method or no steps: add both, or call solve(engine=db.Silo()).")
    note_state(home / STATUS, name, "starting", f"loading {problem}")
    try:
        loaded = load_problem(problem)
    except BaseException as error:
        note_state(home / STATUS, name, "stopped", str(error))
        raise
    records = federation.privacy.get("records")
    return solver.solve(
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
    """What a site has written of itself; nothing if it never ran."""
    path = home / STATUS
    return json.loads(path.read_text()) if path.is_file() else None


def status(homes: list[Path], console: Console) -> None:
    """How the sites whose folders are here are doing, from the notes they leave."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("site", "step", "", "neighbours", "ε spent"):
        table.add_column(heading)
    below: list[str] = []
    for home in homes:
        found = read_note(home)
        if found is None:
            table.add_row(home.name, "", "never ran", "", spending(home))
            continue
        others = ", ".join(_neighbour(name, one) for name, one in found["neighbours"].items())
        word, more = in_words(found, time.time())
        shown = (found["site"], found["step"], word, others)
        table.add_row(*(escape(plain(one)) for one in shown), spending(home))
        below += [f"{found['site']}: {sentence}" for sentence in more]
    console.print(table)
    for line in below:
        console.print(plain(line, longest=1000), soft_wrap=True, markup=False)


def in_words(found: Note, now: float) -> tuple[str, list[str]]:
    """The state of a site, with for whom it waits; and sentences: why it was refused or stopped, why a neighbour is not
    there, who was missing."""
    word, detail, old = found["state"], found["detail"], now - found["time"]
    sentences = [f"{name} is {one['state']}: {one['why']}" for name, one in found["neighbours"].items() if one["why"]]
    if word in ENDED:
        absent = who_was_missing(found["missing"])
        return word, [sentence for sentence in (f"{word}, since {detail}" if detail else "", absent) if sentence]
    if word == "starting" and not found["neighbours"]:  # and notes nothing while it loads
        return f"starting, for {old:.0f} s" + (f": {detail}" if detail else ""), []
    if old >= STALE:
        return f"no update for {old:.0f} s (was {word})", sentences
    return f"{word} {detail}" if word == "waiting" else word, sentences


def _neighbour(name: str, one: Neighbour) -> str:
    """With how old its newest message is, where sites have no common clock."""
    ago, since = one.get("message_seconds_ago"), one.get("steps_since_message", 0)
    new = "" if ago is None else f" (step {one.get('their_step')}, {ago:.3g} s ago, used {since} steps ago)"
    return f"{name} {one['state']}{new}{saturated(one['flows'])}"


def spending(home: Path) -> str:
    """What the noise in a site's folder has cost, and what its last run was allowed."""
    found = read_spent(home)
    if found.budgets is None:
        return ""
    site, record, delta = found.budgets
    shown = (
        ("all data", found.messages, found.site_epsilon(delta), site),
        ("one record", found.sums, found.record_epsilon(delta), record),
    )
    parts = [
        f"{what} {spent:.4g} of {'any' if budget is None else f'{budget:g}'}"
        for what, counts, spent, budget in shown
        if counts or budget is not None
    ]
    return f"{', '.join(parts)} (δ = {delta:g})" if parts else ""
