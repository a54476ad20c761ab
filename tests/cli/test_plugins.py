"""Commands of other packages: those of decibel-studies, and what is said where they are missing."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

from decibel.cli import _plugins as plugins
from decibel.cli._app import gathered

ROOT = Path(__file__).parents[2]
STUDIES = tomllib.loads((ROOT / "studies" / "pyproject.toml").read_text())["project"]


def points(group: str) -> list[EntryPoint]:
    """Those that decibel-studies declares."""
    return [EntryPoint(name, value, group) for name, value in STUDIES["entry-points"][group].items()]


def invoke(*arguments: str, commands: list[EntryPoint]):
    return CliRunner().invoke(gathered(commands), arguments)


@pytest.mark.parametrize("command", plugins.KNOWN)
def test_a_command_that_is_missing_names_what_to_install(command):
    for arguments in ([], ["something", "--size", "full"]):
        answer = invoke(command, *arguments, commands=[])
        sentence = f"decibel {command} needs decibel-studies: pip install decibel-studies."
        assert answer.exit_code == 1 and answer.output.strip() == sentence
    assert f"needs {STUDIES['name']}" in " ".join(invoke(command, "--help", commands=[]).output.split())
    assert command in invoke("--help", commands=[]).output, "it is listed all the same"


def test_commands_of_the_studies_join():
    found = points(plugins.COMMANDS)
    assert {point.name for point in found} == set(plugins.KNOWN)
    for command, option in (("reproduce", "--size"), ("report", "--out"), ("league", "--table-only")):
        answer = invoke(command, "--help", commands=found)
        assert answer.exit_code == 0 and option in answer.output
    answer = invoke("report", "nowhere", commands=found)
    assert answer.exit_code == 1 and "nowhere holds no results: run `decibel reproduce" in answer.output


def test_a_command_that_cannot_be_loaded_does_not_end_the_others():
    broken = [EntryPoint("mine", "no_such_package:main", plugins.COMMANDS)]
    assert invoke("version", commands=broken).exit_code == 0
    answer = invoke("mine", commands=broken)
    assert (
        answer.exit_code == 1 and "decibel mine cannot be loaded: No module named 'no_such_package'." in answer.output
    )


def test_names_of_other_packages_are_listed(monkeypatch):
    monkeypatch.setattr(plugins, "entry_points", lambda group: points(group))
    assert "dsoba/speedup" in CliRunner().invoke(gathered([]), ["list"]).output
    monkeypatch.setattr(plugins, "entry_points", lambda group: [])
    assert "studies" not in CliRunner().invoke(gathered([]), ["list"]).output
