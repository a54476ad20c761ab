"""Wall time of sites that wait for each other, and of sites that do not: `python -m benchmarks.asynchronous`.

Eight sites on a ring, as processes, over gRPC and mutual TLS, of which one may compute ten times slower, with a delay
between sites or none (`shaped.py`). A site's computation is a pause of a stated length, since all share a few cores.
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
from pathlib import Path
from typing import Any

import numpy as np

from . import records
from .shaped import shaped

SIZE, ALPHA, TOLERANCE = 20, 0.3, 1e-6
COMPUTE, SLOWER = 0.05, 10.0  # seconds of a step, and how many times that at the slow site
SLOW = "site-0"
COMMAND = "python -m benchmarks.asynchronous --json benchmarks/results/asynchronous.json"
CASES = [(delay, slow) for delay in (0.0, 0.05) for slow in (False, True)]
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

    return db.extra(alpha=ALPHA).with_strategies(lambda _: db.strategies.strategy(strategy))


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
    from decibel.engines.silo._federation import FaultTolerance, Federation, SiteAddress, StopRule

    return Federation(
        "race",
        tuple(SiteAddress(f"site-{i}", "127.0.0.1:1") for i in range(nodes)),
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
            begin = run.site.begin

            def paced(step: int) -> int:
                found = begin(step)
                begun.append(time.time())
                time.sleep(pause)
                return found

            run.site.begin = paced
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
    strategy: str, *, nodes: int = 8, delay: float = 0.0, slow: bool = False, compute: float = COMPUTE, kind: str = ""
) -> dict[str, Any]:
    """Seconds until all sites stay within the tolerance, wave without a common clock and others with one."""
    from decibel.cli._silo_command import prepare

    asynchronous = strategy == "wave"
    steps = 20_000 if asynchronous else rounds(strategy, nodes) + 10
    with (
        shaped(federation(nodes, asynchronous=asynchronous), delay, kind or None) as network,
        tempfile.TemporaryDirectory() as folder,
    ):
        prepare(network.federation, Path(folder))
        started = []
        for one in network.federation.sites:
            late = slow and one.name == SLOW
            given = [Path(folder) / one.name, one.name, strategy, steps, compute * SLOWER**late, 1 if late else 5]
            command = [sys.executable, "-m", "benchmarks.asynchronous", "--site", *map(str, given)]
            started.append(subprocess.Popen([*network.command(one.name), *command], stdout=subprocess.PIPE, text=True))
        try:
            found = [json.loads(process.communicate(timeout=600)[0].splitlines()[-1]) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
        return {
            "strategy": strategy,
            "network": network.name,
            "delay": delay,
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


def measure(kind: str = "") -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for delay, slow in CASES:
        for strategy in (*LOCKSTEP.get((delay, slow), ("extra",)), "wave"):
            rows.append(race(strategy, delay=delay, slow=slow, kind=kind))
            where = f"{1000 * delay:g} ms, " + ("one site ten times slower" if slow else "nobody slow")
            print(f"{where:>36}, {strategy:>5}: {rows[-1]['seconds']:6.2f} s", flush=True)
    return records.record("asynchronous", rows, _ratios(rows), command=COMMAND, alpha=ALPHA, tolerance=TOLERANCE)


def _ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    ratios = {}
    for delay, slow in CASES:
        here = {row["strategy"]: row["seconds"] for row in rows if (row["delay"], row["slow"]) == (delay, slow)}
        where = f"{1000 * delay:g} ms, {'one slow' if slow else 'nobody slow'}"
        for other in here.keys() - {"wave"}:
            ratios[f"asynchronous wave ÷ {other}, {where}"] = here["wave"] / here[other]
    return ratios


def table(content: dict[str, Any]) -> list[str]:
    """The rows of docs/wave.md."""
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
    parser.add_argument("--kind", choices=("netem", "relays"), default="", help="how delays are made")
    options = parser.parse_args()
    content = measure(options.kind)
    if options.json:
        records.write(content, options.json)


if __name__ == "__main__":
    main()
