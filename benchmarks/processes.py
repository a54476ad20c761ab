"""Real processes on this machine that work together through gloo over loopback, and one answer from each."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

TOLD = "DECIBEL_TOLD"


def free_address() -> str:
    """A port of this machine that nobody uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def together(
    module: str, processes: int, told: Mapping[str, Any], *, devices: int = 1, patience: float = 1_800
) -> list[Any]:
    """Runs `python -m MODULE` in that many processes, each with so many devices; what each answered. A process that
    takes longer than `patience` seconds is given up with all others."""
    address = free_address()
    flags = f"--xla_force_host_platform_device_count={devices}" if devices > 1 else ""
    path = os.pathsep.join(filter(None, sys.path))  # where this process finds modules, they do too
    base = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": path}
    started: list[subprocess.Popen[str]] = []
    for rank in range(processes):
        message = json.dumps({"address": address, "processes": processes, "rank": rank, "told": told})
        command, environment = [sys.executable, "-m", module], {**base, TOLD: message}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True))
    try:
        answers = [process.communicate(timeout=patience) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, answers, strict=True):
        if process.returncode:
            raise RuntimeError(f"a process of {module} ended with {process.returncode}:\n{errors[-2000:]}")
    return [json.loads(output.splitlines()[-1]) for output, _ in answers]


def join() -> tuple[int, dict[str, Any]]:
    """In one of the processes: meets the others; its rank and what it was told."""
    import jax

    message = json.loads(os.environ[TOLD])
    if message["processes"] > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(message["address"], message["processes"], message["rank"])
    return message["rank"], message["told"]


def answer(value: Any) -> None:
    print(json.dumps(value), flush=True)
