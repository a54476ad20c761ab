"""`doctor`, `bench`, `version` and `launch`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ._common import FAILED, Json, complain, console, emit


def doctor(json: Json = False) -> None:
    """Show versions, devices, extras, data and caches, and solve a small problem as a self-test."""
    from ._compilation import VARIABLE, keep_compiled

    keep_compiled()
    from ._doctor import examine

    found = examine()
    if json:
        emit(found)
    else:
        here = [name for name, state in found["data"].items() if state not in ("missing", "partly")]
        cache = found["compilation_cache"]
        test = found["self_test"]
        off = f"off ({VARIABLE}=off)" if cache["folder"] is None else "off"
        mark = lambda name, there: f"[green]{name}[/]" if there else f"[dim]{name} missing[/]"  # noqa: E731
        rows = {
            "decibel": f"{found['decibel']}, Python {found['python']} on {found['platform']}, {found['cores']} cores",
            "packages": ", ".join(f"{name} {number}" for name, number in found["versions"].items()),
            "devices": ", ".join(found["devices"]) + (", float64" if found["float64"] else ", float32"),
            "extras": ", ".join(mark(name, there) for name, there in found["extras"].items()),
            "data": f"{len(here)} of {len(found['data'])} here: {', '.join(here)}",
            "compiled steps": f"cached in {cache['folder']}" if cache["on"] else off,
            "self-test": f"{'solved' if test['well'] else 'NOT solved'} to {test['error']:.1g} "
            f"in {test['seconds']:.1f} s, {test['seconds_running']:.2f} of them running",
        }
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, value in rows.items():
            table.add_row(f"[bold]{name}", value)
        console().print(table)
    if not found["well"]:
        complain(f"The self-test is off by {found['self_test']['error']:.2g}: compare the versions with those pinned.")
        raise typer.Exit(FAILED)


def bench(
    name: Annotated[str, typer.Argument(help="In a checkout: a benchmark of benchmarks/.")] = "step",
    nodes: Annotated[int, typer.Option(min=1, help="Elsewhere: number of nodes of the ring that is measured.")] = 16,
    json: Json = False,
) -> None:
    """Measure the time of a step on this machine: the repository's benchmarks in a checkout, a short one elsewhere."""
    if Path("benchmarks/__main__.py").is_file() and not json:
        raise typer.Exit(subprocess.call([sys.executable, "-m", "benchmarks", name]))
    from ._doctor import measure_steps

    found = measure_steps(nodes)
    if json:
        emit(found)
        return
    for method, microseconds in found["microseconds_per_step"].items():
        console().print(f"{method:16} {microseconds:10.1f} µs a step over a ring of {nodes} nodes")


def version(json: Json = False) -> None:
    """Show the versions of Decibel and of the packages its numbers depend on."""
    from importlib.metadata import version as installed

    from .. import __version__

    packages = ("jax", "jaxlib", "numpy", "equinox", "optax")
    versions = {"decibel": __version__, **{package: installed(package) for package in packages}}
    if json:
        emit(versions)
        return
    for package, number in versions.items():
        typer.echo(f"{package} {number}")


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
    from ..engines.launch._launch import Elastic
    from ..engines.launch._launch import launch as start

    if not script.is_file():
        raise typer.BadParameter(f"{script} is not a file: give the path of a Python script.")
    plan = Elastic(return_after, max_restarts) if elastic else None
    raise typer.Exit(start([str(script), *(arguments or [])], processes, elastic=plan, grace=grace))
