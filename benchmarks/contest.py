"""One case run by the library, by hand, as bare matrix products and, where asked for, by PyTorch, in turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import decibel as db

from . import by_hand
from .cases import Case
from .timing import Program, against, bytes_of, in_turns, medians

TOLERANCE = 1e-3  # of the largest entry, in float32 after one chunk
FOLLOWED = 3  # steps that programs of other random numbers take on the samples of the scan by hand
OURS, BY_HAND, PRODUCTS = "ours", "by hand", "products"


class Runner(NamedTuple):
    start: Callable[[], Any]
    run: Callable[[Any], Any]  # from state to state, `length` steps on
    length: int
    follow: Callable[[list[tuple[np.ndarray, np.ndarray]]], list[np.ndarray]] | None = None
    temporaries: int | None = None  # bytes


def contest(
    case: Case, parallel: bool, length: int, repetitions: int, *, rivals: Callable[..., dict[str, Runner]] | None = None
) -> dict[str, Any]:
    """Microseconds per iteration (medians), ratios (medians over turns), and memory against the state's.

    `rivals(case, parallel)` makes further runners, which must `follow` the scan by hand on its samples.
    """
    with jax.enable_x64(case.dtype == np.float64), jax.default_matmul_precision("highest"):
        key, runners = _runners(case, parallel, length)
        if rivals:
            others = rivals(case, parallel)
            differences = _followed(case, parallel, key, others)
            runners |= others
        else:
            differences = {}
        size = bytes_of(by_hand.start(case))
        states = {name: runner.start() for name, runner in runners.items()}

        def program(name: str) -> Program:
            def run() -> Any:
                states[name] = runners[name].run(states[name])
                return states[name]

            return run

        programs = {name: program(name) for name in runners}
        in_turns(programs, 0)  # warms up, and shows that both do the same
        differences[OURS] = _difference(_levels(states[OURS]), _by_hand_levels(states[BY_HAND]))
        _validate(case, differences)
        seconds = in_turns(programs, repetitions, warm_up=0)

    µs = {name: 1e6 * each / runners[name].length for name, each in seconds.items()}
    return {
        "case": case.name,
        "updates": "simultaneous" if parallel else "alternating",
        "dtype": str(case.dtype),
        "nodes": case.nodes,
        "steps": length,
        "µs": medians(µs),
        "against": {name: against(µs, OURS, name) for name in µs if name != OURS},
        "difference": differences,
        "state_bytes": size,
        "memory": {name: runners[name].temporaries / size for name in (OURS, BY_HAND)},
    }


def ratios(row: dict[str, Any]) -> dict[str, float]:
    """What is compared between runs: our time over the others', our memory over the scan's by hand."""
    name = f"{row['case']}, {row['updates']}"
    times = {f"{name}: time ÷ {other}": value for other, value in row["against"].items()}
    return times | {f"{name}: memory ÷ {BY_HAND}": row["memory"][OURS] / row["memory"][BY_HAND]}


def _runners(case: Case, parallel: bool, length: int) -> tuple[Array, dict[str, Runner]]:
    run = case.start(db.Simulator(), "simultaneous" if parallel else "alternating")
    chunk, _, beside = run.compile(length)
    arrays, first = eqx.filter(run.program, eqx.is_array), jnp.asarray(0, jnp.int32)

    data = (run.program.key, case.upper_data, case.lower_data, jnp.asarray(case.rates, case.dtype))
    scan = jax.jit(by_hand.scan(case, parallel, length), donate_argnums=4)
    scan = scan.lower(*data, by_hand.start(case), first).compile()

    operands, bare = _products(case, parallel, length)
    bare = jax.jit(bare).lower(operands).compile()
    return run.program.key, {
        OURS: Runner(lambda: run.state, lambda state: chunk(arrays, state, first)[0], length, temporaries=beside),
        BY_HAND: Runner(
            lambda: by_hand.start(case),
            lambda state: scan(*data, state, first),
            length,
            temporaries=scan.memory_analysis().temp_size_in_bytes,
        ),
        PRODUCTS: Runner(lambda: None, lambda _: bare(operands), length),
    }


def _levels(state: Any) -> list[Array]:
    return jax.tree.leaves((state.x.s, state.y.s, state.z.s))


def _by_hand_levels(state: by_hand.State) -> list[Array]:
    x, _, y, _, z, *_ = state
    return jax.tree.leaves((x, y, z))


def _followed(case: Case, parallel: bool, key: Array, others: dict[str, Runner]) -> dict[str, float]:
    """How far each other program is from the scan by hand after a few steps on the same samples."""
    data = (key, case.upper_data, case.lower_data, jnp.asarray(case.rates, case.dtype))
    run = jax.jit(by_hand.scan(case, parallel, FOLLOWED))
    expected = _by_hand_levels(run(*data, by_hand.start(case), jnp.asarray(0, jnp.int32)))
    upper, lower = case.upper_data[0].shape[1], case.lower_data[0].shape[1]
    drawn = [by_hand.draws(case, key, k, parallel) for k in range(FOLLOWED)]
    index = lambda bits, i: np.asarray(by_hand.index(bits, lower if i else upper))  # noqa: E731
    samples = [tuple(index(bits, i) for i, bits in enumerate(step)) for step in drawn]
    return {name: _difference(other.follow(samples), expected) for name, other in others.items() if other.follow}


def _difference(found: list[Any], expected: list[Any]) -> float:
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(found, expected, strict=True)]
    return float(np.max([np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in pairs]))


def _validate(case: Case, differences: dict[str, float]) -> None:
    for name, difference in differences.items():
        if not difference < TOLERANCE:
            raise AssertionError(
                f"{case.name}: {name} and the scan by hand differ by {difference:.1e}: times mean nothing."
            )


def _products(case: Case, parallel: bool, length: int) -> tuple[Any, Callable[..., Array]]:
    sizes, counts = case.products(parallel)
    specs = [spec for spec, count in counts.items() for _ in range(count)]
    draw = np.random.default_rng(0)
    shape = lambda axes: tuple(sizes[axis] for axis in axes)  # noqa: E731
    make = lambda axes: jnp.asarray(draw.standard_normal(shape(axes), case.dtype.type))  # noqa: E731
    operands = [tuple(make(axes) for axes in spec.split("->")[0].split(",")) for spec in specs]

    def run(operands: list[tuple[Array, Array]]) -> Array:
        def body(token: Array, _: None) -> tuple[Array, None]:
            # Barriers keep the compiler from moving products out of the loop or leaving any out.
            pairs, token = jax.lax.optimization_barrier((operands, token))
            results = [jnp.einsum(spec, a, b) for spec, (a, b) in zip(specs, pairs, strict=True)]
            results, token = jax.lax.optimization_barrier((results, token))
            return token + sum(result.ravel()[0] for result in results), None

        return jax.lax.scan(body, jnp.zeros((), case.dtype), None, length)[0]

    return operands, run
