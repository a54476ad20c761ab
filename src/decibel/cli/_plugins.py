"""Commands and names that other packages add by entry points.

The group `decibel.commands` has a function for each command, as typer takes it, or a `typer.Typer` with several. The
group `decibel.names` has collections of names that `decibel list` shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import typer

from ._common import FAILED, complain

COMMANDS = "decibel.commands"
NAMES = "decibel.names"
# Packages of this distribution that stand above the command line.
BUILT_IN = (EntryPoint("silo", "decibel.silo.commands:app", COMMANDS),)
# Commands of our own packages; `decibel --help` lists them even where these are not installed.
KNOWN: dict[str, str] = dict.fromkeys(("reproduce", "report", "league"), "decibel-studies")
SECTIONS = {"silo": "Many processes", **dict.fromkeys(KNOWN, "Published experiments")}


def join(app: typer.Typer, points: Iterable[EntryPoint] | None = None) -> None:
    """Adds the commands of other packages; a command that cannot be loaded says why, or what to install.

    Args:
        app: the command to add them to.
        points: their entry points; None takes those of all installed packages.
    """
    missing = dict(KNOWN)
    for point in (*BUILT_IN, *(entry_points(group=COMMANDS) if points is None else points)):
        section = SECTIONS.get(point.name, "Other packages")
        try:
            command = point.load()
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=point.name, rich_help_panel=section)
            else:
                app.command(point.name, rich_help_panel=section)(command)
        except ImportError as error:
            if point.name not in KNOWN:
                _refuse(app, point.name, section, f"decibel {point.name} cannot be loaded: {error}.")
        else:
            missing.pop(point.name, None)
    for name, package in missing.items():
        _refuse(app, name, SECTIONS[name], f"decibel {name} needs {package}: pip install {package}.")


def names() -> dict[str, Collection[str]]:
    """Names of other packages by kind, such as the studies of decibel-studies."""
    return {point.name: point.load() for point in entry_points(group=NAMES)}


def _refuse(app: typer.Typer, name: str, section: str, sentence: str) -> None:
    """Adds a command that accepts any arguments and says why it cannot run."""

    def command(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
        complain(sentence)
        raise typer.Exit(FAILED)

    settings = {"ignore_unknown_options": True}
    app.command(name, help=sentence, rich_help_panel=section, context_settings=settings)(command)
