"""Studies: every one runs at its smallest size, and the committed results are what it says."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_study import quiet

import decibel as db
from decibel.methods._method import validate_graph
from decibel.studies import NAMES, find
from decibel.studies.reproduce import judge as judge_again
from decibel.studies.reproduce import load, reproduce
from decibel.studies.study import Arm
from decibel.studies.table import MARKS, main, markdown, section

# Every study


@pytest.mark.slow_except("dsoba/topology")
@pytest.mark.parametrize("name", NAMES)
def test_the_smallest_size_runs(name, tmp_path):
    study = find(name)
    verdicts = reproduce(study, "smoke", tmp_path, say=quiet)
    assert [verdict.claim for verdict in verdicts] == [claim.name for claim in study.claims]
    assert all(verdict.checks for verdict in verdicts)
    saved, chosen, found = load(study, tmp_path)
    assert saved["size"] == "smoke" and [claim["verdict"] for claim in saved["claims"]] == [v.verdict for v in verdicts]
    assert len(found) == len(chosen["arms"]) == len(study.arms(study.setup("smoke")))
    for run in found:
        assert len(run.traces) == len(study.setup("smoke").seeds)
        assert set(study.columns) & set(run.columns), "a figure would show nothing of this arm"


# Results in the repository

RESULTS = Path(__file__).parents[2] / "docs" / "results"
KEPT = [name for name in NAMES if (RESULTS / name / "verdicts.json").exists()]


@pytest.mark.parametrize("name", KEPT)
def test_committed_verdicts_follow_from_committed_traces(name, tmp_path):
    shutil.copytree(RESULTS / name, tmp_path / name)
    judge_again(find(name), tmp_path)
    before, after = (json.loads((folder / name / "verdicts.json").read_text()) for folder in (RESULTS, tmp_path))
    assert before["size"] == "full" and before["date"] and before["device"] and before["command"]
    # Another NumPy may round the last digit differently.
    words = lambda saved: [(c["claim"], c["verdict"], c["why"], [k["text"] for k in c["checks"]]) for c in saved]  # noqa: E731
    assert words(before["claims"]) == words(after["claims"])
    for old, new in zip(before["claims"], after["claims"], strict=True):
        for one, two in zip(old["checks"], new["checks"], strict=True):
            np.testing.assert_allclose(np.array(one["values"], float), np.array(two["values"], float), rtol=1e-6)
    for claim in before["claims"]:
        assert claim["verdict"] == "holds" or claim["why"], f"{claim['claim']} did not hold, and nothing says why"


def test_other_set_ups_are_not_judged(tmp_path):
    name = "dsoba/speedup"
    shutil.copytree(RESULTS / name, tmp_path / name)
    longer = dataclasses.replace(find(name), setups={"full": dataclasses.replace(find(name).setup("full"), steps=9)})
    with pytest.raises(ValueError, match="was run with another set-up"):
        judge_again(longer, tmp_path)


def test_the_page_of_studies_has_the_committed_verdicts():
    page = (RESULTS.parent / "studies.md").read_text()
    assert section(RESULTS) in page, "run `python -m decibel.studies.table docs/results --into docs/studies.md`"
    assert len(section(RESULTS).split("| C")) == 37, "24 claims of the papers, and twelve beside them"


def test_the_section_of_a_page_is_replaced(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nafter\n")
    monkeypatch.setattr("sys.argv", ["table", str(RESULTS), "--into", str(page)])
    main()
    assert page.read_text() == f"before\n{section(RESULTS)}after\n" and capsys.readouterr().out == ""
    monkeypatch.setattr("sys.argv", ["table", str(RESULTS)])
    main()
    assert capsys.readouterr().out == section(RESULTS)


def test_the_table_shows_what_a_second_run_gave(tmp_path):
    name = "dsoba/topology"
    saved = json.loads((RESULTS / name / "verdicts.json").read_text())
    verdict = saved["claims"][0]["verdict"]
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "verdicts.json").write_text(json.dumps(saved))
    row = lambda: next(line for line in markdown(tmp_path).splitlines() if line.startswith("| C9 "))  # noqa: E731
    assert f"| {verdict} |" in row() and "fresh |" in row()
    saved["claims"][0]["verdict"] = "undecided"
    (tmp_path / name / "again.json").write_text(json.dumps(saved))
    assert f"| {verdict} (again: undecided) |" in row()


def test_claims_are_numbered_once_and_sizes_are_three():
    claims = [claim.name for name in NAMES for claim in find(name).claims]
    theirs = [f"C{i}" for i in range(1, 25)]
    # Parts of those, beyond the papers, or of methods that no paper has.
    more = ["C3b", "C9b", "C10b", "C12b", "C12c", "C12d", "C16b", "C17b", "C17c", "C17d", "C17e", "C22b"]
    assert sorted(claims) == sorted([*theirs, *more, "D1", "D2", "D3", "D4", "D5"])
    for name in NAMES:
        study = find(name)
        assert list(study.setups) == ["smoke", "small", "full"]
        assert len(study.setup("full").seeds) >= (10 if name.startswith("gossip/") else 3)


@pytest.mark.parametrize("name", NAMES)
def test_arms_have_names_of_their_own_and_every_search_finds_them(name):
    study = find(name)
    for size in ("smoke", "small", "full"):
        made = study.arms(study.setup(size))
        assert len({arm.key for arm in made}) == len(made)
        plan = study.search
        tuned = {arm.tuned for arm in made if isinstance(arm, Arm)} - {None}
        assert (plan is None) == (not tuned)
        if plan is not None:
            cases = plan.cases(study.setup(size))
            searched = {arm.tuned: plan.candidates(arm.method) for arm in made if arm.tuned and arm.case in cases}
            assert set(searched) == tuned, "some step sizes are used and never searched"
            assert {len(candidates) for candidates in searched.values()} == {plan.budget}, "budgets differ"


@pytest.mark.parametrize("name", NAMES)
def test_every_method_accepts_its_graph_at_every_size(name):
    """λ_min(W) ≤ −1/3 with EXTRA, say, would be refused only when a long run begins."""
    for size in ("smoke", "small", "full"):
        for arm in (arm for arm in find(name).arms(find(name).setup(size)) if isinstance(arm, Arm)):
            graphs = arm.graph if isinstance(arm.graph, db.Levels) else db.Levels(x=arm.graph)
            for level, strategy in arm.method.strategies.items():
                validate_graph(getattr(graphs, level), strategy, level)


def test_graphs_of_the_topology_study_are_ordered_by_rho():
    from decibel.studies.dsoba_topology import GRAPHS, graphs

    rho = [graphs(find("dsoba/topology").setup("full"))[name].rho for name in GRAPHS]
    assert rho == sorted(rho)
