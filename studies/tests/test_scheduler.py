"""Studies in several calls: jobs that no process runs twice, and verdicts that are those of one long run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from decibel import Trace
from decibel_studies.judging.compare import lower
from decibel_studies.judging.results import Runs
from decibel_studies.judging.verdicts import Claim
from decibel_studies.testbed import reproduce, scheduler
from decibel_studies.testbed.study import Study

RAN: list[tuple[str, tuple[int, ...]]] = []


@dataclass(frozen=True)
class Setup:
    seeds: tuple[int, ...] = (0, 1, 2, 3)


@dataclass(frozen=True)
class Line:
    """An arm that needs no time; `ed-gt` begins as `ed` does, so that files of both must not be confused."""

    label: str
    height: float
    case: str = "a case"

    def describe(self) -> dict[str, object]:
        return {"label": self.label, "height": self.height}

    def run(self, seeds: Sequence[int]) -> list[Trace]:
        RAN.append((self.label, tuple(seeds)))
        return [
            Trace({"step": np.arange(3.0), "loss": self.height + 0.01 * seed + np.zeros(3)}, {"seed": seed})
            for seed in seeds
        ]


def arms(setup: Setup) -> list[Line]:
    return [Line("ed", 1.0), Line("ed-gt", 2.0), Line("other", 3.0, "another case")]


def judged(results):
    return [lower(results["a case", "ed"], results["a case", "ed-gt"], "loss")]


STUDY = Study(
    name="made/up",
    title="",
    paper="",
    about="",
    setups={"full": Setup()},
    arms=arms,
    columns=("loss",),
    claims=(Claim("X1", "ed is lower.", judged),),
)


@pytest.fixture(autouse=True)
def _made_up(monkeypatch):
    RAN.clear()
    monkeypatch.setattr(scheduler, "find", lambda name: STUDY)


def work(out, *, case: str = "", at_once: int = 1) -> None:
    scheduler.work(out, ["made/up"], "full", at_once, case)


def test_jobs_run_once_seed_by_seed_and_the_case_that_is_asked_for_first(tmp_path):
    work(tmp_path, case="a case")
    assert [(label, (seed,)) for seed in range(4) for label in ("ed", "ed-gt")] == RAN
    work(tmp_path)
    assert RAN[8:] == [("other", (seed,)) for seed in range(4)]
    work(tmp_path)
    assert len(RAN) == 12


def test_what_another_process_has_begun_is_left_to_it_and_forgotten_by_the_next_call(tmp_path):
    first = next(scheduler.jobs(["made/up"], "full", 1))
    claim = first.path(tmp_path).with_suffix(".begun")
    claim.parent.mkdir(parents=True)
    claim.touch()
    work(tmp_path)
    assert ("ed", (0,)) not in RAN and len(RAN) == 11
    scheduler.forget_begun(tmp_path)  # the process that had begun it was stopped
    work(tmp_path)
    assert RAN[11:] == [("ed", (0,))]


def test_an_arm_that_fails_does_not_end_the_others(tmp_path, monkeypatch, capsys):
    run = Line.run
    monkeypatch.setattr(Line, "run", lambda self, seeds: run(self, seeds) if self.label != "ed" else 1 / 0)
    assert scheduler.work(tmp_path, ["made/up"], "full", 1, "") == 4
    assert "a case, ed, (0,): ZeroDivisionError" in capsys.readouterr().out
    assert [label for label, _ in RAN] == ["ed-gt", "other"] * 4
    monkeypatch.undo()
    monkeypatch.setattr(scheduler, "find", lambda name: STUDY)
    scheduler.forget_begun(tmp_path)
    assert scheduler.work(tmp_path, ["made/up"], "full", 1, "") == 0
    assert [label for label, _ in RAN[8:]] == ["ed"] * 4


@pytest.mark.parametrize("at_once", [1, 3, 4])
def test_a_study_in_several_calls_is_judged_as_in_one_run(tmp_path, at_once, capsys):
    whole = reproduce.reproduce(STUDY, "full", tmp_path / "whole", say=lambda text: None)
    work(tmp_path / "first", case="another", at_once=at_once)
    scheduler.pack(tmp_path / "first")
    (tmp_path / "next").mkdir()
    (tmp_path / "first" / scheduler.ARCHIVE).rename(tmp_path / "next" / scheduler.ARCHIVE)  # on another machine
    scheduler.unpack(tmp_path / "next")
    scheduler.gather(tmp_path / "next", ["made/up"], "full", at_once, tmp_path / "collected")
    assert "jobs are missing; the first is a case, ed," in capsys.readouterr().out
    assert not (tmp_path / "collected").exists()
    before = len(RAN)
    work(tmp_path / "next", at_once=at_once)
    assert all(label != "other" for label, _ in RAN[before:])
    scheduler.gather(tmp_path / "next", ["made/up"], "full", at_once, tmp_path / "collected")
    assert reproduce.judge(STUDY, tmp_path / "collected") == whole
    for path in (tmp_path / "whole" / "made" / "up" / "runs").glob("*.npz"):
        one, other = Runs.load(path), Runs.load(tmp_path / "collected" / "made" / "up" / "runs" / path.name)
        assert [trace.provenance["seed"] for trace in other.traces] == [0, 1, 2, 3]
        for a, b in zip(one.traces, other.traces, strict=True):
            np.testing.assert_array_equal(a["loss"], b["loss"])


def test_runs_of_other_code_are_collected_and_those_of_other_settings_are_not(tmp_path, monkeypatch):
    work(tmp_path)
    monkeypatch.setattr(scheduler, "fingerprint", lambda *given: "0" * 20)
    job = next(scheduler.jobs(["made/up"], "full", 1))
    assert not job.path(tmp_path).exists()
    assert job.done(tmp_path).label == "ed" and job.done(tmp_path).traces[0]["loss"][-1] == 1.0
    other = dataclasses.replace(job, arm=Line("ed", 1.5))
    assert other.path(tmp_path) == job.path(tmp_path) and other.done(tmp_path) is None


def test_parts_keep_all_that_made_them():
    parts = [Runs("", "", Line("ed", 1.0).run([seed]), made_on(device)) for seed, device in ((0, "b"), (1, "a"))]
    whole = scheduler.joined(parts)
    assert whole.made["device"] == "a; b" and whole.made["seconds"] == 3.0
    assert [trace.provenance["seed"] for trace in whole.traces] == [0, 1]


def made_on(device: str) -> dict:
    return {"seconds": 1.5, "device": device, "decibel": "1", "jax": "2", "python": "3", "arm": {}}


def found(date: str, alpha: float) -> dict:
    return {"rates": {"alpha": alpha}, "search": {"date": date}}


def test_step_sizes_that_an_earlier_call_found_are_used_by_the_next(tmp_path, monkeypatch):
    own, out = tmp_path / "study.json", tmp_path / "out"
    monkeypatch.setattr(scheduler.step_sizes, "path_of", lambda study: own)
    own.write_text(json.dumps({"full": {"ed": found("2026-01-01", 1.0), "gt": found("2026-01-01", 1.0)}}))
    out.mkdir()
    assert scheduler.work_in_processes(out, ["made/up"], "search", [], 0, 0.0) == []
    # A checkout that has a newer search of one method, and none of the other.
    own.write_text(json.dumps({"full": {"ed": found("2026-01-02", 2.0)}, "small": {"ed": found("2026-01-01", 3.0)}}))
    monkeypatch.setattr("sys.argv", ["scheduler", str(out), "made/up", "--processes", "0"])
    scheduler.main()
    assert json.loads(own.read_text()) == {
        "full": {"ed": found("2026-01-02", 2.0), "gt": found("2026-01-01", 1.0)},
        "small": {"ed": found("2026-01-01", 3.0)},
    }
    assert "small" not in json.loads((out / "settings" / "study.json").read_text()), "kept while searching alone"


def test_runs_begin_only_after_all_step_sizes_were_found(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["scheduler", str(tmp_path), "made/up", "--tune"])
    for codes, begun, status in (([0, None], ["search"], 0), ([0, 1], ["search"], 1), ([0, 0], ["search", "work"], 0)):
        stages = []
        monkeypatch.setattr(scheduler, "work_in_processes", lambda *given: stages.append(given[2]) or codes)  # noqa: B023
        ended = 0
        try:
            scheduler.main()
        except SystemExit as end:
            ended = int(end.code or 0)
        assert (stages, ended) == (begun, status)


def test_processes_that_search_share_the_methods(tmp_path, monkeypatch):
    taken = []

    def search(study, size, *, mine, say):
        taken.append([key for key in ("ed", "gt") if mine(key)])

    monkeypatch.setattr(scheduler.step_sizes, "search", search)
    for _ in range(2):
        scheduler.search(tmp_path, ["made/up"], "full")
    scheduler.forget_begun(tmp_path)
    scheduler.search(tmp_path, ["made/up"], "full")
    assert taken == [["ed", "gt"], [], ["ed", "gt"]]


def test_an_archive_that_is_too_large_is_not_unpacked(tmp_path, monkeypatch):
    work(tmp_path / "first")
    scheduler.pack(tmp_path / "first")
    (tmp_path / "next").mkdir()
    (tmp_path / "first" / scheduler.ARCHIVE).rename(tmp_path / "next" / scheduler.ARCHIVE)
    monkeypatch.setattr(scheduler, "MOST_BYTES", 1_000)
    with pytest.raises(ValueError, match="unpacks to more than 1000 bytes"):
        scheduler.unpack(tmp_path / "next")
    assert [path.name for path in (tmp_path / "next").iterdir()] == [scheduler.ARCHIVE]
