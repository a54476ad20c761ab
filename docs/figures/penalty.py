"""Measures what docs/penalty.md says of the penalty form, and draws penalty.svg.

python docs/figures/penalty.py            # writes penalty.json and penalty.svg beside it
python docs/figures/penalty.py --figure   # draws penalty.svg again from penalty.json
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from common import MEASURES, new_figure, read, save, write
from matplotlib.axes import Axes

import decibel as db

NODES, STRENGTHS = 8, [10.0**k for k in (1, 2, 3, 4, 5, 6)]
COLOURS = {"forward": "C0", "central": "C1", "SPARKLE": "C2"}


def quadratic(dtype: str) -> tuple[db.Problem, np.ndarray]:
    """g = ½ h (y − b x − c)², f = ½ (y − a)² + ½ (x − e)² at each node, and x*."""
    rng = np.random.default_rng(0)
    h, b, c, a, e = rng.uniform(0.7, 1.5, (NODES, 4)), *rng.normal(size=(4, NODES, 4))

    def lower(x, y, batch):
        return 0.5 * jnp.mean(jnp.sum(batch["h"] * (y - batch["b"] * x - batch["c"]) ** 2, -1))

    def upper(x, y, batch):
        return 0.5 * jnp.mean(jnp.sum((y - batch["a"]) ** 2 + (x - batch["e"]) ** 2, -1))

    data = {name: value[:, None].astype(dtype) for name, value in zip("hbcae", (h, b, c, a, e), strict=True)}
    zero = jnp.zeros(4, dtype)
    problem = db.Problem(upper, lower, upper_data=data, lower_data=data, x0=zero, y0=zero)
    slope, rest = (h * b).mean(0) / h.mean(0), (h * c).mean(0) / h.mean(0)
    return problem, (e.mean(0) + slope * (a.mean(0) - rest)) / (1 + slope**2)


def biases() -> dict[str, list[float]]:
    found = {}
    for dtype in ("float64", "float32"):
        problem, solution = quadratic(dtype)
        for form in ("forward", "central"):
            errors = []
            for strength in STRENGTHS:
                hypergradient = db.hypergradient.penalty(strength, central=form == "central")
                method = db.sparkle("ed", alpha=0.1, beta=0.4, gamma=0.4, hypergradient=hypergradient)
                x = db.solve(problem, method, db.graphs.ring(NODES), steps=3000, metrics=[], progress=False).x
                errors.append(float(np.abs(np.asarray(x) - solution).max()))
            found[f"{form}, {dtype}"] = errors
    return found


def flat() -> dict[str, list[float]]:
    """The largest entry of z: g says nothing about the second entry of y."""
    b = np.linspace(0.5, 1.5, NODES)

    def upper(x, y, batch):
        return 0.5 * (y[0] - 1) ** 2 + 0.5 * (y[1] - 2) ** 2 + 0.05 * x**2 * jnp.mean(batch)

    def lower(x, y, batch):
        return 0.5 * jnp.mean((y[0] - batch * x) ** 2)

    data = {"upper_data": np.ones((NODES, 1)), "lower_data": b[:, None]}
    problem = db.Problem(upper, lower, **data, x0=jnp.asarray(0.0), y0=jnp.zeros(2))

    def size(snapshot):
        return jnp.abs(snapshot.nodes.z).max()

    found = {}
    for name, form in (("SPARKLE", None), ("forward", db.hypergradient.penalty(20.0))):
        method = db.sparkle("ed", alpha=0.05, beta=0.3, gamma=0.3, hypergradient=form)
        trace = db.solve(
            problem, method, db.graphs.ring(NODES), steps=2000, eval_every=20, metrics=[size], progress=False
        ).trace
        found[name] = [float(value) for value in trace["size"]]
    return found


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    write("penalty", {"strengths": STRENGTHS, "bias": biases(), "flat": flat()})


def draw() -> None:
    content = read("penalty")
    figure = new_figure(7.5, 3.8)
    left, right = figure.subplots(1, 2)
    draw_bias(left, content["bias"])
    draw_flat(right, content["flat"])
    for ax in (left, right):
        ax.legend(loc="upper left", bbox_to_anchor=(0, -0.2), ncols=2)
    save(figure, "penalty")


def draw_bias(ax: Axes, bias: dict[str, list[float]]) -> None:
    for name, errors in bias.items():
        form, dtype = name.split(", ")
        ax.plot(STRENGTHS, errors, "-o" if dtype == "float64" else "--o", color=COLOURS[form], label=name)
    ax.set(xscale="log", yscale="log", xlabel="strength λ", ylabel="distance from x*", title="The error falls with λ")


def draw_flat(ax: Axes, sizes: dict[str, list[float]]) -> None:
    for name, values in sizes.items():
        label = "SPARKLE" if name == "SPARKLE" else "penalty, λ = 20"
        ax.plot(np.arange(len(values)) * 20, values, color=COLOURS[name], label=label)
    ax.set(xlabel="step", ylabel="largest entry of z", title="g is flat along one direction")


if __name__ == "__main__":
    if MEASURES:
        main()
    draw()
