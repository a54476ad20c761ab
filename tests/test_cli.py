"""The command line: quick to answer, plain in its errors, and the demo draws its figure."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import decibel
from decibel.cli import app

HELP = """
import sys
from typer.testing import CliRunner
from decibel.cli import app
answer = CliRunner().invoke(app, ["--help"])
assert answer.exit_code == 0 and "demo" in answer.output, answer.output
print(*sorted(name for name in ("jax", "matplotlib", "networkx", "scipy") if name in sys.modules))
"""


def invoke(*arguments: str):
    return CliRunner().invoke(app, arguments)


def test_help_answers_without_importing_jax():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("command", [[], ["demo"], ["list"], ["version"], ["data"], ["data", "fetch"]])
def test_every_command_explains_itself(command):
    answer = invoke(*command, "--help")
    assert answer.exit_code == 0 and "Usage" in answer.output


def test_version():
    answer = invoke("version")
    assert answer.exit_code == 0 and f"decibel {decibel.__version__}" in answer.output and "jax " in answer.output


def test_list_names_what_exists():
    answer = invoke("list")
    assert answer.exit_code == 0
    for name in ("sparkle-LOWER", "d-soba", "semi-gt", "erdos_renyi", "stationarity", "label_cleaning"):
        assert name in answer.output


def test_data_list_shows_what_is_here_and_what_is_not(monkeypatch, tmp_path):
    monkeypatch.setenv("DECIBEL_DATA", str(tmp_path))
    answer = invoke("data", "list")
    assert answer.exit_code == 0
    for words in ("digits", "embedded", "fashion-mnist", str(tmp_path.anchor)):
        assert words in answer.output


def test_data_verify_counts_the_damaged(monkeypatch, tmp_path):
    monkeypatch.setenv("DECIBEL_DATA", str(tmp_path))
    (tmp_path / "libsvm").mkdir()
    (tmp_path / "libsvm" / "australian").write_text("+1 1:0.5\n")
    answer = invoke("data", "verify", "australian")
    assert answer.exit_code == 1 and "1 damaged" in answer.output


@pytest.mark.parametrize("command", ["fetch", "verify"])
def test_an_unknown_dataset_gets_a_sentence(command):
    answer = invoke("data", command, "fashion-mnits")
    assert answer.exit_code == 2 and "did you mean 'fashion-mnist'" in answer.output
    assert "Traceback" not in answer.output


def test_fetching_what_is_embedded_says_so():
    answer = invoke("data", "fetch", "digits")
    assert answer.exit_code == 0 and "nothing to fetch" in answer.output


def test_a_quick_demo_prints_a_table_and_draws_a_figure(tmp_path):
    answer = invoke("demo", "--quick", "--out", str(tmp_path / "new"))
    assert answer.exit_code == 0, answer.output
    for name in ("SPARKLE-ED", "SPARKLE-EXTRA", "SPARKLE-GT", "D-SOBA", "no cleaning"):
        assert name in answer.output
    assert (tmp_path / "new" / "demo.png").read_bytes().startswith(b"\x89PNG")
