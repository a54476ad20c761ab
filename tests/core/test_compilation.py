"""Compiled programs outlive a process: the second start of a script compiles nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
import jax, jax.numpy as jnp, numpy as np

jnp.sin(np.ones(3)).block_until_ready()  # what is compiled before does not keep the cache from being used
counts = {"cache_hits": 0, "cache_misses": 0}


def count(event, **_):
    name = event.rpartition("/")[2]
    counts[name] = counts.get(name, 0) + 1


jax.monitoring.register_event_listener(count)
import decibel as db

folder = db.cache_compilations(sys.argv[1])
data = [np.random.default_rng(size).normal(size=(size, 2)) for size in (3, 8, 20)]
lower = lambda x, y, batch: jnp.mean((y - batch - x) ** 2)
problem = db.Problem(
    lambda x, y, batch: jnp.mean((y - batch) ** 2) + jnp.sum(x**2), lower,
    upper_data=data, lower_data=data, x0=jnp.zeros(2), y0=jnp.zeros(2),
)
result = db.solve(problem, db.sparkle("ed", alpha=0.1, beta=0.1, gamma=0.1), db.graphs.ring(3), steps=6, batch_size=2)
print(json.dumps({"folder": str(folder), "x": result.x.tolist(), **counts}))
"""


def start(folder: Path) -> dict:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION_CACHE")}
    program = [sys.executable, "-c", SCRIPT, str(folder)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_second_start_of_a_script_compiles_nothing(tmp_path):
    first, second = start(tmp_path / "cache"), start(tmp_path / "cache")
    assert first["folder"] == second["folder"] == str(tmp_path / "cache")
    assert first["cache_misses"] > 5 and second["cache_misses"] == 0 and second["cache_hits"] > 5
    assert second["x"] == first["x"]
