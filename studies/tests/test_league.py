"""The league: the same search for all, scores that agree with a hand calculation, and a run that continues."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import decibel as db
from decibel import CATALOG
from decibel_studies.files import write_file
from decibel_studies.league import command, run, score
from decibel_studies.league.benchopt import COLUMNS, table
from decibel_studies.league.goal import least, value
from decibel_studies.league.page import CHOSEN, page, standings
from decibel_studies.league.run import Setup
from decibel_studies.league.tasks import DIVISIONS, NODES

TINY = Setup(iterations=4, rows=2, batch_size=8, upper=(1.0, 0.1), lower=(1.0,))
PACKED = Path(__file__).parents[1] / "results" / "league" / "league.json"
PAGE = Path(__file__).parents[2] / "docs" / "league.md"


@pytest.fixture
def small(monkeypatch):
    """One division with the task of least squares at one level."""
    only = {"linear regression": DIVISIONS["single"].tasks["linear regression"]}
    divisions = {"single": replace(DIVISIONS["single"], tasks=only)}
    for module in (run, score, command):
        monkeypatch.setattr(module, "DIVISIONS", divisions)
    monkeypatch.setattr("decibel_studies.league.page.DIVISIONS", divisions)
    run._tasks.cache_clear()
    yield divisions
    run._tasks.cache_clear()


def test_every_division_has_eight_tasks_of_its_form():
    for name, division in DIVISIONS.items():
        assert len(division.tasks) == 8 and division.form == name
        assert CATALOG[division.reference].form == name
    assert {CATALOG[name].form for name in CATALOG} == set(DIVISIONS)


def test_the_method_that_sets_the_budgets_is_first_and_mixtures_are_last():
    names = run.order(DIVISIONS["shared"])
    methods = [name for name, entry in CATALOG.items() if entry.form == "shared"]
    one_peer = [f"{name}, one peer" for name in run.ONE_PEER if name in methods]
    assert names[0] == "sparkle-ed" and sorted(names) == sorted(methods + one_peer)
    mixed = [run.entry_of(name).mixture for name in names]
    assert mixed == sorted(mixed)


@pytest.mark.parametrize("name", ["sparkle-ed", "ed", "ada-ed", "dadam"])
def test_every_method_tries_as_many_candidates(name):
    task = db.tasks.linear_regression(NODES, samples=4)
    tried = run.candidates(CATALOG[name], task, Setup())
    assert len(tried) == Setup().candidates == 9
    CATALOG[name](**tried[0])
    if name == "sparkle-ed":  # the task's own step sizes are one of them
        assert any(one == pytest.approx(dict(task.step_sizes)) for one in tried)
    if name == "dadam":  # around its own step size
        assert tried[0]["alpha"] < 0.001 < tried[-1]["alpha"]
    if name == "ed":
        sizes = [one["alpha"] for one in tried]
        assert np.allclose(np.diff(np.log(sizes)), np.log(sizes[1] / sizes[0]))  # geometric


@pytest.mark.slow
@pytest.mark.parametrize("personal", [False, True])
def test_the_goal_is_the_exact_value(personal):
    """Newton's method in the goal against the closed form of the lower level, and L-BFGS against that of x*."""
    task = db.tasks.linear_regression(3, dimension=2, samples=6, heterogeneity=1.0)
    p = task.problem
    if personal:
        data = dict(upper_data=p.upper_data, lower_data=p.lower_data)
        p = db.Problem(p.upper, p.lower, **data, x0=p.x0, y0=p.y0, personal=True)
    x = np.array([0.3, -0.7])
    (a, b), c = (np.asarray(leaf) for leaf in p.upper_data.tree), p.lower.regularization
    gram = np.einsum("nspq,nspr->nqr", a, a) / a.shape[1] + c * np.eye(2)
    across = a.mean(1).transpose(0, 2, 1)

    def solve(x):
        if personal:
            return np.linalg.solve(gram, (across @ x)[..., None])[..., 0]
        return np.tile(np.linalg.solve(gram.mean(0), across.mean(0) @ x), (3, 1))

    def phi(x):
        return np.square(np.einsum("nspq,nq->nsp", a, solve(x)) - b).sum(-1).mean()

    np.testing.assert_allclose(value(p, np.asarray(x)), phi(x), rtol=1e-8)
    start, found = least(p)
    np.testing.assert_allclose(start, phi(np.zeros(2)), rtol=1e-8)
    if not personal:
        np.testing.assert_allclose(found, phi(task.truth.solution), rtol=1e-7)
    assert found <= phi(x)


