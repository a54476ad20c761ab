"""Learn a mixture: five nodes hold text of one kind each, and learn in which proportions to train a language model.

Run it with `python examples/mixture.py`: about six minutes on two cores, no download. The text is what every Python
installation has: the language's manual, docstrings and sources of the standard library, tables of character encodings,
and licences. The model is to predict manuals and docstrings, of which every node has a small sample. The shares move in
every eighth step, and the uniform mixture gets as many gradients. It prints the shares as they move, compares the loss
with that of the uniform mixture, and saves mixture.png.
"""

import matplotlib.pyplot as plt

import decibel as db
from decibel.tasks.decoder import Shape

GRADIENTS, EVERY, ROWS = 2_000, 8, 10
TARGET = {"manual": 0.7, "docstrings": 0.3}

task = db.tasks.language_model(
    size=Shape(width=48, layers=2, heads=2, context=48),
    target=TARGET,
    windows=5_000,
    validation=64,
    test=128,
    floor=0.1,
)
domains = list(task.summary["domains"])
floor = task.summary["least_share"]
print(f"a decoder of {task.summary['weights']:,} weights on {len(domains)} nodes; no share falls below {floor:.0%}")


def run(alpha, every):
    """All runs take as many gradients: a step takes one, and two more if the shares move."""
    steps = round(GRADIENTS / (1 + 2 / every))

    def falling(k):  # Adam's steps need to shrink
        return 6e-3 * (1 - k / steps)

    method = task.method(alpha=alpha, beta=falling, gamma=falling, upper_every=every)
    graph = db.graphs.ring(len(domains))
    return db.solve(
        task.problem, method, graph, steps=steps, batch_size=4, eval_every=steps // ROWS, metrics=task.metrics
    )


# x: the shares, projected onto the simplex. y: the decoder. z: how a change of y changes the loss on the target.
learned = run(alpha=0.02 * EVERY, every=EVERY)
# With α = 0 the mixture stays as it starts, uniform, and z is needed only once.
uniform = run(alpha=0.0, every=10 * GRADIENTS)

print("step    " + "".join(f"{name:>12}" for name in domains) + "   loss on the target")
for row, step in enumerate(learned.trace["step"]):
    shares = "".join(f"{learned.trace[f'weight_{name}'][row]:12.1%}" for name in domains)
    print(f"{step:<8}{shares}   {learned.trace['test_loss'][row]:.3f}")
last, plain = learned.trace.last["test_loss"], uniform.trace.last["test_loss"]
print(f"uniform mixture, as many gradients: {plain:.3f}; the learned one is {plain - last:+.3f} nats per byte better")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for name in domains:
    left.plot(learned.trace["step"], learned.trace[f"weight_{name}"], label=name)
left.axhline(floor, color="grey", linestyle=":", label="floor")
left.set(xlabel="iterations", ylabel="share in the mixture", ylim=(0, None))
for label, result in {"learned mixture": learned, "uniform mixture": uniform}.items():
    right.plot(result.trace["gradients"][1:], result.trace["test_loss"][1:], label=label)
right.set(xlabel="gradients per node", ylabel="loss on the target, nats per byte")
for axis in (left, right):
    axis.legend(frameon=False)
figure.savefig("mixture.png", dpi=150)
print("saved mixture.png")
