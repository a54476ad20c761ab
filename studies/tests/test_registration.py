"""What is fixed before the judged runs: a study takes it from a file, and committed traces agree with the file."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest
from tiny_study import RESULTS, loaded

from decibel_studies import NAMES, find
from decibel_studies.judging import registration
from decibel_studies.judging.registration import FIRST_FRESH, Commits, Registration, registered, stated
from decibel_studies.report import page

REGISTERED = [name for name in NAMES if (found := registration.find(name)) and found.full is not None]
FRESH = [name for name in REGISTERED if registered(name).fresh]


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_says_whose_it_is(name):
    for claim in find(name).claims:
        assert stated(name, claim.name)["whose"], claim.name
    found = registration.find(name)
    assert found is not None
    assert {key.split(" ")[0] for key in found.claims} == {claim.name for claim in find(name).claims}
    assert found.study == name and all(claim["statistic"] for claim in found.claims.values())


@pytest.mark.parametrize("name", [name for name in REGISTERED if (RESULTS / name / "verdicts.json").exists()])
def test_judged_traces_have_the_registered_settings(name):
    found, study = registered(name), find(name)
    verdicts, settings, runs = loaded(name)
    assert settings["setup"] == found.full == json.loads(json.dumps(dataclasses.asdict(study.setup("full"))))
    assert verdicts["registered"] == found.date and verdicts["fresh"] == found.fresh and verdicts["note"] == found.note
    arms = study.arms(study.setup("full"))
    assert len(runs) == len(arms)
    shifts = {(arm.case, arm.label): getattr(arm, "shift", 0) for arm in arms}
    for run in runs:
        seeds = [seed + shifts[run.case, run.label] for seed in found.full["seeds"]]
        assert [trace.provenance["seed"] for trace in run.traces] == seeds
        assert not found.fresh or run.made["date"] >= found.date, "run before it was registered"


@pytest.mark.parametrize("name", FRESH)
def test_fresh_seeds_were_not_used_before(name):
    plan, setup = find(name).search, find(name).setup("full")
    for shift in {getattr(arm, "shift", 0) for arm in find(name).arms(setup)}:
        seeds = [seed + shift for seed in setup.seeds]
        assert min(seeds) >= FIRST_FRESH and not set(seeds) & set(plan.seeds if plan else ())


def test_committed_verdicts_count_every_time_a_claim_was_judged():
    """A study that was run again says so, and each look spends half of what the one before did."""
    judged = [name for name in NAMES if (RESULTS / name / "verdicts.json").exists()]
    for name in judged:
        for saved in json.loads((RESULTS / name / "verdicts.json").read_text())["claims"]:
            assert saved["looks"] == registration.looks(name, saved["claim"]), saved["claim"]
    assert registration.looks("dsoba/speedup", "C10") == 5 and registration.looks("no/study", "C1") == 1


def test_a_verdict_under_another_hypothesis_has_another_name():
    """Of each claim the earlier verdicts stay listed, and no two under one name come from the same seeds."""
    for name in NAMES:
        for claim in find(name).claims:
            here = stated(name, claim.name)
            looks = here.get("earlier", [])
            assert all(look["verdict"] in (*page.WORDS, "not judged") and look["seeds"] for look in looks)
            test = here.get("test", claim.name)
            assert test == claim.name or any(look["test"] != test for look in looks), "another name needs another test"


@dataclasses.dataclass(frozen=True)
class Setup:
    steps: int = 5
    sides: tuple[tuple[int, ...], ...] = ((1, 2),)
    seeds: tuple[int, ...] = (0,)


def made(**full) -> Registration:
    claims = {"C1": {"whose": "ours", "statistic": "a mean", "tolerance": None}}
    return Registration("sparkle/linear-regression", "2025-01-01T00:00:00", True, "", claims, full or None)


def test_a_set_up_is_what_the_file_says_and_all_of_it():
    assert made(steps=7, sides=[[3, 4]], seeds=[1]).setup(Setup) == Setup(7, ((3, 4),), (1,))
    with pytest.raises(ValueError, match="differ in seeds, wide: register it again"):
        made(steps=7, sides=[], wide=1).setup(Setup)
    with pytest.raises(ValueError, match="registers no tolerance for C1"):
        made().tolerance("C1")
    with pytest.raises(ValueError, match="test/none is not registered"):
        registered("test/none")


def test_the_date_of_the_commit_needs_no_git(monkeypatch, tmp_path):
    found = made()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(registration, "FOLDER", tmp_path)
    assert found.commits() is None, "outside a checkout"
    monkeypatch.setenv("PATH", "")
    assert found.commits() is None, "without git"


def test_a_registration_counts_from_the_commit_with_its_date(monkeypatch, tmp_path):
    """Neither from that of an earlier date nor from a later edit, which is told apart."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(registration, "FOLDER", tmp_path)

    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

    now = "2025-01-01T12:00:00+00:00"
    found = dataclasses.replace(made(), date=now)

    def commit(hour: int, **content: str) -> str:
        found.path.write_text(json.dumps(content, indent=1))
        for kind in ("AUTHOR", "COMMITTER"):
            monkeypatch.setenv(f"GIT_{kind}_DATE", f"2025-01-01T{hour}:00:00+02:00")
        git("add", found.path.name)
        git("commit", "-m", "a change")
        return f"2025-01-01T{hour}:00:00+02:00"

    git("init")
    for key, value in (("user.name", "a tester"), ("user.email", "tester@example.org"), ("commit.gpgsign", "false")):
        git("config", key, value)
    assert found.commits() is None, "not in git"
    commit(10, date="2025-01-01T08:00:00+00:00", note="an earlier registration")
    assert found.commits() == Commits(None), "its date is not committed yet"
    first = commit(15, date=now, note="before the runs")
    assert found.commits() == Commits(first)
    later = [commit(17, date=now, note="what the runs showed"), commit(18, date=now, note="in other words", looks="2")]
    assert found.commits() == Commits(first, tuple(later))
    later += [commit(19, date="2025-01-01T17:00:00+00:00", note="a mistake"), commit(20, date=now, note="taken back")]
    assert found.commits() == Commits(first, tuple(later))
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    monkeypatch.setattr(registration, "FOLDER", moved)
    git("mv", found.path.name, "elsewhere")
    git("commit", "-m", "a move")
    assert found.commits() == Commits(first, tuple(later)), "a file that was moved was not edited"


@pytest.mark.slow
def test_without_the_cache_claims_get_the_same_verdicts(tmp_path):
    """Two claims at full size, run again in single precision as a user would."""
    name = "sparkle/topology-per-level"
    command = [sys.executable, "-m", "decibel_studies", "reproduce", name, "--size", "full", "--out", str(tmp_path)]
    plain = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS" and not key.startswith("JAX_")}
    subprocess.run(command, check=True, capture_output=True, env=plain)
    before, after = (json.loads((folder / name / "verdicts.json").read_text()) for folder in (RESULTS, tmp_path))
    verdicts = [[(claim["claim"], claim["verdict"]) for claim in saved["claims"]] for saved in (before, after)]
    assert verdicts[0] == verdicts[1] and len(verdicts[0]) == 2
