"""Starts a script as one process among others: `python -m decibel.engines.launch script.py [ARGUMENTS]`.

`decibel launch`, `mpirun`, `srun` or a Kubernetes Job start this. It finds its place among the others (see
`environment`), joins them, and runs the script, which needs no changes.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from ._environment import ABSENT, ProcessInfo, process_info

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def join(process: ProcessInfo) -> None:
    """Meets the other processes."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    options = {}
    if process.coordinator is not None:
        options = {
            "coordinator_address": process.coordinator,
            "num_processes": process.processes,
            "process_id": process.process,
        }
        if process.coordinator.rpartition(":")[0] in LOOPBACK:
            options["coordinator_bind_address"] = process.coordinator
    before = signal.getsignal(signal.SIGTERM)
    jax.distributed.initialize(**options)
    # JAX takes SIGTERM for a service that is not used here; a run that saves checkpoints asks for it itself.
    signal.signal(signal.SIGTERM, before)


def run(script: str, arguments: list[str]) -> int:
    """Runs the script as `__main__` and returns its exit status. Tracebacks start at the script's own first line."""
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return 0 if end.code is None else end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != script:
            frames = frames.tb_next
        traceback.print_exception(type(error), error, frames or error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def main() -> None:
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_file():
        problem = f"{sys.argv[1]} is not a file" if len(sys.argv) > 1 else "the script is missing"
        sys.exit(f"{problem}: python -m decibel.engines.launch script.py [ARGUMENTS]")
    try:
        process = process_info(os.environ)
    except ValueError as error:
        sys.exit(str(error))
    if process is not None:
        join(process)
    status = run(sys.argv[1], sys.argv[2:])
    if status and process is not None:
        if ABSENT not in os.environ:  # `decibel launch` names it itself
            print(f"process {process.process} of {process.processes} failed with exit status {status}", file=sys.stderr)
        _leave(status)
    sys.exit(status)


def _leave(status: int) -> NoReturn:
    """Ends the process at once: an orderly end would wait for the others, which wait for this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
