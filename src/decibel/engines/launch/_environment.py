"""The variables by which the processes of one run find each other, whatever started them.

Under Slurm and Open MPI 4 `jax.distributed.initialize()` finds the coordinator and this process's number by itself.
Here is what it does not know: whether there are other processes at all, before JAX is loaded; DECIBEL_*, which
`decibel launch` sets, with the processes that were lost; Open MPI 5 without mpi4py; and indexed Jobs of Kubernetes
without the kubernetes package and the right to list pods.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping
from typing import NamedTuple

COORDINATOR = "DECIBEL_COORDINATOR"  # host:port of process 0
PROCESSES = "DECIBEL_PROCESSES"
PROCESS = "DECIBEL_PROCESS"
ABSENT = "DECIBEL_ABSENT"  # the numbers, separated by commas, of processes that were lost

KUBERNETES_INDEX = "JOB_COMPLETION_INDEX"
OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
SLURM = ("SLURM_PROCID", "SLURM_NTASKS")
SLURM_STEP = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_LOCALID")  # only what srun starts has all of them


def free_address() -> str:
    """On loopback, where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


class ProcessInfo(NamedTuple):
    """One process among others. Without a `coordinator`, `jax.distributed.initialize()` finds it."""

    process: int
    processes: int
    coordinator: str | None


def process_info(variables: Mapping[str, str]) -> ProcessInfo | None:
    """This process's place: by DECIBEL_*, then Open MPI's variables, then Slurm's. None for a single process."""
    rank, count = _numbers(variables)
    if rank is None:
        return None
    process, processes = _whole(variables, rank), _whole(variables, count)
    if process >= processes:
        raise ValueError(f"{rank}={process} is not below {count}={processes}: number the processes from 0.")
    if processes == 1:
        return None
    return ProcessInfo(process, processes, variables.get(COORDINATOR) or _coordinator(variables, rank))


def absent(variables: Mapping[str, str]) -> tuple[int, ...]:
    """The processes that were lost."""
    return tuple(sorted(int(number) for number in variables.get(ABSENT, "").split(",") if number.strip()))


def _numbers(variables: Mapping[str, str]) -> tuple[str | None, str]:
    """The names of the variables that hold this process's number and how many there are."""
    if PROCESSES in variables:
        for rank in (PROCESS, KUBERNETES_INDEX, OPEN_MPI[0], SLURM[0]):
            if rank in variables:
                return rank, PROCESSES
        raise ValueError(f"{PROCESSES} is set and {PROCESS} is not: set it to this process's number, from 0.")
    for variable in (PROCESS, COORDINATOR):
        if variable in variables and not (OPEN_MPI[1] in variables or SLURM[1] in variables):
            raise ValueError(f"{variable} is set and {PROCESSES} is not: set it to the number of processes.")
    if OPEN_MPI[0] in variables:
        return OPEN_MPI
    if all(name in variables for name in (*SLURM, *SLURM_STEP)):
        return SLURM
    return None, PROCESSES


def _coordinator(variables: Mapping[str, str], rank: str) -> str | None:
    if rank == SLURM[0]:
        return None
    if rank == OPEN_MPI[0]:
        if "OMPI_MCA_orte_hnp_uri" in variables:  # Open MPI 4
            return None
        name = variables.get("PMIX_NAMESPACE")
        if name and variables.get("OMPI_COMM_WORLD_LOCAL_SIZE") == variables[OPEN_MPI[1]]:
            digest = hashlib.sha256(name.encode()).digest()
            return f"127.0.0.1:{61440 + int.from_bytes(digest[:2]) % 4096}"
    raise ValueError(f"{COORDINATOR} is not set: set it to HOST:PORT, where HOST is the machine of process 0.")


def _whole(variables: Mapping[str, str], name: str) -> int:
    value = variables[name]
    if not value.isdigit():
        raise ValueError(f"{name}={value!r} must be an integer.")
    return int(value)
