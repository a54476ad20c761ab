"""The command line. What is heavy to import is imported by the command that needs it, so that `--help` is instant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

Answer = TypeVar("Answer")

app = typer.Typer(
    help="Decentralized bilevel optimization: nodes keep their data, talk to their neighbours, and agree.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Find, fetch and verify datasets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
silo_app = typer.Typer(help="Run over several organisations, each next to its own data.", no_args_is_help=True)
app.add_typer(silo_app, name="silo")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("decibel-demo"),
    seed: Annotated[int, typer.Option(help="Of the deal, the corruption and the batches.", min=0)] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the iterations: to see that it works.")] = False,
) -> None:
    """Clean corrupted labels over a ring of ten nodes, by four methods side by side: a table and a figure."""
    from .demo import run

    run(out, seed=seed, quick=quick, console=_console())


@app.command()
def run(
    task: Annotated[str, typer.Argument(help="A task of `decibel list`, such as label_cleaning.")],
    method: Annotated[str, typer.Option(help="A method of `decibel list`.")] = "sparkle-ed",
    graph: Annotated[
        str, typer.Option(help="A graph family of `decibel list`; erdos_renyi:0.5 takes a number.")
    ] = "ring",
    nodes: Annotated[int, typer.Option(min=1)] = 10,
    steps: Annotated[int, typer.Option(min=1)] = 1000,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples per node and step; all if left out.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the data's deal and the batches.")] = 0,
    set_: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE: a step size, or task.KEY=VALUE.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the trace and the figure.")] = Path("decibel-run"),
    checkpoint: Annotated[Path | None, typer.Option(help="Folder to save the run in as it goes.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --checkpoint.")] = False,
) -> None:
    """Solve a task by a method over a graph; leave a trace and a figure."""
    from .running import run as run_task

    _or_exit(
        lambda: run_task(
            task, method, graph, nodes=nodes, steps=steps, batch_size=batch_size, seed=seed, settings=set_ or [],
            out=out, checkpoint=checkpoint, resume=resume, console=_console(),
        )
    )  # fmt: skip


@app.command(context_settings={"allow_interspersed_args": False})
def launch(
    script: Annotated[Path, typer.Argument(help="A Python script that calls solve(..., engine=db.Cluster()).")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the script is given.")] = None,
    processes: Annotated[int, typer.Option("--processes", "-n", min=1, help="How many to start.")] = 2,
    elastic: Annotated[
        bool, typer.Option("--elastic", help="Go on without a process that is killed, from the last checkpoint.")
    ] = False,
    return_after: Annotated[float, typer.Option(min=0, help="Elastic: seconds until a lost process is back.")] = 30.0,
    max_restarts: Annotated[int, typer.Option(min=0, help="Elastic: how many losses to live through.")] = 10,
    grace: Annotated[float, typer.Option(min=0, help="Seconds to save and end in, when told to.")] = 60.0,
) -> None:
    """Run a script in several processes of this machine: decibel launch -n 4 script.py

    The script calls solve(..., engine=db.Cluster()); nodes are dealt to processes in order, equally.

    Every line is shown behind the number of its process. Where one fails, all end.

    With solve(..., checkpoint="folder", resume=True), Ctrl-C saves; started again, it continues.

    Processes compute on the CPU, unless JAX_PLATFORMS says otherwise.
    """
    from .launch import Elastic
    from .launch import launch as start

    if not script.is_file():
        raise typer.BadParameter(f"{script} is no file: give the path of a Python script.")
    plan = Elastic(return_after, max_restarts) if elastic else None
    raise typer.Exit(start([str(script), *(arguments or [])], processes, elastic=plan, grace=grace))


@app.command()
def reproduce(
    names: Annotated[list[str], typer.Argument(help="Studies such as sparkle/hyper-cleaning, or all.")],
    size: Annotated[str, typer.Option(help="smoke (seconds), small (minutes on two cores) or full (a GPU).")] = "small",
    out: Annotated[Path | None, typer.Option(help="Folder for the results [default: decibel-results/SIZE].")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what is there already.")] = False,
    tune: Annotated[bool, typer.Option("--tune", help="First search the step sizes, where not done yet.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Several studies: processes at a time.")] = 1,
) -> None:
    """Run a published experiment and judge its claims from the numbers.

    What is there already is not run again; a run that was interrupted continues.
    """
    from .report import draw
    from .studies.command import run as run_studies

    folder, done = _or_exit(
        lambda: run_studies(names, size, out, fresh=fresh, tune=tune, jobs=jobs, console=_console())
    )
    for name in done:
        draw(name, folder)


@app.command()
def report(
    results: Annotated[Path, typer.Option(help="Folder that `decibel reproduce` left.")] = Path(
        "decibel-results/small"
    ),
    out: Annotated[Path, typer.Option(help="Folder for the pages.")] = Path("decibel-report"),
) -> None:
    """Make pages from results: figures, claims with verdicts, settings. They need no network."""
    from .report import write

    pages = _or_exit(write, results, out)
    _console().print(f"{len(pages)} pages; begin with {out / 'index.html'}.", soft_wrap=True)


@app.command("list")
def list_() -> None:
    """Show the methods, strategies, graph families, metrics, tasks and studies there are."""
    import inspect

    from . import graphs, tasks
    from .algorithms.catalog import CATALOG
    from .metrics import METRICS
    from .strategies import STRATEGIES
    from .studies import NAMES

    families = inspect.getmembers(graphs, lambda item: inspect.isfunction(item) and item.__module__ == graphs.__name__)
    known = {
        "methods": ["sparkle-LOWER", "sparkle-LOWER-UPPER", *(name for name in CATALOG if "sparkle" not in name)],
        "strategies": STRATEGIES,
        "graphs": [name for name, _ in families if not name.startswith("_")],
        "metrics": METRICS,
        "tasks": [name for name in tasks.__all__ if inspect.isfunction(getattr(tasks, name))],
        "studies": NAMES,
    }
    table = Table(show_header=False, box=None, padding=(0, 2, 1, 0))
    for kind, names in known.items():
        table.add_row(f"[bold]{kind}", ", ".join(names))
    _console().print(table)


@app.command()
def version() -> None:
    """Show the versions of Decibel and of what its numbers depend on."""
    from importlib.metadata import version as installed

    from . import __version__

    typer.echo(f"decibel {__version__}")
    for package in ("jax", "jaxlib", "numpy", "equinox", "optax"):
        typer.echo(f"{package} {installed(package)}")


@data_app.command("list")
def data_list() -> None:
    """Show every dataset, whether it is here, and where."""
    from .tasks.data import available, cache_folder

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("name", "what it is", "where", "size", "licence"):
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    for row in _or_exit(available):
        here = {"missing": "[dim]missing", "partly": "[yellow]partly"}.get(row.state, f"[green]{row.state}")
        fetchable = row.state == "missing" and not row.downloadable
        table.add_row(
            row.name,
            row.title,
            here + (" (by hand only)" if fetchable else ""),
            f"{row.bytes / 1e6:.1f} MB" if row.bytes else "",
            row.licence,
        )
    console = _console()
    console.print(table)
    console.print(f"\nLooked in $DECIBEL_DATA, then in {cache_folder()}.", soft_wrap=True, highlight=False)


@data_app.command("fetch")
def data_fetch(name: Annotated[str, typer.Argument(help="A name of `decibel data list`.")]) -> None:
    """Download a dataset into the cache and check it."""
    from .tasks.data import fetch

    paths = _or_exit(fetch, name)
    for path in paths:
        typer.echo(path)
    if not paths:
        typer.echo(f"{name} comes with scikit-learn: there is nothing to fetch.")


@data_app.command("verify")
def data_verify(
    name: Annotated[str | None, typer.Argument(help="One dataset; all that are here if left out.")] = None,
) -> None:
    """Compare the files that are here with their published checksums."""
    from .tasks.data import verify

    checks = _or_exit(verify, name)
    for check in checks:
        if check.state != "missing" or name is not None:
            typer.echo(f"{check.state:8} {check.name:24} {check.detail or check.path}")
    here = [check for check in checks if check.state != "missing"]
    damaged = [check for check in here if check.state == "damaged"]
    typer.echo(f"{len(here)} files here, {len(damaged)} damaged.")
    if damaged or (name is not None and len(here) < len(checks)):
        raise typer.Exit(1)


Problem = Annotated[str, typer.Option(help="module:function, which returns a db.Problem with data by node.")]
Federation = Annotated[Path, typer.Argument(help="A TOML file: sites, edges, method, steps (docs/silo.md).")]
Out = Annotated[Path, typer.Option(help="Folder of the authority and of what sites get.")]


@silo_app.command("init")
def silo_init(federation: Federation, out: Out = Path("silo")) -> None:
    """Make an authority, to be kept offline, and the signed federation file that every site gets."""
    _or_exit(lambda: _silo().init(federation, out, _console()))


@silo_app.command("join")
def silo_join(
    name: Annotated[str, typer.Argument(help="This site's name in the federation file.")],
    public: Annotated[Path, typer.Option(help="The folder that came from `init`.")] = Path("silo/public"),
    home: Annotated[Path | None, typer.Option(help="This site's folder [default: silo/NAME].")] = None,
) -> None:
    """Make this site's key, which never leaves it, and a request to sign."""
    _or_exit(lambda: _silo().join(name, public, home or Path("silo") / name, _console()))


