"""Studies: every one runs at its smallest size, claims can hold and fail, and nothing is run twice."""

from __future__ import annotations

import dataclasses
import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import decibel as db
from decibel.cli._app import app
from decibel.methods._method import validate_graph
from decibel.results._trace import Trace
from decibel.studies import NAMES, find, runs, settings
from decibel.studies.compare import faster, spent_by_all
from decibel.studies.reproduce import Results, load, reproduce
from decibel.studies.reproduce import judge as judge_again
from decibel.studies.runs import Runs, fingerprint
from decibel.studies.study import Arm, Search, Study
from decibel.studies.table import markdown
from decibel.studies.verdicts import Check, Claim, together


def quiet(text: str) -> None:
    pass


# A study small enough to be run many times.


@dataclasses.dataclass(frozen=True)
class Setup:
    steps: int = 6
    seeds: tuple[int, ...] = (0, 1)


def arms(setup: Setup) -> list[Arm]:
    task = partial(db.tasks.linear_regression, 3, dimension=2, samples=4)
    rates = {"alpha": 0.1, "beta": 0.1, "gamma": 0.1, "theta": 0.5}
    methods = {"ED": db.sparkle("ed", **rates, updates="simultaneous"), "D-SOBA": db.dsoba(**rates)}
    return [
        Arm("ring", label, task, method, db.graphs.ring(3), setup.steps, 2, rows=3, tuned=label)
        for label, method in methods.items()
    ]


def judge(results: Results) -> list[Check]:
    return [Check.of("error", results["ring", "ED"].last("distance"), 1e9, above=False)]


SEARCH = Search(
    (0.1, 0.2), (0.05, 0.1), lambda task: task.metrics[0], lambda setup: ("ring",), lambda setup: 3, note="by distance"
)
TINY = Study(
    "test/tiny", "Tiny", "none", "nothing", {"smoke": Setup()}, arms, (Claim("T", "small", judge),), ("distance",)
)


@pytest.fixture
def counted(monkeypatch):
    """The arms that were really run."""
    ran: list[tuple[str, str]] = []
    run = Arm.run

    def counting(self: Arm, seeds):
        ran.append(self.key)
        return run(self, seeds)

    monkeypatch.setattr(Arm, "run", counting)
    return ran


@pytest.fixture
def beside(monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "path_of", lambda study: tmp_path / "settings.json")
    return tmp_path / "settings.json"


# Every study


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

RESULTS = Path(__file__).parent.parent / "docs" / "results"
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
    assert markdown(RESULTS) in page, "put the output of `python -m decibel.studies.table docs/results` there"


def test_the_table_shows_what_a_second_run_gave(tmp_path):
    name = "dsoba/topology"
    saved = json.loads((RESULTS / name / "verdicts.json").read_text())
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "verdicts.json").write_text(json.dumps(saved))
    row = lambda: next(line for line in markdown(tmp_path).splitlines() if line.startswith("| C9 "))  # noqa: E731
    assert "| fails |  |" in row()
    saved["claims"][0]["verdict"] = "holds"
    (tmp_path / name / "again.json").write_text(json.dumps(saved))
    assert "| fails | holds |" in row()
    (tmp_path / name / "again.json").write_text(json.dumps({**saved, "seeds": [0, 1]}))
    assert "| fails | holds (2 seeds) |" in row()


def test_claims_are_numbered_once_and_sizes_are_three():
    claims = [claim.name for name in NAMES for claim in find(name).claims]
    assert sorted(claims, key=lambda c: int(c[1:])) == [f"C{i}" for i in range(1, 25)]
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


# Seeds in one program


def test_seeds_together_are_the_runs_alone():
    """Nodes of unequal size, data of each seed's own, a method whose costs depend on chance."""

    def task(seed: int) -> db.tasks.Task:
        return db.tasks.linear_regression(3, dimension=2, samples=[4, 7 + seed, 9], seed=seed)

    method = db.mdbo(0.1, 0.1, 0.3, terms=4, scale=4.0)
    arm = Arm("", "", task, method, db.graphs.ring(3), 6, 4, rows=2, metrics=("consensus_x", "upper"))
    both = arm.run((0, 1))
    each = dataclasses.replace(arm, together=False).run((0, 1))
    for trace, alone in zip(both, each, strict=True):
        assert set(trace) == set(alone)
        for column in set(trace) - {"seconds"}:
            np.testing.assert_allclose(trace[column], alone[column], rtol=1e-9, err_msg=column)
    assert not np.allclose(both[0]["upper"], both[1]["upper"])


def test_problems_of_different_shape_are_run_one_by_one():
    def task(seed: int) -> db.tasks.Task:
        return db.tasks.linear_regression(3, dimension=2 + seed, samples=4)

    arm = Arm("", "", task, db.ed(0.1), db.graphs.ring(3), 2, rows=1)
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


