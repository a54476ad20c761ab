"""Whole journeys, word for word: what README and the pages tell a newcomer to type, in an environment of its own.

The package is built and installed as a user would install it; what it depends on is in the environment of the tests.
Each command is taken from its page, so that a page cannot change without its journey.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import socket
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from terminal import typed
from xla import flags, kept_in

from decibel.cli._app import gathered

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "studies/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINE = re.compile(r"^ {4}(decibel .*(?:\\\n.*)*)", re.MULTILINE)
INLINE = re.compile(r"`(decibel [a-z][^`]*)`")

# Lines of commands that no journey below types, and why.
ELSEWHERE = {
    "decibel launch -n 4 script.py [ARGUMENTS]": "tests/engines/launch",
    "decibel launch --elastic -n 4 script.py": "tests/engines/launch",
    "decibel watch mine": "serves until it is stopped: tests/results/test_live.py",
    "decibel reproduce dsoba/speedup": "minutes: studies/tests runs all in their smallest size",
    "decibel reproduce all --size full --jobs 6": "hours",
    "decibel report decibel-results/small": "studies/tests/test_report.py",
    "decibel league --out decibel-league": "an hour: studies/tests/test_league.py runs one method",
    "decibel silo privacy --epsilon 3 --steps 2000 --samples 500 --batch-size 32": "tests/silo/test_cli_silo.py",
    "decibel data fetch australian": "needs a network: tests/tasks/test_data.py",
    "decibel silo run NAME --problem example_problem:problem --metrics-port 9464": "tests/silo/test_metrics.py",
}


def commands(page):
    """The lines of commands of a page, without comments."""
    text = re.sub(r"\\\n\s*", "", (ROOT / page).read_text())
    return [re.sub(r"\s+# .*| +#.*", "", line).strip() for line in LINE.findall(text)]


def block(page, start):
    return re.search(rf"^```{re.escape(start)}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)[1]


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """The environment variables of a shell in which the built package is installed, and the checkout is not seen."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    purelib = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    (Path(purelib) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation", "--force-reinstall"]
    subprocess.run([*pip, ROOT], check=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("XLA_", "PYTHON", "PYTEST"))}
    environment |= {"PATH": f"{python.parent}:{os.environ['PATH']}", "DECIBEL_DATA": "", "JAX_PLATFORMS": "cpu"}
    environment |= {"XLA_FLAGS": flags(devices=1), **kept_in(folder / "compiled")}  # compile quickly, and once
    found = subprocess.run(
        [python, "-c", "import decibel; print(decibel.__file__)"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert found.stdout.startswith(purelib), found
    return environment


def fits(shown, columns):
    """No line of a table or a progress bar is broken; sentences may be."""
    return all(len(line) <= columns for line in shown.lines)


@pytest.mark.slow
class TestReadme:
    def test_the_demo_has_the_numbers_it_promises(self, installed, tmp_path):
        assert "decibel demo" in commands("README.md")
        shown = typed("decibel demo", tmp_path, installed | {"XLA_FLAGS": ""}, columns=80)
        assert shown.code == 0 and fits(shown, 80) and "Warning" not in shown.text, shown.text
        assert list(tmp_path.rglob("demo.png"))
        promise = (ROOT / "README.md").read_text().partition("Expect these accuracies")[2].partition("\n## ")[0]
        percentages = re.findall(r"(\d\d\.\d) %", promise)
        assert len(percentages) == 5
        for percentage in percentages:
            assert percentage in shown.text

    def test_a_run_of_ones_own(self, installed, tmp_path):
        (command,) = [one for one in commands("README.md") if one.startswith("decibel run")]
        shown = typed(command, tmp_path, installed, columns=80)
        assert shown.code == 0 and "Watch it at http://127.0.0.1" in shown.text, shown.text
        bars = [line for line in shown.lines if "━" in line]
        assert bars and all(len(line) <= 80 for line in bars)
        assert all(re.search(r"\d+/1000|\d+ of 1000", line) for line in bars), bars[-1]
        assert list(tmp_path.rglob("*.png"))

    def test_fifteen_lines(self, installed, tmp_path):
        (tmp_path / "mine.py").write_text(block("README.md", "python"))
        shown = typed("python mine.py", tmp_path, installed, columns=80)
        x = [float(number) for number in re.search(r"\[(.*?)\]", shown.text)[1].split()]
        assert shown.code == 0 and len(x) == 3
        assert all(abs(number - 1) < 0.15 for number in x)


@pytest.mark.slow
def test_the_page_of_the_command_line(installed, tmp_path):
    """In the order of the page: a run, its repetition, its resumption, JSON."""
    first, again, resumed, piped = commands("docs/command-line.md")
    shown = typed(first, tmp_path, installed, columns=200)
    assert shown.code == 0, shown.text
    table = re.findall(r"^\| `([^`]*)` \| (?:the|a|states)", (ROOT / "docs" / "command-line.md").read_text(), re.M)
    files = [name for name in table if name[0] != "-" and ("." in name or name.endswith("/"))]
    assert len(files) == 5
    for name in files:
        assert (tmp_path / "first" / name).exists(), name
    last = final_row(shown)
    assert final_row(typed(again, tmp_path, installed, columns=200)) == last
    shown = typed(resumed, tmp_path, installed, columns=200)
    assert shown.code == 0 and final_row(shown) == last, shown.text
    shown = typed(piped.replace("| jq .last.distance", "> out.json"), tmp_path, installed, columns=200)
    assert shown.code == 0 and '"distance"' in (tmp_path / "out.json").read_text()


def final_row(shown):
    return re.search(r"^test accuracy\s+\S+\s+(\S+)", shown.text, re.MULTILINE)[1]


@pytest.mark.slow
def test_commands_of_other_pages(installed, tmp_path):
    live = commands("docs/live.md")[0]
    shown = typed(live.replace("--out mine", "--out mine --steps 50"), tmp_path, installed, columns=80)
    assert shown.code == 0 and (tmp_path / "mine" / "config.toml").exists(), shown.text
    run, listed, _, verified = commands("docs/tasks.md")
    for command in (run, listed, verified):
        shown = typed(command, tmp_path, installed, columns=120)
        assert shown.code == 0, shown.text


@pytest.mark.slow
def test_from_install_to_a_figure(installed, tmp_path):
    """The recorded session shows what its commands show now."""
    spec = importlib.util.spec_from_file_location("transcript", ROOT / "docs" / "transcript.py")
    transcript = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(transcript)
    page = transcript.PAGE.read_text()
    recorded = re.search(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1]
    assert transcript.page(recorded) == page, "run `python docs/transcript.py`"
    assert sum(float(one.split()[1]) for one in transcript.SECONDS.findall(recorded)) < 240
    subprocess.run([sys.executable, "-c", transcript.DATA], cwd=tmp_path, check=True)
    steps = transcript.STEPS[2:4]
    shown = transcript.play(tmp_path, steps, installed)
    numbers = re.compile(r"-?\d+\.\d+")
    for step in steps:
        one, other = (
            re.search(rf"^\$ {re.escape(step)}\n(.*?)^# ", text, re.M | re.S)[1] for text in (recorded, shown)
        )
        assert numbers.sub("", one) == numbers.sub("", other)
        values = [[float(number) for number in numbers.findall(text)] for text in (one, other)]
        assert values[0] == pytest.approx(values[1], abs=0.11)  # another version of JAX may round the last digit
    assert (tmp_path / "patients.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
class TestSilo:
    """The page of organisations: its two files as printed, its rehearsal, then its table of commands."""

    @pytest.fixture
    def files(self, tmp_path):
        (tmp_path / "federation.toml").write_text(block("docs/silo.md", 'toml title="federation.toml"'))
        (tmp_path / "example_problem.py").write_text(block("docs/silo.md", "python"))
        return tmp_path

    def test_a_rehearsal_suggests_the_limit_that_the_page_has(self, installed, files):
        (command,) = commands("docs/silo.md")
        shown = typed(command, files, installed, columns=80, seconds=500)
        assert shown.code == 0, shown.text
        suggested = re.search(r"\[flow_limit\]\s+x = \S+\s+y = \S+\s+z = \S+", shown.text)[0]
        printed = re.search(r"\[flow_limit\].*?\n((?:\w = .*\n){3})", (files / "federation.toml").read_text())[1]
        assert numbers(suggested) == pytest.approx(numbers(printed), rel=0.02)

    def test_from_init_to_the_ledger(self, installed, files):
        """The organiser and the sites in folders of their own; addresses are free ports of this machine."""
        environment = installed | {"DECIBEL_SILO_PASSPHRASE": "five random words in a row", "PYTHONPATH": str(files)}
        self.on_this_machine(files / "federation.toml")
        rows = dict(
            re.findall(r"^\| \d? ?\| (?:the organiser|each site) \| `decibel silo (\w+) ?([^`]*)`", self.page(), re.M)
        )
        assert list(rows) == ["init", "join", "sign", "run", "status", "revoke", "amend", "ledger", "stop"]
        sites = ("amsterdam", "berlin", "copenhagen")

        def organiser(command, site="", folder=files, more=""):
            text = f"decibel silo {command} {rows[command]} {more}".replace("NAME", site)
            shown = typed(text, folder, environment, columns=80)
            assert shown.code == 0, (text, shown.text)
            return shown

        assert "fingerprint" in organiser("init").text
        for site in sites:
            home = files / site
            home.mkdir()
            (home / "public").symlink_to(files / "silo" / "public")
            told = organiser("join", site, home).text.split("has the fingerprint")[-1].strip()
            (files / site / "request.pem").write_bytes((home / "silo" / site / "request.pem").read_bytes())
            organiser("sign", site, more=f"--fingerprint '{told}'")
            (home / "silo" / site / "certificate.pem").write_bytes((home / "certificate.pem").read_bytes())
        runs = [
            subprocess.Popen(
                ["bash", "-c", f"decibel silo run {rows['run']}".replace("NAME", site)],
                cwd=files / site,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for site in sites
        ]
        told = [one.communicate(timeout=300)[0] for one in runs]
        assert [one.returncode for one in runs] == [0, 0, 0], told
        for site in sites:
            assert (files / site / "silo" / site / "solution.npz").exists()
            assert "finished" in organiser("status", site, files / site).text
        organiser("revoke", "berlin")
        assert organiser("ledger").text.count("certificate") >= 3

    @staticmethod
    def page():
        return (ROOT / "docs" / "silo.md").read_text()

    @staticmethod
    def on_this_machine(path):
        """The page's file with addresses of this machine, and fewer steps."""
        with socket.socket() as one, socket.socket() as two:
            for each in (one, two):
                each.bind(("127.0.0.1", 0))
            ports = [each.getsockname()[1] for each in (one, two)]
        text = path.read_text().replace("steps = 2000", "steps = 100")
        text = re.sub(r"^listen = .*\n", "", text, flags=re.MULTILINE)
        for host, port in zip(("amsterdam", "berlin"), ports, strict=True):
            text = text.replace(f'"fl.{host}.example:7401"', f'"127.0.0.1:{port}"')
        path.write_text(text)


def numbers(text):
    return [float(one) for one in re.findall(r"\d+\.\d+", text)]


def test_every_line_of_commands_is_typed_somewhere():
    """A new line in a page needs a journey, or a reason."""
    typed_here = {"README.md", "command-line.md", "live.md", "tasks.md", "silo.md", "index.md"}
    lines = {line for page in PAGES if page.name not in typed_here for line in commands(page)}
    lines |= set(commands("docs/live.md")[1:]) | set(commands("docs/tasks.md")[2:3])
    assert lines <= set(ELSEWHERE) and set(ELSEWHERE) <= lines | set(commands("docs/tasks.md"))


def test_commands_in_the_text_exist():
    """With all their options."""
    declared = tomllib.loads((ROOT / "studies" / "pyproject.toml").read_text())["project"]["entry-points"]
    group = "decibel.commands"
    app = gathered([EntryPoint(name, value, group) for name, value in declared[group].items()])
    found, root = 0, typer.main.get_command(app)
    for page in PAGES:
        for line in [*commands(page), *INLINE.findall(page.read_text())]:
            command, words = root, shlex.split(line)[1:]
            while hasattr(command, "commands") and words and not words[0].startswith("-"):
                assert words[0] in command.commands, f"{page.name}: {line}"
                command, words = command.commands[words[0]], words[1:]
            options = {one for parameter in command.params for one in parameter.opts} | {"--help"}
            given = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
            assert given <= options, f"{page.name}: {line}"
            found += 1
    assert found > 40
