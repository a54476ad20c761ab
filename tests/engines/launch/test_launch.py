"""Real processes: started together, watched, terminated together, and continued without."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from quadratics import Quadratic, random_quadratic
from xla import flags

import decibel as db
from decibel.engines.cluster import _preflight as preflight
from decibel.engines.launch._environment import ProcessInfo, absent, process_info

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("DECIBEL_PROC", "OMPI_", "SLURM_"))},
    "XLA_FLAGS": flags(),
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": str(Path(__file__).parents[2]),
}
QUADRATIC = random_quadratic(8, seed=3)
HEAD = """
import os, sys, time
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
import decibel as db
from quadratics import random_quadratic
quadratic = random_quadratic(8, seed=3)
"""


def launch(*arguments, **options):
    """The launcher, running; its two streams as one."""
    command = [sys.executable, "-uc", "from decibel.cli._app import app; app()", "launch", *map(str, arguments)]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=ENVIRONMENT, **both, **options)


def launched(*arguments):
    with launch(*arguments) as launcher:
        output = launcher.communicate(timeout=240)[0]
    return launcher.returncode, output


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


# The script names no process, no address and no coordinator.
SOLVE = (
    HEAD
    + """
from quadratics import upper_of_x
asked = set()
def data(node):
    asked.add(node)
    return {"R": quadratic.R[node][None], "e": quadratic.e[node][None]}
problem = db.Problem(upper_of_x, upper_data=data, x0=np.zeros(3))
result = db.solve(problem, db.ed(alpha=0.1), db.graphs.torus(2, 4), steps=20, eval_every=10, metrics=[],
                  engine=db.Cluster(), seed=int(sys.argv[1]) * jax.process_index())
print("data of", *sorted(asked))
print("here", len(result.nodes.x.addressable_shards), "of", jax.process_count(), jax.process_index())
print("x", *(repr(float(v)) for v in np.asarray(result.x)))
"""
)


def test_two_processes_give_the_simulators_numbers(script):
    status, output = launched("-n", 2, script(SOLVE), 0)
    assert status == 0, output
    assert "[0] here 1 of 2 0" in output and "[1] here 1 of 2 1" in output
    assert "[0] data of 0 1 2 3\n" in output and "[1] data of 4 5 6 7\n" in output  # each builds that of its own nodes
    graph = db.graphs.torus(2, 4)
    expected = db.solve(QUADRATIC.single(), db.ed(alpha=0.1), graph, steps=20, eval_every=10, metrics=[]).x
    for rank in (0, 1):
        found = re.search(rf"^\[{rank}\] x (.*)$", output, re.MULTILINE)[1]
        np.testing.assert_allclose([float(v) for v in found.split()], expected, rtol=1e-12)


@pytest.mark.slow
def test_processes_that_disagree_say_so_before_the_first_step(script):
    status, output = launched("-n", 2, script(SOLVE), 1)
    assert status == 1
    # All raise it; the first to end has the others ended, maybe before they print.
    assert re.search(
        r"^\[[01]\] ValueError: process 1 has seed 1 where process 0 has 0: start every process", output, re.M
    )


def test_a_failure_ends_all_and_names_the_process(script):
    path = script("import os, time\nif os.environ['DECIBEL_PROCESS'] == '1':\n    1 / 0\ntime.sleep(200)\n")
    begun = time.monotonic()
    status, output = launched("-n", 2, path)
    assert status == 1 and time.monotonic() - begun < 60
    *_, last = output.partition("decibel launch: process 1 failed with exit status 1; its last lines:\n")
    assert "ZeroDivisionError" in last and "[1] ZeroDivisionError" in output
    assert "runpy" not in output  # the traceback begins in the script


def test_one_process_is_the_script_itself(script):
    text = "import sys\nprint('given', sys.argv[1:], 'jax' in sys.modules, sys.path[0])\nsys.exit(3)"
    status, output = launched("-n", 1, script(text), "--flag", "-n", 5)
    assert f"[0] given ['--flag', '-n', '5'] False {script(text).parent}" in output
    assert status == 3 and "process 0 failed with exit status 3" in output
    status, output = launched("-n", 1, "missing.py")
    assert status == 2 and "missing.py is not a file" in output


def test_nobody_is_left(script):
    status, output = launched("--elastic", "-n", 1, script("import os\nos.kill(os.getpid(), 9)\n"))
    assert status == 1 and "process 0 was killed by SIGKILL; no process is left" in output


@pytest.mark.slow
def test_ctrl_c_is_passed_on_as_a_wish_to_end(script):
    text = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit('saved'))\nprint('begun')\n"
    with launch("-n", 1, script(text + "time.sleep(200)\n")) as launcher:
        assert "begun" in launcher.stdout.readline()
        launcher.send_signal(signal.SIGINT)
        rest = launcher.stdout.read()
    assert "[0] saved" in rest and launcher.returncode == 1  # by sys.exit with a sentence
    deaf = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('begun')\ntime.sleep(200)\n"
    with launch("-n", 1, "--grace", 3, script(deaf)) as launcher:
        assert "begun" in launcher.stdout.readline()
        launcher.send_signal(signal.SIGTERM)
        rest = launcher.stdout.read()
    assert launcher.returncode == 128 + signal.SIGTERM
    assert "killing process 0, which did not exit after the signal" in rest and "terminated by SIGTERM" in rest


RESUMED = (
    HEAD
    + """
