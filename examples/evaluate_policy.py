"""Evaluate a policy together: ten agents on a ring share an environment, and each sees only rewards of its own.

Run it with `python examples/evaluate_policy.py`: under a minute, no download. It prints how far each method ends from
the value function that the average reward implies, and saves evaluate_policy.png.
"""

import numpy as np

import decibel as db
from decibel.results._plots import plot_traces
from decibel.tasks import policy_evaluation

# From each of 100 states every agent has seen 50 transitions; y holds the value that each state should have.
task = policy_evaluation(nodes=10, states=100, features=10, discount=0.9, heterogeneity="severe", sweeps=50, seed=0)
graph = db.graphs.ring(10)

# Steps that shrink settle the noise of small batches: 5 of the 50 sweeps are used at a time.
steps = {"alpha": lambda k: 0.3 / (1 + k / 200), "beta": lambda k: 0.3 / (1 + k / 200)}
methods = {
    "exact diffusion at both levels": db.sparkle("ed", **steps, gamma=0.3),
    "no correction of heterogeneity": db.dsoba(**steps, gamma=0.3, theta=1.0),
}
traces = {}
for name, method in methods.items():
    metrics = [*task.metrics, "consensus_x"]
    result = db.solve(task.problem, method, graph, steps=2_000, batch_size=5, metrics=metrics, eval_every=50)
    traces[name] = result.trace
    print(f"{name}: ‖x_i − x*‖² = {result.trace.last['distance']:.1e} on average,", end=" ")
    print(f"value error {result.trace.last['value_error']:.2%}")

# What an agent would believe if it listened to its own rewards only.
truth = task.truth
own = (truth.transition * truth.rewards).sum(2)  # (agents, states): expected reward
value = np.linalg.solve(np.eye(100) - 0.9 * truth.transition, own.T).T
alone = np.square(value - truth.value).sum(1) / np.square(truth.value).sum()
print(f"an agent alone: value error {alone.mean():.0%}")

plot_traces(traces, "distance", "consensus_x").savefig("evaluate_policy.png", dpi=150)
print("saved evaluate_policy.png")
