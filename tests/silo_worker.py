"""One site as a process: python silo_worker.py HOME NAME OUT '{"steps": 100, ...}'"""

import hashlib
import json
import sys
import time
from contextlib import suppress
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402
from jax.flatten_util import ravel_pytree  # noqa: E402
from jax.stages import Lowered  # noqa: E402
from quadratics import random_quadratic  # noqa: E402

import decibel as db  # noqa: E402
from decibel.core._files import atomic_write  # noqa: E402
from decibel.silo._errors import Rejected  # noqa: E402
from decibel.silo.protocol._site import STOP  # noqa: E402


class Slow:
    """A site that takes `times` as long for its own part of every step, which is all but the wait for neighbours."""

    def __init__(self, site, times):
        self.times = times
        self.begin, site.begin_step = site.begin_step, self.begin_later
        self.wait_for, site._wait_for = site._wait_for, self.wait
        self.begun = self.waited = None

    def begin_later(self, step):
        if self.begun is not None:
            own = time.monotonic() - self.begun - self.waited
            time.sleep((self.times - 1) * own)
        step = self.begin(step)
        self.begun, self.waited = time.monotonic(), 0.0
        return step

    def wait(self, edges, at):
        since = time.monotonic()
        self.wait_for(edges, at)
        self.waited += time.monotonic() - since


class Cut:
    """A parted network: while the file `cut` names a group, its sites and the others do not reach each other."""

    def __init__(self, site, path):
        self.site, self.path = site, Path(path)
        self.connected, site.connected = site.connected, self.connect
        self.watched, site.on_heartbeat = site.on_heartbeat, self.watch

    def between(self, edge):
        group = self.path.read_text().split() if self.path.exists() else []
        return bool(group) and (edge.name in group) != (self.site.name in group)

    def connect(self, edge, hello, stream):
        if self.between(edge):
            raise Rejected("the network is parted")
        self.connected(edge, hello, stream)

    def watch(self):
        with self.site.lock:
            for edge in self.site.edges.values():
                if self.between(edge):
                    edge.drop_stream()
        self.watched()


class SlowCompiler:
    """Compiles the step for minutes, without a moment in which Python would call a signal's handler."""

    def __init__(self):
        self.compile, Lowered.compile = Lowered.compile, lambda lowered: self.compile_slowly(lowered)

    def compile_slowly(self, lowered):
        if "jit_chunk" in lowered.as_text()[:100]:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
        return self.compile(lowered)


class InTrouble(db.Silo):
    """A site that takes its time, in a network that may be parted. While the file `gate` holds a number, it begins
    neither that step nor a later one."""

    begun = 0  # steps, in all

    def start(self, *arguments, **options):
        run = super().start(*arguments, **options)
        gate = self.home.parent / "gate"
        pauses = SETTINGS.get("pause", {"all": 0.0})
        begin = run.site.begin_step

        def begin_later(step):
            with suppress(FileNotFoundError):
                while step >= int(gate.read_text()):
                    time.sleep(0.01)
            found = begin(step)
            InTrouble.begun += found != STOP
            time.sleep(pauses.get(self.name, pauses["all"]))  # as if it computed
            return found

        run.site.begin_step = begin_later
        if self.name in SETTINGS.get("slow", {}):
            Slow(run.site, SETTINGS["slow"][self.name])
        Cut(run.site, self.home.parent / "cut")
        if SETTINGS.get("problem"):
            atomic_write(self.home.parent / "problem", run.site.run_hash.hex())
        return run


def quadratic(nodes):
    return random_quadratic(nodes, seed=1, spread=2.0).problem()


def one_level(nodes):
    return random_quadratic(nodes, seed=1, spread=2.0).single()


PROBLEMS = {"quadratic": quadratic, "one level": one_level}
RATES = {
    "quadratic": {"alpha": 0.03, "beta": 0.1, "gamma": 0.1},
    "one level": {"alpha": 0.2},
}


if __name__ == "__main__":
    home, name, out, settings = sys.argv[1:]
    SETTINGS = json.loads(settings)
    if name in SETTINGS.get("compiles", ()):
        SlowCompiler()
    engine = InTrouble(home, name)
    graph = engine.graph
    task = SETTINGS.get("task", "quadratic")
    if task == "one level":
        method = db.wave(**RATES[task])
    else:
        method = db.sparkle("edge-ed", updates="simultaneous", **RATES[task])
    lost = SETTINGS.get("lost")
    result = db.solve(
        PROBLEMS[task](graph.nodes),
        method,
        graph,
        steps=SETTINGS["steps"],
        eval_every=SETTINGS.get("every"),
        metrics=[],
        engine=engine,
        faults=db.faults.drop(lost, one_way=True) if lost else None,
        checkpoint=f"{home}/checkpoints" if SETTINGS.get("saves") else None,
        resume=bool(SETTINGS.get("saves")),
    )
    print(f"{name} ended at {result.step}, {result.message or None}", file=sys.stderr)
    np.savez(out, x=ravel_pytree(result.x)[0], done=InTrouble.begun)
