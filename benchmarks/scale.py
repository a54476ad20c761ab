"""Label cleaning with the MLP 784-300-10 on one device, over ten to thousands of nodes.

    python -m benchmarks.scale [--json benchmarks/results/scale-gpu.json] [--nodes 10 100 1000] [--largest 2000]

For each size and graph: steps per second; the rate of the step's own matrix products alone, and what the device can do
at most; what the step moves through memory, as the compiler counts it, against a plain copy; and the most memory used.
`--largest` climbs from as many nodes until memory ends, and then goes on with the derivatives of some nodes at a time,
for each of `--batches`. JAX takes three quarters of a GPU's memory unless XLA_PYTHON_CLIENT_MEM_FRACTION says else.
"""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import decibel as db
from decibel.engines import _memory as memory
from decibel.engines._program import RunConfig
from decibel.graphs._graph import Levels

from .cases import cleaning_losses
from .records import record, write
from .timing import Program, bytes_of, seconds_of

HIDDEN, BATCH, WEIGHTS = 300, 50, 50_000  # x weighs 50,000 samples, however many nodes share them
GRAPHS = {"ring": db.graphs.ring, "exponential": db.graphs.exponential}
# Operations per second by data sheet, of dense products in TF32, which JAX takes for float32, and in bfloat16.
PEAK = {"NVIDIA H200": {None: 494.7e12, "bfloat16": 989.4e12}}


def logits(y: dict[str, Array], images: Array) -> Array:
    return jax.nn.relu(images @ y["w1"] + y["b1"]) @ y["w2"] + y["b2"]


upper, lower = cleaning_losses(logits)


