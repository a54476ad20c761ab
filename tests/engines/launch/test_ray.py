"""The example of Ray places one process per node on a local cluster, loses one, and continues."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from xla import flags

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason='ray is not installed (pip install "decibel-opt[ray]")')
def test_a_lost_process_costs_the_steps_since_its_checkpoint(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "DECIBEL_"))}
    environment |= {"HOME": str(tmp_path), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags()}  # Ray keeps a token in HOME
    command = [sys.executable, ROOT / "examples" / "ray_cluster.py", tmp_path / "saved"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    lost, *solutions, equal = [line for line in done.stdout.splitlines() if "(raylet)" not in line]  # Ray's own
    assert lost.startswith("process 2 was lost: starting all 4 again, from the checkpoint of step ")
    assert 0 < int(lost.split()[-1]) <= 350  # killed in the row of step 350
    assert [line.partition(", x")[0] for line in solutions] == [
        "with a loss: 4 processes at step 600",
        "without a loss: 4 processes at step 600",
    ]
    assert equal == "equal bit for bit: True"
