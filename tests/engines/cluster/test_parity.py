"""Every method gives the simulator's numbers on several devices of one process and on real processes."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import parity
import pytest
from parity import KINDS, Case
from xla import environment

import decibel as db


def every_kind_of_graph(method: str) -> list[Case]:
    return [*dict.fromkeys(Case.of(method, kind, wide) for kind in range(len(KINDS)) for wide in (True, False))]


# Mixtures differ in nothing but the strategies of their levels.
METHODS = [name for name, entry in db.CATALOG.items() if not entry.mixture]
# Every method once: the four kinds of graph in turn, every third in float32.
SMALL = [Case.of(name, place % 4, wide=place % 3 > 0) for place, name in enumerate(METHODS)]
WHOLE = [case for name in METHODS if name.startswith("sparkle") for case in every_kind_of_graph(name)]


def kinds(case: Case) -> set[str]:
    """The method; of SPARKLE, the strategy of every level."""
    if not case.method.startswith("sparkle"):
        return {case.method}
    return {f"{strategy.name} for {level}" for level, strategy in db.CATALOG[case.method]().strategies.items()}


def pairs(case: Case) -> set[tuple]:
    options = case.graph, case.dtype, case.batch_size
    return {options, *((kind, option) for kind in kinds(case) for option in options)}


def covering(cases: list[Case], covered: set, parts: Callable[[Case], set]) -> list[Case]:
    """As few of the cases as it takes, one by one, until nothing of any case is missing."""
    left, chosen = {case: parts(case) - covered for case in cases}, []
    while any(left.values()):
        best = max(left, key=lambda case: len(left[case]))
        chosen.append(best)
        covered = parts(best)
        left = {case: missing - covered for case, missing in left.items()}
    return chosen


# What SMALL lacks until every strategy has met every graph, both precisions, and all samples or few.
MORE = covering(WHOLE, set().union(*map(pairs, SMALL)), pairs)
EVERY_STRATEGY = covering([case for case in SMALL if case.method.startswith("sparkle")], set(), kinds)


QUICK = ("sparkle-ed torus float64 2", "sparkle-edge-ed erdos-renyi float32 0", "ma-dsbo-gt time-varying float64 0")


@pytest.mark.slow_except(*QUICK)
@pytest.mark.parametrize("case", SMALL + MORE, ids=str)
def test_devices_give_the_simulators_numbers(case):
    """Eight, or two with four nodes each."""
    devices = 2 if case.batch_size else 8
    expected, costs = parity.run(case, db.Simulator())
    spread, other_costs = parity.run(case, db.Cluster(devices=devices))
    assert all(len(leaf.sharding.device_set) == devices for leaf in spread)
    parity.assert_equal(case, [np.asarray(leaf) for leaf in spread], [np.asarray(leaf) for leaf in expected])
    assert other_costs | {"bytes": 0} == pytest.approx(costs | {"bytes": 0}, rel=1e-6)


def test_every_strategy_meets_every_graph_and_option():
    met = set().union(*map(pairs, SMALL + MORE))
    assert {(kind, case.graph) for case in WHOLE for kind in kinds(case)} <= met
    for graph in KINDS:
        assert {(graph, dtype, size) for dtype in ("float32", "float64") for size in (None, 2)} <= met


def across_processes(cases: list[Case], count: int, folder: Path, seconds: int = 300) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    hashes = [str(1 + rank) for rank in range(count)]  # no plan may depend on how a process happens to hash strings
    workers = [
        subprocess.Popen(
            [sys.executable, parity.__file__, str(rank), str(count), str(port), str(folder), *map(str, cases)],
            env=environment(PYTHONHASHSEED=hashes[rank]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        expected = [[np.asarray(leaf) for leaf in parity.run(case, db.Simulator())[0]] for case in cases]
        errors = [worker.communicate(timeout=seconds)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert all(worker.returncode == 0 for worker in workers), "\n".join(errors)
    parts = [np.load(folder / f"{rank}.npz") for rank in range(count)]
    for number, (case, levels) in enumerate(zip(cases, expected, strict=True)):
        held = [[part[f"{number} {leaf}"] for part in parts] for leaf in range(len(levels))]
        assert all(len(rows) == parity.NODES // count for leaf in held for rows in leaf)
        parity.assert_equal(case, [np.concatenate(rows) for rows in held], levels)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_processes_give_the_simulators_numbers(count, tmp_path):
    """A strategy on each kind of graph with four processes, the others with two."""
    cases = [*EVERY_STRATEGY, Case("sparkle-gt", "time-varying"), Case("lopa", "erdos-renyi", batch_size=2)]
    with_four = {case.graph: case for case in cases}
    assert set(with_four) == set(KINDS)
    chosen = list(with_four.values())
    across_processes(chosen if count == 4 else [case for case in cases if case not in chosen], count, tmp_path)
