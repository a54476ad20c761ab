"""Real `mpirun` and real `srun`, of one machine, where they are installed; Slurm's daemons are started for the test."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from quadratics import random_quadratic
from xla import flags

import decibel as db

pytestmark = pytest.mark.slow
HERE = Path(__file__).parents[2]
ENVIRONMENT = {
    **{
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DECIBEL_", "OMPI_", "SLURM_", "PMIX"))
    },
    "XLA_FLAGS": flags(),
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / "src")]),
}
SOLVE = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
import decibel as db
from quadratics import random_quadratic
result = db.solve(
    random_quadratic(8, seed=3).single(), db.ed(alpha=0.1), db.graphs.ring(8), steps=int(sys.argv[1]), metrics=[],
    eval_every=20, engine=db.Cluster(), checkpoint=sys.argv[2], resume=True,
)
x = " ".join(f"{float(v):.17g}" for v in result.x)
who = f"process {jax.process_index()} of {jax.process_count()}"
sys.stdout.write(f"{who} {result.status} at {result.step} x {x} end\\n")
"""
FAILS = """
import sys, time
import jax
if jax.process_index() == 1:
    sys.exit(3)
time.sleep(500)
"""


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class Mpirun:
    def __init__(self):
        if shutil.which("mpirun") is None:
            pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
        found = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=60)
        if "Open MPI" not in found.stdout:
            pytest.skip("mpirun is not Open MPI's")

    def command(self):
        root = [] if os.geteuid() else ["--allow-run-as-root"]
        return ["mpirun", *root, "--oversubscribe", "-n", "2"]

    def end(self):
        pass


class Srun:
    """A cluster of one machine, with its state in a folder and without munge."""

    DAEMONS = ("slurmctld", "slurmd")

    def __init__(self, folder):
        paths = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
        found = {name: shutil.which(name, path=paths) for name in (*self.DAEMONS, "srun", "scancel", "sinfo")}
        if missing := [name for name, path in found.items() if path is None]:
            pytest.skip(f"{', '.join(missing)} not installed (Debian: slurm-wlm)")
        if os.geteuid():
            pytest.skip("slurmd needs root")
        name, ports = socket.gethostname().split(".")[0], free_ports(2)
        (folder / "state").mkdir()
        (folder / "spool").mkdir()
        self.conf = folder / "slurm.conf"
        self.conf.write_text(
            f"""
ClusterName=test
SlurmctldHost={name}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
NodeName={name} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
        )
        os.environ["SLURM_CONF"] = ENVIRONMENT["SLURM_CONF"] = str(self.conf)
        self.logs = [folder / f"{daemon}.log" for daemon in self.DAEMONS]
        self.daemons = []
        for daemon, log in zip(self.DAEMONS, self.logs, strict=True):
            with open(log, "wb") as out:
                self.daemons.append(subprocess.Popen([found[daemon], "-D", "-f", self.conf], stdout=out, stderr=out))
        until = time.monotonic() + 60
        while "idle" not in subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True).stdout:
            if time.monotonic() > until or any(one.poll() is not None for one in self.daemons):
                said = "; ".join(line for log in self.logs for line in log.read_text().splitlines()[-3:])
                self.end()
                pytest.skip(f"Slurm does not start here: {said}")
            time.sleep(0.5)

    def command(self):
        return ["srun", "--kill-on-bad-exit=1", "--overcommit", "-n", "2"]

    def end(self):
        for one in reversed(self.daemons):
            one.terminate()
        for one in self.daemons:
            one.wait(30)
        for variables in (os.environ, ENVIRONMENT):
            variables.pop("SLURM_CONF", None)


@pytest.fixture(scope="module", params=["mpirun", "srun"])
def starter(request, tmp_path_factory):
    made = Mpirun() if request.param == "mpirun" else Srun(tmp_path_factory.mktemp("slurm"))
    yield made
    made.end()


def start(starter, folder, text, *arguments):
    script = folder / "script.py"
    script.write_text(text)
    command = [*starter.command(), sys.executable, "-m", "decibel.engines.launch", str(script), *map(str, arguments)]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process):
    output = process.communicate(timeout=240)[0]
    lines = re.findall(r"process (\d) of 2 (\w+) at (\d+) x ([-+.e0-9 ]+) end", output)
    return process.returncode, lines, output


def test_two_processes_compute_what_the_simulator_does(starter, tmp_path):
    code, lines, output = ended(start(starter, tmp_path, SOLVE, 60, tmp_path / "saved"))
    assert code == 0 and sorted(line[:3] for line in lines) == [(p, "completed", "60") for p in "01"], output
    expected = db.solve(random_quadratic(8, seed=3).single(), db.ed(alpha=0.1), db.graphs.ring(8), steps=60, metrics=[])
    for line in lines:
        np.testing.assert_allclose([float(v) for v in line[3].split()], np.asarray(expected.x), atol=1e-10)


def test_a_process_that_fails_ends_all(starter, tmp_path):
    begun = time.monotonic()
    process = start(starter, tmp_path, FAILS)
    code, _, output = ended(process)
    assert code != 0 and time.monotonic() - begun < 200, output


def test_the_signal_of_slurm_saves_and_the_next_start_continues(starter, tmp_path):
    """As `--signal=TERM@120` sends it, to the processes of the step."""
    if not isinstance(starter, Srun):
        pytest.skip("the page promises this of srun only")
    saved = tmp_path / "saved"
    process = start(starter, tmp_path, SOLVE, 200_000_000, saved)
    until = time.monotonic() + 120
    while not list(saved.glob("[0-9]*")):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.2)
    jobs = subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True, check=True).stdout.split()
    subprocess.run(["scancel", "--signal=TERM", *jobs], check=True)
    code, lines, output = ended(process)
    assert code == 0 and [line[1] for line in lines] == ["interrupted"] * 2, output
    reached = int(lines[0][2])
    assert (saved / str(reached)).is_dir()
    code, lines, output = ended(start(starter, tmp_path, SOLVE, reached + 40, saved))
    assert code == 0 and sorted(line[:3] for line in lines) == [(p, "completed", str(reached + 40)) for p in "01"], (
        output
    )
