"""Studies: every one runs at its smallest size, and the committed results are what it says."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from tiny_study import RESULTS, loaded, quiet

import decibel as db
from decibel.methods._method import validate_graph
from decibel_studies import NAMES, find
from decibel_studies.judging import committed
from decibel_studies.judging.verdicts import LEVEL
from decibel_studies.report import table
from decibel_studies.testbed import step_sizes
from decibel_studies.testbed.reproduce import judge as judge_again
from decibel_studies.testbed.reproduce import load, reproduce
from decibel_studies.testbed.runs import fingerprint, place
from decibel_studies.testbed.study import Arm, Curve

# Every study


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_smallest_size_runs(name, tmp_path):
    study = find(name)
    verdicts = reproduce(study, "smoke", tmp_path, say=quiet)
    assert [verdict.claim.name for verdict in verdicts] == [claim.name for claim in study.claims]
    assert all(verdict.checks for verdict in verdicts)
    loaded = load(study, tmp_path)
    saved = loaded.verdicts
    assert saved["size"] == "smoke" and [claim["verdict"] for claim in saved["claims"]] == [v.verdict for v in verdicts]
    assert len(loaded.runs) == len(loaded.settings["arms"]) == len(study.arms(study.setup("smoke")))
    for run in loaded.runs:
        assert len(run.traces) == len(study.setup("smoke").seeds)
        assert set(study.columns) & set(run.columns), "a figure would show nothing of this arm"


# Results in the repository

ROOT = Path(__file__).parents[2]
KEPT = [name for name in NAMES if (RESULTS / name / "verdicts.json").exists()]


@pytest.mark.parametrize("name", KEPT)
def test_committed_verdicts_follow_from_committed_traces(name, tmp_path):
    shutil.copytree(RESULTS / name, tmp_path / name)
    judge_again(find(name), tmp_path)
    before, after = (json.loads((folder / name / "verdicts.json").read_text()) for folder in (RESULTS, tmp_path))
    assert before["size"] == "full" and before["date"] and before["device"] and before["command"]
    # Another NumPy may round the last digit differently.
    for old, new in zip(before["claims"], after["claims"], strict=True):
        same(old, new)
        assert old["verdict"] == "holds" or old["why"], f"{old['claim']} did not hold, and nothing says why"
        for part in (old, old["survives"]):
            for check in part["checks"]:
                least = min(abs(float(check["p"][name]) - LEVEL) for name in ("holds", "fails"))
                assert least > 1e-9, f"{check['text']}: rounding on another processor could turn this verdict"


def same(old, new, near=1e-5):
    """Words alike, and numbers nearly; p-values are kept with three digits."""
    if isinstance(old, dict):
        assert old.keys() == new.keys()
        for name in old:
            same(old[name], new[name], 0.02 if name == "p" else near)
    elif isinstance(old, list):
        assert len(old) == len(new)
        for one, other in zip(old, new, strict=True):
            same(one, other, near)
    elif isinstance(old, float) and isinstance(new, float):
        assert new == pytest.approx(old, rel=near, abs=1e-12)
    else:
        assert old == new


@cache
def arms_of(name: str, size: str) -> list[Curve]:
    return step_sizes.applied(find(name), size)


@pytest.mark.parametrize("name", KEPT)
def test_committed_runs_have_the_fingerprints_of_their_arms(name):
    """Of the set-up, the arm, the study's own code and the versions of method and task. Where code was changed and
    numbers were not, `python -m decibel_studies.testbed.restamp studies/results` gives them those of now."""
    study = find(name)
    made = {(run.case, run.label): run.made["fingerprint"] for run in loaded(name).runs}
    marks = {(arm.case, arm.label): fingerprint(study, "full", arm) for arm in arms_of(name, "full")}
    assert made == marks
    for arm in arms_of(name, "full"):
        assert place(RESULTS, study, arm, marks[arm.case, arm.label]).exists()


@pytest.mark.parametrize("name", [name for name in NAMES if find(name).search is not None])
def test_searches_have_the_fingerprints_of_what_they_would_try_now(name):
    study = find(name)
    setup = study.setup("full")
    settings = step_sizes.load(study, "full")
    for key, arm in step_sizes.searched_arms(study, setup).items():
        if key in settings:
            assert settings[key]["search"]["fingerprint"] == step_sizes.fingerprint(study, setup, arm), key


def test_other_set_ups_are_not_judged(tmp_path):
    name = "dsoba/speedup"
    shutil.copytree(RESULTS / name, tmp_path / name)
    longer = dataclasses.replace(find(name), setups={"full": dataclasses.replace(find(name).setup("full"), steps=9)})
    with pytest.raises(ValueError, match="was run with another set-up"):
        judge_again(longer, tmp_path)


def test_the_pages_have_the_committed_verdicts():
    every = table.rows(RESULTS)
    written = "run `python -m decibel_studies.report.table studies/results --docs docs`"
    assert table.section(every) in (ROOT / "docs" / "studies.md").read_text(), written
    for row in every:
        path = ROOT / "docs" / "claims" / f"{row.claim['claim']}.md"
        assert path.read_text() == table.page(row), written
    assert len(list((ROOT / "docs" / "claims").iterdir())) == len(every)
    assert committed.PATH.read_text() == table.remembered(every), written


def test_the_readme_says_nothing_that_the_page_of_studies_does_not():
    """Its seven findings name settled claims, and their numbers are those of the page."""
    text, page = ((ROOT / name).read_text() for name in ("README.md", "docs/studies.md"))
    found = re.split(r"\n\d\. ", text.partition("## Seven findings")[2].partition("\n## ")[0])[1:]
    answers = page.partition("## What you can conclude")[2].partition("\n## ")[0]
    settled = {row.claim["claim"] for row in table.rows(RESULTS) if row.claim["survives"]["answer"] != "undecided"}
    assert len(found) == 7
    for finding in found:
        named = set(re.findall(r"\[([CD]\d+[a-z]?)\]\(docs/claims/\1\.md\)", finding))
        assert named and named <= settled
        numbers = set(re.findall(r"\b\d[\d.,]*\b", re.sub(r"\[.*?\)", "", finding)))
        assert numbers <= set(re.findall(r"\b\d[\d.,]*\b", answers)), finding


def test_claims_are_numbered_once_and_sizes_are_three():
    claims = [claim.name for name in NAMES for claim in find(name).claims]
    assert len(set(claims)) == len(claims)
    assert {f"C{i}" for i in range(1, 25)} <= set(claims)  # the papers'
    # The others are parts of those, go beyond the papers, or are of methods that no paper has.
    assert all(re.fullmatch(r"[CD]\d+[a-z]?", claim) for claim in claims)
    for name in NAMES:
        study = find(name)
        assert list(study.setups) == ["smoke", "small", "full"]
        assert len(study.setup("full").seeds) >= (10 if name.startswith("gossip/") else 3)


@pytest.mark.parametrize("size", [pytest.param("small", marks=pytest.mark.slow), "full"])
@pytest.mark.parametrize("name", NAMES)
def test_arms_have_names_and_graphs_that_fit_and_a_search_finds_their_steps(name, size):
    """λ_min(W) ≤ −1/3 with EXTRA, say, would be refused only when a long run begins."""
    study, made = find(name), arms_of(name, size)
    assert len({arm.key for arm in made}) == len(made)
    arms = [arm for arm in made if isinstance(arm, Arm)]
    every = {(id(graph), strategy, level): graph for arm in arms for graph, strategy, level in uses(arm)}
    for (_, strategy, level), graph in every.items():
        validate_graph(graph, strategy, level)
    plan, tuned = study.search, {arm.tuned for arm in arms} - {None}
    assert (plan is None) == (not tuned)
    if plan is not None:
        cases = plan.cases(study.setup(size))
        searched = {arm.tuned: plan.candidates(arm.method) for arm in arms if arm.tuned and arm.case in cases}
        assert set(searched) == tuned, "some step sizes are used and never searched"
        assert {len(candidates) for candidates in searched.values()} == {plan.budget}, "budgets differ"


def uses(arm: Arm):
    graphs = arm.graph if isinstance(arm.graph, db.Levels) else db.Levels(x=arm.graph)
    return [(getattr(graphs, level), strategy, level) for level, strategy in arm.method.strategies.items()]
