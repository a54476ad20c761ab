"""Let Ray place the processes of a run, one for each node, and start them again when one is lost.

Run it with `python examples/ray_cluster.py [FOLDER]`, which needs the extras `ray` and `checkpoint`: a minute on a
laptop, no download. Without `RAY_ADDRESS` it starts a Ray cluster on this machine. On a real cluster Ray spreads the
processes over the machines, which must share FOLDER. In its first start process 2 kills itself, to show what happens
then. A second run without this loss ends with the same numbers, bit for bit.
"""

import os
import signal
import socket
import sys
import tempfile

import jax
import numpy as np
import ray

import decibel as db

NODES, STEPS, LOST, LOST_AT, STARTS = 4, 600, 2, 350, 3


def samples(node):  # called in the process of this node only
    return np.random.default_rng(node).normal(size=(20, 3))


def upper(x, y, batch):
    return ((y - batch) ** 2).mean() + 0.1 * (x**2).sum()


def lower(x, y, batch):
    return ((y - batch - x) ** 2).mean()


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")  # with num_gpus=1 every process has a GPU to itself
class Process:
    def address(self):
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def solve(self, number, coordinator, folder, dies):
        def die(step, row):
            if dies and step >= LOST_AT:
                os.kill(os.getpid(), signal.SIGKILL)

        jax.config.update("jax_cpu_collectives_implementation", "gloo")  # on CPUs only
        jax.distributed.initialize(coordinator, num_processes=NODES, process_id=number)
        start = {"x0": np.ones(3, np.float32), "y0": np.zeros(3, np.float32)}
        problem = db.Problem(upper, lower, upper_data=samples, lower_data=samples, **start)
        method = db.sparkle("ed", alpha=0.02, beta=0.1, gamma=0.1)
        options = {"steps": STEPS, "batch_size": 5, "eval_every": 50, "checkpoint": folder, "resume": True}
        result = db.solve(problem, method, db.graphs.ring(NODES), engine=db.Cluster(), callbacks=[die], **options)
        return result.step, np.asarray(result.x)


def start(folder, loses):
    """All processes once; the step they reach and the solution. Raises ConnectionError when one is lost."""
    processes = [Process.remote() for _ in range(NODES)]
    try:
        coordinator = ray.get(processes[0].address.remote())
        runs = {
            process.solve.remote(number, coordinator, folder, loses and number == LOST): number
            for number, process in enumerate(processes)
        }
        running = list(runs)
        while running:
            ended, running = ray.wait(running)
            try:
                found = ray.get(ended[0])
            except ray.exceptions.RayError:  # of the lost process, or of a neighbour that no longer hears from it
                if lost := lost_of(runs):
                    raise ConnectionError(f"process {lost[0]} was lost") from None
                raise
        return found
    finally:
        for process in processes:  # those that are left would wait for the lost one
            ray.kill(process)


def lost_of(runs):
    """The numbers of the processes that are gone; the others raised what their script raises."""
    lost = []
    for run in ray.wait(list(runs), num_returns=NODES, timeout=2)[0]:
        try:
            ray.get(run)
        except ray.exceptions.RayActorError:
            lost.append(runs[run])
        except ray.exceptions.RayTaskError:
            pass
    return lost


def run(folder, loses):
    """Starts until one comes to its end; each continues from the newest checkpoint."""
    os.makedirs(folder, exist_ok=True)
    for attempt in range(STARTS):
        try:
            return start(folder, loses and attempt == 0)
        except ConnectionError as loss:
            saved = max((int(name) for name in os.listdir(folder) if name.isdigit()), default=0)
            print(f"{loss}: starting all {NODES} again, from the checkpoint of step {saved}", flush=True)
    sys.exit(f"processes were lost in {STARTS} starts, so the run is given up: its checkpoints are in {folder}.")


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    local = {"num_cpus": NODES, "include_dashboard": False, "object_store_memory": 100 * 2**20}
    ray.init(log_to_driver=False, logging_level="ERROR", **({} if "RAY_ADDRESS" in os.environ else local))
    solutions = {}
    for name in ("with a loss", "without a loss"):
        step, solutions[name] = run(os.path.join(folder, name.replace(" ", "-")), name == "with a loss")
        print(f"{name}: {NODES} processes at step {step}, x = {solutions[name]}", flush=True)
    print("equal bit for bit:", (solutions["with a loss"] == solutions["without a loss"]).all())
    ray.shutdown()