def problem(nodes: int, hidden: int = HIDDEN) -> db.Problem:
    """Images with a class in their mean, made on the device; few per node, since a batch may repeat them."""
    samples = max(4, min(100, 20_000 // nodes))
    key = jax.random.key(0)
    labels = jax.random.randint(key, (nodes, samples), 0, 10, jnp.int32)
    images = jax.random.uniform(key, (nodes, samples, 784), jnp.float32) + 0.1 * labels[..., None]
    numbers = jnp.arange(nodes * samples, dtype=jnp.int32).reshape(nodes, samples) % WEIGHTS
    start = lambda *shape: jax.random.normal(key, shape, jnp.float32) / shape[0] ** 0.5  # noqa: E731
    y0 = {"w1": start(784, hidden), "b1": jnp.zeros(hidden), "w2": start(hidden, 10), "b2": jnp.zeros(10)}
    data = (images, labels, numbers)
    return db.Problem(upper, lower, upper_data=data, lower_data=data, x0=jnp.zeros(WEIGHTS), y0=y0)


PRODUCTS = {"nbi,nih->nbh": 3, "nbi,nbh->nih": 3, "nbh,nho->nbo": 4, "nbo,nho->nbh": 4, "nbh,nbo->nho": 4}


def bare_products(nodes: int) -> tuple[Any, Any, float]:
    """The matrix products of one step in the parallel order, and their floating-point operations."""
    sizes = {"n": nodes, "b": BATCH, "i": 784, "h": HIDDEN, "o": 10}
    pair = lambda spec: tuple(jnp.ones([sizes[a] for a in axes]) for axes in spec.split("->")[0].split(","))  # noqa: E731
    operands = {spec: pair(spec) for spec in PRODUCTS}

    def run(operands: dict[str, tuple[Array, Array]], length: int) -> Array:
        def body(token: Array, _: None) -> tuple[Array, None]:
            found = []
            for spec, count in PRODUCTS.items():
                for _ in range(count):
                    pair, token = jax.lax.optimization_barrier((operands[spec], token))
                    found.append(jnp.einsum(spec, *pair))
            found, token = jax.lax.optimization_barrier((found, token))
            return token + sum(one.ravel()[0] for one in found), None

        return jax.lax.scan(body, jnp.zeros(()), None, length)[0]

    work = 0.0
    for spec, count in PRODUCTS.items():
        flops = 2.0
        for axis in set(spec) - set(",->"):
            flops *= sizes[axis]
        work += count * flops
    return operands, jax.jit(run, static_argnums=1), work


def seconds(run: Program, repeat: int = 3) -> float:
    return min(seconds_of(run, repeat))


def copy_rate() -> float:
    """Bytes per second, read and written, of adding one to a large array."""
    large = jnp.zeros(2**28 if jax.default_backend() == "gpu" else 2**25)
    step = jax.jit(lambda a: jax.lax.fori_loop(0, 20, lambda _, a: a + 1, a), donate_argnums=0)
    held = [large]

    def run() -> Array:
        held[0] = step(held[0])
        return held[0]

    return 20 * 2 * large.nbytes / seconds(run)


def measure(
    nodes: int, graph: str, steps: int, *, chunk: int | None = None, precision: str | None = None, batch: int = BATCH
) -> dict[str, Any]:
    method = db.sparkle("ed", alpha=1.0, beta=0.02, gamma=0.02, theta=0.3, updates="simultaneous")
    engine = db.Simulator(node_chunk=chunk)
    graphs = Levels(x=GRAPHS[graph](nodes))
    run = engine.start(problem(nodes), method, graphs, RunConfig(batch, precision=precision))
    begun = time.perf_counter()
    beside = run.compile(steps).temp_bytes
    compiling = time.perf_counter() - begun
    on_device = memory.fits(run.state, beside)
    took = seconds(lambda: run.advance(steps) and run.state, 3 if on_device else 1)
    begun = time.perf_counter()
    back = memory.copied(run.state, beside)
    copying = 0.0 if on_device else time.perf_counter() - begun  # on the device it takes no time to speak of
    del back
    took -= copying
    return {
        "nodes": nodes,
        "graph": graph,
        "batch": batch,
        "node_chunk": chunk,
        "precision": precision,
        "ms": 1e3 * took / steps,
        "steps_per_second": steps / took,
        "seconds_of_copying_to_the_host": copying,  # before every stretch, and not in the time of the steps
        "compile_seconds": compiling,
        "state_bytes": bytes_of(run.state),
        "temporary_bytes": beside,
        "bytes_accessed": (run.compile(1).chunk.cost_analysis() or {}).get("bytes accessed"),
        "peak_bytes": memory.statistics(jax.devices()[0]).get("peak_bytes_in_use"),  # of the process so far
    }


def climb(nodes: int, batch: int) -> Iterator[dict[str, Any]]:
    """Half as many nodes more each time until memory ends, and on from there with `node_chunk` until it ends again."""
    chunk, ends = None, 0
    while ends < 2:
        try:
            with memory.oom_hint("full before the run began"):
                row = measure(nodes, "ring", 10, chunk=chunk, batch=batch)
            yield row
            nodes = int(nodes * 1.5)
        except MemoryError as error:
            yield {"nodes": nodes, "batch": batch, "node_chunk": chunk, "out_of_memory": str(error)}
            chunk, ends = 500, ends + 1
        gc.collect()


def main() -> None:
    config = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    config.add_argument("--json", type=Path)
    config.add_argument("--nodes", type=int, nargs="*", default=[10, 100, 1000])
    config.add_argument("--largest", type=int, metavar="NODES")
    config.add_argument("--batches", type=int, nargs="*", default=[BATCH, 10 * BATCH], help="of --largest")
    options = config.parse_args()
    rows: list[dict[str, Any]] = []
    rate = copy_rate()
    print(f"{jax.devices()[0].device_kind}: a copy moves {rate / 1e9:.0f} GB/s")
    for nodes in options.nodes:
        steps = max(5, 2000 // nodes) if jax.default_backend() == "gpu" else 3
        operands, products, flops = bare_products(nodes)
        alone = seconds(partial(products, operands, steps)) / steps
        for graph in GRAPHS:
            for precision in (None, "bfloat16") if graph == "ring" else (None,):
                row = measure(nodes, graph, steps, precision=precision)
                row |= {"products_ms": 1e3 * alone, "products_tflops": flops / alone / 1e12}
                row["share_of_products"] = 1e3 * alone / row["ms"]
                row["share_of_memory_rate"] = (row["bytes_accessed"] or 0) / (row["ms"] / 1e3) / rate
                peak = PEAK.get(jax.devices()[0].device_kind, {}).get(precision)
                row["share_of_peak"] = peak and flops / (row["ms"] / 1e3) / peak
                rows.append(row)
                print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
                gc.collect()
    largest: list[dict[str, Any]] = []
    how = {"command": shlex.join(["python", "-m", "benchmarks.scale", *sys.argv[1:]]), "copy_bytes_per_second": rate}
    ratios = {
        f"{row['nodes']:,} nodes, {row['graph']}, {row['precision'] or 'default'}: time ÷ products": row["ms"]
        / row["products_ms"]
        for row in rows
    }
    save = lambda: options.json and write(record("scale", rows, ratios, **how, largest=largest), options.json)  # noqa: E731
    save()
    for batch in options.batches if options.largest else ():
        for row in climb(options.largest, batch):
            print(json.dumps(row), flush=True)
            largest.append(row)
            save()


if __name__ == "__main__":
    main()