@pytest.mark.parametrize("size", ["smoke", "full"])
def test_the_study_of_meta_learning_runs_every_setting_once(tmp_path, monkeypatch, size):
    """Of its edges and its rates, one setting of each method is the same."""
    study, ran = find("interact/meta-learning"), []

    def pretend(self: Arm, seeds):
        ran.append(self)
        column = {name: [1.0, 2.0] for name in ("step", "samples", "interact")}
        return [Trace(column, {"seed": seed, "stopped": None}) for seed in seeds]

    monkeypatch.setattr(Arm, "run", pretend)
    reproduce(study, size, tmp_path, say=quiet)
    given = settings.applied(study, size)
    assert not any(a.same_runs(b) for i, a in enumerate(ran) for b in ran[:i]) and len(ran) <= len(given) - 2
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


# Step sizes


def test_the_search_is_recorded_resumed_and_used(tmp_path, monkeypatch, beside):
    study = dataclasses.replace(TINY, search=SEARCH)
    found = settings.search(study, "smoke", say=quiet)
    assert set(found) == {"ED", "D-SOBA"}
    for one in found.values():
        tried = one["search"]["candidates"]
        assert one["search"]["budget"] == len(tried) == 4 and one["search"]["metric"] == "distance"
        assert one["rates"]["alpha"] == tried[0][0] and tried[0][-1] == min(row[-1] for row in tried)
        assert one["rates"]["gamma"] == one["rates"]["beta"]
    assert [arm.method.alpha for arm in settings.applied(study, "smoke")] == [
        o["rates"]["alpha"] for o in found.values()
    ]

    saved = json.loads(beside.read_text())
    del saved["smoke"]["D-SOBA"]
    beside.write_text(json.dumps(saved))
    searched: list[str] = []
    one = settings._search
    monkeypatch.setattr(
        settings, "_search", lambda s, u, arm, mark: (searched.append(arm.label), one(s, u, arm, mark))[1]
    )
    assert settings.search(study, "smoke", say=quiet)["D-SOBA"]["rates"] == found["D-SOBA"]["rates"]
    assert searched == ["D-SOBA"]


def test_a_search_takes_the_same_share_of_every_run():
    """Also of a run that ends by its samples, long before its iterations do."""
    arm = arms(Setup(steps=100))[0]
    assert [settings._length(config, arm, 10_000) for config in (50, 100, 300)] == [50, 100, 100]
    assert [settings._length(config, arm, 20) for config in (50, 100, 300)] == [10, 20, 20]


def test_the_length_of_a_search_is_reckoned_with_what_a_step_costs_on_average():
    """In MDBO chance decides what a step costs, so that one step tells little."""
    steps, (first, *_) = 600, arms(Setup(steps=10_000))
    method = db.mdbo(0.01, 0.05, theta=0.5, terms=20)
    task = first.task(seed=0)
    run = db.solve(task.problem, method, first.graph, steps=steps, batch_size=2, seed=5, metrics=[], progress=False)
    spent = run.trace.last["samples"]
    arm = dataclasses.replace(first, method=method, samples=spent)
    assert len({*np.diff(run.trace["samples"])}) > 1  # it is chance
    assert settings._affordable(arm, task) == pytest.approx(steps, rel=0.1)


def test_every_method_tries_as_many_candidates():
    plan = Search((0.1, 1.0), (0.1, 0.2, 0.3), "upper", lambda setup: (), lambda setup: 1)
    methods = (
        db.sparkle("ed", alpha=1.0, beta=1.0, gamma=1.0),
        db.sparkle("ed", alpha=0.0, beta=1.0, gamma=1.0),
        db.mdbo(1.0, 1.0, 0.3),
        db.dbsa(1.0, 1.0),
        db.ed(1.0),
    )
    for method in methods:
        candidates = plan.candidates(method)
        assert len(candidates) == 6 and len({tuple(c.values()) for c in candidates}) == 6
    assert all("alpha" not in c for c in plan.candidates(methods[1]))  # a fixed x stays fixed
    assert all("gamma" not in c for c in plan.candidates(methods[3]))
    assert [round(c["alpha"], 3) for c in plan.candidates(methods[4])][::5] == [0.1, 1.0]


# Verdicts


def test_a_check_needs_more_than_its_margin():
    assert Check.of("", [1.0, 1.1, 0.9]).verdict == "holds"
    assert Check.of("", [-1.0, -1.1, -0.9]).verdict == "fails"
    assert Check.of("", [1.0, -1.1, 0.2]).verdict == "undecided"
    assert Check.of("", [5.0]).verdict == "undecided", "one seed decides nothing"
    assert Check.of("", [0.4, 0.5, 0.6], 1.0, above=False).verdict == "holds"
    assert Check.of("", [-0.001, -0.0011, -0.0012], -0.002).verdict == "holds", "within the tolerance"


