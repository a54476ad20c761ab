"""Step sizes of a study: searched once, recorded, and as many candidates for every method."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tiny_study import SEARCH, TINY, Setup, arms, quiet

import decibel as db
from decibel_studies.testbed import step_sizes
from decibel_studies.testbed.study import Search


@pytest.mark.slow
def test_the_search_is_recorded_resumed_and_used(tmp_path, monkeypatch, beside):
    study = dataclasses.replace(TINY, search=SEARCH)
    found = step_sizes.search(study, "smoke", say=quiet)
    assert set(found) == {"ED", "D-SOBA"}
    for one in found.values():
        tried = one["search"]["candidates"]
        assert one["search"]["budget"] == len(tried) == 4 and one["search"]["metric"] == "distance"
        assert one["rates"]["alpha"] == tried[0][0] and tried[0][-1] == min(row[-1] for row in tried)
        assert one["rates"]["gamma"] == one["rates"]["beta"]
    assert [arm.method.alpha for arm in step_sizes.applied(study, "smoke")] == [
        o["rates"]["alpha"] for o in found.values()
    ]

    saved = json.loads(beside.read_text())
    del saved["smoke"]["D-SOBA"]
    beside.write_text(json.dumps(saved))
    searched: list[str] = []
    one = step_sizes._search
    monkeypatch.setattr(
        step_sizes, "_search", lambda s, u, arm, mark: (searched.append(arm.label), one(s, u, arm, mark))[1]
    )
    assert step_sizes.search(study, "smoke", say=quiet)["D-SOBA"]["rates"] == found["D-SOBA"]["rates"]
    assert searched == ["D-SOBA"]


def test_a_search_takes_the_same_share_of_every_run():
    """Also of a run that ends by its samples, long before its iterations do."""
    arm = arms(Setup(steps=100))[0]
    assert [step_sizes._length(config, arm, 10_000) for config in (50, 100, 300)] == [50, 100, 100]
    assert [step_sizes._length(config, arm, 20) for config in (50, 100, 300)] == [10, 20, 20]


@pytest.mark.slow
def test_the_length_of_a_search_is_reckoned_with_what_a_step_costs_on_average():
    """In MDBO chance decides what a step costs, so that one step tells little."""
    steps, (first, *_) = 600, arms(Setup(steps=10_000))
    method = db.mdbo(alpha=0.01, beta=0.05, theta=0.5, terms=20)
    task = first.task(seed=0)
    run = db.solve(task.problem, method, first.graph, steps=steps, batch_size=2, seed=5, metrics=[], progress=False)
    spent = run.trace.last["samples"]
    arm = dataclasses.replace(first, method=method, samples=spent)
    assert len({*np.diff(run.trace["samples"])}) > 1  # it is chance
    assert step_sizes._affordable(arm, task) == pytest.approx(steps, rel=0.1)


def test_a_margin_leaves_out_what_is_next_to_a_candidate_that_diverged():

    def rates(a, b):
        return {"alpha": a, "beta": b, "gamma": b}

    scores = {
        (1, 1): 5.0,
        (3, 1): 1.0,
        (9, 1): np.inf,
        (1, 2): 3.0,
        (3, 2): 2.0,
        (9, 2): 0.5,
        (1, 4): 4.0,
        (3, 4): np.nan,
    }
    ranked = [(score, rates(*pair)) for pair, score in scores.items()]
    near = {pair for pair in scores if step_sizes.near_divergence(rates(*pair), ranked)}
    assert near == {(3, 1), (3, 2), (1, 4)}, "by the next α, by the next β, by the next α"
    alone = [(1.0, {"alpha": 1.0}), (np.inf, {"alpha": 2.0})]
    assert step_sizes.near_divergence({"alpha": 1.0}, alone) and not step_sizes.near_divergence({"beta": 1.0}, [])


def test_beyond_an_end_all_candidates_there_get_the_next_value():
    grid = [{"alpha": a, "beta": b, "gamma": b} for a in (1.0, 10.0) for b in (1.0, 2.0, 4.0)]
    assert step_sizes.beyond({"alpha": 10.0, "beta": 2.0, "gamma": 2.0}, grid) == [
        {"alpha": 100.0, "beta": b, "gamma": b} for b in (1.0, 2.0, 4.0)
    ]
    assert step_sizes.beyond({"alpha": 1.0, "beta": 1.0, "gamma": 1.0}, grid) == [
        *({"alpha": 0.1, "beta": b, "gamma": b} for b in (1.0, 2.0, 4.0)),
        *({"alpha": a, "beta": 0.5, "gamma": 0.5} for a in (1.0, 10.0)),
    ]
    three = [*grid, *({"alpha": 100.0, "beta": b, "gamma": b} for b in (1.0, 2.0, 4.0))]
    assert not step_sizes.beyond({"alpha": 10.0, "beta": 2.0, "gamma": 2.0}, three)
    assert step_sizes.beyond({"alpha": 2.0}, [{"alpha": 1.0}, {"alpha": 2.0}]) == [{"alpha": 4.0}]
    assert not step_sizes.beyond({"beta": 1.0, "gamma": 1.0}, [{"beta": 1.0, "gamma": 1.0}])


@pytest.fixture
def scored(monkeypatch):
    """A search whose scores are known: the best is α = 0.001, β = 40, and what has α above `largest` diverges."""

    def search(largest, widenings, **options):
        def ranked(study, setup, arm, candidates):
            distances = [abs(np.log(rates["alpha"] / 1e-3)) + abs(np.log(rates["beta"] / 40)) for rates in candidates]
            scores = [
                np.inf if rates["alpha"] > largest else distance
                for rates, distance in zip(candidates, distances, strict=True)
            ]
            pairs = sorted(zip(scores, candidates, strict=True), key=lambda pair: pair[0])
            return step_sizes.Ranking(pairs, "distance", 1)

        monkeypatch.setattr(step_sizes, "_ranked", ranked)
        monkeypatch.setattr(step_sizes, "WIDENINGS", widenings)
        plan = dataclasses.replace(SEARCH, alpha=(0.01, 0.1), beta=(5.0, 10.0), widen=True, **options)
        mine = dataclasses.replace(TINY, search=plan)
        return step_sizes.search(mine, "smoke", mine=lambda key: key == "ED", say=quiet)["ED"]

    return search


def test_widening_goes_round_corners_until_the_best_is_at_no_end(scored, beside):
    one = scored(largest=1.0, widenings=9)
    assert one["rates"] == {"alpha": pytest.approx(1e-3), "beta": 40.0, "gamma": 40.0}
    assert not one["search"]["at_the_edge"] and one["search"]["widen"]
    assert set(step_sizes.load(TINY, "smoke")) == {"ED"}, "what is not its own it leaves alone"


def test_widening_ends_and_says_where_the_best_lies(scored, beside):
    assert scored(largest=1.0, widenings=1)["search"]["at_the_edge"] == ["alpha", "beta", "gamma"]


def test_where_all_diverge_widening_tries_smaller_ones(scored, beside):
    with pytest.raises(ValueError, match="ED diverges on some seed with every candidate"):
        scored(largest=1e-5, widenings=1)
    assert not beside.exists()
    assert scored(largest=1e-5, widenings=9)["rates"]["alpha"] == pytest.approx(1e-5)


def test_a_margin_takes_none_next_to_a_candidate_that_diverged(scored, beside):
    assert scored(largest=0.01, widenings=0)["rates"]["alpha"] == 0.01
    beside.unlink()
    with pytest.raises(ValueError, match="ED diverges on some seed with every candidate, or next to it"):
        scored(largest=0.01, widenings=0, margin=True)
    assert scored(largest=0.01, widenings=1, margin=True)["rates"]["alpha"] < 0.01


def test_candidates_that_all_diverge_are_a_sentence(beside):
    plan = dataclasses.replace(SEARCH, alpha=(1e250, 1e300), beta=(0.1,))
    with pytest.raises(ValueError, match="ED diverges on some seed with every candidate"):
        step_sizes.search(dataclasses.replace(TINY, search=plan), "smoke", mine=lambda key: key == "ED", say=quiet)


def test_processes_add_what_they_find_to_one_file(beside):
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: step_sizes.save(TINY, "smoke", str(i), {"rates": {"alpha": i}}), range(40)))
    assert set(step_sizes.load(TINY, "smoke")) == set(map(str, range(40)))


def test_every_method_tries_as_many_candidates():
    plan = Search((0.1, 1.0), (0.1, 0.2, 0.3), "upper", lambda setup: (), lambda setup: 1)
    methods = (
        db.sparkle("ed", alpha=1.0, beta=1.0, gamma=1.0),
        db.sparkle("ed", alpha=0.0, beta=1.0, gamma=1.0),
        db.mdbo(alpha=1.0, beta=1.0, theta=0.3),
        db.dbsa(alpha=1.0, beta=1.0),
        db.ed(alpha=1.0),
    )
    for method in methods:
        candidates = plan.candidates(method)
        assert len(candidates) == 6 and len({tuple(c.values()) for c in candidates}) == 6
    assert all("alpha" not in c for c in plan.candidates(methods[1]))  # a fixed x stays fixed
    assert all("gamma" not in c for c in plan.candidates(methods[3]))
    assert [round(c["alpha"], 3) for c in plan.candidates(methods[4])][::5] == [0.1, 1.0]
    weighed = dataclasses.replace(plan, theta=(0.2, 1.0))
    tried = weighed.candidates(methods[0])
    assert len(tried) == 12 == len({tuple(c.values()) for c in tried}) and {c["theta"] for c in tried} == {0.2, 1.0}
    assert all("theta" not in c for c in weighed.candidates(methods[3])) and len(weighed.candidates(methods[4])) == 12
