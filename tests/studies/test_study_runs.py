"""Runs of a study: seeds in one program, and nothing is run twice."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
from tiny_study import TINY, Setup, arms, quiet
from typer.testing import CliRunner

import decibel as db
from decibel.cli._app import app
from decibel.results._trace import Trace
from decibel.studies import find, runs, settings
from decibel.studies.reproduce import load, reproduce
from decibel.studies.runs import Runs, fingerprint
from decibel.studies.study import Arm

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
    assert "shift" not in arm.describe() and moved.describe()["shift"] == 100 and not arm.same_runs(moved)
    (there,), (here,) = moved.run((1,)), arm.run((101,))
    assert there.provenance["seed"] == here.provenance["seed"] == 101
    np.testing.assert_array_equal(there["upper"], here["upper"])
    assert not np.array_equal(there["upper"], arm.run((1,))[0]["upper"])


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


def test_a_second_run_computes_nothing(tmp_path, counted, beside):
    first = reproduce(TINY, "smoke", tmp_path, say=quiet)
    assert len(counted) == 2
    saved = (tmp_path / "test/tiny/verdicts.json").read_text()
    second = reproduce(TINY, "smoke", tmp_path, say=quiet)
    assert len(counted) == 2 and second == first
    assert (tmp_path / "test/tiny/verdicts.json").read_text() == saved
    reproduce(TINY, "smoke", tmp_path, fresh=True, say=quiet)
    assert len(counted) == 4


def test_arms_of_the_same_settings_are_run_once(tmp_path, counted, beside):
    def named_twice(setup: Setup) -> list[Arm]:
        first = arms(setup)
        denser = dataclasses.replace(first[0], case="dense", graph=db.graphs.complete(3))
        return [*first, dataclasses.replace(arms(setup)[0], case="again", label="once more", tuned=None), denser]

    study = dataclasses.replace(TINY, arms=named_twice)
    reproduce(study, "smoke", tmp_path, say=quiet)
    assert counted == [("ring", "ED"), ("ring", "D-SOBA"), ("dense", "ED")]
    _, _, found = load(study, tmp_path)
    ours, theirs = (next(run for run in found if run.case == case) for case in ("ring", "again"))
    assert theirs.label == "once more" and theirs.made["same_as"] == ["ring", "ED"] and ours.made["same_as"] is None
    for a, b in zip(ours.traces, theirs.traces, strict=True):
        assert a.provenance == b.provenance and all(np.array_equal(a[column], b[column]) for column in a)
    reproduce(study, "smoke", tmp_path, say=quiet)
    assert len(counted) == 3


def test_arms_that_only_look_alike_are_not_the_same():
    first, second = (dataclasses.replace(arms(Setup())[0], label=label) for label in "ab")
    assert first.same_runs(second)
    falling = lambda rate: lambda k: rate / (1.0 + k)  # noqa: E731
    a, b = (dataclasses.replace(first, method=dataclasses.replace(first.method, alpha=falling(r))) for r in (0.1, 0.2))
    assert a.describe() == b.describe() and not a.same_runs(b)
    task = lambda samples: lambda seed: db.tasks.linear_regression(3, dimension=2, samples=samples, seed=seed)  # noqa: E731
    a, b = (dataclasses.replace(first, task=task(samples)) for samples in (4, 5))
    assert a.describe() == b.describe() and not a.same_runs(b)


def test_arms_whose_tasks_differ_in_what_an_inner_function_was_given():
    """A function of a task, given with arguments of its own, is told apart by them, and never by its name alone."""
    made = lambda make, *, seed: make(seed=seed)  # noqa: E731
    inner = [partial(db.tasks.linear_regression, 3, dimension=2, samples=samples) for samples in (4, 5)]
    a, b = (
        dataclasses.replace(arms(Setup())[0], task=partial(made, one), steps=2, metrics=("upper",)) for one in inner
    )
    assert a.describe() != b.describe() and not a.same_runs(b)
    again = dataclasses.replace(a, task=partial(made, inner[0]))
    assert again.describe() == a.describe() and again.same_runs(a)
    ended = [arm.run([0])[0]["upper"][-1] for arm in (a, b, again)]
    assert ended[0] == ended[2] != ended[1]


@pytest.mark.slow_except("smoke")
@pytest.mark.parametrize("size", ["smoke", "full"])
def test_the_study_of_meta_learning_runs_every_setting_once(tmp_path, monkeypatch, size):
    """Without a search, as at the smallest size, its comparison and its rates have two settings in common."""
    study, ran = find("interact/meta-learning"), []

    def pretend(self: Arm, seeds):
        ran.append(self)
        column = {name: [1.0, 2.0] for name in ("step", "samples", "interact")}
        return [Trace(column, {"seed": seed, "stopped": None}) for seed in seeds]

    monkeypatch.setattr(Arm, "run", pretend)
    reproduce(study, size, tmp_path, say=quiet)
    given = settings.applied(study, size)
    assert not any(a.same_runs(b) for i, a in enumerate(ran) for b in ran[:i])
    assert len(ran) == len(given) - (2 if size == "smoke" else 0)
    assert {run.case for run in load(study, tmp_path)[2]} == {arm.case for arm in given}
    assert len(load(study, tmp_path)[2]) == len(given)


def test_deleting_what_was_kept_gives_the_same_verdicts(tmp_path, beside):
    first, again = (reproduce(TINY, "smoke", tmp_path / place, say=quiet) for place in ("a", "b"))
    assert first == again and first[0].checks[0].values == again[0].checks[0].values


def test_a_changed_set_up_is_run_again_and_the_old_is_forgotten(tmp_path, counted, beside):
    reproduce(TINY, "smoke", tmp_path, say=quiet)
    longer = dataclasses.replace(TINY, setups={"smoke": Setup(steps=9)})
    reproduce(longer, "smoke", tmp_path, say=quiet)
    assert len(counted) == 4 and len(list((tmp_path / "test/tiny/runs").glob("*.npz"))) == 2


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


def test_damaged_runs_are_named(tmp_path, beside):
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
    relabelled = dataclasses.replace(TINY, claims=(), title="other words")
    assert len({mark, fingerprint(TINY, "smoke", faster), fingerprint(TINY, "smoke", denser)}) == 3
    assert fingerprint(relabelled, "smoke", arm) == mark
    monkeypatch.setattr(runs, "code", lambda: "changed")
    assert fingerprint(TINY, "smoke", arm) != mark


def test_code_is_compared_without_comments_and_docstrings():
    import ast

    bare = lambda text: runs._bare(ast.parse(text))  # noqa: E731
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
    monkeypatch.setattr("decibel.studies.command.find", lambda name: TINY)
    monkeypatch.setattr("decibel.studies.report.find", lambda name: TINY)
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
