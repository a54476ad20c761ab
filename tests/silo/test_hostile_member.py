"""One hostile member among four, with a valid certificate: the others finish, skip nothing, lose nothing, stay small.

`python tests/silo/test_hostile_member.py` measures, on a quiet machine, what it costs them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from silo_fleet import Fleet
from silo_sites import ring

from decibel.silo._federation import FaultTolerance

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not give processes their cores"),
]
HOSTILE = Path(__file__).parents[1] / "silo_hostile.py"
RULES = FaultTolerance("continue", beat=0.3, missed=30, deadline=30.0)
HONEST, BAD = ("site-0", "site-1", "site-2"), "site-3"
FEW = 64e6  # bytes


def federation(steps):
    made = ring(4, fault_tolerance=RULES, steps=steps, trust_members=True)
    return replace(made, edges=((0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3)))


def resident(process):
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run(folder, mode, steps, flood=0):
    """What the honest sites did beside a member that `leaves` or `attacks`: steps a second, and memory."""
    sites = Fleet(folder, federation(steps), steps=steps, every=100, saves=True, problem=True)
    bad, sockets = None, []
    cores = sorted(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, cores[: max(1, len(cores) // 2)])  # so that no attacker's own work slows anybody down
        sites.start(*HONEST)
        os.sched_setaffinity(0, cores[max(1, len(cores) // 2) :] or cores)
        sites.wait_until(lambda: (folder / "problem").exists())
        command = [sys.executable, HOSTILE, folder / BAD, BAD, mode, "600"]
        bad = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        sites.wait_for_step(200, HONEST)
        for name in HONEST if flood else ():
            host, port = sites.federation.sites[sites.names.index(name)].address.split(":")
            for _ in range(flood // len(HONEST)):
                with suppress(OSError):
                    sockets.append(socket.create_connection((host, int(port)), timeout=1))
        begun, memory = (time.monotonic(), sites.step("site-0")), {name: [] for name in HONEST}
        while any(sites.processes[name].poll() is None for name in HONEST) and sites.step("site-0") < steps - 200:
            for name in HONEST:
                with suppress(OSError):
                    memory[name].append(resident(sites.processes[name]))
            time.sleep(0.25)
        rate = (sites.step("site-0") - begun[1]) / (time.monotonic() - begun[0])
        codes = {name: sites.processes[name].wait(300) for name in HONEST}
        bad.send_signal(signal.SIGKILL)
        ended = {name: json.loads((folder / name / "status.json").read_text()) for name in HONEST}
        logs = {name: (folder / f"{name}.log").read_text() for name in HONEST}
        assert not any(codes.values()), logs
        return {
            "rate": rate, "memory": {name: max(seen) - seen[0] for name, seen in memory.items()}, "codes": codes,
            "steps": {name: one["step"] for name, one in ended.items()}, "logs": logs,
            "done": {name: int(np.load(folder / f"{name}.npz")["done"]) for name in HONEST},
            "rejected": sum(one["neighbours"][BAD]["rejected"] for one in ended.values()),
            "saved": {name: max(int(p.name) for p in folder.glob(f"{name}/checkpoints/[0-9]*")) for name in HONEST},
        }  # fmt: skip
    finally:
        os.sched_setaffinity(0, cores)
        if bad is not None:
            bad.kill()
            bad.wait()
        for one in sockets:
            one.close()
        sites.end()


def test_honest_sites_neither_end_nor_skip_nor_grow(tmp_path):
    steps = 1500
    found = run(tmp_path, "attacks", steps)
    assert set(found["steps"].values()) == {steps} == set(found["done"].values()), found["logs"]
    assert all(grown < FEW for grown in found["memory"].values()), found["memory"]
    assert found["rejected"] > 10  # it was heard, and cut off
    assert set(found["saved"].values()) == {steps}


if __name__ == "__main__":
    rates: dict[str, list[float]] = {"leaves": [], "attacks": [], "10,000 silent sockets": []}
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        for kind, (mode, flood) in {
            "leaves": ("leaves", 0), "attacks": ("attacks", 0), "10,000 silent sockets": ("leaves", 10_000)
        }.items():  # fmt: skip
            with tempfile.TemporaryDirectory() as folder:
                found = run(Path(folder), mode, 6000, flood)
            rates[kind].append(found["rate"])
            print(
                kind, {key: found[key] for key in ("rate", "memory", "codes", "steps", "done", "rejected")}, flush=True
            )
    print({kind: float(np.median(one) / np.median(rates["leaves"])) for kind, one in rates.items()})
