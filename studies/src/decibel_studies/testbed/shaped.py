"""Rounds of averaging on shaped links, as arms of a study, with what a model of latency and bandwidth expects."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np

from decibel import Trace

from ..type_aliases import JSON
from . import namespaces, relay, tcp_rounds
from .namespaces import Link, network
from .runs import digest
from .tcp_rounds import PORT, Phase, Timed

PATIENCE = 600  # seconds until processes that do not end are given up


def expected(kind: str, processes: int, entries: int, link: Link) -> float:
    """Seconds of a round by the α–β model: α per exchange, and β per byte that a link carries in one direction.

    A ring is one exchange of two vectors, a peer one of one, and an all-reduce 2 (n − 1) exchanges of an n-th.

    Args:
        kind: ring, one-peer or all.
        processes: n.
        entries: of the vector, four bytes each.
        link: the rate and the delay.
    """
    alpha = link.delay / 1e3
    beta = 8 / (link.rate * 1e9)
    size = 4 * entries
    n = processes
    if kind == "all":
        return 2 * (n - 1) * (alpha + size / n * beta)
    return alpha + (size if kind == "one-peer" or n == 2 else 2 * size) * beta


@dataclass(frozen=True)
class Shaped:
    """An arm that times one kind of round; all kinds of a case are measured in turn by the same processes, once."""

    case: str
    label: str
    kind: str
    processes: int
    entries: int
    rounds: int
    link: Link | None  # None is loopback
    compute: tuple[float, ...] = ()  # seconds of computing before a round, for the throughput

    @property
    def key(self) -> tuple[str, str]:
        return self.case, self.label

    def describe(self) -> dict[str, JSON]:
        files = (__file__, tcp_rounds.__file__, namespaces.__file__, relay.__file__)
        code = "".join(Path(file).read_text() for file in files)
        fields = cast("dict[str, JSON]", asdict(self))
        return {**fields, "code": digest(code)}

    def run(self, seeds: Sequence[int]) -> list[Trace]:
        """One trace per repetition: a row for each round; `step_milliseconds_i` is that of a step with computing."""
        measured = measure(self.processes, self.link, self.entries, self.rounds * len(seeds), self.compute)
        times = np.max([timed["rounds"][self.kind] for timed in measured], axis=0)  # of the slowest process
        steps = np.max([timed["steps"][self.kind] for timed in measured], axis=0) if self.compute else np.zeros(0)
        traces = []
        for seed, seconds in zip(seeds, np.split(times, len(seeds)), strict=True):
            columns = {
                "step": np.arange(1, self.rounds + 1),
                "milliseconds": 1e3 * seconds,
                "seconds": np.cumsum(seconds),
                **{f"step_milliseconds_{i}": np.full(self.rounds, 1e3 * s) for i, s in enumerate(steps)},
            }
            traces.append(Trace(columns, {"seed": seed, "stopped": None}))
        return traces


KINDS = ("ring", "one-peer", "all")
_LAST: dict[tuple[object, ...], list[Timed]] = {}


def measure(
    processes: int, link: Link | None, entries: int, rounds: int, compute: tuple[float, ...] = ()
) -> list[Timed]:
    """What every process measured, all kinds in turn; kept for the arms of the same case."""
    key = (processes, link, entries, rounds, compute)
    if key not in _LAST:
        _LAST.clear()
        _LAST[key] = _measure(processes, link, [_phase(entries, rounds, compute)])[0]
    return _LAST[key]


def _phase(entries: int, rounds: int, compute: tuple[float, ...]) -> Phase:
    return {"entries": entries, "rounds": rounds, "kinds": list(KINDS), "compute": list(compute)}


def _measure(processes: int, link: Link | None, phases: list[Phase]) -> list[list[Timed]]:
    """For every phase what each process answered."""
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with nullcontext() if link is None else network(processes, link) as shaped:
        before = [[] for _ in range(processes)] if shaped is None else shaped.commands
        hosts = ["127.0.0.1" for _ in range(processes)] if shaped is None else shaped.addresses
        addresses = [[host, PORT + (os.getpid() + rank) % 2_000] for rank, host in enumerate(hosts)]
        started: list[subprocess.Popen[str]] = []
        try:
            for rank in range(processes):
                told = json.dumps({"rank": rank, "addresses": addresses})
                command = [*before[rank], sys.executable, "-m", tcp_rounds.__name__, told]
                started.append(
                    subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
                )
            lines = "".join(json.dumps(phase) + "\n" for phase in phases)
            for process in started:
                assert process.stdin is not None
                process.stdin.write(lines)
                process.stdin.close()
                process.stdin = None
            answers = [process.communicate(timeout=PATIENCE) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
        for process, (_, errors) in zip(started, answers, strict=True):
            if process.returncode:
                raise RuntimeError(f"a process of this case ended with {process.returncode}:\n{errors[-2000:]}")
    each = [[cast(Timed, json.loads(line)) for line in output.splitlines()] for output, _ in answers]
    for phase in zip(*each, strict=True):
        means = [timed["mean"] for timed in phase]
        if not math.isclose(float(np.mean(means)), (processes - 1) / 2, rel_tol=1e-3):
            raise RuntimeError(f"averaging lost its mean: {means}.")
    return [list(phase) for phase in zip(*each, strict=True)]
