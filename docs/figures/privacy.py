"""What compression saves and what privacy costs: label cleaning on digits, eight nodes of a ring.

    python docs/figures/privacy.py            # about ten minutes on two cores; writes privacy.json and privacy.svg
    python docs/figures/privacy.py --figure   # draws privacy.svg again from privacy.json

Dirichlet 0.1, 30 % of labels corrupted, linear model, SPARKLE, parallel order, batches of 32. Left: test accuracy of
the average model against what a node has sent. Right: the best test accuracy over clip and mixing at each ε (chosen by
that accuracy, so it flatters), x kept at the node, diffusion, 200 steps.
"""

from __future__ import annotations

from common import MEASURES, new_figure, read, save, write

import decibel as db

NODES, STEPS, NOISY_STEPS, DELTA = 8, 400, 200, 1e-5
RATES = {"alpha": 10.0, "beta": 0.5, "gamma": 0.5, "theta": 0.3}
CODES = {
    "ed": lambda: "ed",
    "ed, 8 bits": lambda: db.privacy.quantize("ed", 8),
    "ed, 4 bits": lambda: db.privacy.quantize("ed", 4),
    "ed, top 30 %": lambda: db.privacy.top_k("ed", 0.3, mixing=0.5),
    "gt, top 10 %": lambda: db.privacy.top_k("gt", 0.1, mixing=0.2),
    "diffusion, random 10 %": lambda: db.privacy.random_k("diffusion", 0.1, mixing=0.1),
}
EPSILONS = (100, 1_000, 10_000, 100_000)
CLIPS, MIXINGS = (0.003, 0.01, 0.03, 0.1), (0.2, 1.0)


def _noisy(clip, noise, mixing):
    return db.privacy.noisy("diffusion", clip, noise, mixing=mixing)


def solve(lower, upper, steps, graph):
    task = db.tasks.label_cleaning("digits", NODES, seed=0)
    method = db.sparkle(lower, upper, updates="simultaneous", **RATES)
    options = {"batch_size": 32, "eval_every": steps // 10, "metrics": task.metrics[:1], "progress": False}
    return db.solve(task.problem, method, graph, steps=steps, **options).trace


def measure():
    ring = db.graphs.ring(NODES)
    found = {"compression": {}, "privacy": {}}
    for name, make in CODES.items():
        trace = solve(make(), None, STEPS, ring)
        found["compression"][name] = {
            "megabytes": [round(float(b) / 1e6, 4) for b in trace["bytes"]],
            "accuracy": [round(float(a), 4) for a in trace["test_accuracy"]],
        }
        print(name, found["compression"][name]["accuracy"][-1], found["compression"][name]["megabytes"][-1], flush=True)
    best = lambda trace: round(float(max(trace["test_accuracy"][-3:])), 4)  # noqa: E731
    found["privacy"]["open"] = {"accuracy": best(solve("diffusion", "local", NOISY_STEPS, ring))}
    found["privacy"]["alone"] = {"accuracy": best(solve("diffusion", "local", NOISY_STEPS, db.graphs.isolated(NODES)))}
    for epsilon in EPSILONS:
        noise = db.privacy.noise_for(epsilon, 2 * NOISY_STEPS, DELTA)
        tried = [
            {"clip": clip, "mixing": mixing, "noise": round(noise, 4)}
            | {"accuracy": best(solve(_noisy(clip, noise, mixing), "local", NOISY_STEPS, ring))}
            for clip in CLIPS
            for mixing in MIXINGS
        ]  # fmt: skip
        found["privacy"][str(epsilon)] = max(tried, key=lambda one: one["accuracy"])
        print(epsilon, found["privacy"][str(epsilon)], flush=True)
    return found


def draw(found):
    figure = new_figure(7.5, 4.4)
    left, right = figure.subplots(1, 2, sharey=True)
    for name, row in found["compression"].items():
        left.plot(row["megabytes"][1:], row["accuracy"][1:], marker=".", label=name)
    left.set(xscale="log", xlabel="megabytes sent by a node", ylabel="test accuracy", title="Compression")
    private = found["privacy"]
    right.plot(EPSILONS, [private[str(one)]["accuracy"] for one in EPSILONS], marker="o", label="clipped, with noise")
    right.axhline(private["open"]["accuracy"], color="C6", ls="--", label="without noise")
    right.axhline(private["alone"]["accuracy"], color="C6", ls=":", label="every node on its own")
    right.set(xscale="log", xlabel=f"ε of all of a node's data (δ = {DELTA:g})", title="Privacy")
    left.legend(loc="upper left", bbox_to_anchor=(0, -0.2), ncols=2)
    right.legend(loc="upper left", bbox_to_anchor=(0, -0.2))
    save(figure, "privacy")


if __name__ == "__main__":
    if MEASURES:
        write("privacy", measure())
    draw(read("privacy"))
