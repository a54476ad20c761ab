"""How far ED and EXTRA drift from the solution in float32, as printed and in flow form.

    python docs/figures/drift.py            # some minutes on two cores; writes drift.json and drift.svg beside it
    python docs/figures/drift.py --figure   # draws drift.svg again from drift.json

Ten nodes on a ring hold least-squares data that differ from node to node. Every rule starts at zero and takes 100,000
full-batch steps. Distances to x* are measured in float64.
"""

from __future__ import annotations

import platform

import jax
import jax.numpy as jnp
import numpy as np
from common import MEASURES, new_figure, read, save, write

import decibel as db

NODES, SAMPLES, SIZE, STEPS, EVERY = 10, 20, 5, 100_000, 100
STEP_SIZES = (0.05, 0.005)
GRAPH = db.graphs.ring(NODES)  # weights 1/4, 1/2, 1/4


# The problem: f_i(x) = ½ mean (A_i x − b_i)², A_i (samples, size)


def make_data():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(NODES, SAMPLES, SIZE)).astype(np.float32)
    target = rng.normal(size=SIZE)
    target *= 12 / np.linalg.norm(target)
    own = target + 2 * rng.normal(size=(NODES, SIZE))  # each node would like an x of its own
    b = np.einsum("nsd,nd->ns", A, own).astype(np.float32)
    return {"A": A, "b": b}


DATA = make_data()
SOLUTION = np.linalg.lstsq(
    DATA["A"].reshape(-1, SIZE).astype(np.float64), DATA["b"].reshape(-1).astype(np.float64), rcond=None
)[0]


def rounded(a):
    """To the 10 bits of mantissa that TF32 keeps of a float32's 23."""
    return jax.lax.reduce_precision(a, exponent_bits=8, mantissa_bits=10)


def full_product(A, x):
    return jnp.matmul(A, x, precision="highest")


@jax.custom_vjp
def rounded_product(A, x):
    """A product as TF32 hardware makes it: operands rounded, sums in float32; the same in the backward pass."""
    return full_product(rounded(A), rounded(x))


rounded_product.defvjp(
    lambda A, x: (rounded_product(A, x), A),
    lambda A, cotangent: (jnp.zeros_like(A), full_product(rounded(A).T, rounded(cotangent))),
)


def loss_with(product):
    def loss(x, batch):
        return 0.5 * jnp.mean(jnp.square(product(batch["A"], x) - batch["b"]))

    return loss


# The rules as the papers print them. `mix(s)` is W s; d is the gradient times the step size.


def printed_ed(mix, step):
    """s⁺⁺ = W (2 s⁺ − s − Δd), from s¹ = W (s⁰ − d⁰)"""

    def start(s):
        d = step(s)
        return mix(s - d), s, d

    def move(state):
        s, before, d_before = state
        d = step(s)
        return mix(2 * s - before - (d - d_before)), s, d

    return start, move


def printed_extra(mix, step):
    """s⁺⁺ = W (2 s⁺ − s) − Δd, from s¹ = W s⁰ − d⁰"""

    def start(s):
        d = step(s)
        return mix(s) - d, s, d

    def move(state):
        s, before, d_before = state
        d = step(s)
        return mix(2 * s - before) - (d - d_before), s, d

    return start, move


def printed_gt(mix, step):
    """s⁺ = W (s − h), h⁺ = W (h + Δd), from h⁰ = W d⁰"""

    def start(s):
        d = step(s)
        h = mix(d)
        return mix(s - h), h, d

    def move(state):
        s, h, d_before = state
        d = step(s)
        h = mix(h + d - d_before)
        return mix(s - h), h, d

    return start, move


PRINTED = {"ed": printed_ed, "extra": printed_extra, "gt": printed_gt}


