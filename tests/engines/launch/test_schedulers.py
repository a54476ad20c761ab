"""Real `mpirun`, `srun` and `sbatch` of one machine, where installed; Slurm's daemons are started for the test."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from quadratics import random_quadratic
from silo_sites import free_ports
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
from pathlib import Path
from quadratics import random_quadratic
problem = random_quadratic(8, seed=3).single(samples=6, noise=1.0)
result = db.solve(
    problem, db.ed(alpha=0.1), db.graphs.ring(8), steps=int(Path(sys.argv[1]).read_text()), batch_size=2, metrics=[],
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
    sys.exit("the data of process 1 are gone")
time.sleep(500)
"""


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


@pytest.fixture(scope="module")
def mpirun():
    return Mpirun()


@pytest.fixture(scope="module")
def srun(tmp_path_factory):
    made = Srun(tmp_path_factory.mktemp("slurm"))
    yield made
    made.end()


@pytest.fixture(params=["mpirun", "srun"])
def starter(request):
    return request.getfixturevalue(request.param)


class Job:
    """A script with the number of steps that it reads, and the folder of its checkpoints."""

    def __init__(self, folder, text=SOLVE):
        self.folder, self.saved, self.goal = folder, folder / "saved", folder / "steps"
        folder.mkdir(exist_ok=True)
        (folder / "script.py").write_text(text)
        launch = [sys.executable, "-m", "decibel.engines.launch", str(folder / "script.py")]
        self.command = [*launch, str(self.goal), str(self.saved)]

    def start(self, starter, steps):
        self.goal.write_text(str(steps))
        command = [*starter.command(), *self.command]
        return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, starter, steps):
        return ended(self.start(starter, steps))


class Said(NamedTuple):
    code: int | None
    processes: list[tuple[str, str, str, str]]  # number, status, step and solution
    output: str


def said(output, code=None):
    lines = re.findall(r"process (\d) of 2 (\w+) at (\d+) x ([-+.e0-9 ]+) end", output)
    return Said(code, sorted(lines), output)


def ended(process):
    return said(process.communicate(timeout=240)[0], process.returncode)


def wait_for(state, seconds=120):
    until = time.monotonic() + seconds
    while not (found := state()):
        assert time.monotonic() < until
        time.sleep(0.2)
    return found


def slurm(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()


def assert_continues(interrupted, resumed, whole):
    """Both processes were interrupted, and end where a run does that never was: the same numbers, bit for bit."""
    assert [line[1] for line in interrupted] == ["interrupted"] * 2
    assert len({line[2] for line in interrupted}) == 1 and len(resumed) == 2
    assert resumed == whole and {line[1] for line in whole} == {"completed"}


def test_two_processes_compute_what_the_simulator_does(starter, tmp_path):
    done = Job(tmp_path).run(starter, 60)
    assert done.code == 0, done.output
    assert [line[:3] for line in done.processes] == [(p, "completed", "60") for p in "01"], done.output
    problem = random_quadratic(8, seed=3).single(samples=6, noise=1.0)
    expected = db.solve(problem, db.ed(alpha=0.1), db.graphs.ring(8), steps=60, batch_size=2, metrics=[])
    for line in done.processes:
        np.testing.assert_allclose([float(v) for v in line[3].split()], np.asarray(expected.x), atol=1e-10)


def test_a_process_that_fails_ends_all_and_is_named(starter, tmp_path):
    begun = time.monotonic()
    done = Job(tmp_path, FAILS).run(starter, 0)
    assert done.code != 0 and time.monotonic() - begun < 200, done.output
    assert "the data of process 1 are gone" in done.output
    assert "process 1 of 2 failed with exit status 1" in done.output


def test_the_signal_of_slurm_saves_and_the_next_start_continues(srun, tmp_path):
    """As `--signal=TERM@120` sends it, to the processes of the step."""
    job = Job(tmp_path / "interrupted")
    process = job.start(srun, 200_000_000)
    wait_for(lambda: list(job.saved.glob("[0-9]*")) or process.poll() is not None)
    slurm("scancel", "--signal=TERM", *slurm("squeue", "-h", "-o", "%i"))
    first = ended(process)
    assert first.code == 0 and first.processes, first.output
    steps = int(first.processes[0][2]) + 40
    assert (job.saved / str(steps - 40)).is_dir()
    resumed, whole = job.run(srun, steps), Job(tmp_path / "whole").run(srun, steps)
    assert_continues(first.processes, resumed.processes, whole.processes)


def test_a_requeued_job_continues(srun, tmp_path):
    """`sbatch`, and `scontrol requeue`, which is what Slurm does to a job that is preempted or whose machine fails."""
    job, output = Job(tmp_path / "requeued"), tmp_path / "output"
    job.goal.write_text("200000000")
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n{shlex.join([*srun.command(), *job.command])}\n")
    options = ["--ntasks=2", "--overcommit", "--requeue", "--open-mode=append", f"--output={output}"]
    submit = ["sbatch", "--parsable", *options, str(script)]
    made = subprocess.run(submit, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    number = made.stdout.strip()
    wait_for(lambda: list(job.saved.glob("[0-9]*")))
    slurm("scontrol", "requeuehold", number)
    first = wait_for(lambda: found if len(found := said(output.read_text()).processes) == 2 else None)
    steps = int(first[0][2]) + 40
    job.goal.write_text(str(steps))
    wait_for(lambda: slurm("squeue", "-h", "-j", number, "-o", "%T") == ["PENDING"])
    slurm("scontrol", "update", f"JobId={number}", "StartTime=now")
    slurm("scontrol", "release", number)
    both = wait_for(lambda: found if len(found := said(output.read_text()).processes) == 4 else None)
    whole = Job(tmp_path / "whole").run(srun, steps)
    assert_continues(first, [line for line in both if line not in first], whole.processes)
