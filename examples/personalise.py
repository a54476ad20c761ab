"""Personalise: ten nodes tell apart different digits, share what they have learnt to see, and keep their own answers.

Run it with `python examples/personalise.py`: under a minute, no download. It prints the test accuracy of nodes that
agree on the first layers and of nodes that learn alone, and saves personalise.png.
"""

import jax
import matplotlib.pyplot as plt

import decibel as db
from decibel.tasks import meta_learning

# Every node has 100 images of five digits of its own, half for training and half for validation, and numbers the
# digits in an order of its own: there is no one model that would do for all.
task = meta_learning("digits", nodes=10, ways=5, samples=100, seed=0)
for node, digits in enumerate(task.summary["classes"][:3]):
    print(f"node {node} tells apart the digits {', '.join(map(str, digits))}")

# x: two layers that all agree on. y: a last layer for each, fitted to x on the node's training samples. The
# hypergradient says how x should move so that every y, once fitted, does well on the validation samples.
options = dict(steps=300, metrics=task.metrics, eval_every=20)
together = db.solve(task.problem, db.interact(alpha=0.1, beta=0.5), db.graphs.ring(10), **options)
alone = db.solve(task.problem, db.dsgd_bilevel(alpha=0.1, beta=0.5), db.graphs.isolated(10), **options)

print(f"test accuracy, layers agreed on with neighbours: {together.trace.last['test_accuracy']:.1%}")
print(f"test accuracy, every node alone:                 {alone.trace.last['test_accuracy']:.1%}")

# The layers belong to all nodes now, so they also suit whoever comes later: only a last layer is left to fit.
print(f"a last layer fitted again to the layers agreed on: {together.trace.last['adapted_accuracy']:.1%}")
sizes = {"x": task.problem.x0, "y": task.problem.y0}
agreed, own = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in sizes.values())
print(f"{agreed} weights are agreed on, {own} stay at their node")

figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
for label, result in {"agreeing on the first layers": together, "alone": alone}.items():
    axis.plot(result.trace["step"], result.trace["test_accuracy"], label=label)
axis.set(xlabel="iterations", ylabel="test accuracy, mean over nodes", ylim=(0.8, 1))
axis.grid(alpha=0.25)
axis.legend(frameon=False)
figure.savefig("personalise.png", dpi=150)
print("saved personalise.png")