def test_divergence_decides():
    assert Check.of("", [-np.inf, 1.0, 1.0]).verdict == "fails"
    assert Check.of("", [np.nan, 1.0, 1.0]).verdict == "fails"
    assert Check.of("", [np.inf, np.inf]).verdict == "holds"
    assert Check.of("", [np.inf, -1.0, -1.1]).verdict == "fails"
    assert Check.of("", [-np.inf, -np.inf], above=False).verdict == "holds"


def test_a_run_that_diverged_does_not_shorten_the_comparison_of_others():
    def arm(label, ends):
        rows = [(np.arange(1.0, end + 1), stopped) for end, stopped in ends]
        return Runs("", label, [Trace({"samples": x, "loss": 1 / x}, {"stopped": stopped}) for x, stopped in rows])

    whole, cut = arm("ours", [(9, None), (9, None)]), arm("theirs", [(8, None), (2, "non-finite")])
    assert spent_by_all("samples", whole, cut) == 8
    check = faster(whole, cut, "loss")
    assert np.isfinite(check.values[0]) and np.isposinf(check.values[1])
    assert np.isnan(cut.at("loss", "samples", 2.0)[1])
    assert spent_by_all("samples", arm("all", [(3, "non-finite")])) == 0


def test_a_claim_is_as_good_as_its_worst_check():
    good, bad, open_ = Check.of("", [1.0, 1.1]), Check.of("", [-1.0, -1.1]), Check.of("", [1.0, -1.0])
    assert together([good, good]) == "holds" and together([good, open_]) == "undecided"
    assert together([good, open_, bad]) == "fails" and together([]) == "fails"


def made(study: Study, curve) -> Results:
    """Results with the columns `curve(case, label)` over 21 rows, a little different from seed to seed."""
    setup = dataclasses.replace(study.setup("smoke"), seeds=(0, 1, 2))
    rows = {}
    for arm in study.arms(setup):
        traces = []
        for seed in setup.seeds:
            steps = np.arange(1, 22.0)
            own = {name: np.broadcast_to(values, 21) * (1 + 1e-4 * seed) for name, values in curve(*arm.key).items()}
            costs = {"step": steps, "samples": 10 * steps, "bytes": np.where(arm.label == "x sparse", 1, 2) * steps}
            traces.append(Trace({**costs, **own}, {"seed": seed, "stopped": None}))
        rows[arm.key] = Runs(*arm.key, traces)
    return Results(setup, rows)


FALLING = np.geomspace(1, 1e-3, 21)
STEPS = np.arange(1, 22.0)


def regression(growth: float, ours: float):
    def curve(case, label):
        sparse = "severe" in case and "complete" not in case
        severe = growth if label == "D-SOBA" and sparse else 1.0
        return {"distance": severe * (ours if label in ("SPARKLE-ED", "SPARKLE-EXTRA") else 1.0)}

    return curve


def cases(column: str, values: dict[str, float], default: float = 1.0):
    return lambda case, label: {column: values.get(case, values.get(label, default))}


def several(*curves):
    return lambda case, label: {name: value for curve in curves for name, value in curve(case, label).items()}


def rates(good: bool):
    def curve(case, label):
        size = float(label.rsplit(" ", 1)[-1]) if case.startswith("rates") else 1.0
        return {"interact": FALLING ** (size if good else 1 - size)}

    return curve


def agents(power: float):
    return lambda case, label: {
        "validation_loss": FALLING ** (float(label.split()[0]) ** power if case == "more agents" else 1)
    }


