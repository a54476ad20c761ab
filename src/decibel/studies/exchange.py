"""The time of one exchange among real processes: with two neighbours, or with everybody.

As a script it is one of the processes:
`python -m decibel.studies.exchange ADDRESS PROCESSES PROCESS KIND ENTRIES ROUNDS`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..trace import Trace

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

    def describe(self) -> dict[str, Any]:
        return asdict(self)

    def run(self, seeds: Sequence[int]) -> list[Trace]:
        times = measure(self.processes, self.kind, self.entries, self.rounds * len(seeds))
        traces = []
        for seed, milliseconds in zip(seeds, np.split(np.asarray(times), len(seeds)), strict=True):
            steps = np.arange(1, self.rounds + 1)
            columns = {"step": steps, "milliseconds": milliseconds, "seconds": np.cumsum(milliseconds) / 1e3}
            traces.append(Trace(columns, {"seed": seed, "stopped": None}))
        return traces


def measure(processes: int, kind: str, entries: int, rounds: int) -> list[float]:
    """Milliseconds of each round, of the slowest process, from processes that are started for it and end with it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)
    started = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, address, *map(str, (processes, process, kind, entries, rounds))],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for process in range(processes)
    ]  # fmt: skip
    try:
        answers = [process.communicate(timeout=PATIENCE) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, answers, strict=True):
        if process.returncode:
            raise RuntimeError(f"a process of the exchange failed:\n{errors[-2_000:]}")
    times = [json.loads(output.splitlines()[-1]) for output, _ in answers]
    return np.max(times, axis=0).tolist()


def main(address: str, processes: str, process: str, kind: str, entries: str, rounds: str) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, int(processes), int(process))
    print(json.dumps(_rounds(int(processes), kind, int(entries), int(rounds))), flush=True)
    jax.distributed.shutdown()


def _rounds(processes: int, kind: str, entries: int, rounds: int) -> list[float]:
    mesh = Mesh(np.array(jax.devices()), ("process",))
    spread = NamedSharding(mesh, PartitionSpec("process"))
    own = jnp.full((1, entries), float(jax.process_index()))
    vector = jax.make_array_from_process_local_data(spread, np.asarray(own), (processes, entries))
    ahead = [(i, (i + 1) % processes) for i in range(processes)]
    behind = [(i, (i - 1) % processes) for i in range(processes)]

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
    main(*sys.argv[1:])
