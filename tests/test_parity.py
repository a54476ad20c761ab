"""Every method gives the simulator's numbers on eight devices of one process and on real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import parity
import pytest
from parity import KINDS, Case

import decibel as db
from decibel.strategies import STRATEGIES

METHODS = list(db.CATALOG)
MIXED = [name for name in STRATEGIES if name not in ("local", "edge-ed")]
# Every method once: the four kinds of graph in turn, every third in float32.
SMALL = [Case.of(name, place % 4, wide=place % 3 > 0) for place, name in enumerate(METHODS)]
WHOLE = [*dict.fromkeys(Case.of(name, kind, wide) for name in METHODS for kind in range(4) for wide in (True, False))]


def assert_parity(case: Case) -> None:
    expected = [np.asarray(leaf) for leaf in parity.run(case, db.Simulator())]
    spread = parity.run(case, db.Cluster())
    assert all(len(leaf.sharding.device_set) == len(jax.devices()) == parity.NODES for leaf in spread)
    parity.assert_equal(case, [np.asarray(leaf) for leaf in spread], expected)


def quick(case: Case) -> bool:
    """Of the mixtures, whose levels run strategies that the unmixed entries have shown, those in which each strategy is
    once below and once above."""
    mixtures = [f"sparkle-{below}-{above}" for below, above in zip(MIXED, MIXED[1:] + MIXED[:1], strict=True)]
    return not db.CATALOG[case.method].mixture or case.method in mixtures


@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if quick(c) else pytest.mark.slow) for c in SMALL], ids=str)
def test_eight_devices_give_the_simulators_numbers(case):
    assert_parity(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", WHOLE, ids=str)
def test_eight_devices_give_the_simulators_numbers_everywhere(case):
    assert_parity(case)


def test_the_small_form_has_every_method_graph_and_precision():
    assert [case.method for case in SMALL] == METHODS
    for kind in KINDS:
        assert {case.dtype for case in SMALL if case.graph == kind} == {"float32", "float64"}
        assert {case.batch_size for case in SMALL if case.graph == kind} == {None, 2}
    assert {*SMALL} < {*WHOLE}


def across_processes(cases: list[Case], count: int, folder: Path, seconds: int = 150) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    hashes = [str(1 + rank) for rank in range(count)]  # no plan may depend on how a process happens to hash strings
    told = [f"{case.method} {case.graph} {case.dtype} {case.batch_size or 0}" for case in cases]
    workers = [
        subprocess.Popen(
            [sys.executable, parity.__file__, str(rank), str(count), str(port), str(folder), *told],
            env={**environment, "PYTHONHASHSEED": hashes[rank]},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        expected = [[np.asarray(leaf) for leaf in parity.run(case, db.Simulator())] for case in cases]
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


@pytest.mark.parametrize(
    ("count", "cases"),
    [
        (2, [Case("sparkle-ed", "ring"), Case("gt", "torus", "float32"), Case("lopa", "erdos-renyi", batch_size=2)]),
        (4, [Case("sparkle-gt", "time-varying"), Case("ed", "erdos-renyi", "float32")]),
    ],
    ids=["2", "4"],
)
def test_processes_give_the_simulators_numbers(count, cases, tmp_path):
    across_processes(cases, count, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", range(4), ids=KINDS)
def test_processes_give_the_simulators_numbers_everywhere(count, kind, tmp_path):
    """Over the four graphs every method comes in both precisions."""
    across_processes(
        [Case.of(name, kind, (place + kind) % 2 > 0) for place, name in enumerate(METHODS)],
        count,
        tmp_path,
        seconds=1200,
    )
