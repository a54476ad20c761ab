"""The command line: quick to answer, plain in its errors, and the demo draws its figure."""

import importlib.util
import json
import shlex
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import decibel
import decibel.results.live
from decibel.cli._app import app

WITHOUT_JAX = """
import os, sys
from typer.testing import CliRunner
from decibel.cli._app import app
answer = CliRunner().invoke(app, ["--help"])
assert answer.exit_code == 0 and "demo" in answer.output, answer.output
os.environ.update(_DECIBEL_COMPLETE="complete_bash", COMP_WORDS="decibel run --method sparkle-ed-", COMP_CWORD="3")
answer = CliRunner().invoke(app, [], prog_name="decibel")
assert "sparkle-ed-gt" in answer.output
print(*sorted(name for name in ("jax", "matplotlib", "networkx", "scipy") if name in sys.modules))
"""


def invoke(*arguments: str):
    return CliRunner().invoke(app, arguments)


def test_help_and_completion_answer_without_importing_jax():
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAX], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


COMMANDS = "demo run compare tune watch graphs advise list reproduce report doctor bench version launch silo data"


@pytest.mark.slow_except("", "run", "compare", "data fetch", "silo run")
@pytest.mark.parametrize("command", ["", *COMMANDS.split(), "data fetch", "silo run"])
def test_every_command_explains_itself(command):
    answer = invoke(*command.split(), "--help")
    assert answer.exit_code == 0 and "Usage" in answer.output


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


@pytest.mark.slow
def test_a_quick_demo_prints_a_table_and_draws_a_figure(tmp_path):
    answer = invoke("demo", "--quick", "--out", str(tmp_path / "new"))
    assert answer.exit_code == 0, answer.output
    for name in ("SPARKLE-ED", "SPARKLE-EXTRA", "SPARKLE-GT", "D-SOBA", "no cleaning"):
        assert name in answer.output
    assert (tmp_path / "new" / "demo.png").read_bytes().startswith(b"\x89PNG")


QUICK = (
    "run", "linear_regression", "--method", "sparkle-ed", "--nodes", "4", "--steps", "20", "--eval-every", "5",
    "--batch-size", "5",
)  # fmt: skip
RATES = ("--set", "alpha=0.001", "--set", "beta=0.01", "--set", "gamma=0.01")


def answer_of(*arguments):
    """The one JSON document that a command prints, and its exit code."""
    answer = invoke(*map(str, arguments), "--json")
    return json.loads(answer.stdout), answer.exit_code


