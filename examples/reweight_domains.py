"""Reweight domains: six nodes hold prose, code or noise, and learn in which proportions to train a language model.

Run it with `python examples/reweight_domains.py`: about a minute, no download. It prints the learned mixture and the
loss on held-out text, beside that of the uniform mixture, and saves reweight_domains.png.
"""

import matplotlib.pyplot as plt
import numpy as np

import decibel as db
from decibel.tasks.decoder import Shape

rng = np.random.default_rng(0)
NOUNS = ["the cat", "a dog", "my friend", "the old man", "her sister", "this house", "the sea", "a bird"]
VERBS = ["sees", "likes", "finds", "follows", "hears", "leaves"]


def prose():
    return " ".join(f"{rng.choice(NOUNS)} {rng.choice(VERBS)} {rng.choice(NOUNS)}." for _ in range(6))


def code():
    f, a = rng.choice(list("fghxyz"), 2)
    return (
        f"def {f}({a}):\n    return {a} {rng.choice(list('+-*'))} {rng.integers(100)}\nprint({f}({rng.integers(100)}))"
    )


def noise():
    return "".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz     "), 120))


domains = {kind.__name__: [kind() for _ in range(500)] for kind in (prose, code, noise)}
task = db.tasks.language_model(
    domains,
    nodes=6,
    size=Shape(width=16, layers=2, heads=2, context=16),
    target={"prose": 1, "code": 1},
    weights="softmax",
    windows=400,
    validation=32,
    test=64,
    floor=0.1,
    decay=2e-3,
)
print(f"a decoder of {task.summary['weights']} weights; every domain keeps a share of at least 3.3 %")

# x: the logits of the mixture. y: the model. α = 0 leaves the mixture uniform.
options = dict(steps=500, batch_size=8, metrics=task.metrics, eval_every=50)
learned, uniform = (
    db.solve(
        task.problem,
        db.sparkle("ed", alpha=alpha, beta=0.5, gamma=0.1, theta=0.2, updates="simultaneous"),
        db.graphs.ring(6),
        **options,
    )
    for alpha in (1.0, 0.0)
)
for name in domains:
    print(f"weight of {name}: {learned.trace.last[f'weight_{name}']:.1%}")
print(f"perplexity of held-out text: {np.exp(learned.trace.last['test_loss']):.2f} with the learned mixture,")
print(f"                             {np.exp(uniform.trace.last['test_loss']):.2f} with the uniform one")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for name in domains:
    left.plot(learned.trace["step"], learned.trace[f"weight_{name}"], label=name)
left.axhline(0.1 / 3, color="grey", linestyle=":", label="floor")
left.set(xlabel="iterations", ylabel="weight in the mixture", ylim=(0, None))
for label, result in {"learned mixture": learned, "uniform mixture": uniform}.items():
    right.plot(result.trace["step"], result.trace["test_loss"], label=label)
right.set(xlabel="iterations", ylabel="test loss, nats per byte", ylim=(0, None))
for axis in (left, right):
    axis.legend(frameon=False)
figure.savefig("reweight_domains.png", dpi=150)
print("saved reweight_domains.png")
