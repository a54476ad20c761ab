"""One site as a process: python silo_worker.py HOME NAME OUT '{"strategy": "edge-ed", ...}'"""

import json
import sys
import time
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402
from quadratics import random_quadratic  # noqa: E402

import decibel as db  # noqa: E402
from decibel.silo.edge import Refused  # noqa: E402


def slow(site, seconds):
    begin = site.begin

    def later(step):
        time.sleep(seconds)
        return begin(step)

    site.begin = later


class Cut:
    """A parted network: while the file `cut` names a group, its sites and the others do not reach each other."""

    def __init__(self, site, path):
        self.site, self.path = site, Path(path)
        self.connected, site.connected = site.connected, self.connect
        self.watched, site.watch = site.watch, self.watch

    def between(self, edge):
        group = self.path.read_text().split() if self.path.exists() else []
        return bool(group) and (edge.name in group) != (self.site.name in group)

    def connect(self, edge, hello, stream):
        if self.between(edge):
            raise Refused("the network is parted")
        self.connected(edge, hello, stream)

    def watch(self):
        with self.site.lock:
            for edge in self.site.edges.values():
                if self.between(edge):
                    edge.hang_up()
        self.watched()


class InTrouble(db.Silo):
    """A site that takes its time, in a network that may be parted."""

    def start(self, *arguments, **options):
        run = super().start(*arguments, **options)
        slow(run.site, SETTINGS.get("slow", {}).get(self.name, 0.0))
        Cut(run.site, self.home.parent / "cut")
        return run


def quadratic(nodes):
    return random_quadratic(nodes, seed=1, spread=2.0)


if __name__ == "__main__":
    home, name, out, settings = sys.argv[1:]
    SETTINGS = json.loads(settings)
    engine = InTrouble(home, name)
    graph = engine.graph
    method = db.sparkle(SETTINGS.get("strategy", "edge-ed"), alpha=0.03, beta=0.1, gamma=0.1, order="parallel")
    lost = SETTINGS.get("lost")
    result = db.solve(
        quadratic(graph.nodes).problem(),
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
    print(f"{name} ended at {result.step}, {result.stopped}", file=sys.stderr)
    np.savez(out, x=np.asarray(result.nodes.x)[0], seconds=result.trace["seconds"][-1])