def columns(path):
    trace = decibel.Trace.load(path)
    return {name: trace[name] for name in trace if name != "seconds"}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A run that tests compare others with: what it printed, and its folder."""
    folder = tmp_path_factory.mktemp("quick")
    logs = ("--log", "tensorboard") if importlib.util.find_spec("tensorboardX") else ()
    ran, code = answer_of(*QUICK, *RATES, *logs, "--out", folder)
    assert code == 0
    return ran, folder


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_a_run_leaves_all_that_is_needed_to_repeat_it(quick, tmp_path):
    (ran, first), second = quick, tmp_path / "second"
    assert ran["step"] == 20 and ran["status"] == "completed"
    assert bool(list((first / "tensorboard").glob("events*"))) == bool(importlib.util.find_spec("tensorboardX"))
    assert set(ran["files"]) == {"config", "log", "trace", "figure", "checkpoint"}
    assert all(Path(path).exists() for path in ran["files"].values())
    assert Path(ran["files"]["figure"]).read_bytes().startswith(b"\x89PNG")
    kinds = [json.loads(line)["kind"] for line in (first / "log.jsonl").read_text().splitlines()]
    assert kinds == ["begin", *["row"] * 5, "end"]
    again, code = answer_of("run", "--config", first / "config.toml", "--out", second)
    assert code == 0 and same(columns(ran["files"]["trace"]), columns(again["files"]["trace"]))
    written = [(folder / "config.toml").read_text().splitlines()[1:] for folder in (first, second)]
    assert [line for line in written[0] if "out =" not in line] == [line for line in written[1] if "out =" not in line]
    before = {path: path.read_bytes() for path in first.iterdir() if path.is_file()}
    refused = invoke(*QUICK, *RATES, "--set", "alpha=0.5", "--out", str(first), "--resume")
    assert refused.exit_code == 2 and "checkpoint holds another run" in refused.output
    assert before == {path: path.read_bytes() for path in first.iterdir() if path.is_file()}


@pytest.mark.slow
def test_a_run_for_people_prints_a_table_and_says_when_it_hardly_moves(tmp_path):
    moved = invoke(*QUICK, "--set", "alpha=0.05", "--out", str(tmp_path / "moved")).output
    assert "distance" in moved and "barely" not in moved and "{" not in moved.split("after 20")[1]
    still = invoke(*QUICK, "--set", "alpha=1e-9", "--out", str(tmp_path / "still")).output
    assert "x has barely moved" in still and "--set alpha=1e-08" in still


def test_a_run_that_diverges_has_its_own_exit_code(tmp_path):
    wild = ("--set", "alpha=1e9", "--set", "beta=1e9", "--steps", "400", "--eval-every", "100")
    ran, code = answer_of(*QUICK, *wild, "--out", tmp_path)
    assert code == 3 and ran["status"] == "diverged"
    ran, code = answer_of(*QUICK, *RATES, "--out", tmp_path)  # nothing to resume there, so no question
    assert code == 0 and ran["step"] == 20


LONGER = (*QUICK, *RATES, "--steps", "60")


def assert_it_goes_on(said, part, whole):
    """As the message of an interrupted run says, and to the same end as a run that was not."""
    resume = shlex.split(said.strip().rpartition("To resume: ")[2])
    assert resume == ["decibel", "run", "--config", str(part / "config.toml"), "--resume"]
    refused = invoke(*LONGER, "--out", str(part))
    assert refused.exit_code == 2 and "add --resume to continue it, or --fresh" in refused.output
    resumed, code = answer_of(*resume[1:])
    assert code == 0 and resumed["step"] == 60
    ran, code = answer_of(*LONGER, "--out", whole)
    assert code == 0 and same(columns(ran["files"]["trace"]), columns(resumed["files"]["trace"]))
    steps = [json.loads(line).get("step") for line in (part / "log.jsonl").read_text().splitlines()]
    assert steps == [None, *range(0, 65, 5), None]


def test_an_interrupted_run_says_how_to_go_on_and_ends_as_if_it_never_was(tmp_path, monkeypatch):
    write = decibel.loggers.JSONL.__call__

    def press(self, step, row):
        write(self, step, row)
        if step == 15:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as pressing:
        pressing.setattr("decibel.results.loggers.JSONL.__call__", press)
        interrupted = invoke(*LONGER, "--out", str(tmp_path / "part"))
    assert interrupted.exit_code == 130
    assert_it_goes_on(interrupted.output, tmp_path / "part", tmp_path / "whole")


SLOWLY = """
import sys, time
import jax
jax.config.update("jax_enable_x64", True)
from decibel import loggers
from decibel.cli._app import app
write = loggers.JSONL.__call__
def slowly(self, step, row):
    write(self, step, row)
    print("row", step, flush=True)
    time.sleep(0.2)