def slowly(step, row):
    print("step", step, len(jax.devices()), os.getpid(), flush=True)
    time.sleep(float(sys.argv[2]))
result = db.solve(quadratic.single(), db.ed(alpha=0.2), db.graphs.ring(8), steps=int(sys.argv[3]), eval_every=50,
                  metrics=[], engine=db.Cluster(), checkpoint=sys.argv[1], resume=True, callbacks=[slowly])
print("stopped", result.message)
print("x", result.step, *(repr(float(v)) for v in np.asarray(result.nodes.x.addressable_shards[0].data[0])))
"""
)


def until(launcher, pattern):
    """The first line that matches, and all lines before it."""
    lines = []
    for line in launcher.stdout:
        lines.append(line)
        if found := re.match(pattern, line):
            return found, lines
    raise AssertionError("".join(lines))


@pytest.mark.slow
def test_ctrl_c_saves_and_a_new_launch_goes_on(script, tmp_path):
    path = script(RESUMED)
    with launch("-n", 2, path, tmp_path / "saved", 0.1, 100000) as launcher:
        until(launcher, r"\[0\] step 50 ")
        launcher.send_signal(signal.SIGINT)
        rest = launcher.stdout.read()
    assert launcher.returncode == 130 and "terminated by SIGINT" in rest
    (stopped,) = {
        int(step) for step in re.findall(r"stopped the process received a signal to terminate at step (\d+)", rest)
    }
    status, output = launched("-n", 4, path, tmp_path / "saved", 0, 1000)
    steps = [int(step) for step in re.findall(r"^\[0\] step (\d+) 4", output, re.MULTILINE)]
    assert status == 0 and steps[0] == stopped + 50 and steps[-1] == 1000
    found = re.search(r"^\[3\] x 1000 (.*)$", output, re.MULTILINE)[1].split()
    np.testing.assert_allclose([float(v) for v in found], QUADRATIC.single_solution(), atol=1e-9)


def solution_without(rank, processes):
    each = 8 // processes
    left = [node for node in range(8) if node // each != rank]
    return Quadratic(*(value[left] for value in QUADRATIC)).single_solution()


@pytest.mark.slow
def test_a_killed_process_is_done_without_and_taken_back(script, tmp_path):
    path = script(RESUMED)
    with launch("--elastic", "--return-after", 30, "-n", 4, path, tmp_path / "saved", 0.25, 6000) as launcher:
        found, _ = until(launcher, r"\[2\] step 200 4 (\d+)")
        os.kill(int(found[1]), signal.SIGKILL)
        until(launcher, "decibel launch: process 2 was killed by SIGKILL; continuing without process 2")
        _, without = until(launcher, "decibel launch: restarting with process 2: all processes save and restart")
        output = launcher.stdout.read()
    assert launcher.returncode == 0, output
    steps = [int(step) for step in re.findall(r"^\[0\] step (\d+) 3", "".join(without), re.MULTILINE)]
    assert 0 < steps[0] <= 250 and not any(line.startswith("[2]") for line in without)
    reached = {
        int(step): [float(v) for v in vector.split()]
        for step, vector in re.findall(r"^\[1\] x (\d+) (.*)$", output, re.MULTILINE)
    }
    assert len(reached) == 2  # when told to end, and at the end
    np.testing.assert_allclose(reached[min(reached)], solution_without(2, 4), atol=1e-7)
    np.testing.assert_allclose(reached[6000], QUADRATIC.single_solution(), atol=1e-7)


@pytest.mark.slow
def test_losses_are_counted(script):
    path = script("import os, time\nif os.environ['DECIBEL_PROCESS'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(200)")
    status, output = launched("--elastic", "--max-restarts", 1, "-n", 3, path)
    assert status == 1
    assert "process 1 was killed by SIGKILL; continuing without process 1" in output
    assert "process 2 was killed by SIGKILL; --max-restarts 1 is reached" in output


def mpirun(rank):
    """Open MPI 5 on one machine."""
    return {
        "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": f"test-{os.getpid()}",
        "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank,
    }  # fmt: skip


def srun(rank):
    return {
        "SLURM_NTASKS": "2", "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost",
        "SLURM_PROCID": rank, "SLURM_LOCALID": rank,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("starter", [mpirun, srun])
def test_processes_that_another_launcher_would_start(starter, script):
    """Its variables, set by hand."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "decibel.engines.launch", script(SOLVE), "0"],
            env=ENVIRONMENT | starter(str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [worker.communicate(timeout=240)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    assert "here 1 of 2 1" in outputs[1]


OWN = {"DECIBEL_COORDINATOR": "a:1", "DECIBEL_PROCESSES": "4", "DECIBEL_PROCESS": "3"}
INDEXED = {"DECIBEL_COORDINATOR": "job-0.job:1234", "DECIBEL_PROCESSES": "4", "JOB_COMPLETION_INDEX": "2"}
MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "node[01-02]",
    "SLURM_LOCALID": "1",
}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (OWN, ProcessInfo(3, 4, "a:1")),
        (INDEXED, ProcessInfo(2, 4, "job-0.job:1234")),
        (MPI | {"DECIBEL_COORDINATOR": "a:1"}, ProcessInfo(1, 2, "a:1")),
        (MPI | {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911"}, ProcessInfo(1, 2, None)),
        (SRUN, ProcessInfo(5, 8, None)),
        (SRUN | MPI | OWN, ProcessInfo(3, 4, "a:1")),
        (SRUN | {"DECIBEL_COORDINATOR": "a:1"}, ProcessInfo(5, 8, "a:1")),
        (SRUN | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, None),
        ({name: SRUN[name] for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID")}, None),  # no srun
    ],
)
def test_places(variables, expected):
    assert process_info(variables) == expected


def test_the_processes_of_one_mpirun_agree_on_an_address():
    local = MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-42"}
    other = process_info(local | {"OMPI_COMM_WORLD_RANK": "0"})
    assert other.coordinator == process_info(local).coordinator
    host, port = other.coordinator.split(":")
    assert host == "127.0.0.1" and 1024 < int(port) < 65536


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"DECIBEL_PROCESSES": "4"}, "DECIBEL_PROCESSES is set and DECIBEL_PROCESS is not: set it to"),
        ({"DECIBEL_COORDINATOR": "a:1"}, "DECIBEL_COORDINATOR is set and DECIBEL_PROCESSES is not: set it to"),
        ({"DECIBEL_PROCESSES": "2", "DECIBEL_PROCESS": "0"}, "DECIBEL_COORDINATOR is not set: set it to HOST:PORT"),
        (MPI, "DECIBEL_COORDINATOR is not set: set it to HOST:PORT"),
        (OWN | {"DECIBEL_PROCESS": "4"}, "DECIBEL_PROCESS=4 is not below DECIBEL_PROCESSES=4: number the processes"),
        (OWN | {"DECIBEL_PROCESS": "two"}, "DECIBEL_PROCESS='two' must be an integer"),
    ],
)
def test_places_that_make_no_sense(variables, sentence):
    with pytest.raises(ValueError, match=sentence):
        process_info(variables)


