"""A round of averaging with neighbours against one with everybody, among real processes with one node each.

The neighbours' rounds are the library's own exchange (`Halo` of the cluster); with everybody it is JAX's mean
over all processes, an all-reduce. All rounds of one number of processes take turns in the same processes. Run as a
module it is one of the processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import decibel as db
from decibel.engines.cluster._collectives import AXIS, Halo

from .model import Cost, Fit, costs, fit, predict
from .processes import answer, join, together
from .records import record
from .timing import Program, in_turns

RESNET_50 = 25_500_000  # entries
SIZES = (1_000, 10_000, 100_000, 1_000_000, RESNET_50)
PROCESSES = (2, 4, 8)
EXTRAPOLATED = 256
RING, ONE_PEER, EXPONENTIAL, COMPLETE, EVERYBODY = (
    "ring",
    "one-peer exponential",
    "exponential",
    "complete",
    "all-reduce",
)
GRAPHS = {
    RING: db.graphs.ring,
    ONE_PEER: db.graphs.one_peer_exponential,
    EXPONENTIAL: db.graphs.exponential,
    COMPLETE: db.graphs.complete,
}
DISTINCT = {2: (RING,), 4: (RING, ONE_PEER, EXPONENTIAL)}  # where few nodes make other families the same graph
WARMING = 2  # turns that are not counted
MOST_BYTES = 6 * 2**30  # of all nodes together: each holds what its neighbours sent


def measure(processes: Sequence[int], sizes: Sequence[int], turns: int, note: Callable[[str], Any]) -> dict[str, Any]:
    rows = []
    for count in processes:
        note(f"{count} processes")
        rows += together("benchmarks.network", count, {"sizes": list(sizes), "turns": turns})[0]
    return record("network", rows, _ratios(rows), fit=fitted(rows), model=extrapolated(rows, max(sizes)))


def _ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {
        f"{RING} ÷ {EVERYBODY}, {row['processes']} processes, {row['entries']:,} entries": row["against"]
        for row in rows
        if row["round"] == RING
    }


# The model's part


def _kind(round: str) -> str:
    """Neighbours' rounds and all-reduces are different programs, with a latency and a bandwidth each."""
    return EVERYBODY if round == EVERYBODY else "neighbours"


