"""Ratios that are known to be above one, taken apart: `python -m benchmarks.known_ratios --json PATH`.

`mixing`: one round of exact diffusion on an exponential graph, in several forms of the sum over neighbours.
`exponential`: a step with the best of them, against the form that the library has, and against a ring.
`streams`: what gathering and transferring cost, and runs that read ahead, against samples in memory.
`smallest`: the smallest step against the scan by hand, with the kernels that each starts.
`pieces`: steps with `micro_batch` against steps with whole batches.

Each part is a process of its own, and is written down when it ends. A second call goes on with the parts that are
missing. All take four minutes on a GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import decibel as db
from decibel.engines._program import RunConfig
from decibel.engines._run import compile_chunk
from decibel.network import _mixing as mixing
from decibel.problem._stream_backends import Sources

from . import contest, scale, streams
from .cases import label_cleaning, regression
from .records import read, record, write
from .timing import against, in_turns, seconds_of, steps_of

SHAPE = (784, 300)  # of a node's leaf
ROUNDS = 20
SECONDS = 100.0  # of a part at most
LOOPS_IN_GRAPHS = "--xla_gpu_enable_command_buffer=+WHILE"


class Rows(list[dict[str, Any]]):
    """What was measured, written to a file with each row."""

    def __init__(self, path: Path, part: str) -> None:
        found = read(path)["rows"] if path.exists() else []
        super().__init__(row for row in found if row["part"] != part)
        self.path, self.part = path, part

    def add(self, **row: Any) -> None:
        self.append({"part": self.part, **row})
        print(json.dumps(self[-1], ensure_ascii=False), flush=True)
        write(record("known_ratios", self, _ratios(self)), self.path)


# An exponential graph on a GPU


def _one_gather(offsets: list[int], weights: list[float], leaf: Array) -> Array:
    """All neighbours by one gather, (nodes, neighbours, ...)."""
    nodes = len(leaf)
    table = jnp.asarray((np.arange(nodes)[:, None] + offsets) % nodes, jnp.int32)
    there = leaf.at[table].get(mode="promise_in_bounds")
    return jnp.einsum("k,nk...->n...", jnp.asarray(weights, leaf.dtype), there - leaf[:, None])


def _table(offsets: list[int], weights: list[float], leaf: Array) -> Array:
    """A gather for each neighbour, by a table in memory."""
    nodes = len(leaf)
    table = jnp.asarray((np.arange(nodes)[:, None] + offsets) % nodes, jnp.int32)
    return sum(w * (leaf.at[table[:, k]].get(mode="promise_in_bounds") - leaf) for k, w in enumerate(weights))


def _wide(offsets: list[int], weights: list[float], leaf: Array) -> Array:
    """Slices of an array that wraps around."""
    nodes = len(leaf)
    steps = [k % nodes for k in offsets]
    wide = jnp.concatenate([leaf, leaf[: max(steps)]])
    return sum(w * (wide[k : k + nodes] - leaf) for k, w in zip(steps, weights, strict=True))


def _transposed(form: Callable[..., Array], offsets: list[int], weights: list[float], leaf: Array) -> Array:
    """With the nodes last, so that the neighbours of an entry share a line of the cache."""
    columns = jax.lax.optimization_barrier(leaf.reshape(len(leaf), -1).T)
    return jax.lax.optimization_barrier(form(offsets, weights, columns)).T.reshape(leaf.shape)


def _last_by_slices(offsets: list[int], weights: list[float], columns: Array) -> Array:
    nodes = columns.shape[1]
    steps = [k % nodes for k in offsets]
    wide = jax.lax.optimization_barrier(jnp.concatenate([columns, columns[:, : max(steps)]], axis=1))
    here = wide[:, :nodes]
    return sum(w * (wide[:, k : k + nodes] - here) for k, w in zip(steps, weights, strict=True))


def _last_by_gathers(offsets: list[int], weights: list[float], columns: Array) -> Array:
    nodes = columns.shape[1]
    table = jnp.asarray((np.arange(nodes)[None] + np.asarray(offsets)[:, None]) % nodes, jnp.int32)
    take = lambda k: columns.at[:, table[k]].get(mode="promise_in_bounds")  # noqa: E731
    return sum(w * (take(k) - columns) for k, w in enumerate(weights))


def _blocks(offsets: list[int], weights: list[float], leaf: Array) -> Array:
    """Blocks of columns one after the other in memory, which stay in the cache while all nodes read them."""
    nodes, flat = len(leaf), leaf.reshape(len(leaf), -1)
    size = max(size for size in range(1, 1251) if flat.shape[1] % size == 0)
    parts = jax.lax.optimization_barrier(flat.reshape(nodes, -1, size).swapaxes(0, 1))
    rows = jnp.arange(nodes, dtype=jnp.int32)
    take = lambda k: parts.at[:, (rows + k) % nodes].get(mode="promise_in_bounds")  # noqa: E731
    found = sum(w * (take(k) - parts) for k, w in zip(offsets, weights, strict=True))
    return found.swapaxes(0, 1).reshape(leaf.shape)


def _product(algorithm: Any, offsets: list[int], weights: list[float], leaf: Array) -> Array:
    """(W − I)(s − s̄)"""
    nodes = len(leaf)
    generator = np.zeros((nodes, nodes), np.float32)
    for k, w in zip(offsets, weights, strict=True):
        generator[np.arange(nodes), (np.arange(nodes) + k) % nodes] += w
    generator -= np.diag(generator.sum(1))
    centred = (leaf - leaf.mean(0, keepdims=True)).reshape(nodes, -1)
    return jnp.matmul(jnp.asarray(generator), centred, precision=algorithm).reshape(leaf.shape)


FORMS: dict[str, Callable[..., Array]] = {
    "one gather": _one_gather,
    "gathers by a table": _table,
    "slices": _wide,
    "nodes last, slices": partial(_transposed, _last_by_slices),
    "nodes last, gathers": partial(_transposed, _last_by_gathers),
    "blocks of columns": _blocks,
    "product, float32": partial(_product, jax.lax.Precision.HIGHEST),
    "product, TF32 in three": partial(_product, jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3),
}
NOW = "now"  # the library's
LARGE = 10_000  # entries of a leaf from which another form is tried
GATHERED = mixing.Shifts._gathered


def _mixing(rows: Rows) -> None:
    rate = scale.copy_rate()
    for nodes in (1000, 100):
        ring, exponential = (mixing.mixer(graph(nodes)) for graph in (db.graphs.ring, db.graphs.exponential))
        assert isinstance(exponential, mixing.Shifts)
        of_graph = list(exponential.offsets), list(exponential.weights)
        forms = {"ring": partial(ring.flow, 0), NOW: partial(exponential.flow, 0)}
        forms |= {name: partial(form, *of_graph) for name, form in FORMS.items()}
        state = [jax.random.normal(jax.random.key(i), (nodes, *SHAPE)) for i in range(3)]
        programs, expected = {}, None
        for name, flow in forms.items():
            try:
                programs[name] = _round(flow).lower(*state).compile()
                found = programs[name](*state)[1]
            except Exception as error:  # a form that this compiler does not know
                rows.add(nodes=nodes, form=name, error=str(error)[:200])
                continue
            if name == NOW:
                expected = found
            elif expected is not None:
                assert float(jnp.abs(found - expected).max()) < 1e-2, name
            del found
        del expected
        times = in_turns({name: partial(program, *state) for name, program in programs.items()}, 3)
        moved = 4 * nodes * int(np.prod(SHAPE))
        for name, seconds in times.items():
            ms = 1e3 * min(seconds) / ROUNDS
            temporary = programs[name].memory_analysis().temp_size_in_bytes
            neighbours = 2 if name == "ring" else len(of_graph[0])
            ratios = {
                "÷ now": min(seconds) / min(times[NOW]),
                "leaves": temporary / moved,
                "copies": ms / (2e3 * moved / rate),
            }
            rows.add(nodes=nodes, neighbours=neighbours, form=name, ms=ms, **ratios)


def _round(flow: Callable[[Array], Array]) -> Any:
    """Rounds of exact diffusion of one leaf with a constant direction."""

    def one(_: Any, state: tuple[Array, Array], direction: Array) -> tuple[Array, Array]:
        s, c = state
        message = s - 1e-6 * direction + c
        change = flow(message)
        return message + change, c + change

    def rounds(s: Array, c: Array, direction: Array) -> tuple[Array, Array]:
        return jax.lax.fori_loop(0, ROUNDS, partial(one, direction=direction), (s, 1e-3 * c))

    return jax.jit(rounds)


def _exponential(rows: Rows) -> None:
    mixed = [row for row in rows if row["part"] == "mixing" and row.get("nodes") == 1000 and row.get("form") in FORMS]
    best = [row["form"] for row in sorted(mixed, key=lambda row: row.get("ms", np.inf))[:2]]
    for form in ("ring", NOW, *best):
        if form in FORMS:  # a lambda, since only functions become methods
            mixing.Shifts._gathered = lambda *given, form=FORMS[form]: _as_sum(form, *given)
        compile_chunk.cache_clear()
        row = scale.measure(1000, "ring" if form == "ring" else "exponential", 5)
        mixing.Shifts._gathered = GATHERED
        kept = {key: row[key] for key in ("nodes", "ms", "temporary_bytes", "bytes_accessed")}
        rows.add(form=form, **kept)


def _as_sum(form: Callable[..., Array], mixer: Any, term: Any, *leaves: Array) -> Array:
    assert len(leaves) == 1 and term is mixing._difference
    if leaves[0][0].size < LARGE:
        return GATHERED(mixer, term, *leaves)
    return form(list(mixer.offsets), list(mixer.weights), leaves[0])


# Streams


def _streams(rows: Rows) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for nodes, samples in ((8, 20_000), (32, 5_000)):
            files = streams.write(Path(folder), nodes, samples)
            _stages(rows, files)
            _whole(rows, files)


def _stages(rows: Rows, files: list[tuple[np.ndarray, ...]]) -> None:
    """Gigabytes per second of gathering the samples of 25 steps and of bringing them to the device."""
    nodes, samples = len(files), len(files[0][0])
    host = Sources({node: db.sources.arrays(each) for node, each in enumerate(files)}, "upper_data", np.float32)
    draws = [np.random.default_rng(i).integers(0, samples, (25, nodes, 50), np.int32) for i in range(2)]
    ids, device = np.arange(nodes), jax.devices()[0]
    gathered = host.gather(ids, draws)
    size = sum(leaf.nbytes for leaves in gathered for leaf in leaves)
    pinned = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    on_host = jax.block_until_ready(jax.device_put(gathered, pinned)) if jax.default_backend() == "gpu" else gathered
    by_node = [[np.ascontiguousarray(leaf[:, node]) for leaves in gathered for leaf in leaves] for node in range(nodes)]
    stages: dict[str, Callable[[], Any]] = {
        "gather": lambda: host.gather(ids, draws),
        "to the device": lambda: jax.device_put(gathered, device),
        "to the device, from pinned memory": lambda: jax.device_put(on_host, jax.sharding.SingleDeviceSharding(device)),
        "to the device, by eight threads": lambda: list(
            THREADS.map(lambda each: jax.device_put(each, device), by_node)
        ),
        "to pinned memory": lambda: jax.device_put(gathered, pinned),
    }
    for name, stage in stages.items():
        rows.add(nodes=nodes, stage=name, **{"GB/s": size / min(seconds_of(stage, 7, warm_up=0)) / 1e9})


THREADS = ThreadPoolExecutor(8)


def _whole(rows: Rows, files: list[tuple[np.ndarray, ...]]) -> None:
    runs = streams.start(files, 50, 300)
    del runs[streams.CALLS]
    times = in_turns(streams.chunks_of(runs, 100), 5)
    states = [jax.tree.leaves(run.state) for run in runs.values()]
    assert all(np.array_equal(*pair) for other in states[1:] for pair in zip(states[0], other, strict=True))
    taken = 2 * len(files) * 50 * 100 * streams.CHUNKS
    for name, run in runs.items():
        run.close(finished=True)
        speed = taken / float(np.median(times[name]))
        ratio = against(times, name, streams.MEMORY)
        rows.add(nodes=len(files), run=name, samples_per_second=speed, **{"÷ in memory": ratio})


# The smallest step


def _smallest(rows: Rows) -> None:
    case = regression("small, 20 nodes", 20, 10, 10, 100)
    steps = 10_000 if jax.default_backend() == "gpu" else 500
    for parallel in (True, False):
        row = contest.contest(case, parallel, steps, repetitions=9)
        kept = {key: row[key] for key in ("case", "updates", "µs", "against")}
        rows.add(flags=os.environ.get("XLA_FLAGS", ""), **kept)
    if rows.part == "smallest":
        rows.add(case=case.name, kernels=_kernels(case, parallel=True))


def _kernels(case: Any, parallel: bool, steps: int = 100) -> dict[str, Any]:
    """How many kernels a step starts, and their microseconds, by a profile of a hundred steps."""
    _, runners = contest._runners(case, parallel, steps)
    found: dict[str, Any] = {}
    for name in (contest.OURS, contest.BY_HAND):
        state = jax.block_until_ready(runners[name].run(runners[name].start()))
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                jax.block_until_ready(runners[name].run(state))
            found[name] = _events(Path(folder), steps)
    return found


def _events(folder: Path, steps: int) -> dict[str, Any]:
    (path,) = folder.rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    places = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    kernels = [event for event in events if "GPU" in places.get(event.get("pid"), "") and event.get("ph") == "X"]
    started = [
        event for event in kernels if "hlo_op" in event.get("args", {}) or "kernel_details" in event.get("args", {})
    ]
    each: dict[str, list[float]] = {}
    for event in started:
        each.setdefault(event["name"], []).append(event.get("dur", 0.0))
    ordered = sorted(each.items(), key=lambda one: -sum(one[1]))[:12]
    often = {name: [len(took) / steps, sum(took) / len(took)] for name, took in ordered}
    busy = sum(sum(took) for took in each.values())
    return {"kernels": len(started) / steps, "busy µs": busy / steps, "times a step, and µs each": often}


# Batches in pieces


def _pieces(rows: Rows) -> None:
    for case in (label_cleaning(batch=512, samples=20_000),):
        runs = {}
        for levels in ("single", "bilevel"):
            for size in (None, 64):
                runs[f"{levels}, {size}"] = _pieces_run(case, levels, size)
        steps = 20 if jax.default_backend() == "gpu" else 1
        times = in_turns(steps_of(runs, steps), 5)
        for levels in ("single", "bilevel"):
            ratio = against(times, f"{levels}, 64", f"{levels}, None")
            ms = {size: 1e3 * min(times[f"{levels}, {size}"]) / steps for size in ("None", "64")}
            temporary = {size: runs[f"{levels}, {size}"].compile(steps).temp_bytes for size in ("None", "64")}
            rows.add(case=case.name, levels=levels, ms=ms, temporary=temporary, **{"÷ whole": ratio})


def _pieces_run(case: Any, levels: str, size: int | None) -> Any:
    if levels == "bilevel":
        problem = case.problem()
        method = db.sparkle("ed", alpha=1.0, beta=0.02, gamma=0.02, theta=0.3)
    else:
        problem = db.Problem(lambda y, batch: case.upper(None, y, batch), upper_data=case.upper_data, x0=case.y0)
        method = db.ed(alpha=0.02)
    config = RunConfig(512, micro_batch=size)
    return db.Simulator().start(problem, method, db.Levels(x=db.graphs.ring(case.nodes)), config)


PARTS: dict[str, tuple[Callable[[Rows], None], str]] = {
    "mixing": (_mixing, ""),
    "streams": (_streams, ""),
    "smallest": (_smallest, ""),
    "exponential": (_exponential, ""),
    "pieces": (_pieces, ""),
    "smallest, loops in graphs": (_smallest, LOOPS_IN_GRAPHS),
}


def _run_part(name: str, path: Path) -> None:
    rows, begun = Rows(path, name), time.perf_counter()
    try:
        PARTS[name][0](rows)
    except Exception as error:  # the other parts go on
        rows.add(failed=f"{type(error).__name__}: {error}"[:500])
    rows.add(done=True, seconds=time.perf_counter() - begun)


def _ratios(rows: Rows) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        keys = ("part", "nodes", "form", "run", "case", "levels", "updates")
        where = ", ".join(str(row[key]) for key in keys if key in row)
        found |= {f"{where}: {key}": value for key, value in row.items() if key.startswith("÷")}
        found |= {f"{where}: ÷ {other}": value for other, value in row.get("against", {}).items()}
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", type=Path, required=True)
    options.add_argument("--seconds", type=float, default=230, help="after which nothing goes on")
    options.add_argument("--part", choices=PARTS, help="only this one, in this process")
    given = options.parse_args()
    if given.part:
        _run_part(given.part, given.json)
        return
    ends = time.monotonic() + given.seconds
    for name, (_, flags) in PARTS.items():
        done = given.json.exists() and any(row.get("done") and row["part"] == name for row in read(given.json)["rows"])
        left = min(SECONDS, ends - time.monotonic())
        if done or left < 10:
            continue
        command = [sys.executable, "-m", "benchmarks.known_ratios", "--part", name, "--json", str(given.json)]
        environment = os.environ | (
            {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()} if flags else {}
        )
        try:
            subprocess.run(command, env=environment, timeout=left)
        except subprocess.TimeoutExpired:
            print(f"{name}: stopped after {left:.0f} s", flush=True)


if __name__ == "__main__":
    main()
