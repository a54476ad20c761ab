"""`decibel launch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def launch(
    script: Annotated[Path, typer.Argument(help="A Python script that calls solve(..., engine=db.Cluster()).")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    processes: Annotated[int, typer.Option("--processes", "-n", min=1, help="Number of processes to start.")] = 2,
    elastic: Annotated[
        bool, typer.Option("--elastic", help="If a process is killed, continue without it from the last checkpoint.")
    ] = False,
    return_after: Annotated[
        float, typer.Option(min=0, help="Elastic: seconds until a lost process is restarted.")
    ] = 30.0,
    max_restarts: Annotated[int, typer.Option(min=0, help="Elastic: number of lost processes tolerated.")] = 10,
    grace: Annotated[float, typer.Option(min=0, help="Seconds to save and exit in, after a signal.")] = 60.0,
) -> None:
    """Run a script in several processes of this machine: decibel launch -n 4 script.py

    The script calls solve(..., engine=db.Cluster()); nodes are assigned to processes in order, equally.

    Every line of output is prefixed with the rank of its process. If one fails, all are terminated.

    With solve(..., checkpoint="folder", resume=True), Ctrl-C saves; after a restart the run continues.

    Processes compute on the CPU, unless JAX_PLATFORMS says otherwise.
    """
    from ...engines.launch._launch import Elastic
    from ...engines.launch._launch import launch as start

    if not script.is_file():
        raise typer.BadParameter(f"{script} is not a file: give the path of a Python script.")
    plan = Elastic(return_after, max_restarts) if elastic else None
    raise typer.Exit(start([str(script), *(arguments or [])], processes, elastic=plan, grace=grace))
