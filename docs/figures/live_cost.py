"""Whether the live view slows a run: the same run with nobody reading, with a page open, and with one that asks all the
time. Each turn runs all three, one after another; the client is a process of its own, as a browser is.

    python docs/figures/live_cost.py    # about three minutes on two cores; writes live_cost.json
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax

import decibel as db
from decibel.core._files import atomic_write
from decibel.results.live import serve_beside

TURNS, STEPS, ROWS = 11, 3_000, 300
WAITS = {"nobody reads": None, "a page is open": 1.0, "a reader who never waits": 0.0}  # seconds between two questions
CLIENT = """
import json, sys, time, urllib.request
url, wait, times, offset, run = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), 0, ""
urllib.request.urlopen(url + "layout").read()
for _ in range(times):
    told = json.load(urllib.request.urlopen(f"{url}events?from={offset}&run={run}"))
    offset, run = told["offset"], told["run"]
    time.sleep(wait)
"""


def seconds(task: db.tasks.Task, wait: float | None) -> dict[str, float]:
    """By the clock, and of this process's computing, which other work on the machine disturbs less."""
    method = db.sparkle("ed", alpha=100.0, beta=0.1, gamma=0.1, theta=0.3)
    with tempfile.TemporaryDirectory() as folder, serve_beside(Path(folder)) as url:
        command = [sys.executable, "-c", CLIENT, url, str(wait), "1000000000"]
        reader = None if wait is None else subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            if reader:
                time.sleep(1.0)  # it has started by then
            begun, busy = time.perf_counter(), time.process_time()
            log = db.loggers.JSONL(Path(folder) / "log.jsonl")
            options = {"batch_size": 32, "metrics": task.metrics, "eval_every": STEPS // ROWS, "callbacks": [log]}
            db.solve(task.problem, method, db.graphs.ring(10), steps=STEPS, **options)
            return {"clock": time.perf_counter() - begun, "computing": time.process_time() - busy}
        finally:
            if reader:
                reader.terminate()
                reader.wait()


def question(times: int = 3_000) -> float:
    """Seconds of this process's computing that one question costs, of a page that has read all there is."""
    with tempfile.TemporaryDirectory() as folder, serve_beside(Path(folder)) as url:
        begin = {"kind": "begin", "about": {}, "graph": {"nodes": 10, "edges": [], "name": "ring"}}
        rows = [{"kind": "row", "step": k, "row": {"upper": 1.0}, "nodes": [0.1] * 10} for k in range(ROWS)]
        (Path(folder) / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (begin, *rows)))
        busy = time.process_time()
        subprocess.run([sys.executable, "-c", CLIENT, url, "0", str(times)], check=True)
        return (time.process_time() - busy) / times


def main() -> None:
    each = question()
    print(f"a question costs {1e3 * each:.2f} ms")
    task = db.tasks.label_cleaning(nodes=10)
    seconds(task, None)  # compiles what all turns share
    turns = [{name: seconds(task, wait) for name, wait in WAITS.items()} for _ in range(TURNS)]
    alone = next(iter(WAITS))
    rows = {}
    for name in WAITS:
        rows[name] = {}
        for kind in ("clock", "computing"):
            ratios = sorted(turn[name][kind] / turn[alone][kind] for turn in turns)
            middle = statistics.median(turn[name][kind] for turn in turns)
            rows[name][kind] = {
                "seconds": round(middle, 2), "ratio": round(statistics.median(ratios), 3),
                "least": round(ratios[0], 3), "most": round(ratios[-1], 3),
            }  # fmt: skip
            print(f"{name:26} {kind:10} {rows[name][kind]}")
    about = {
        "turns": TURNS,
        "steps": STEPS,
        "rows": ROWS,
        "cores": os.cpu_count(),
        "device": jax.devices()[0].device_kind,
    }
    about |= {"load": os.getloadavg()[0], "question_ms": round(1e3 * each, 2), "readers": rows}
    atomic_write(Path(__file__).with_suffix(".json"), json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
