"""Joins all commands. Each imports what is heavy when it runs, so that `--help` is instant."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint
from typing import Annotated

import typer

from .. import __version__
from . import _plugins as plugins
from .commands import data
from .commands.advise import advise
from .commands.bench import bench
from .commands.compare import compare
from .commands.demo import demo
from .commands.doctor import doctor
from .commands.graphs import graphs
from .commands.launch import launch
from .commands.list import list_
from .commands.run import run
from .commands.tune import tune
from .commands.version import version
from .commands.watch import watch

SECTIONS = {
    "Solve": (demo, run, compare, tune, watch),
    "Choose": (graphs, advise, list_),
    "This machine": (doctor, bench, version),
}
PASS_ARGUMENTS_ON = {"allow_interspersed_args": False}  # arguments after the script belong to the script


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"decibel {__version__}")
        raise typer.Exit


def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Decentralized bilevel optimization: nodes keep their data and exchange vectors with their neighbours."""


def gathered(points: Iterable[EntryPoint] | None = None) -> typer.Typer:
    """The command with all subcommands.

    Args:
        points: entry points of further commands; None takes those of all installed packages.
    """
    app = typer.Typer(
        help="Decentralized bilevel optimization: nodes keep their data and exchange vectors with their neighbours.",
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for section, commands in SECTIONS.items():
        for command in commands:
            app.command(command.__name__.rstrip("_"), rich_help_panel=section)(command)
    plugins.join(app, points)
    app.command("launch", rich_help_panel="Many processes", context_settings=PASS_ARGUMENTS_ON)(launch)
    app.add_typer(data.app, name="data", rich_help_panel="This machine")
    return app


app = gathered()
