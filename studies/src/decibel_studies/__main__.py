"""`python -m decibel_studies reproduce ...`: the commands, also where their entry points are not installed."""

from __future__ import annotations

import typer

from .commands import league, report, reproduce

app = typer.Typer()
for command in (reproduce, report, league):
    app.command()(command)

if __name__ == "__main__":
    app()
