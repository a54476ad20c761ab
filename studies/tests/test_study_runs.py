"""Runs of a study: seeds in one program, and nothing is run twice."""

from __future__ import annotations

import dataclasses
import json
from functools import partial

import numpy as np
import pytest
from tiny_study import TINY, Setup, arms, quiet
from typer.testing import CliRunner

import decibel as db
from decibel import Trace
from decibel_studies.__main__ import app
from decibel_studies.testbed import runs
from decibel_studies.testbed.reproduce import reproduce
from decibel_studies.testbed.runs import Runs, fingerprint
from decibel_studies.testbed.study import Arm, _tasks

# Seeds in one program


@pytest.mark.slow
def test_seeds_together_are_the_runs_alone():
    """Nodes of unequal size, data of each seed's own, a method whose costs depend on chance."""

    def task(seed: int) -> db.tasks.Task:
        return db.tasks.linear_regression(3, dimension=2, samples=[4, 7 + seed, 9], seed=seed)

    method = db.mdbo(alpha=0.1, beta=0.1, theta=0.3, terms=4, scale=4.0)
    arm = Arm("", "", task, method, db.graphs.ring(3), 6, 4, rows=2, metrics=("consensus_x", "upper"))
    both = arm.run((0, 1))
    each = dataclasses.replace(arm, together=False).run((0, 1))
    for trace, alone in zip(both, each, strict=True):
        assert set(trace) == set(alone)
        for column in set(trace) - {"seconds"}:
            np.testing.assert_allclose(trace[column], alone[column], rtol=1e-9, err_msg=column)
    assert not np.allclose(both[0]["upper"], both[1]["upper"])


def test_a_shift_gives_a_case_seeds_of_its_own():
    task = partial(db.tasks.linear_regression, 3, dimension=2, samples=4)
    arm = Arm(
        "",
        "",
        task,
        db.dsoba(alpha=0.1, beta=0.1, gamma=0.1, theta=0.5),
        db.graphs.ring(3),
        3,
        2,
        rows=1,
        metrics=("upper",),
    )
    moved = dataclasses.replace(arm, shift=100)
    assert "shift" not in arm.describe() and moved.describe()["shift"] == 100
    (there,), (here,) = moved.run((1,)), arm.run((101,))
    assert there.provenance["seed"] == here.provenance["seed"] == 101
    np.testing.assert_array_equal(there["upper"], here["upper"])


def test_problems_of_different_shape_are_run_one_by_one():
    def task(seed: int) -> db.tasks.Task:
        return db.tasks.linear_regression(3, dimension=2 + seed, samples=4)

    arm = Arm("", "", task, db.ed(alpha=0.1), db.graphs.ring(3), 2, rows=1)
    arm = dataclasses.replace(arm, method=db.sparkle("ed", alpha=0.1, beta=0.1, gamma=0.1))
    assert [trace.rows for trace in arm.run((0, 1))] == [2, 2]


def test_a_seed_that_diverges_stops_and_the_others_go_on():
    def task(seed: int) -> db.tasks.Task:
        return db.tasks.linear_regression(3, dimension=2, samples=4, noise=1e3 if seed else 0.0)

    method = db.sparkle("ed", alpha=0.1, beta=0.1, gamma=0.1)
    made = Runs("", "", Arm("", "", task, method, db.graphs.ring(3), 400, rows=4).run((0, 1)))
    assert made.stopped[0] is None and "non-finite" in (made.stopped[1] or "")
    assert made.traces[0].rows == 5 and made.traces[1].rows < 5
    assert np.isfinite(made.last("distance")[0]) and np.isnan(made.last("distance")[1])


def test_a_run_ends_at_its_samples():
    arm = dataclasses.replace(arms(Setup(steps=30))[0], samples=40.0, rows=30)
    for trace in arm.run((0, 1)):
        assert trace["samples"][-2] < 40 <= trace["samples"][-1]