def test_absent_processes():
    assert absent({}) == absent({"DECIBEL_ABSENT": ""}) == ()
    assert absent({"DECIBEL_ABSENT": "3,1"}) == (1, 3)


def test_preflight_names_who_differs_and_in_what():
    own = {"settings": {"alpha": 0.1, "beta": 0.2}, "seed": 0, "graph": {"x": "a" * 500}}
    told = preflight.facts(own, steps=10)
    assert {"decibel", "jax", "python", "x64", "settings alpha", "seed", "steps", "graph x"} <= set(told)
    assert len(told) < preflight.SLOTS
    same = preflight.encode(told)
    preflight.compare(list(told), np.stack([same, same, same]))
    for name, value, sentence in (
        ("jax", "0.0.1", f"process 2 has jax 0.0.1 where process 0 has {told['jax']}: start every process"),
        ("settings alpha", 0.3, "process 2 has settings alpha 0.3 where process 0 has 0.1: "),
        ("graph x", "a" * 500 + "b", r"process 2 has graph x aa.*\.\.\. where process 0 has aa.*\.\.\.: "),  # by digest
    ):
        other = preflight.encode(told | {name: value})
        with pytest.raises(ValueError, match=sentence):
            preflight.compare(list(told), np.stack([same, same, other]))
    more = preflight.encode({**told, "news": 1})  # a later version knows one more
    with pytest.raises(ValueError, match=f"process 1 has fact {len(told)} 1 where process 0 has nothing: "):
        preflight.compare(list(told), np.stack([same, more]))


def test_preflight_counts_devices():
    preflight.validate_equal_devices([0, 0, 1, 1])
    with pytest.raises(ValueError, match="process 1 has 1 devices where process 0 has 2: give every"):
        preflight.validate_equal_devices([0, 0, 1, 2, 2])
