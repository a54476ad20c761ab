"""One case run by the library, by hand, and as bare matrix products, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import decibel as db

from . import by_hand
from .cases import Case

TOLERANCE = 1e-3  # of the largest entry, after one chunk in float32


def contest(case: Case, parallel: bool, length: int, repetitions: int) -> dict[str, Any]:
    """Microseconds per iteration (medians), ratios (medians over turns), and memory against the state's."""
    order = "parallel" if parallel else "sequential"
    α, β, γ, θ = case.rates
    method = db.sparkle("ed", alpha=α, beta=β, gamma=γ, theta=θ, order=order)
    graphs = db.Levels(x=db.graphs.ring(case.nodes))
    run = db.Simulator().start(case.problem(), method, graphs, batch_size=case.batch, seed=0)
    chunk, _ = run.compile(length)
    arrays = eqx.filter(run.program, eqx.is_array)

    data = (run.program.key, case.upper_data, case.lower_data, jnp.asarray(case.rates))
    state, first = by_hand.start(case), jnp.asarray(0, jnp.int32)
    scan = jax.jit(by_hand.scan(case, parallel, length), donate_argnums=4).lower(*data, state, first).compile()

    operands, bare = _products(case, parallel, length)
    bare = jax.jit(bare).lower(operands).compile()

    runners: dict[str, Callable[[Any], Any]] = {
        "ours": lambda state: chunk(arrays, state, first)[0],
        "by_hand": lambda state: scan(*data, state, first),
        "products": lambda _: bare(operands),
    }
    states = {"ours": run.state, "by_hand": state, "products": None}
    times: dict[str, list[float]] = {name: [] for name in runners}
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(run.state))
    for turn in range(1 + repetitions):
        for name, runner in runners.items():
            begun = time.perf_counter()
            states[name] = jax.block_until_ready(runner(states[name]))
            times[name].append((time.perf_counter() - begun) / length * 1e6)
        if turn == 0:  # warms up, and shows that both do the same
            difference = _difference(states["ours"], states["by_hand"])
            if not difference < TOLERANCE:
                raise AssertionError(f"{case.name}: the scan by hand differs by {difference:.1e}: times mean nothing.")

    µs = {name: np.asarray(values[1:]) for name, values in times.items()}
    return {
        "case": case.name,
        "order": order,
        "nodes": case.nodes,
        "steps": length,
        "µs": {name: float(np.median(values)) for name, values in µs.items()},
        "against_hand": float(np.median(µs["ours"] / µs["by_hand"])),
        "against_products": float(np.median(µs["ours"] / µs["products"])),
        "difference": difference,
        "state_bytes": size,
        "memory": _temporaries(chunk) / size,
        "memory_by_hand": _temporaries(scan) / size,
    }


def _temporaries(compiled: Any) -> int:
    return compiled.memory_analysis().temp_size_in_bytes


def _difference(ours: Any, hand: by_hand.State) -> float:
    x, _, y, _, z, *_ = hand
    pairs = zip(jax.tree.leaves((ours.x.s, ours.y.s, ours.z.s)), jax.tree.leaves((x, y, z)), strict=True)
    return max(float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))) for a, b in pairs)


def _products(case: Case, parallel: bool, length: int) -> tuple[Any, Callable[..., Array]]:
    sizes, counts = case.products(parallel)
    specs = [spec for spec, count in counts.items() for _ in range(count)]
    draw = np.random.default_rng(0)
    shape = lambda axes: tuple(sizes[axis] for axis in axes)  # noqa: E731
    make = lambda axes: jnp.asarray(draw.standard_normal(shape(axes), np.float32))  # noqa: E731
    operands = [tuple(make(axes) for axes in spec.split("->")[0].split(",")) for spec in specs]

    def run(operands: list[tuple[Array, Array]]) -> Array:
        def body(token: Array, _: None) -> tuple[Array, None]:
            # Barriers keep the compiler from moving products out of the loop or leaving any out.
            pairs, token = jax.lax.optimization_barrier((operands, token))
            results = [jnp.einsum(spec, a, b) for spec, (a, b) in zip(specs, pairs, strict=True)]
            results, token = jax.lax.optimization_barrier((results, token))
            return token + sum(result.ravel()[0] for result in results), None

        return jax.lax.scan(body, jnp.zeros(()), None, length)[0]

    return operands, run
