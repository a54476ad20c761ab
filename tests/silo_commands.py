"""`decibel silo` as people call it."""

from __future__ import annotations

from typer.testing import CliRunner

from decibel.cli._app import app


def silo_command(*arguments, code=0, said=None):
    """What a command prints, once it has ended with that status."""
    result = CliRunner().invoke(app, ["silo", *arguments], input=said)
    assert result.exit_code == code, (result.output, result.exception)
    return result.output
