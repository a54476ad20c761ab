"""Wall time of sites that wait for each other, and of sites that do not: `python -m benchmarks.asynchronous`.

Eight sites on a ring, as processes, over gRPC and mutual TLS, of which one may compute ten times slower, with a delay
between sites or none. With one, each is in a network namespace of its own, for which it needs root
(`decibel_studies.testbed.namespaces`). A site's computation is a pause of a stated length, since all share a few cores.
Node i has ½ (x − e_i)ᵀ R_i (x − e_i), eigenvalues of R_i from 0.1 to 1. Time runs from the first step of the site that
begins last until every site stays within 1e-6 of x*.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from decibel_studies.testbed.namespaces import Link, network

from . import records

SIZE, ALPHA, TOLERANCE = 20, 0.3, 1e-6
COMPUTE, SLOWER = 0.05, 10.0  # seconds of a step, and how many times that at the slow site
SLOW = "site-0"
COMMAND = "python -m benchmarks.asynchronous --json benchmarks/results/asynchronous.json"
CASES = [(delay, slow) for delay in (0.0, 0.05) for slow in (False, True)]
RATE = 1.0  # Gbit/s, of links with a delay
PORT = 7401
LOCKSTEP = {(0.0, True): ("extra", "ed")}  # against which wave runs; elsewhere extra


def make_data(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    bases = np.linalg.qr(rng.normal(size=(nodes, SIZE, SIZE)))[0]
    R = bases @ (rng.uniform(0.1, 1, (nodes, SIZE, 1)) * bases.transpose(0, 2, 1))
    return R, 2 * rng.normal(size=(nodes, SIZE))


def solution(nodes: int) -> np.ndarray:
    R, e = make_data(nodes)
    return np.linalg.solve(R.mean(0), np.einsum("nij,nj->ni", R, e).mean(0))


def problem(nodes: int) -> Any:
    import decibel as db

    def loss(x: Any, batch: Any) -> Any:
        return 0.5 * (x - batch["e"][0]) @ (batch["R"][0] @ (x - batch["e"][0]))

    R, e = make_data(nodes)
    return db.Problem(loss, upper_data={"R": R[:, None], "e": e[:, None]}, x0=np.zeros(SIZE))


def method(strategy: str) -> Any:
    import decibel as db

    return getattr(db, strategy)(alpha=ALPHA)


def rounds(strategy: str, nodes: int) -> int:
    """That lockstep needs, from the simulator."""
    import jax

    import decibel as db

    wanted = solution(nodes)

    def worst(snapshot: Any) -> Any:
        return abs(snapshot.nodes.x - wanted).max()

    with jax.enable_x64(True):
        found = db.solve(
            problem(nodes), method(strategy), db.graphs.ring(nodes), steps=500, eval_every=1, metrics=[worst],
            progress=False,
        )  # fmt: skip
    return int(np.flatnonzero(np.asarray(found.trace["worst"]) > TOLERANCE)[-1]) + 1


def federation(nodes: int, *, asynchronous: bool) -> Any:
    from decibel.silo._federation import FaultTolerance, Federation, Member, StopRule

    return Federation(
        "race",
        tuple(Member(f"site-{i}", "127.0.0.1:1") for i in range(nodes)),
        tuple((i, (i + 1) % nodes) for i in range(nodes)),
        fault_tolerance=FaultTolerance(beat=0.5, missed=60),
        trust_members=True,
        asynchronous=asynchronous,
        stop=StopRule(1e-9, 2.0) if asynchronous else None,
    )


def site(home: Path, name: str, strategy: str, steps: int, pause: float, every: int) -> None:
    """One site: prints when it began its first step, and the time and its error at each of its rows."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import decibel as db

    class Paced(db.Silo):
        """A site whose computation takes its time: after it has sent, before it uses what has come."""

        def start(self, *arguments: Any, **options: Any) -> Any:
            run = super().start(*arguments, **options)
            begin = run.site.begin_step

            def paced(step: int) -> int:
                found = begin(step)
                begun.append(time.time())
                time.sleep(pause)
                return found

            run.site.begin_step = paced
            return run

    begun: list[float] = []
    engine = Paced(home, name, progress_every=None)
    nodes = engine.graph.nodes
    wanted, rows = solution(nodes), []

    def error(snapshot: Any) -> Any:
        return abs(snapshot.nodes.x - wanted).max()

    db.solve(
        problem(nodes), method(strategy), engine.graph, steps=steps, eval_every=every, metrics=[error], engine=engine,
        callbacks=[lambda step, row: rows.append((time.time(), float(row["error"])))], progress=False,
    )  # fmt: skip
    print(json.dumps({"begun": begun[0], "steps": len(begun), "rows": rows[1:]}))  # without the row of the start


