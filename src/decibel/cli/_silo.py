"""`decibel silo`: a federation of organisations, each next to its own data."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from ..core._optional import optional
from ._common import FAILED, console, or_exit

app = typer.Typer(help="Run over several organisations, each next to its own data.", no_args_is_help=True)

Problem = Annotated[str, typer.Option(help="module:function, which returns a db.Problem with data by node.")]
Federation = Annotated[Path, typer.Argument(help="A TOML file: sites, edges, method, steps (docs/silo.md).")]
Out = Annotated[Path, typer.Option(help="Folder of the authority and of what sites get.")]


@app.command("init")
def init(federation: Federation, out: Out = Path("silo")) -> None:
    """Make an authority, to be kept offline, and the signed federation file that every site gets."""
    or_exit(lambda: _silo().init(federation, out, console()), refused=FAILED)


@app.command("join")
def join(
    name: Annotated[str, typer.Argument(help="This site's name in the federation file.")],
    public: Annotated[Path, typer.Option(help="The folder that came from `init`.")] = Path("silo/public"),
    home: Annotated[Path | None, typer.Option(help="This site's folder [default: silo/NAME].")] = None,
) -> None:
    """Make this site's key, which never leaves it, and a request to sign."""
    or_exit(lambda: _silo().join(name, public, home or Path("silo") / name, console()), refused=FAILED)


@app.command("sign")
def sign(
    requests: Annotated[list[Path], typer.Argument(help="The sites' request.pem files.")],
    out: Out = Path("silo"),
    days: Annotated[float, typer.Option(min=0, help="How long the certificates hold.")] = 365,
) -> None:
    """Sign requests with the authority's key: a certificate beside each."""
    or_exit(lambda: _silo().sign(requests, out, days, console()), refused=FAILED)


@app.command("revoke")
def revoke(
    certificates: Annotated[list[Path], typer.Argument(help="certificate.pem files that no longer count.")],
    out: Out = Path("silo"),
) -> None:
    """Add certificates to the signed list of those that no longer count."""
    or_exit(lambda: _silo().revoke(certificates, out, console()), refused=FAILED)


@app.command("run")
def run(
    name: Annotated[str, typer.Argument(help="This site's name in the federation file.")],
    problem: Problem,
    home: Annotated[Path | None, typer.Option(help="This site's folder [default: silo/NAME].")] = None,
) -> None:
    """Run this site's part; started again, it continues."""
    or_exit(lambda: _silo().run(name, problem, home or Path("silo") / name, console()), refused=FAILED)


@app.command("status")
def status(
    homes: Annotated[list[Path] | None, typer.Argument(help="Sites' folders [default: all under silo].")] = None,
) -> None:
    """Show how the sites whose folders are here are doing."""
    found = homes or sorted(path.parent for path in Path("silo").glob("*/key.pem") if path.parent.name != "authority")
    or_exit(lambda: _silo().status(found, console()), refused=FAILED)


@app.command("rehearse")
def rehearse(
    federation: Federation,
    problem: Problem,
    out: Annotated[Path, typer.Option(help="Folder for the rehearsal; emptied first.")] = Path("silo-rehearsal"),
) -> None:
    """Run the whole federation on this machine, every site a process of its own."""

    def everyone() -> int:
        _silo()
        from ._silo_rehearsal import rehearse

        return rehearse(federation, problem, out, console())

    raise typer.Exit(or_exit(everyone, refused=FAILED))


def _silo() -> ModuleType:
    with optional("grpcio and cryptography", caller="decibel silo", extra="silo"):
        import cryptography  # noqa: F401
        import grpc  # noqa: F401
    from . import _silo_command as command

    return command
