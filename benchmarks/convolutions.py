"""Convolutions on CPUs: a step of all nodes against a Python loop over nodes that calls one jitted gradient each.

The loop is what a careful user writes: XLA convolves at full speed outside of loops. *Untouched* is the step as XLA
compiles it where convolutions stay what they are. PyTorch's time for the gradients of all samples at once is beside it
where PyTorch is installed (the extra `[bench]`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import decibel as db
from decibel.core import _convolutions as convolutions
from decibel.engines._program import RunConfig
from decibel.engines._run import Run, compile_chunk

from .records import record

NODES, BATCH, SAMPLES, STEPS = 8, 20, 100, 10
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


NETWORKS = {
    "CNN 16-32, stride 1": lambda: small_network(1),
    "CNN 16-32, stride 2": lambda: small_network(2),
    "ResNet-8": resnet,
}


def measure(full: bool, note: Callable[[str], Any]) -> dict[str, Any]:
    rows = []
    for name, make in NETWORKS.items() if full else list(NETWORKS.items())[:1]:
        for levels in ("single", "bilevel"):
            note(f"{name}, {levels}")
            rows.append({"case": name, "levels": levels, **compare(*make(), levels == "bilevel", 9 if full else 3)})
    ratios = {f"step ÷ loop, {row['case']}, {row['levels']}": row["against"]["ours"] for row in rows}
    return record("convolutions", rows, ratios, nodes=NODES, batch=BATCH)


def compare(network: Network, weights: dict[str, Array], side: int, bilevel: bool, turns: int) -> dict[str, Any]:
    """Milliseconds of a step, of its programs in turns, and their ratios to the loop."""
    draw = np.random.default_rng(1)
    channels = jax.tree.leaves(weights["stem" if "stem" in weights else "first"])[0].shape[2]
    images = draw.standard_normal((NODES, SAMPLES, side, side, channels)).astype(np.float32)
    data = images, draw.integers(0, 10, (NODES, SAMPLES)).astype(np.int32)
    problem = (_bilevel if bilevel else _single)(network, weights, data)
    runs = {"ours": _run(problem, bilevel)}
    with _untouched():
        runs["untouched"] = _run(problem, bilevel)
    programs: dict[str, Callable[[], Any]] = {
        name: lambda run=run: (run.advance(STEPS), run.state) for name, run in runs.items()
    }
    programs["loop"] = _loop(problem, weights, data, bilevel)
    times: dict[str, list[float]] = {name: [] for name in programs}
    for work in programs.values():
        _seconds(work)
    for _ in range(turns):
        for name, work in programs.items():
            times[name].append(_seconds(work) / STEPS)
    torch = None if bilevel else torch_seconds(weights, data, turns)
    return {
        "milliseconds": {name: 1e3 * float(np.median(seconds)) for name, seconds in times.items()}
        | ({} if torch is None else {"torch": 1e3 * torch}),
        "against": {name: float(np.median(np.divide(times[name], times["loop"]))) for name in times if name != "loop"},
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


def _run(problem: db.Problem, bilevel: bool) -> Run:
    method = db.sparkle("ed", alpha=0.01, beta=0.01, gamma=0.01) if bilevel else db.ed(alpha=0.01)
    run = db.Simulator().start(problem, method, db.Levels(x=db.graphs.ring(NODES)), RunConfig(BATCH))
    run.compile(STEPS)
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


def _loop(problem: db.Problem, weights: Any, data: tuple[np.ndarray, ...], bilevel: bool) -> Callable[[], Any]:
    """The derivatives of STEPS steps, node by node; nothing is mixed and no state is kept."""
    batches = [jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i, :BATCH]), data) for i in range(NODES)]
    if not bilevel:
        gradient = jax.jit(jax.grad(problem.upper))
        return lambda: [gradient(weights, batch) for _ in range(STEPS) for batch in batches]
    assert problem.lower is not None
    lower = problem.lower

    @jax.jit
    def derivatives(x: Array, y: Any, z: Any, batch: tuple[Array, Array]) -> tuple[Any, ...]:
        gradient, pull = jax.vjp(lambda x, y: jax.grad(lower, 1)(x, y, batch), x, y)
        return gradient, pull(z), jax.grad(problem.upper, (0, 1))(x, y, batch)

    return lambda: [derivatives(problem.x0, weights, weights, batch) for _ in range(STEPS) for batch in batches]


def torch_seconds(weights: dict[str, Array], data: tuple[np.ndarray, ...], turns: int) -> float | None:
    """PyTorch's gradient of the small network on the batches of all nodes at once; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    if "stem" in weights:
        return None
    kernels = [
        torch.tensor(np.transpose(weights[name], (3, 2, 0, 1)), requires_grad=True) for name in ("first", "second")
    ]
    last = torch.tensor(np.asarray(weights["last"]), requires_grad=True)
    images = torch.tensor(data[0][:, :BATCH].reshape(NODES * BATCH, 1, 8, 8))
    labels = torch.tensor(data[1][:, :BATCH].reshape(-1).astype(np.int64))
    stride = round((8 * 8 * 32 / last.shape[0]) ** 0.5)

    def step() -> None:
        hidden = torch.relu(torch.conv2d(images, kernels[0], padding=1))
        hidden = torch.relu(torch.conv2d(hidden, kernels[1], stride=stride, padding=1))
        torch.nn.functional.cross_entropy(hidden.flatten(1) @ last, labels).backward()

    step()
    seconds = []
    for _ in range(turns):
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    return float(np.median(seconds))


def _seconds(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - begun