def race(
    strategy: str, *, nodes: int = 8, link: Link | None = None, slow: bool = False, compute: float = COMPUTE
) -> dict[str, Any]:
    """Seconds until all sites stay within the tolerance, wave without a common clock and others with one; on loopback,
    or by links."""
    from decibel.silo.commands._join import prepare
    from decibel.silo.commands._rehearse import on_loopback

    asynchronous = strategy == "wave"
    steps = 20_000 if asynchronous else rounds(strategy, nodes) + 10
    agreed = federation(nodes, asynchronous=asynchronous)
    with ExitStack() as stack:
        made = None if link is None else stack.enter_context(network(nodes, link))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        agreed = on_loopback(agreed) if made is None else agreed.at([f"{host}:{PORT}" for host in made.addresses])
        prepare(agreed, folder)
        started: list[subprocess.Popen[str]] = []
        try:
            for one, before in zip(agreed.sites, made.commands if made else [[]] * nodes, strict=True):
                late = slow and one.name == SLOW
                given = [folder / one.name, one.name, strategy, steps, compute * SLOWER**late, 1 if late else 5]
                command = [*before, sys.executable, "-m", "benchmarks.asynchronous", "--site", *map(str, given)]
                started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            found = [json.loads(process.communicate(timeout=600)[0].splitlines()[-1]) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
    return {
        "strategy": strategy,
        "network": "loopback" if made is None else made.shaped_by,
        "delay": 0.0 if link is None else link.delay / 1e3,
        "slow": slow,
        "compute": compute,
        "nodes": nodes,
        "seconds": arrived(found),
        "steps": [one["steps"] for one in found],
    }


def arrived(found: list[dict[str, Any]]) -> float:
    begun = max(one["begun"] for one in found)
    times = []
    for one in found:
        late = [number for number, (_, error) in enumerate(one["rows"]) if not error < TOLERANCE]
        first = late[-1] + 1 if late else 0
        if first == len(one["rows"]):
            return float("nan")
        times.append(one["rows"][first][0])
    return max(times) - begun


def measure(cases: Sequence[tuple[float, bool]] = CASES, **given: Any) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for delay, slow in cases:
        for strategy in (*LOCKSTEP.get((delay, slow), ("extra",)), "wave"):
            link = Link(RATE, 1000 * delay) if delay else None
            rows.append(race(strategy, link=link, slow=slow, **given))
            where = f"{1000 * delay:g} ms, " + ("one site ten times slower" if slow else "nobody slow")
            print(f"{where:>36}, {strategy:>5}: {rows[-1]['seconds']:6.2f} s ({rows[-1]['network']})", flush=True)
    return records.record("asynchronous", rows, _ratios(rows, cases), command=COMMAND, alpha=ALPHA, tolerance=TOLERANCE)


def _ratios(rows: list[dict[str, Any]], cases: Sequence[tuple[float, bool]]) -> dict[str, float]:
    ratios = {}
    for delay, slow in cases:
        here = {row["strategy"]: row["seconds"] for row in rows if (row["delay"], row["slow"]) == (delay, slow)}
        where = f"{1000 * delay:g} ms, {'one slow' if slow else 'nobody slow'}"
        for other in here.keys() - {"wave"}:
            ratios[f"asynchronous wave ÷ {other}, {where}"] = here["wave"] / here[other]
    return ratios


def table(content: dict[str, Any]) -> list[str]:
    """The rows of docs/evidence/wave.md."""
    found = []
    for delay, slow in CASES:
        here = [row for row in content["rows"] if (row["delay"], row["slow"]) == (delay, slow)]
        extra, ed, wave = (
            next((row["seconds"] for row in here if row["strategy"] == one), None) for one in ("extra", "ed", "wave")
        )
        where = f"{1000 * delay:g} ms one way" if delay else "nothing"
        who = "one site, ten times" if slow else "nobody"
        middle = "" if ed is None else f"{ed:.1f} "
        found.append(f"| {where} | {who} | {extra:.1f} | {middle}| {wave:.1f} ({wave / extra:.2f}) |")
    return found


def main() -> None:
    if sys.argv[1:2] == ["--site"]:
        home, name, strategy, steps, pause, every = sys.argv[2:]
        site(Path(home), name, strategy, int(steps), float(pause), int(every))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    parser.add_argument("--short", action="store_true", help="three sites, steps of 10 ms, the last case: a try")
    options = parser.parse_args()
    content = measure(CASES[-1:], nodes=3, compute=0.01) if options.short else measure()
    if options.json:
        records.write(content, options.json)


if __name__ == "__main__":
    main()