loggers.JSONL.__call__ = slowly
app(sys.argv[1:])
"""


@pytest.mark.slow
def test_so_does_a_process(tmp_path):
    command = [sys.executable, "-c", SLOWLY, *LONGER, "--out", str(tmp_path / "part")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        for line in process.stdout:
            if line.strip() == "row 15":
                process.send_signal(signal.SIGTERM)
                break
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in said, said
    assert_it_goes_on(said, tmp_path / "part", tmp_path / "whole")


def test_graphs_compares_and_draws(tmp_path):
    found, code = answer_of("graphs", "ring", "complete", "one_peer_exponential", "--nodes", 8, "--entries", 10)
    assert code == 0 and [row["degree"] for row in found["graphs"]] == [2, 7, 1]
    assert [row["bytes"] for row in found["graphs"]] == [80, 280, 40]
    ring = decibel.graphs.ring(8)
    assert found["graphs"][0]["gap"] == pytest.approx(ring.spectral_gap)
    answer = invoke("graphs", "torus", "one_peer_exponential", "--nodes", "9", "--out", str(tmp_path / "new" / "g.png"))
    assert answer.exit_code == 0 and "torus 3×3" in answer.output
    assert (tmp_path / "new" / "g.png").read_bytes().startswith(b"\x89PNG")


def test_graphs_of_pairs_have_names():
    from decibel.cli._registry import make_graph

    pairs = decibel.graphs.matchings(decibel.graphs.torus(2, 4))
    assert make_graph("matchings:torus", 8) == pairs and make_graph("random-matchings", 7).period == 7
    assert make_graph("matchings", 8).name == "matchings of ring"
    with pytest.raises(ValueError, match="one-peer hypercube changes already: give matchings a graph that does not"):
        make_graph("matchings:one_peer_hypercube", 8)


def test_spectra_are_those_of_the_matrices():
    from decibel.cli._graph_survey import spectrum

    values, what = spectrum(decibel.graphs.ring(6))
    angles = 2 * np.pi * np.arange(6) / 6
    np.testing.assert_allclose(values, sorted(0.5 + 0.5 * np.cos(angles), reverse=True), atol=1e-12)
    assert "eigenvalues" in what
    np.testing.assert_allclose(spectrum(decibel.graphs.one_peer_exponential(8))[0], [1, *[0] * 7], atol=1e-12)


def test_advise_says_what_the_theory_says():
    found, code = answer_of("advise", 16, "--degree", 4)
    expected = decibel.theory.advise(16, degree=4)
    assert code == 0 and found["method"] == expected.method and found["transient"] == expected.transient
    answer = invoke("advise", "16", "--homogeneous", "--single")
    assert answer.exit_code == 0 and answer.output.startswith("dsgd")


def test_advise_predicts_the_time_of_networks():
    found, code = answer_of("advise", 8, "--entries", 10, 20, "--bandwidth", 1e6, "--latency", 0.01, "--degree", 2)
    expected = decibel.theory.plans(8, (10, 20), decibel.theory.Links(1e6, 0.01), degree=2)
    assert code == 0 and [plan["seconds"] for plan in found["plans"]] == [plan.seconds for plan in expected]
    answer = invoke("advise", "8", "--entries", "10", "20", "--loss", "0.1", "--personal", "--first-order")
    assert answer.exit_code and "a predicted time does not depend on --personal, --first-order" in answer.stderr
    answer = invoke("advise", "8", "--entries", "10", "20", "--bandwidth", "1e6", "--bytes-per-step", "2")
    assert answer.exit_code and "bytes_per_step=2: allow more" in answer.stderr
    answer = invoke("advise", "8", "--entries", "10", "20", "--loss", "0.1", "--compute", "0.1")
    assert answer.exit_code == 0 and "wave" in answer.output and " gt " not in answer.output


@pytest.mark.slow
def test_tune_gives_the_command_that_runs_with_what_it_found():
    found, code = answer_of(
        "tune", "linear_regression", "--nodes", 4, "--steps", 10, "--budget", 3, "--batch-size", 5, "--seeds", 1
    )
    assert code == 0 and found["score"] == min(row["upper"] for row in found["table"]) and len(found["table"]) == 3
    words = shlex.split(found["command"])
    assert words[:3] == ["decibel", "run", "linear_regression"] and "--batch-size" in words
    pairs = dict(word.split("=") for word in words if "=" in word)
    assert {name: float(value) for name, value in pairs.items()} == pytest.approx(found["settings"], rel=1e-5)


@pytest.mark.slow
def test_compare_runs_all_methods_on_the_same_task(quick, tmp_path):
    found, code = answer_of(
        "compare", "linear_regression", "sparkle-ed", "d-soba", "--nodes", 4, "--steps", 20, "--batch-size", 5, *RATES,
        "--set", "d-soba.alpha=0.002", "--out", tmp_path,
    )  # fmt: skip
    assert code == 0 and list(found["methods"]) == ["sparkle-ed", "d-soba"]
    assert found["methods"]["d-soba"]["settings"]["alpha"] == 0.002
    assert found["methods"]["sparkle-ed"]["settings"]["alpha"] == 0.001
    alone = quick[0]["last"]["distance"]
    assert found["methods"]["sparkle-ed"]["last"]["distance"] == pytest.approx(alone, rel=1e-12)
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.glob("*.npz")} == {"sparkle-ed.npz", "d-soba.npz"}


def test_doctor_solves_a_problem_and_says_what_is_here():
    found, code = answer_of("doctor")
    assert code == 0 and found["well"] and found["self_test"]["error"] < 1e-4
    assert found["versions"]["jax"] and found["devices"] and found["data"]["digits"] == "embedded"
    assert found["extras"]["test"] is True and found["compilation_cache"]["on"] is True


def test_doctor_notices_a_wrong_answer(monkeypatch):
    solve = decibel.solve
    monkeypatch.setattr(
        "decibel.cli._examination.solve", lambda *given, **options: solve(*given, **options | {"steps": 3})
    )
    answer = invoke("doctor")
    assert answer.exit_code == 1 and "The self-test is off by" in answer.output


@pytest.mark.slow
def test_bench_measures_where_there_is_no_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, code = answer_of("bench", "--nodes", 4)
    assert code == 0 and all(value > 0 for value in found["microseconds_per_step"].values())


@pytest.mark.parametrize("command", [["list"], ["version"], ["data", "list"]])
def test_what_there_is_as_json(command):
    found, code = answer_of(*command)
    assert code == 0 and found


def test_compiled_steps_are_kept_unless_told_otherwise(monkeypatch, tmp_path):
    from decibel.core._compilation import VARIABLE, cache_folder

    monkeypatch.delenv(VARIABLE, raising=False)
    assert cache_folder().name == "jax" and cache_folder().parent.name == "decibel"
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv(VARIABLE, "off")
    assert cache_folder() is None


def test_a_run_can_be_watched_while_it_goes_on(tmp_path, monkeypatch):
    """The page is there while the run is, and shows its rows."""
    pages = []
    write = decibel.loggers.JSONL.__call__

    def look(self, step, row):
        write(self, step, row)
        if step == 20:
            pages.append(urllib.request.urlopen(f"{address[0]}").read().decode())

    address = []
    monkeypatch.setattr("decibel.results.loggers.JSONL.__call__", look)
    serve = decibel.results.live.serve_beside

    @contextmanager
    def beside(folder, open_browser=False):
        with serve(folder, open_browser) as url:
            address.append(url)
            yield url

    monkeypatch.setattr("decibel.results.live.serve_beside", beside)
    answer = invoke(*QUICK, *RATES, "--out", str(tmp_path), "--live")
    assert answer.exit_code == 0, answer.output
    assert f"Watch it at {address[0]}" in answer.output and "<html" in pages[0]


def test_watch_needs_a_folder(tmp_path):
    answer = invoke("watch", str(tmp_path / "nowhere"))
    assert answer.exit_code == 2 and "is not a folder" in answer.output


class TestDefaults:
    """A task by its name alone learns something, also in few steps."""

    @pytest.mark.slow
    def test_a_method_that_needs_no_step_sizes(self, tmp_path):
        ran, code = answer_of("run", "linear_regression", "--nodes", 4, "--steps", 300, "--out", tmp_path)
        assert code == 0 and ran["method"] == "sparkle-ada-ed"
        assert ran["last"]["distance"] < 0.05 * ran["first"]["distance"]

    @pytest.mark.slow
    @pytest.mark.parametrize("task", ["linear_regression", "policy_evaluation"])
    def test_step_sizes_of_the_task(self, tmp_path, task):
        chosen = ("--method", "sparkle-ed", "--nodes", 4, "--steps", 300, "--out", tmp_path)
        ran, code = answer_of("run", task, *chosen)
        assert code == 0 and ran["settings"]["alpha"] != 0.05
        assert ran["last"]["distance"] < 1e-4 * ran["first"]["distance"]

    @pytest.mark.filterwarnings("ignore::decibel.SmallNodeWarning")
    def test_every_task_has_its_form(self):
        from decibel.cli._config import PERSONAL
        from decibel.cli._registry import TASKS

        assert set(PERSONAL) <= set(TASKS)
        assert PERSONAL == ("auprc", "meta_learning", "personalization")
