"""What learning a mixture costs: a step of the penalty form and of others against bare gradients and a plain loop.

The model is GPT-2's smallest in shape, a decoder of 124 million weights, on every node; tokens are random, since what
they are does not matter here. A bare gradient is that of every node's model on its own batch, in one call.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import decibel as db
from decibel.engines._program import RunConfig
from decibel.engines._run import Run
from decibel.graphs._graph import Levels
from decibel.tasks.decoder import SIZES, Shape, start_decoder
from decibel.tasks.language_model import DecoderLosses, MixedText, OnSimplex, TargetText

from .records import record
from .timing import Program, bytes_of, in_turns, seconds_of, steps_of


@dataclass(frozen=True)
class Case:
    """A decoder on so many nodes, with `batch` windows a step, level and node; `chunk`: `node_chunk` of the engine."""

    name: str
    shape: Shape
    vocabulary: int
    nodes: int
    batch: int
    chunk: int | None = None
    compute: str | None = "bfloat16"
    attention: str = "xla"


GPT = Shape(768, 12, 12, 512, remat=True)
LARGE = [
    Case("124M, 4 nodes", GPT, 50_304, 4, 8),
    Case("124M, 8 nodes, one at a time", GPT, 50_304, 8, 8, chunk=1),
    Case("124M, 4 nodes, fused attention", GPT, 50_304, 4, 8, attention="cudnn"),
    Case("124M, 2 nodes", GPT, 50_304, 2, 8),
]
SMALL = [Case("tiny, 4 nodes", SIZES["tiny"], 256, 4, 4, compute=None)]
# A ninth of GPT-2's weights, with as many tokens and logits for each of them: only compiled, for its memory.
PLANNED = [Case("14M, 4 nodes, one at a time", Shape(256, 12, 4, 170, remat=True), 16_768, 4, 8, chunk=1)]


LAZY = 8
AT_REST = "penalty, adam-ed, the resting step"


def methods(all_of_them: bool) -> dict[str, db.Method]:
    rates = dict(alpha=0.01, beta=1e-3, gamma=1e-3, theta=0.1)
    penalty = db.sparkle("adam-ed", "ed", **rates, hypergradient=db.hypergradient.penalty(10.0))
    lazy = db.sparkle("adam-ed", "ed", **rates, hypergradient=db.hypergradient.penalty(10.0), upper_every=LAZY)
    usual = {"penalty, adam-ed": penalty, AT_REST: lazy}
    if not all_of_them:
        return usual
    return {
        **usual,
        "penalty, ed": db.sparkle("ed", **rates, hypergradient=db.hypergradient.penalty(10.0)),
        "Hessian products, adam-ed": db.sparkle("adam-ed", "ed", **rates),
    }


class Tokens:
    """One node's samples: random tokens, made when they are asked for."""

    def __init__(self, case: Case, node: int, lower: bool) -> None:
        self.case, self.node, self.lower = case, node, lower

    def __len__(self) -> int:
        return 4_096

    def __getitem__(self, rows: np.ndarray) -> Any:
        rng, case = np.random.default_rng(int(rows[0])), self.case
        kind = np.uint16 if case.vocabulary > 256 else np.uint8
        windows = rng.integers(0, case.vocabulary, (len(rows), case.shape.context + 1)).astype(kind)
        if not self.lower:
            return windows
        own = np.full(len(rows), self.node, np.int32)
        return {"windows": windows, "domain": own, "factor": np.full(len(rows), float(case.nodes))}


def problem_of(case: Case, y0: Any) -> db.Problem:
    model = DecoderLosses(case.compute, case.attention, case.shape.remat)
    return db.Problem(
        TargetText(model, 0.0, OnSimplex()), MixedText(model, 0.0, OnSimplex()),
        upper_data=[Tokens(case, node, False) for node in range(case.nodes)],
        lower_data=[Tokens(case, node, True) for node in range(case.nodes)],
        x0=jnp.full(case.nodes, 1 / case.nodes), y0=y0, prox_x=db.prox.simplex(floor=0.02),
    )  # fmt: skip


def measure(
    full: bool, note: Callable[[str], Any], save: Callable[[dict[str, Any]], Any] = lambda content: None
) -> dict[str, Any]:
    """`save` is given what was measured so far, after each row."""
    rows: list[dict[str, Any]] = [] if full else [planned(case) for case in PLANNED]
    content = record("mixture", rows, {})
    for number, case in enumerate(LARGE if full else SMALL):
        note(case.name)
        try:
            for row in compare(case, 5 if full else 3, methods(number == (len(LARGE) - 1 if full else 0))):
                rows.append(row)
                content = record("mixture", rows, _ratios(rows))
                save(content)
        except Exception as error:  # a kernel that is not there, or memory: the others are still worth measuring
            rows.append({"case": case.name, "method": "-", "error": f"{type(error).__name__}: {str(error)[:300]}"})
            content = record("mixture", rows, _ratios(rows))
            save(content)
        gc.collect()
    return content