# What is kept


def test_a_second_run_computes_nothing_and_a_changed_set_up_is_run_again(tmp_path, counted, beside):
    first = reproduce(TINY, "smoke", tmp_path, say=quiet)
    assert len(counted) == 2
    saved = (tmp_path / "test/tiny/verdicts.json").read_text()
    second = reproduce(TINY, "smoke", tmp_path, say=quiet)
    assert len(counted) == 2 and second == first
    assert (tmp_path / "test/tiny/verdicts.json").read_text() == saved
    reproduce(TINY, "smoke", tmp_path, fresh=True, say=quiet)
    assert len(counted) == 4
    longer = dataclasses.replace(TINY, setups={"smoke": Setup(steps=9)})
    reproduce(longer, "smoke", tmp_path, say=quiet)
    assert len(counted) == 6 and len(list((tmp_path / "test/tiny/runs").glob("*.npz"))) == 2, "the old is forgotten"


def test_arms_whose_tasks_differ_in_what_an_inner_function_was_given():
    """A function of a task, given with arguments of its own, is told apart by them, and never by its name alone."""

    def called(make, *, seed):
        return make(seed=seed)

    inner = [partial(db.tasks.linear_regression, 3, dimension=2, samples=samples) for samples in (4, 5)]
    a, b, again = (dataclasses.replace(arms(Setup())[0], task=partial(called, make)) for make in (*inner, inner[0]))
    assert a.describe() != b.describe() and again.describe() == a.describe()
    tasks = [_tasks(arm.task, (0,))[0] for arm in (a, b)]
    assert [task.problem.upper_data.tree[0].shape[1] for task in tasks] == [4, 5], "none stands for the other"


def test_an_interrupted_study_continues(tmp_path, monkeypatch, counted, beside):
    run = Arm.run

    def interrupted(self: Arm, seeds):
        if self.label == "D-SOBA":
            raise KeyboardInterrupt
        return run(self, seeds)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Arm, "run", interrupted)
        reproduce(TINY, "smoke", tmp_path, say=quiet)
    reproduce(TINY, "smoke", tmp_path, say=quiet)
    assert counted == [("ring", "ED"), ("ring", "D-SOBA")]


