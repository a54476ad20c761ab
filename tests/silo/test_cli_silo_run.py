"""`decibel silo run` and `silo status`, of a site alone: what is printed and noted, and what keeps it from starting."""

from __future__ import annotations

import importlib
import json
import logging
from pathlib import Path

import jax
import numpy as np
import pytest
from silo_commands import silo_command
from silo_sites import free_ports

import decibel as db
from decibel.silo._errors import SiteLost
from decibel.silo._logging import NAME
from decibel.silo.commands import _run_site

TOML = """
name = "f"
edges = []
method = "ed"
steps = STEPS
eval_every = 4
settings = { alpha = 0.1 }
sites = [{ name = "a", address = PORT }]
"""
PROBLEM = """
import decibel as db, jax.numpy as jnp, numpy as np

def problem():
    data = np.random.default_rng(0).normal(size=(1, 6, 3))
    return db.Problem(lambda x, batch: jnp.mean((batch @ x - CONSTANT) ** 2), upper_data=data, x0=jnp.zeros(3))
"""


@pytest.fixture
def silo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("f.toml").write_text(
        TOML.replace("STEPS", "12").replace("PORT", str(free_ports(1)[0])) + "trust_members = true\n"
    )
    logger = logging.getLogger(NAME)
    before = list(logger.handlers), logger.level, logger.propagate
    silo_command("init", "f.toml", "--no-passphrase")
    silo_command("join", "a")
    silo_command("sign", "a", "silo/a/request.pem", said="y\n")
    yield silo_command
    logger.handlers[:], logger.level, logger.propagate = before


def problem(name, constant="1.0"):
    """A module of its own, since one that was imported stays."""
    Path(f"{name}.py").write_text(PROBLEM.replace("CONSTANT", constant))
    return f"{name}:problem"


def noted():
    return json.loads(Path("silo/a/status.json").read_text())


def test_a_run_its_last_line_and_its_model(silo):
    """The model is a saved result, without the rows of the trace, which no noise hides."""
    said = silo("run", "a", "--problem", problem("run_saved"))
    assert "INFO a: finished 12 steps; nobody was missing" in said
    assert said.splitlines()[-1] == "a: nobody was missing."
    assert "finished" in silo("status") and noted()["state"] == "finished" and noted()["step"] == 12
    assert noted()["jax"] == jax.__version__
    made = importlib.import_module("run_saved").problem()
    for given in (None, made):
        model = db.Result.load("silo/a/solution.npz", given)
        assert (model.step, model.status, model.method) == (12, "completed", "ed")
        assert model.trace.rows == 0 and model.trace.provenance["steps"] == 12
    expected = db.solve(made, db.ed(alpha=0.1), steps=12, metrics=[]).x
    np.testing.assert_allclose(model.x, expected, rtol=1e-6)
    assert db.Trace.load("silo/a/trace.npz")["step"][-1] == 12


def test_a_finished_run_is_not_begun_again(silo):
    made = problem("run_again")
    silo("run", "a", "--problem", made)
    kept = {path: path.read_bytes() for path in Path("silo/a").rglob("*") if path.is_file()}
    said = silo("run", "a", "--problem", made)
    assert "a has finished this run before: its model is silo/a/solution.npz." in said
    assert "this run has finished here before, at step 12: no step is done" in said
    for path, content in kept.items():
        assert (
            path.name in ("status.json", "federation-status.json", "incarnation", "privacy.json")
            or path.read_bytes() == content
        ), path
    model = db.Result.load("silo/a/solution.npz")
    Path("silo/a/solution.npz").unlink()  # as if it had been killed after its last step
    assert "a has finished this run before" in silo("run", "a", "--problem", made)
    assert np.array_equal(db.Result.load("silo/a/solution.npz").x, model.x)
    kept[Path("silo/a/solution.npz")] = Path("silo/a/solution.npz").read_bytes()
    Path("silo/a/checkpoints").rename("elsewhere")
    assert "its last checkpoint, of step 12, is gone" in silo("run", "a", "--problem", made, code=1)
    assert Path("silo/a/solution.npz").read_bytes() == kept[Path("silo/a/solution.npz")]
    Path("silo/a/finished.json").unlink()  # on purpose
    assert "a is at step 12" in silo("run", "a", "--problem", made)


def test_a_changed_loss_does_not_resume_and_lines_of_json(silo):
    said = silo("run", "a", "--problem", problem("run_before"), "--log-format", "json")
    lines = [json.loads(line) for line in said.splitlines()]
    assert all(set(line) == {"time", "level", "site", "message"} and line["site"] == "a" for line in lines)
    assert any(line["message"].startswith("a is at step 12: upper ") for line in lines)
    said = silo("run", "a", "--problem", problem("run_after", "1.0000001"), "--log-format", "json", code=1)
    last = json.loads(said.splitlines()[-1])
    assert last["level"] == "error" and "the upper loss changed" in last["message"]
    assert "give the loss that it was saved with" in last["message"]
    assert noted()["state"] == "stopped" and "the upper loss changed" in noted()["detail"]
    assert "a has finished this run before" in silo("run", "a", "--problem", problem("run_as_before"))


def test_what_keeps_it_from_starting_is_noted(silo):
    (line,) = silo("run", "a", "--problem", "nowhere:f", "--log-format", "json", code=1).splitlines()
    assert json.loads(line)["level"] == "error" and "'nowhere:f' cannot be loaded" in json.loads(line)["message"]
    assert noted()["state"] == "stopped" and "cannot be loaded" in noted()["detail"]
    assert "log format 'xml' is not known" in silo("run", "a", "--problem", "m:f", "--log-format", "xml", code=1)
    assert "a: stopped, since --problem" in " ".join(silo("status").split())


def test_a_lost_neighbour_is_a_sentence(silo, monkeypatch):
    def lost(*_):
        raise SiteLost("berlin cannot be reached: start all sites again.")

    monkeypatch.setattr(_run_site, "_solve", lost)
    assert silo("run", "a", "--problem", "m:f", code=1).strip() == "berlin cannot be reached: start all sites again."


@pytest.mark.parametrize("port", ["0", "70000"])
def test_ports_that_are_none(silo, port):
    silo("run", "a", "--problem", "m:f", "--metrics-port", port, code=2)