def _ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {f"step ÷ gradient, {row['method']}, {row['case']}": row["gradients"] for row in rows if "gradients" in row}


def planned(case: Case) -> dict[str, Any]:
    """What the compiler asks for; no step is taken."""
    y0 = start_decoder(case.shape, case.vocabulary, 0)
    (name, method), *_ = methods(False).items()
    run = begin(case, method, problem_of(case, y0))
    row = {"case": case.name, "method": name, "nodes": case.nodes, **memory(run, 2)}
    run.close(finished=True)
    run.free()
    return row


def begin(case: Case, method: db.Method, problem: db.Problem) -> Run:
    engine = db.Simulator(node_chunk=case.chunk, keep_copy=False)
    return engine.start(problem, method, Levels(x=db.graphs.ring(case.nodes)), RunConfig(case.batch))


def memory(run: Run, steps: int) -> dict[str, Any]:
    """In vectors of the model at every node."""
    y, beside = run.state.y.s.tree, run.compile(steps).temp_bytes
    vector, state = bytes_of(y), bytes_of(run.state)
    weights = sum(leaf[0].size for leaf in jax.tree.leaves(y))
    vectors = {"state_vectors": state / vector, "beside_vectors": beside / vector, "vectors": (state + beside) / vector}
    return {"weights": weights, "vector_bytes": vector, **vectors}


def compare(case: Case, turns: int, chosen: dict[str, db.Method]) -> Iterator[dict[str, Any]]:
    y0 = start_decoder(case.shape, case.vocabulary, 0)
    tokens = case.nodes * case.batch * case.shape.context
    bare, plain = bare_gradient(case, y0, turns), plain_loop(case, y0, turns)
    problem = problem_of(case, y0)
    highest = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    del y0
    for name, method in chosen.items():
        run = begin(case, method, problem)
        # A chunk ends with a look at the whole state, which would count for much after one or two steps.
        steps = LAZY - 1 if name == AT_REST else 4
        used = memory(run, steps)

        def move(name: str, run: Run = run) -> None:
            """x moves in this step, and rests in those that are timed."""
            if name == AT_REST:
                jax.block_until_ready(steps_of({name: run}, 1)[name]())

        seconds = float(np.median(in_turns(steps_of({name: run}, steps), turns, before=move)[name])) / steps
        evaluated = {AT_REST: 1}.get(name, 3 if "penalty" in name else 4)  # a product with the Hessian counts as two
        peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
        own_peak = {"peak_vectors": peak / used["vector_bytes"]} if peak > highest else {}  # else of a case before
        highest = max(peak, highest)
        yield {
            "case": case.name, "method": name, "nodes": case.nodes, "tokens": tokens, **used,
            "seconds": seconds, "bare_seconds": bare, "gradients": seconds / bare, "plain_seconds": plain,
            "tokens_a_second": tokens / seconds, "plain_tokens_a_second": tokens / plain,
            "per_gradient": evaluated * plain / seconds, **own_peak,
        }  # fmt: skip
        run.close(finished=True)
        run.free()
        del run


def _loss(case: Case) -> Callable[[Any, Any], Any]:
    model = DecoderLosses(case.compute, case.attention, case.shape.remat)
    return lambda y, windows: model.losses(y, windows).mean()


def _timed(call: Program, turns: int) -> float:
    return float(np.median(seconds_of(call, turns)))


def bare_gradient(case: Case, y0: Any, turns: int) -> float:
    """Seconds of the gradient of every node's model on a batch of its own."""
    loss, many = _loss(case), jax.tree.map(lambda leaf: jnp.repeat(leaf[None], case.nodes, 0), y0)
    windows = jnp.asarray(np.stack([Tokens(case, node, False)[np.arange(case.batch)] for node in range(case.nodes)]))
    one = lambda pair: jax.grad(loss)(*pair)  # noqa: E731
    every = jax.jit(lambda pair: jax.lax.map(one, pair, batch_size=case.chunk) if case.chunk else jax.vmap(one)(pair))
    return _timed(lambda: every((many, windows)), turns)


def plain_loop(case: Case, y0: Any, turns: int) -> float:
    """Seconds of a step of a plain loop with optax's Adam, of one model on the batches of all nodes together."""
    loss, adam = _loss(case), optax.adam(1e-3)
    windows = jnp.asarray(
        np.concatenate([Tokens(case, node, False)[np.arange(case.batch)] for node in range(case.nodes)])
    )

    def step(carry: Any, windows: Any) -> Any:
        y, moments = carry
        updates, moments = adam.update(jax.grad(loss)(y, windows), moments)
        return optax.apply_updates(y, updates), moments

    compiled = jax.jit(step, donate_argnums=0)
    held = [(jax.tree.map(jnp.copy, y0), adam.init(y0))]

    def call() -> Any:
        held[0] = compiled(held[0], windows)
        return held[0]

    return _timed(call, turns)
