"""Which strategy ends at the exact solution under which fault: the table of docs/wave.md, as it is measured.

    python docs/figures/exactness.py     # about five minutes on two cores; writes exactness.json

SPARKLE with one strategy on all levels, on the quadratics and with the step sizes of faults.py; full batches, float64.
A test measures every cell again.
"""

from __future__ import annotations

import jax

jax.config.update("jax_enable_x64", True)

import faults  # noqa: E402
import numpy as np  # noqa: E402
from common import write  # noqa: E402

import decibel as db  # noqa: E402
from decibel.engines._program import RunConfig  # noqa: E402
from decibel.network._simulated_time import split_slow_faults  # noqa: E402

NODES, STEPS, EXACT = faults.NODES, 9000, 1e-8
STRATEGIES = {
    "diffusion": "diffusion",
    "ed": "ed",
    "extra": "extra",
    "gt": "gt",
    "edge-ed": "edge-ed",
    "wave": "wave",
    "wave, 4 bits": db.privacy.quantize("wave", 4),
}
SLOW, LATE, LOST = db.faults.slow(0, 10), db.faults.late((1, 5)), db.faults.drop(0.2, one_way=True)
GONE = "a node leaves for good: those who stay"
BACK = "a node is set back by 150 steps"
TROUBLES = {
    "none": (),
    "30 % of links down": (db.faults.drop(0.3),),
    "nodes pause, half of the steps": (db.faults.pause(probability=0.5),),
    "20 % of links one step late": (db.faults.late(1, 0.2),),
    "all links one step late": (db.faults.late(1),),
    "all links 1 to 20 steps late": (db.faults.late((1, 20)),),
    "30 % of messages lost one way": (db.faults.drop(0.3, one_way=True),),
    GONE: (db.faults.leave(3, during=(500, STEPS)),),
    "a node leaves and returns": (db.faults.leave(3, during=(500, 3000)),),
    BACK: (),
    "one node ten times slower": (SLOW,),
    "slow, 1 to 5 steps late, 20 % lost": (SLOW, LATE, LOST),
}


def distance(strategy, trouble):
    """The largest distance of a node from x* at the end; None if the run diverges. And whether nodes waited."""
    method = db.sparkle(STRATEGIES[strategy], **faults.RATES)
    acting, clock = split_slow_faults(
        TROUBLES[trouble],
        np.arange(NODES),
        asynchronous=all(row.asynchronous for row in method.strategies.values()),
        seed=0,
    )
    run = db.Simulator().start(faults.problem(), method, db.Levels(x=db.graphs.ring(NODES)), RunConfig(faults=acting))
    left = STEPS
    if trouble == BACK:
        for length in (50, 150):
            old = jax.tree.map(lambda leaf: np.array(leaf[3]), run.state)
            run.advance(length)
        run.state = jax.tree.map(lambda leaf, old: leaf.at[3].set(old), run.state, old)
        left -= 200
    finite = run.advance(left) is not None
    waits = clock is not None and clock.between(0, 1) > 1
    if not finite:
        return None, waits
    nodes = [node for node in range(NODES) if trouble != GONE or node != 3]
    found = np.abs(np.asarray(run.state.x.s.tree)[nodes] - faults.solution(nodes)).max()
    return (float(found) if found < 1e3 else None), waits


def verdict(found, waits):
    if found is None:
        return "diverges"
    return f"off by {found:.1g}" if found > EXACT else "exact, waits" if waits else "exact"


def measure():
    return {trouble: {name: verdict(*distance(name, trouble)) for name in STRATEGIES} for trouble in TROUBLES}


def table(found):
    """The rows of docs/wave.md."""
    head = [f"| | {' | '.join(STRATEGIES)} |", "|---" * (len(STRATEGIES) + 1) + "|"]
    return head + [f"| {trouble} | {' | '.join(cells.values())} |" for trouble, cells in found.items()]


if __name__ == "__main__":
    found = measure()
    write("exactness", found)
    print(*table(found), sep="\n")
