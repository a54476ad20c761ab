"""The time of one exchange among real processes: with two neighbours, or with everybody. As a script it is one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..core._json import JSON
from ..results._trace import Trace
from . import processes
from .processes import answer, join, together

PATIENCE = 300  # seconds until processes that do not end are given up


@dataclass(frozen=True)
class Exchange:
    """An arm whose runs are processes: every seed is a repetition, one after the other in the same processes."""

    case: str
    label: str
    kind: str  # ring or all
    processes: int
    entries: int
    rounds: int

    @property
    def key(self) -> tuple[str, str]:
        return self.case, self.label

    def describe(self) -> dict[str, JSON]:
        from .runs import digest  # here: the processes of an exchange need nothing of it

        code = "".join(Path(file).read_text() for file in (__file__, processes.__file__))
        return {**asdict(self), "code": digest(code)}

    def run(self, seeds: Sequence[int]) -> list[Trace]:
        times = measure(self.processes, self.kind, self.entries, self.rounds * len(seeds))
        traces = []
        for seed, milliseconds in zip(seeds, np.split(np.asarray(times), len(seeds)), strict=True):
            steps = np.arange(1, self.rounds + 1)
            columns = {"step": steps, "milliseconds": milliseconds, "seconds": np.cumsum(milliseconds) / 1e3}
            traces.append(Trace(columns, {"seed": seed, "stopped": None}))
        return traces


def measure(count: int, kind: str, entries: int, rounds: int) -> list[float]:
    """Milliseconds of each round, of the slowest process, from processes that are started for it and end with it."""
    told = {"kind": kind, "entries": entries, "rounds": rounds}
    return np.max(np.asarray(together(__name__, count, told, patience=PATIENCE), float), axis=0).tolist()


def _rounds(kind: str, entries: int, rounds: int) -> list[float]:
    count = jax.process_count()
    mesh = Mesh(np.array(jax.devices()), ("process",))
    spread = NamedSharding(mesh, PartitionSpec("process"))
    own = jnp.full((1, entries), float(jax.process_index()))
    vector = jax.make_array_from_process_local_data(spread, np.asarray(own), (count, entries))
    ahead = [(i, (i + 1) % count) for i in range(count)]
    behind = [(i, (i - 1) % count) for i in range(count)]

    def average(v: jax.Array) -> jax.Array:
        if kind == "all":
            return jax.lax.pmean(v, "process")
        there, back = (jax.lax.ppermute(v, "process", links) for links in (ahead, behind))
        return 0.5 * v + 0.25 * (there + back)

    spec = PartitionSpec("process")
    # The result of an all-reduce is the same everywhere, and is kept by everybody, as a node of the ring keeps its own.
    step = jax.jit(jax.shard_map(average, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    vector = step(vector)
    jax.block_until_ready(vector)
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        vector = step(vector)
        jax.block_until_ready(vector)
        times.append(1e3 * (time.perf_counter() - begun))
    return times


if __name__ == "__main__":
    _, told = join()
    answer(_rounds(cast("str", told["kind"]), cast("int", told["entries"]), cast("int", told["rounds"])))