def test_damaged_runs_are_named(tmp_path, counted, beside):
    reproduce(TINY, "smoke", tmp_path, say=quiet)
    path = next((tmp_path / "test/tiny/runs").glob("*.npz"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="is damaged: delete it"):
        reproduce(TINY, "smoke", tmp_path, say=quiet)


def test_the_fingerprint_sees_settings_and_code_but_not_words(monkeypatch):
    arm = arms(Setup())[0]
    mark = fingerprint(TINY, "smoke", arm)
    assert mark == fingerprint(TINY, "smoke", arms(Setup())[0])
    faster = dataclasses.replace(arm, method=dataclasses.replace(arm.method, alpha=0.2))
    denser = dataclasses.replace(arm, graph=db.graphs.complete(3))
    usual = dataclasses.replace(arm, method=db.sparkle("ed", alpha=0.1, beta=0.1, gamma=0.1, theta=0.5))
    described = json.dumps(runs.described(usual))
    assert '"alpha"' in described and '"hypergradient"' not in described and '"together"' not in described
    relabelled = dataclasses.replace(TINY, claims=(), title="other words")
    assert len({mark, fingerprint(TINY, "smoke", faster), fingerprint(TINY, "smoke", denser)}) == 3
    assert fingerprint(relabelled, "smoke", arm) == mark
    monkeypatch.setattr(runs, "VERSIONS", {"d-soba": 2})
    assert fingerprint(TINY, "smoke", arm) == mark, "of another method"
    monkeypatch.setattr(runs, "VERSIONS", {"linear_regression": 2})
    assert fingerprint(TINY, "smoke", arm) != mark, "numbers of the task have changed"
    monkeypatch.undo()
    monkeypatch.setattr(runs, "code_of", lambda path: "changed")
    assert fingerprint(TINY, "smoke", arm) != mark


def test_modules_may_be_renamed():
    assert runs._unplaced({"a": "<class 'one.two.Three'>", "class": "X"}) == {"a": "Three"}
    assert runs._unplaced(["one.two.three", "p = 0.1", "0.1", "a.b c"]) == ["three", "p = 0.1", "0.1", "a.b c"]


def test_code_is_compared_without_comments_and_docstrings():
    import ast

    def bare(text: str) -> str:
        return runs._bare(ast.parse(text))

    assert bare('"""one"""\ndef f():\n    "two"\n    return 1  # three') == bare("def f():\n    return 1")
    assert bare("def f():\n    return 1") != bare("def f():\n    return 2")
    assert not runs._claims(ast.parse("def arms(setup): pass").body[0])
    assert runs._claims(ast.parse("def best(results): pass").body[0])


def test_runs_are_saved_thin_and_whole(tmp_path):
    steps = np.arange(1001.0)
    long = Trace({"step": steps, "loss": np.exp(-steps / 100), "samples": 3 * steps}, {"seed": 0, "stopped": None})
    short = Trace({name: long[name][:400] for name in long}, {"seed": 1, "stopped": "non-finite"})
    back = Runs.load(Runs("case", "label", [long, short]).save(tmp_path / "a" / "runs.npz"))
    assert [trace.rows <= 200 for trace in back.traces] == [True, True] and back.traces[1].rows < back.traces[0].rows
    assert back.traces[0]["step"][[0, -1]].tolist() == [0, 1000] and back.stopped == [None, "non-finite"]
    np.testing.assert_allclose(back.traces[0]["loss"], np.exp(-back.traces[0]["step"] / 100), rtol=1e-6)


# The command


def test_the_command_runs_a_study_and_draws_it(tmp_path, monkeypatch, beside):
    monkeypatch.setattr("decibel_studies.testbed.runner.find", lambda name: TINY)
    monkeypatch.setattr("decibel_studies.report.find", lambda name: TINY)
    answer = CliRunner().invoke(app, ["reproduce", "test/tiny", "--size", "smoke", "--out", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    assert "holds" in answer.output and (tmp_path / "test/tiny/figure.svg").read_text().startswith("<?xml")


def test_studies_that_fail_in_processes_of_their_own_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "no number, so that Python does not start")
    arguments = ["dsoba/speedup", "dsoba/logistic", "--size", "smoke", "--out", str(tmp_path), "--jobs", "2"]
    answer = CliRunner().invoke(app, ["reproduce", *arguments])
    assert answer.exit_code == 1 and "dsoba/logistic, dsoba/speedup failed" in " ".join(answer.output.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sparkle/hyper-cleanin"], "did you mean 'sparkle/hyper-cleaning'"),
        (["dsoba/speedup", "--size", "large"], "choose smoke, small, full"),
    ],
)
def test_a_wrong_name_gets_a_sentence(arguments, words):
    answer = CliRunner().invoke(app, ["reproduce", *arguments])
    assert answer.exit_code == 1 and words in answer.output and "Traceback" not in answer.output


def test_a_study_without_its_data_says_what_to_fetch(tmp_path, monkeypatch):
    monkeypatch.setenv("DECIBEL_DATA", str(tmp_path))
    monkeypatch.setattr(db.tasks.data.cache, "cache_folder", lambda: tmp_path)
    config = ["reproduce", "interact/auprc", "--size", "small", "--out", str(tmp_path)]
    answer = CliRunner().invoke(app, config)
    assert answer.exit_code == 1 and "a9a" in answer.output and "Traceback" not in answer.output
    answer = CliRunner().invoke(app, [*config, "--several"])  # as `--jobs` asks
    assert answer.exit_code == 0 and "skipped" in answer.output and "a9a" in answer.output
