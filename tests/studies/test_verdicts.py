"""Verdicts: what a check needs, and for every claim curves under which it holds and fails."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from decibel.results._trace import Trace
from decibel.studies import NAMES, find
from decibel.studies.compare import faster, spent_by_all
from decibel.studies.reproduce import Results
from decibel.studies.runs import Runs
from decibel.studies.study import Study
from decibel.studies.verdicts import Check, together


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
def adam(ours: float):
    """Central Adam is at 1 and all others at 2."""
    losses = {"central Adam, η = 0.001": 1.0, "adam-ed, η = 0.001": ours}
    return several(*(cases(name, losses, 2.0) for name in ("test_loss", "node_test_loss", "train_loss")))


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
    "D1": (adam(1.05), adam(1.2)),
    "D2": (adam(1.05), adam(3.0)),
    "D3": (
        several(*(cases(name, {"ED, searched": 0.8}, 0.9) for name in ("test_accuracy", "node_accuracy"))),
        several(*(cases(name, {"ED, searched": 0.9}, 0.8) for name in ("test_accuracy", "node_accuracy"))),
    ),
    "D4": (cases("goal", {}, FALLING), cases("goal", {"ED, searched": FALLING}, 1.0)),
}  # fmt: skip
CLAIMS = {claim.name: (name, claim) for name in NAMES for claim in find(name).claims}


@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_can_hold_and_can_fail(name):
    study, claim = find(CLAIMS[name][0]), CLAIMS[name][1]
    good, bad = BOTH[name]
    held, failed = (claim(made(study, curve)) for curve in (good, bad))
    assert held.verdict == "holds", "\n".join(map(str, held.checks))
    assert failed.verdict == "fails", "\n".join(map(str, failed.checks))
