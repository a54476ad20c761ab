"""Convolutions on CPUs: a step of all nodes against a Python loop over nodes that calls one jitted gradient each.

The loop is what a careful user writes: XLA convolves at full speed outside of loops. *Untouched* is the step as XLA
compiles it where convolutions stay what they are; that takes minutes for a deep network and is left out there. PyTorch
computes the same derivatives, of the samples of all nodes at once, where it is installed (the extra `[bench]`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import decibel as db
from decibel.core import _convolutions as convolutions
from decibel.engines._program import RunConfig
from decibel.engines._run import Run, compile_chunk

from .records import record
from .timing import Program, against, in_turns, medians, steps_of

NODES, BATCH, SAMPLES = 8, 20, 100
TOLERANCE = 1e-3  # of the largest entry, in float32
DIMENSIONS = ("NHWC", "HWIO", "NHWC")
Network = Callable[[Any, Array], Array]  # weights and images to logits


def convolve(images: Array, kernel: Array, stride: int = 1) -> Array:
    return lax.conv_general_dilated(images, kernel, (stride, stride), "SAME", dimension_numbers=DIMENSIONS)


def small_network(stride: int) -> tuple[Network, dict[str, Array], int]:
    """Two convolutions of 16 and 32 channels on digits of 8×8, the second with that stride."""

    def logits(weights: dict[str, Array], images: Array) -> Array:
        hidden = jax.nn.relu(convolve(images, weights["first"]))
        hidden = jax.nn.relu(convolve(hidden, weights["second"], stride))
        return hidden.reshape(len(images), -1) @ weights["last"]

    side = 8 // stride
    shapes = {"first": (3, 3, 1, 16), "second": (3, 3, 16, 32), "last": (side * side * 32, 10)}
    return logits, _weights(shapes), 8


def resnet() -> tuple[Network, dict[str, Array], int]:
    """ResNet-8 without normalization on images of 32×32: three blocks of 16, 32 and 64 channels."""

    def logits(weights: dict[str, Array], images: Array) -> Array:
        hidden = jax.nn.relu(convolve(images, weights["stem"]))
        for block, stride in (("16", 1), ("32", 2), ("64", 2)):
            inner = jax.nn.relu(convolve(hidden, weights[f"{block} in"], stride))
            skip = convolve(hidden, weights[f"{block} skip"], stride)
            hidden = jax.nn.relu(skip + convolve(inner, weights[f"{block} out"]))
        return hidden.mean((1, 2)) @ weights["last"]

    shapes: dict[str, tuple[int, ...]] = {"stem": (3, 3, 3, 16), "last": (64, 10)}
    for before, after in ((16, 16), (16, 32), (32, 64)):
        shapes |= {
            f"{after} in": (3, 3, before, after),
            f"{after} skip": (1, 1, before, after),
            f"{after} out": (3, 3, after, after),
        }
    return logits, _weights(shapes), 32


def _weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    draw = np.random.default_rng(0)
    return {
        name: jnp.asarray(draw.standard_normal(shape) * (2 / np.prod(shape[:-1])) ** 0.5, jnp.float32)
        for name, shape in shapes.items()
    }


class Case(NamedTuple):
    """A network, and how long it is measured with `--full`."""

    name: str
    make: Callable[[], tuple[Network, dict[str, Array], int]]
    steps: int  # of a turn
    turns: int
    untouched: bool  # whether the step is also compiled with its convolutions


CASES = (
    Case("CNN 16-32, stride 1", lambda: small_network(1), 10, 9, True),
    Case("CNN 16-32, stride 2", lambda: small_network(2), 10, 9, False),
    Case("ResNet-8", resnet, 1, 5, False),
)


def measure(full: bool, note: Callable[[str], Any]) -> dict[str, Any]:
    rows = []
    for case in CASES if full else (CASES[0]._replace(turns=3),):
        for levels in ("single", "bilevel"):
            note(f"{case.name}, {levels}")
            rows.append({"case": case.name, "levels": levels, **compare(case, levels == "bilevel")})
    ratios = {f"step ÷ loop, {row['case']}, {row['levels']}": row["against"]["ours"] for row in rows}
    return record("convolutions", rows, ratios, nodes=NODES, batch=BATCH)


def compare(case: Case, bilevel: bool) -> dict[str, Any]:
    """Milliseconds of a step, of its programs in turns, and their ratios to the loop."""
    network, weights, side = case.make()
    draw = np.random.default_rng(1)
    channels = jax.tree.leaves(weights["stem" if "stem" in weights else "first"])[0].shape[2]
    images = draw.standard_normal((NODES, SAMPLES, side, side, channels)).astype(np.float32)
    data = images, draw.integers(0, 10, (NODES, SAMPLES)).astype(np.int32)
    problem = (_bilevel if bilevel else _single)(network, weights, data)
    runs = {"ours": _run(problem, bilevel, case.steps)}
    if case.untouched:
        with _untouched():
            runs["untouched"] = _run(problem, bilevel, case.steps)
    programs = steps_of(runs, case.steps)
    programs["loop"] = _loop(problem, weights, data, bilevel, case.steps)
    programs |= _torch(problem, weights, data, bilevel, case.steps)
    times = in_turns(programs, case.turns)
    return {
        "milliseconds": medians(times, 1e-3 * case.steps),
        "against": {name: against(times, name, "loop") for name in times if name != "loop"},
    }


def _losses(network: Network) -> Callable[[Any, tuple[Array, Array]], Array]:
    def losses(weights: Any, batch: tuple[Array, Array]) -> Array:
        images, labels = batch
        chances = jax.nn.log_softmax(network(weights, images))
        return -jnp.take_along_axis(chances, labels[:, None], 1)[:, 0]

    return losses


def _single(network: Network, weights: Any, data: tuple[np.ndarray, ...]) -> db.Problem:
    losses = _losses(network)
    return db.Problem(lambda x, batch: losses(x, batch).mean(), upper_data=data, x0=weights)


def _bilevel(network: Network, weights: Any, data: tuple[np.ndarray, ...]) -> db.Problem:
    """Weights of classes above, the network below."""
    losses = _losses(network)

    def lower(x: Array, y: Any, batch: tuple[Array, Array]) -> Array:
        ridge = sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(y))
        return (jax.nn.sigmoid(x)[batch[1]] * losses(y, batch)).mean() + 1e-3 * ridge

    return db.Problem(
        lambda x, y, batch: losses(y, batch).mean(),
        lower,
        upper_data=data,
        lower_data=data,
        x0=jnp.zeros(10),
        y0=weights,
    )


def _run(problem: db.Problem, bilevel: bool, steps: int) -> Run:
    method = db.sparkle("ed", alpha=0.01, beta=0.01, gamma=0.01) if bilevel else db.ed(alpha=0.01)
    run = db.Simulator().start(problem, method, db.Levels(x=db.graphs.ring(NODES)), RunConfig(BATCH))
    run.compile(steps)
    return run


@contextmanager
def _untouched():
    """Compiles steps with their convolutions."""
    rewrite = convolutions.products_for_convolutions
    convolutions.products_for_convolutions = lambda program: program
    compile_chunk.cache_clear()
    try:
        yield
    finally:
        convolutions.products_for_convolutions = rewrite
        compile_chunk.cache_clear()


def _loop(problem: db.Problem, weights: Any, data: tuple[np.ndarray, ...], bilevel: bool, steps: int) -> Program:
    """The derivatives of so many steps, node by node; nothing is mixed and no state is kept."""
    batches = [jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i, :BATCH]), data) for i in range(NODES)]
    derivatives = _derivatives(problem, weights, bilevel)
    return lambda: [derivatives(batch) for _ in range(steps) for batch in batches]


def _derivatives(problem: db.Problem, weights: Any, bilevel: bool) -> Callable[[tuple[Array, Array]], Any]:
    """Of one batch: the gradient, or with two levels ∇_y g, its pullback at y, and ∇_y f, on which x does not act."""
    if not bilevel:
        gradient = jax.jit(jax.grad(problem.upper))
        return lambda batch: gradient(weights, batch)
    assert problem.lower is not None
    lower = problem.lower

    @jax.jit
    def derivatives(x: Array, y: Any, z: Any, batch: tuple[Array, Array]) -> tuple[Any, ...]:
        gradient, pull = jax.vjp(lambda x, y: jax.grad(lower, 1)(x, y, batch), x, y)
        return gradient, pull(z), jax.grad(problem.upper, 1)(x, y, batch)

    return lambda batch: derivatives(problem.x0, weights, weights, batch)


def _torch(
    problem: db.Problem, weights: Any, data: tuple[np.ndarray, ...], bilevel: bool, steps: int
) -> dict[str, Program]:
    """PyTorch's derivatives, which must be JAX's; nothing where it is not installed."""
    try:
        from . import torch_convolutions as by_torch
    except ImportError:
        return {}
    every = tuple(np.concatenate(leaf[:, :BATCH]) for leaf in data)
    derivatives = by_torch.derivatives(dict(sorted(weights.items())), every, bilevel)  # in JAX's order
    expected = jax.tree.leaves(_derivatives(problem, weights, bilevel)(jax.tree.map(jnp.asarray, every)))
    found = by_torch.as_arrays(derivatives())
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a - b).max() < TOLERANCE * max(1e-3, np.abs(b).max()), "PyTorch and JAX differ"
    return {"torch": lambda: [derivatives() for _ in range(steps)]}