@silo_app.command("sign")
def silo_sign(
    requests: Annotated[list[Path], typer.Argument(help="The sites' request.pem files.")],
    out: Out = Path("silo"),
    days: Annotated[float, typer.Option(min=0, help="How long the certificates hold.")] = 365,
) -> None:
    """Sign requests with the authority's key: a certificate beside each."""
    _or_exit(lambda: _silo().sign(requests, out, days, _console()))


@silo_app.command("revoke")
def silo_revoke(
    certificates: Annotated[list[Path], typer.Argument(help="certificate.pem files that no longer count.")],
    out: Out = Path("silo"),
) -> None:
    """Add certificates to the signed list of those that no longer count."""
    _or_exit(lambda: _silo().revoke(certificates, out, _console()))


@silo_app.command("run")
def silo_run(
    name: Annotated[str, typer.Argument(help="This site's name in the federation file.")],
    problem: Problem,
    home: Annotated[Path | None, typer.Option(help="This site's folder [default: silo/NAME].")] = None,
) -> None:
    """Run this site's part; started again, it continues."""
    _or_exit(lambda: _silo().run(name, problem, home or Path("silo") / name, _console()))


@silo_app.command("status")
def silo_status(
    homes: Annotated[list[Path] | None, typer.Argument(help="Sites' folders [default: all under silo].")] = None,
) -> None:
    """Show how the sites whose folders are here are doing."""
    found = homes or sorted(path.parent for path in Path("silo").glob("*/key.pem") if path.parent.name != "authority")
    _or_exit(lambda: _silo().status(found, _console()))


@silo_app.command("rehearse")
def silo_rehearse(
    federation: Federation,
    problem: Problem,
    out: Annotated[Path, typer.Option(help="Folder for the rehearsal; emptied first.")] = Path("silo-rehearsal"),
) -> None:
    """Run the whole federation on this machine, every site a process of its own."""
    _silo()
    from .silo.rehearsal import rehearse

    raise typer.Exit(_or_exit(lambda: rehearse(federation, problem, out, _console())))


def _silo() -> Any:
    try:
        import cryptography  # noqa: F401
        import grpc  # noqa: F401
    except ImportError:
        raise ValueError("silo needs grpcio and cryptography: pip install 'decibel-opt[silo]'.") from None
    from .silo import command

    return command


def _console() -> Console:
    return Console(highlight=False)


def _or_exit(function: Callable[..., Answer], *arguments: Any) -> Answer:
    """Errors that are sentences to the user end the command instead of showing a traceback."""
    from .tasks.data import DataError

    try:
        return function(*arguments)
    except (DataError, ValueError, TypeError, KeyError) as error:
        sentence = error.args[0] if error.args else error
        Console(stderr=True, highlight=False, markup=False).print(str(sentence), style="red", soft_wrap=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    app()
