"""The command line, gathered. What is heavy to import is imported by the command that needs it: `--help` is instant."""

from __future__ import annotations

import typer

from . import _choosing as choosing
from . import _data as data
from . import _machine as machine
from . import _published as published
from . import _silo as silo
from . import _solving as solving

app = typer.Typer(
    help="Decentralized bilevel optimization: nodes keep their data and exchange vectors with their neighbours.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
SECTIONS = {
    "Solve": (published.demo, solving.run, solving.compare, solving.tune, solving.watch),
    "Choose": (choosing.graphs, choosing.advise, choosing.list_),
    "Published experiments": (published.reproduce, published.report, published.league),
    "This machine": (machine.doctor, machine.bench, machine.version),
}
for section, commands in SECTIONS.items():
    for command in commands:
        app.command(command.__name__.rstrip("_"), rich_help_panel=section)(command)
launching = {"allow_interspersed_args": False}  # what follows the script is the script's
app.command("launch", rich_help_panel="Many processes", context_settings=launching)(machine.launch)
app.add_typer(silo.app, name="silo", rich_help_panel="Many processes")
app.add_typer(data.app, name="data", rich_help_panel="This machine")
