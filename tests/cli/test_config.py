"""A run's config: defaults, then a file, then flags; what is written is read back as it was."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from decibel.cli._completions import completing
from decibel.cli._config import LOGS, Config, resolve, settings, toml

FILE = """
task = "label_cleaning"
method = "d-soba"
steps = 30
log = ["tensorboard"]
[set]
alpha = 0.1
beta = 0.2
task.corruption = 0.4
task.hidden = 7
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    return path


def test_flags_are_over_the_file_and_the_file_over_defaults(file):
    config = resolve(file, {"steps": 50, "method": None, "seed": 0}, ["alpha=0.3", "task.hidden=9", "gamma=1"])
    assert config == Config(
        task="label_cleaning",
        method="d-soba",
        steps=50,
        log=["tensorboard"],
        set={"alpha": 0.3, "beta": 0.2, "gamma": 1, "task": {"corruption": 0.4, "hidden": 9}},
    )
    assert config.for_task == {"corruption": 0.4, "hidden": 9}
    assert config.for_method == {"alpha": 0.3, "beta": 0.2, "gamma": 1}
    assert config.nodes == 10 and config.batch_size is None


def test_what_is_written_is_read_back(file, tmp_path):
    config = resolve(file, {"batch_size": 4, "out": 'a "quoted" \\ name'}, ["alpha=1e-9", "task.sizes=[1, 2.5]"])
    again = config.save(tmp_path / "out" / "config.toml", "a run")
    assert resolve(again, {}) == config
    assert again.read_text().startswith("# a run\n")


@pytest.mark.parametrize(
    "values",
    [
        {"a": 1, "b": 0.1, "c": True, "d": "x", "e": [1, 2], "f": 1e-300, "g": -5, "h": float("inf")},
        {"name with space": 'tab\tnewline\nquote"back\\slash\x7f\x01é'},
        {"plain": 1, "table": {"key": "v", "inner": {"deep": [["a"], ["b", "c"]], "no": False}}},
        {"set": {"task": {"a.b": 1}}},
    ],
)
def test_toml_is_what_python_reads(values):
    assert tomllib.loads(toml(values)) == values


def test_settings_are_json_where_they_can_be():
    pairs = [
        "alpha=0.1",
        "updates=simultaneous",
        "task.shared=true",
        'task.dataset="digits"',
        "task.hidden=[3, 4]",
        "n=3",
    ]
    assert settings(pairs) == {
        "alpha": 0.1,
        "updates": "simultaneous",
        "n": 3,
        "task": {"shared": True, "dataset": "digits", "hidden": [3, 4]},
    }


def test_the_page_of_the_command_line_tells_the_truth(tmp_path):
    from decibel.cli._app import app

    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    path = tmp_path / "page.toml"
    path.write_text(re.search(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1])
    config = resolve(path, {})
    assert config.for_task == {"corruption": 0.4} and config.for_method == {"alpha": 100, "beta": 0.5}
    table = page.partition("| command |")[2].partition("\n\n")[0]
    told = {words.split()[0] for row in table.splitlines()[2:] for words in re.findall(r"`([^`]+)`", row.split("|")[1])}
    commands = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    assert told == commands


def test_names_to_complete_are_the_library_s():
    """That the file is up to date, tests/test_docs.py tests."""
    assert completing("methods")("sparkle-ed-g") == ["sparkle-ed-gt"]
    assert completing("logs")("") == list(LOGS)
    assert all(completing(kind)("") for kind in ("tasks", "graphs"))