# For every claim, made-up curves under which it must hold and under which it must fail.
BOTH = {
    "C1": (regression(10, 1), regression(1, 1)),
    "C2": (regression(10, 0.5), regression(10, 2)),
    "C3": (
        cases("test_accuracy", {"SPARKLE-ED": 0.9, "SPARKLE-EXTRA": 0.9}, 0.8),
        cases("test_accuracy", {"SPARKLE-ED": 0.9, "SPARKLE-GT": 0.95}, 0.8),
    ),
    "C4": (cases("test_accuracy", {}, 0.8), cases("test_accuracy", {"SPARKLE-GT": 0.9}, 0.8)),
    "C5": (
        cases("node_accuracy", {"both dense": 0.9, "x sparse": 0.88, "y, z sparse": 0.7}),
        cases("node_accuracy", {"both dense": 0.9, "x sparse": 0.7, "y, z sparse": 0.88}),
    ),
    "C6": (cases("test_accuracy", {}, 0.9), cases("test_accuracy", {"x sparse": 0.8}, 0.9)),
    "C7": (
        cases("distance", {"SPARKLE-ED": 0.1, "SPARKLE-EXTRA": 0.1, "ED, single level": 0.1}),
        cases("distance", {"SPARKLE-ED": 0.1, "SPARKLE-EXTRA": 0.1, "ED, single level": 0.01}),
    ),
    "C8": (
        several(cases("validation_loss", {"D-SOBA": 0.1}), cases("test_accuracy", {"D-SOBA": 0.9}, 0.8)),
        several(cases("validation_loss", {"D-SOBA": 0.1}), cases("test_accuracy", {"D-SOBA": 0.7}, 0.8)),
    ),
    "C9": (
        lambda c, label: {"upper": 1 + FALLING * {"complete": 0, "exponential": 1, "torus": 2}.get(label, 3)},
        lambda c, label: {"upper": 1 + FALLING * {"complete": 3, "exponential": 1, "torus": 2}.get(label, 0)},
    ),
    "C10": (
        lambda c, label: {
            "error": 1 / float(label.split()[0]) if c == "more nodes" else 1.0,
            "distance": 1 + 3 * ({"ring, weight 0.3": 5, "ring, weight 0.1": 15}.get(label, 0) > STEPS),
        },
        lambda c, label: {"error": 1.0, "distance": 1.0},
    ),
    "C11": (
        lambda c, label: {"validation_loss": FALLING if label == "Gossip-DSBO" else FALLING**0.5},
        lambda c, label: {"validation_loss": FALLING if label == "DBSA" else FALLING**0.5},
    ),
    "C12": (agents(0.5), agents(-0.5)),
    "C13": (lambda c, label: {"error": 1 / STEPS}, lambda c, label: {"error": STEPS**-0.5}),
    "C14": (
        lambda c, label: {"error": 1 / STEPS / float(c.split()[0])},
        lambda c, label: {"error": np.where((18 if c.startswith("4") else 2) > STEPS, 1, 0.01)},
    ),
    "C15": (cases("error", {"Gossip-DSBO": 0.1}), cases("error", {"Gossip-DSBO": 10.0})),
    "C16": (
        several(cases("train_accuracy", {"SPDB": 0.9}, 0.8), cases("test_accuracy", {"SPDB": 0.9}, 0.8)),
        several(cases("train_accuracy", {"SPDB": 0.9}, 0.8), cases("test_accuracy", {"SPDB": 0.9, "GNSD": 0.95}, 0.8)),
    ),
    "C17": (
        cases("error_rate", {"SPDB": 0.1, "D²": 0.2, "DSGD": 0.3}),
        cases("error_rate", {"SPDB": 0.1, "D²": 0.3, "DSGD": 0.2}),
    ),
    "C18": (
        cases("interact", {"INTERACT": 0.1, "SVR-INTERACT": 0.1}),
        cases("interact", {"INTERACT": 0.1, "SVR-INTERACT": 3.0}),
    ),
    "C19": (
        lambda c, label: {"interact": FALLING if label == "SVR-INTERACT" else FALLING**0.5},
        lambda c, label: {"interact": FALLING if label == "INTERACT" else FALLING**0.5},
    ),
    "C20": (cases("interact", {}), cases("interact", {"p = 0.99": 10.0})),
    "C21": (rates(True), rates(False)),
    "C22": (
        cases("average_precision", {"average precision": 0.8}, 0.7),
        cases("average_precision", {"average precision": 0.6}, 0.7),
    ),
    "C23": (
        several(
            cases("validation_loss", {"learned mixture": 1.0}, 2.0), cases("test_loss", {"learned mixture": 1.0}, 2.0),
            cases("weight_counting", {}, 0.5),
        ),
        several(
            cases("validation_loss", {"learned mixture": 1.0}, 2.0), cases("test_loss", {"learned mixture": 1.0}, 2.0),
            cases("weight_counting", {}, 0.95),
        ),
    ),
    "C24": (
        cases("milliseconds", {"neighbour averaging": 1.0, "all-reduce": 2.0}),
        cases("milliseconds", {"neighbour averaging": 2.0, "all-reduce": 1.0}),
    ),
}  # fmt: skip
CLAIMS = {claim.name: (name, claim) for name in NAMES for claim in find(name).claims}


@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_can_hold_and_can_fail(name):
    study, claim = find(CLAIMS[name][0]), CLAIMS[name][1]
    good, bad = BOTH[name]
    held, failed = (claim(made(study, curve)) for curve in (good, bad))
    assert held.verdict == "holds", "\n".join(map(str, held.checks))
    assert failed.verdict == "fails", "\n".join(map(str, failed.checks))


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
    assert answer.exit_code == 0 and "left out" in answer.output and "a9a" in answer.output