@pytest.mark.slow
def test_a_run_continues_and_its_page_holds_the_numbers(small, tmp_path, monkeypatch):
    said: list[str] = []
    files = command.run(tmp_path, say=said.append, methods=["dsgd", "gt"], setup=TINY)
    assert [path.name for path in files] == ["league.json", "league.md", "league.svg", "standings.csv", "league.csv"]
    assert len(said) == 4  # the reference, dsgd, gt, and gt with one peer a step
    before = json.loads(files[0].read_text())["records"]
    monkeypatch.setattr(run, "measure", lambda *_: pytest.fail("ran again"))
    command.run(tmp_path, say=said.append, methods=["dsgd", "gt"], setup=TINY)
    assert len(said) == 4 and json.loads(files[0].read_text())["records"] == before

    # A call for one method keeps the rows of the others, and what was packed is continued elsewhere.
    elsewhere = tmp_path / "elsewhere"
    write_file(elsewhere / "league.json", files[0].read_text())
    command.run(elsewhere, say=said.append, methods=["gt"], setup=TINY)
    assert len(said) == 4 and json.loads((elsewhere / "league.json").read_text())["records"] == before
    command.run(elsewhere, say=said.append, setup=TINY, table_only=True)
    other = json.loads((elsewhere / "league.json").read_text())
    other["made"]["machine"] = "another"
    write_file(elsewhere / "league.json", json.dumps(other))
    with pytest.raises(ValueError, match="was made on another machine \\(another; here: "):
        command.run(elsewhere, say=said.append, methods=["gt"], setup=TINY)
    command.run(elsewhere, say=said.append, setup=TINY, table_only=True)  # says so still
    assert json.loads((elsewhere / "league.json").read_text())["made"]["machine"] == "another"
    with pytest.raises(ValueError, match="holds no records of this set-up: run `decibel league` without --table-only"):
        command.run(tmp_path / "nothing", say=said.append, setup=TINY, table_only=True)

    made = score.League(score.read(files[0]))
    curves = made.records["single", "linear regression", "gt"]["curves"]
    assert curves["step"][:3] == [0, 2, 4] and curves["bytes"][1] == pytest.approx(curves["bytes"][2] / 2)
    rows = made.standing("single")
    assert {row.method for row in rows} == {"ed", "dsgd", "gt", "gt, one peer"}
    told = csv.DictReader(files[3].read_text().splitlines())
    assert {line["method"] for line in told if line["task"] == "all"} == {row.method for row in rows}
    # Gradient tracking sends twice as much: at equal bytes it has made half the steps.
    at = ("single", "linear regression")
    halfway = (np.array(curves["value"][1]) - made.least[at]) / (made.start[at] - made.least[at])
    np.testing.assert_allclose(made.gap(*at, "gt", "bytes"), halfway, rtol=1e-9)

    lines = list(csv.DictReader(io.StringIO(table(made))))
    assert tuple(lines[0]) == COLUMNS
    assert len(lines) == sum(len(one["curves"]["step"]) * len(TINY.seeds) for one in made.records.values())


def test_a_method_of_full_batches_is_given_all_samples():
    problem = DIVISIONS["personal"].tasks["linear regression"](seed=0).problem
    for name, expected in (("interact", None), ("spdb", Setup().batch_size)):
        assert run._batch_size(problem, CATALOG[name](), run.GRAPHS[""], Setup()) == expected


@pytest.mark.slow
def test_a_failure_is_told_and_tried_again(small, tmp_path, monkeypatch):
    said: list[str] = []
    real = run.measure

    def fail(division, task, name, *rest):
        if name != "ed":
            raise RuntimeError("no")
        return real(division, task, name, *rest)

    monkeypatch.setattr(run, "measure", fail)
    found = list(run.league(tmp_path, TINY, say=said.append, methods=["dsgd"]))
    assert [one["method"] for one in found] == ["ed"] and "dsgd on linear regression failed: no" in said[-1]
    monkeypatch.setattr(run, "measure", real)
    assert [one["method"] for one in run.league(tmp_path, TINY, say=said.append, methods=["dsgd"])] == ["ed", "dsgd"]


def test_a_share_between_rows_is_interpolated_by_its_logarithm():
    spent, share = np.array([0.0, 2.0, 4.0]), np.array([[1.0, 1.0], [0.1, np.nan], [0.001, np.nan]])
    np.testing.assert_allclose(score.at_cost(spent, share, 3.0)[0], 0.01)
    np.testing.assert_allclose(score.at_cost(spent, share, 2.0)[0], 0.1)
    np.testing.assert_allclose(score.at_cost(spent, share, 9.0)[0], 0.001)  # it ended before
    assert np.isnan(score.at_cost(spent, share, 1.0)[1]) and score.at_cost(spent, share, 0.0)[1] == 1.0


def test_the_page_is_made_from_the_committed_data():
    made = score.League(score.read(PACKED))
    assert page(made) == PAGE.read_text()
    assert standings(made) == PAGE.with_name("standings.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(standings(made))))
    inner = {row["method"]: int(row["steps in an iteration"]) for row in rows}
    assert inner["k-gt"] == inner["ma-dsbo"] == 5 and inner["led"] == 4 and inner["sparkle-ed"] == 1
    assert {row["method"] for row in rows} >= {name for names in CHOSEN.values() for name in names}
