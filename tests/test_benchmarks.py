"""The benchmarks measure what they say: the programs agree, fits find what was put in, and slower is called slower."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import decibel as db

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import asynchronous, growth, keys, network, records, tables, target  # noqa: E402
from benchmarks.__main__ import BENCHMARKS, main  # noqa: E402
from benchmarks.cases import label_cleaning, regression  # noqa: E402
from benchmarks.compare import compare  # noqa: E402
from benchmarks.contest import contest  # noqa: E402
from benchmarks.model import Cost, Fit, costs, fit, neighbours, predict  # noqa: E402
from benchmarks.processes import together  # noqa: E402


def ran(**ratios: float) -> dict:
    return {"benchmark": "step", "ratios": ratios, "rows": [{"case": name} for name in ratios]}


# Comparing


def test_what_became_slower_is_named_worst_first():
    found = compare(ran(a=1.0, b=0.5, c=2.0, d=1.0), ran(a=1.2, b=0.8, c=6.0, d=0.5), tolerance=0.25)
    assert [change.name for change in found.slower] == ["c", "b"] and not found.good
    assert [change.name for change in found.faster] == ["d"]
    assert str(found.slower[0]) == "c: 2 → 6 (×3.00)"


@pytest.mark.parametrize(("now", "good"), [(1.24, True), (1.26, False), (0.1, True)])
def test_tolerance_is_a_part_of_the_baseline(now, good):
    assert compare(ran(a=1.0), ran(a=now), tolerance=0.25).good is good
    assert compare(ran(a=40.0), ran(a=40 * now), tolerance=0.25).good is good


def test_a_ratio_that_is_no_longer_measured_is_not_good():
    found = compare(ran(a=1.0, b=1.0), ran(a=1.0, c=9.0))
    assert (found.missing, found.added, found.good) == (["b"], ["c"], False)


def test_runs_of_different_benchmarks_are_not_compared():
    with pytest.raises(ValueError, match="baseline is of 'step' and the run of 'network'"):
        compare(ran(a=1.0), ran(a=1.0) | {"benchmark": "network"})
    with pytest.raises(ValueError, match="tolerance=0 must be positive"):
        compare(ran(a=1.0), ran(a=1.0), tolerance=0)


@pytest.mark.parametrize(("now", "status", "says"), [(1.0, 0, "Nothing became slower"), (2.0, 1, "slower  a: 1 → 2")])
def test_compare_command(now, status, says, tmp_path, monkeypatch, capsys):
    old, new = (records.write(ran(a=value), tmp_path / name) for name, value in (("old.json", 1.0), ("new.json", now)))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "compare", str(new), "--baseline", str(old)])
    assert main() == status
    assert says in capsys.readouterr().out


def test_compare_command_says_what_is_wrong_with_a_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "run.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "compare", str(tmp_path / "run.json")])
    assert main() == 2 and "holds no ratios" in capsys.readouterr().out


def test_records_are_written_whole_and_read_back(tmp_path):
    content = records.record("step", [{"case": "a", "µs": 1.23456789}], {"a": float(np.pi)})
    path = records.write(content, tmp_path / "new" / "run.json")
    assert records.read(path) == content and content["ratios"]["a"] == 3.142
    assert [file.name for file in path.parent.iterdir()] == ["run.json"]


# The model of a round


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 12, 16, 64])
def test_model_counts_the_neighbours_that_graphs_have(nodes):
    for kind, make in network.GRAPHS.items():
        if kind != network.ONE_PEER or nodes & (nodes - 1) == 0:
            assert neighbours(kind, nodes) == np.max(make(nodes).degrees), kind


def test_fit_finds_the_latency_and_bandwidth_that_made_the_times():
    truth = Fit(latency=2e-4, bandwidth=5e8)
    rows = [
        {"cost": cost._asdict(), "milliseconds": 1e3 * predict(truth, cost)}
        for cost in (costs("ring", nodes, entries, cores=2) for nodes in (2, 4, 8) for entries in (10, 10**4, 10**7))
    ]
    found = fit(rows)
    assert found.latency == pytest.approx(truth.latency, rel=1e-3)
    assert found.bandwidth == pytest.approx(truth.bandwidth, rel=1e-3)


def test_a_round_of_the_ring_costs_the_same_however_many_nodes():
    one = [costs("ring", nodes, 100, cores=nodes) for nodes in (4, 256)]
    assert one[0] == one[1] == Cost(messages=2, bytes=800)
    assert costs("all-reduce", 256, 100, cores=256).messages == 510
    assert costs("ring", 8, 100, cores=2).sharing == 4


# Growth


def test_slopes_are_those_of_power_laws():
    rows = [
        {"method": "a", "axis": "nodes", "size": size, "µs": 100.0 if size == 2 else 3.0 * size**1.5, "bytes": 7 * size}
        for size in (2, 4, 8, 16)
    ]
    found = growth.slopes(rows)["a"]["nodes"]  # the smallest size is overhead, and is left out
    assert found["time"] == pytest.approx(1.5) and found["memory"] == pytest.approx(1.0)


def test_every_method_has_its_curve_or_is_a_mixture_of_those_that_have():
    names = growth.methods()
    rest = [name.removeprefix("sparkle-") for name in db.CATALOG if name not in names]
    for mixture in rest:
        assert any(
            mixture == f"{a.removeprefix('sparkle-')}-{b.removeprefix('sparkle-')}" for a in names for b in names
        )
    assert {growth.family(name) for name in names} == set(growth.FAMILIES)


def test_cost_of_one_size():
    small = growth.Size(nodes=4, degree=2, dimension=3, batch=2, terms=2)
    found = growth.cost("sparkle-ed", small)
    assert found["µs"] > 0 and found["bytes"] >= 7 * 4 * 3 * 4  # x, y, z, r and three sums of flows in float32


# The programs that are timed


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [True, False])
def test_the_scan_by_hand_is_the_library(parallel):
    case = regression("tiny", 5, 3, 2, 7)
    row = contest(case, parallel, length=4, repetitions=1)  # raises where they differ
    assert row["difference"]["ours"] < 1e-6 and row["dtype"] == "float32"
    assert set(row["against"]) == {"by hand", "products"}


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("kind", ["regression", "label-cleaning"])
def test_programs_in_pytorch_are_the_scan_by_hand(kind, parallel):
    pytest.importorskip("torch", reason="PyTorch is in the [bench] extra only")
    from benchmarks.torch_runners import Data, loop, vmapped

    with jax.enable_x64(kind == "regression"):
        case = regression("tiny", 5, 3, 2, 7, np.float64) if kind == "regression" else label_cleaning(4, 3, 20, 5)

    def rivals(case, parallel):
        return {
            "loop": loop(case, Data(case, parallel), parallel, 1),
            "vmap": vmapped(case, Data(case, parallel), parallel, 1),
        }

    row = contest(case, parallel, length=2, repetitions=1, rivals=rivals)
    assert all(difference < (1e-12 if kind == "regression" else 1e-5) for difference in row["difference"].values())


@pytest.mark.slow
def test_processes_answer():
    rows = together("benchmarks.network", 2, {"sizes": [4], "turns": 2})[0]
    assert {row["round"] for row in rows} == {"ring", "all-reduce"}
    assert all(row["milliseconds"] > 0 for row in rows)


# The way to a target


@pytest.mark.slow
def test_a_target_is_reached_or_its_distance_said():
    task = db.tasks.logistic_regression(**target.TASK)
    problem = target.problem_of(task, "single")
    accuracy = next(metric for metric in task.metrics if isinstance(metric, target.NodeAccuracy))
    own = target.OwnAccuracy(accuracy.inputs, accuracy.labels)
    easy = target.run("ed", problem, own, 3.0, 1.0, steps=400)
    hopeless = target.run("ed", problem, own, 1e-9, 1.0, steps=25)
    assert easy["steps"] <= 400 and easy["bytes"] > 0 and easy["accuracy"] >= target.TARGETS["single"]
    assert hopeless["steps"] is None and hopeless["bytes"] is None


@pytest.mark.slow  # tests/core/test_keys.py
def test_both_kinds_of_keys_give_the_same_run():
    found = keys.compare(regression("tiny", 4, 3, 2, 5), steps=3, turns=1)
    assert found["bit for bit"] and set(found["µs"]) == {keys.OURS, keys.JAXS}


# What is committed


COMMITTED = [path for name in BENCHMARKS for path in sorted(records.RESULTS.glob(f"{name}*.json"))]


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_results_are_of_benchmarks_that_exist(path):
    content = records.read(path)
    assert path.stem.split("-")[0] == content["benchmark"] and content["benchmark"] in BENCHMARKS
    head, *rows = tables.of(content)
    assert rows and all(len(row) == len(head) for row in rows)


def test_tables_of_the_cost_page_are_the_committed_results():
    sys.path.insert(0, str(ROOT / "docs" / "figures"))
    try:
        from cost import PAGE, SUMMARY, filled
    finally:
        sys.path.pop(0)
    for page in (SUMMARY, PAGE):
        assert filled(page.read_text()) == page.read_text(), "run python docs/figures/cost.py"


def test_wall_times_of_sites_are_the_committed_results():
    content = records.read(records.RESULTS / "asynchronous.json")
    page = (ROOT / "docs" / "evidence" / "wave.md").read_text()
    assert all(row in page for row in asynchronous.table(content))
    assert content["ratios"]["asynchronous wave ÷ extra, 0 ms, one slow"] < 1 / 3


def test_a_site_has_arrived_when_it_stays():
    rows = [[1.0, 1e-7], [2.0, 1e-3], [3.0, 1e-8], [4.0, 1e-9]]
    sites = [{"begun": 0.5, "rows": rows}, {"begun": 1.5, "rows": [[2.5, 0.0]]}]
    assert asynchronous.arrived(sites) == 1.5
    assert np.isnan(asynchronous.arrived([{"begun": 0.0, "rows": rows[:2]}]))