def run_printed(name, alpha, mix_product=full_product, model_product=full_product):
    W = jnp.asarray(GRAPH.W, jnp.float32)
    gradient = jax.vmap(jax.grad(loss_with(model_product)))
    data = jax.tree.map(jnp.asarray, DATA)
    start, move = PRINTED[name](lambda s: mix_product(W, s), lambda s: jnp.float32(alpha) * gradient(s, data))

    @jax.jit
    def chunk(state):
        return jax.lax.fori_loop(0, EVERY, lambda _, state: move(state), state)

    state = start(jnp.zeros((NODES, SIZE), jnp.float32))
    first = jax.jit(lambda state: jax.lax.fori_loop(0, EVERY - 1, lambda _, state: move(state), state))
    rows, leaks = [errors(jnp.zeros((NODES, SIZE)))], [0.0]
    for k in range(STEPS // EVERY):
        state = first(state) if k == 0 else chunk(state)
        rows.append(errors(state[0]))
        leaks.append(leak(name, state))
    return as_columns(rows) | {"mean_c": leaks}


def leak(name, state):
    """What mean(c) is called by a rule that carries no c. In exact arithmetic it is zero for both:
    s⁺ − s + d of ED and EXTRA, and h − d of gradient tracking, averaged over nodes."""
    s, second, d = (np.asarray(part, np.float64).mean(0) for part in state)
    return float(np.abs(second - d if name == "gt" else s - second + d).max())


def run_flow(name, alpha, model_product=full_product, batch_size=None):
    """The library's own: `db.ed`, `db.extra`, `db.gt`."""
    problem = db.Problem(
        loss_with(model_product),
        upper_data={"A": DATA["A"], "b": DATA["b"]},
        x0=jnp.zeros(SIZE, jnp.float32),
    )

    def measure(snapshot):
        average, worst = errors(snapshot.nodes.x)
        return {"average": average, "worst": worst, "mean_c": mean_of(snapshot.state.x.carry[0])}

    method = {"ed": db.ed, "extra": db.extra, "gt": db.gt}[name](alpha)
    settings = dict(steps=STEPS, batch_size=batch_size, eval_every=EVERY, metrics=[measure], progress=False)
    result = db.solve(problem, method, GRAPH, **settings)
    return {column: result.trace[column].tolist() for column in ("average", "worst", "mean_c")}


def run_one_machine(alpha, model_product):
    """Gradient descent with all data in one place: what the model's own rounding costs without any network."""
    gradient = jax.vmap(jax.grad(loss_with(model_product)), (None, 0))
    data = jax.tree.map(jnp.asarray, DATA)

    def move(_, x):
        return x - jnp.float32(alpha) * gradient(x, data).mean(0)

    chunk = jax.jit(lambda x: jax.lax.fori_loop(0, EVERY, move, x))
    x = jnp.zeros(SIZE, jnp.float32)
    rows = [errors(x[None])]
    for _ in range(STEPS // EVERY):
        x = chunk(x)
        rows.append(errors(x[None]))
    return as_columns(rows)


def errors(s):
    """(distance of the average, distance of the worst node) to x*, in float64."""
    s = np.asarray(s, np.float64)
    return float(np.linalg.norm(s.mean(0) - SOLUTION)), float(np.linalg.norm(s - SOLUTION, axis=1).max())


def mean_of(carry):
    """The largest entry of the mean over nodes, summed in float64."""
    return float(np.abs(np.asarray(carry.tree, np.float64).mean(0)).max())


def as_columns(rows):
    average, worst = zip(*rows, strict=True)
    return {"average": list(average), "worst": list(worst)}


def measure_all():
    runs = {}
    for alpha in STEP_SIZES:
        for name in ("ed", "extra", "gt"):
            runs[f"float32 {name} printed {alpha}"] = run_printed(name, alpha)
            runs[f"float32 {name} flow {alpha}"] = run_flow(name, alpha)
            runs[f"tf32 {name} printed {alpha}"] = run_printed(name, alpha, rounded_product, rounded_product)
            runs[f"tf32 {name} flow {alpha}"] = run_flow(name, alpha, rounded_product)
            runs[f"batches of 5 {name} flow {alpha}"] = run_flow(name, alpha, batch_size=5)
        runs[f"tf32 one machine {alpha}"] = run_one_machine(alpha, rounded_product)
        runs[f"float32 one machine {alpha}"] = run_one_machine(alpha, full_product)
    return runs


def summary(run):
    """The numbers quoted on the page: at 10,000 and 100,000 steps, and the worst of the last 10,000 steps."""
    at = {steps: steps // EVERY for steps in (5_000, 10_000, STEPS)}
    numbers = {f"{column} at {steps}": run[column][row] for column in run for steps, row in at.items()}
    return numbers | {f"largest {c} after 90000": float(np.max(run[c][90_000 // EVERY :])) for c in run}


def keep(runs):
    rows = np.unique(np.geomspace(1, STEPS // EVERY, 150).astype(int))  # evenly spaced on a logarithmic axis
    drawn = {name: run for name, run in runs.items() if " gt " not in name and not name.startswith("batches")}
    content = {
        "setting": {
            "nodes": NODES,
            "graph": "ring, weights 1/4 1/2 1/4",
            "samples per node": SAMPLES,
            "dimension": SIZE,
            "norm of x*": float(np.linalg.norm(SOLUTION)),
            "steps": STEPS,
            "step sizes": STEP_SIZES,
            "jax": jax.__version__,
            "device": jax.devices()[0].device_kind,
            "python": platform.python_version(),
        },
        "summary": {name: {key: short(value) for key, value in summary(run).items()} for name, run in runs.items()},
        "steps": [int(row) * EVERY for row in rows],
        "curves": {name: [short(run["average"][row]) for row in rows] for name, run in drawn.items()},
    }
    write("drift", content)


def short(value):
    return float(f"{value:.4g}")


# The figure: one column, so that it stays readable on a phone. Colours are Okabe and Ito's.

PRINTED_COLOR, FLOW_COLOR, GREY = "#D55E00", "#0072B2", "#555555"
LABELS = {  # panel, text, place, form
    "float32": [
        ("as printed, step size 0.005", 9.4e4, 2.0e1, "printed"),
        ("as printed, step size 0.05", 9.4e4, 1.2e-3, "printed"),
        ("flow form, step size 0.005", 9.4e4, 7.5e-5, "flow"),
        ("flow form, step size 0.05", 9.4e4, 7.5e-6, "flow"),
    ],
    "tf32": [
        ("as printed, both step sizes", 9.4e4, 3.2, "printed"),
        ("flow form, both step sizes", 9.4e4, 4.4e-3, "flow"),
        ("one machine with the same rounding ends here too", 9.4e4, 8e-4, "grey"),
    ],
}
TITLES = {"float32": "All in float32", "tf32": "Matrix products rounded as in TF32"}


def draw():
    colors = {"printed": PRINTED_COLOR, "flow": FLOW_COLOR, "grey": GREY}
    content = read("drift")
    steps, curves = content["steps"], content["curves"]
    figure = new_figure(5.4, 7.6)
    axes = figure.subplots(2, 1, sharex=True, height_ratios=(1.35, 1))
    for axis, precision in zip(axes, TITLES, strict=True):
        for form in ("printed", "flow"):
            for alpha, style in zip(STEP_SIZES, ("-", (0, (5, 1.2))), strict=True):
                for name, width, alpha_channel in (("extra", 5.0, 0.35), ("ed", 1.6, 1.0)):
                    curve = curves[f"{precision} {name} {form} {alpha}"]
                    shown = dict(color=colors[form], linewidth=width, alpha=alpha_channel)
                    axis.loglog(steps, curve, linestyle=style if name == "ed" else "-", **shown)
        axis.axhline(content["setting"]["norm of x*"], color=GREY, linewidth=0.9, linestyle=":")
        for text, x, y, form in LABELS[precision]:
            axis.text(x, y, text, ha="right", va="bottom", color=colors[form], fontsize=9)
        axis.set_title(TITLES[precision])
        axis.set_ylabel("distance to x*")
    axes[0].text(1.1e2, 1.5e1, "start", fontsize=9, color=GREY)
    axes[0].text(1.1e2, 5.5e1, "thin: ED, broad: EXTRA", fontsize=9, color=GREY)
    axes[0].set(xlim=(100, STEPS), ylim=(1e-6, 200))
    axes[1].set(ylim=(4e-4, 200), xlabel="steps")
    axes[1].set_xticks([10**k for k in (2, 3, 4, 5)], ["100", "1,000", "10,000", "100,000"])
    save(figure, "drift")


if __name__ == "__main__":
    if MEASURES:
        keep(measure_all())
    draw()