def fitted(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What was fitted, and how far it is from what was measured: from all, and from the most processes where it was
    fitted to fewer only."""
    content = {}
    for kind in (_kind(RING), EVERYBODY):
        mine = [row for row in rows if _kind(row["round"]) == kind]
        most = max(row["processes"] for row in mine)
        fewer, beyond = ([row for row in mine if (row["processes"] < most) == few] for few in (True, False))
        content[kind] = fit(mine)._asdict() | {"typical error": _error(fit(mine), mine)}
        if fewer:
            content[kind] |= {f"typical error at {most} processes, fitted to fewer": _error(fit(fewer), beyond)}
    return content


def _error(found: Fit, rows: list[dict[str, Any]]) -> float:
    """The median factor between model and measurement, less one."""
    logs = [np.log(1e3 * predict(found, Cost(**row["cost"])) / row["milliseconds"]) for row in rows]
    return float(np.expm1(np.median(np.abs(logs))))


def extrapolated(rows: list[dict[str, Any]], entries: int) -> dict[str, Any]:
    nodes = [2**power for power in range(1, EXTRAPOLATED.bit_length())]
    fits = {kind: fit([row for row in rows if _kind(row["round"]) == kind]) for kind in (_kind(RING), EVERYBODY)}
    return {
        "what": "a model, not a measurement: every node with a core and a link of its own, as fast as those fitted",
        "entries": entries,
        "nodes": nodes,
        "milliseconds": {
            kind: [1e3 * predict(fits[_kind(kind)], costs(kind, count, entries, cores=count)) for count in nodes]
            for kind in (*GRAPHS, EVERYBODY)
        },
    }


# In the processes


def rounds(mesh: Mesh, entries: int) -> dict[str, Callable[[Any, Any], Any]]:
    """Functions of (step, vector) for every kind of round that fits into memory."""
    families = {kind: GRAPHS[kind](mesh.size) for kind in DISTINCT.get(mesh.size, tuple(GRAPHS))}

    def spread(function: Callable, tables: Any) -> Callable[[Any, Any], Any]:
        arrays, static = eqx.partition(tables, eqx.is_array)
        specs = jax.tree.map(lambda leaf: leaf.sharding.spec, arrays), PartitionSpec(), PartitionSpec(AXIS)
        inside = lambda arrays, k, v: function(eqx.combine(arrays, static), k, v)  # noqa: E731
        whole = jax.shard_map(inside, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(AXIS), check_vma=False)
        compiled = jax.jit(whole, donate_argnums=2)
        return lambda k, v: compiled(arrays, k, v)

    def fits(graph: db.Graph | db.GraphSequence) -> bool:
        vectors = 2 * float(np.max(graph.degrees)) + 3  # as they arrive, as they lie together, and the own
        return 4 * entries * vectors * mesh.size <= MOST_BYTES

    mixing = lambda halo, k, v: v + halo.flow(k, v)  # noqa: E731
    made = {kind: spread(mixing, Halo.of(graph, mesh)) for kind, graph in families.items() if fits(graph)}
    return made | {EVERYBODY: spread(lambda _, k, v: jax.lax.pmean(v, AXIS), ())}


def vector(mesh: Mesh, entries: int) -> Any:
    """Node i's is full of i."""
    own = lambda at: np.full((1, entries), at[0].start or 0, np.float32)  # noqa: E731
    return jax.make_array_from_callback((mesh.size, entries), NamedSharding(mesh, PartitionSpec(AXIS)), own)


def refuse_wrong(made: dict[str, Callable], mesh: Mesh) -> None:
    """Every round must average as its matrix says: times of a wrong one mean nothing."""
    count, rank = mesh.size, jax.process_index()
    for kind, one in made.items():
        W = np.full((count, count), 1 / count) if kind == EVERYBODY else GRAPHS[kind](count).phases[0].W
        found = np.asarray(one(jnp.int32(0), vector(mesh, 2)).addressable_shards[0].data)
        if not np.allclose(found, W[rank] @ np.arange(count), atol=1e-5 * count):
            raise AssertionError(f"a round of {kind} gave {found}, not {W[rank] @ np.arange(count)}.")


def time_rounds(mesh: Mesh, entries: int, turns: int) -> list[dict[str, Any]]:
    count, made = mesh.size, rounds(mesh, entries)
    refuse_wrong(made, mesh)
    repeats = max(1, min(20, 2_000_000 // entries))  # short rounds are timed in groups
    held = [vector(mesh, entries)]

    def group(one: Callable[[Any, Any], Any]) -> Program:
        def program() -> Any:
            for k in range(repeats):
                held[0] = one(jnp.int32(k), held[0])
            return held[0]

        return program

    programs = {kind: group(one) for kind, one in made.items()}
    times = in_turns(programs, turns, warm_up=WARMING, before=multihost_utils.sync_global_devices)
    own = np.asarray(list(times.values()), np.float32) / repeats
    each = np.asarray(multihost_utils.process_allgather(own)).reshape(count, len(made), turns)
    slowest = 1e3 * each.max(0)  # a round lasts until the last node has it
    return [
        {
            "processes": count,
            "entries": entries,
            "round": kind,
            "milliseconds": float(np.median(mine)),
            "against": float(np.median(mine / slowest[-1])),
            "cost": costs(kind, count, entries)._asdict(),
        }
        for kind, mine in zip(made, slowest, strict=True)
    ]


def main() -> None:
    _, told = join()
    mesh = Mesh(np.asarray(jax.devices()), (AXIS,))
    answer([row for entries in told["sizes"] for row in time_rounds(mesh, entries, told["turns"])])


if __name__ == "__main__":
    main()
