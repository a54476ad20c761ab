"""`decibel silo`: a federation of organisations, each next to its own data."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from ..core._optional import optional
from ._common import FAILED, console, or_exit

app = typer.Typer(help="Run over several organisations, each next to its own data.", no_args_is_help=True)

Problem = Annotated[str, typer.Option(help="module:function that returns a db.Problem with data per node.")]
Federation = Annotated[Path, typer.Argument(help="A TOML file: sites, edges, method, steps (docs/silo.md).")]
Out = Annotated[Path, typer.Option(help="Folder for the authority and for the files of the sites.")]


@app.command("init")
def init(federation: Federation, out: Out = Path("silo")) -> None:
    """Create an authority, to be kept offline, and the signed federation file for all sites."""
    or_exit(lambda: _silo().init(federation, out, console()), usage_error=FAILED)


@app.command("join")
def join(
    name: Annotated[str, typer.Argument(help="This site's name in the federation file.")],
    public: Annotated[Path, typer.Option(help="The public folder that `init` created.")] = Path("silo/public"),
    home: Annotated[Path | None, typer.Option(help="This site's folder (default: silo/NAME).")] = None,
) -> None:
    """Create this site's key, which never leaves it, and a certificate request."""
    or_exit(lambda: _silo().join(name, public, home or Path("silo") / name, console()), usage_error=FAILED)


@app.command("sign")
def sign(
    requests: Annotated[list[Path], typer.Argument(help="The sites' request.pem files.")],
    out: Out = Path("silo"),
    days: Annotated[float, typer.Option(min=0, help="Days for which the certificates are valid.")] = 365,
) -> None:
    """Sign certificate requests with the authority's key; each certificate is written next to its request."""
    or_exit(lambda: _silo().sign(requests, out, days, console()), usage_error=FAILED)


@app.command("revoke")
def revoke(
    certificates: Annotated[list[Path], typer.Argument(help="certificate.pem files to revoke.")],
    out: Out = Path("silo"),
) -> None:
    """Add certificates to the signed list of revoked ones."""
    or_exit(lambda: _silo().revoke(certificates, out, console()), usage_error=FAILED)


@app.command("run")
def run(
    name: Annotated[str, typer.Argument(help="This site's name in the federation file.")],
    problem: Problem,
    home: Annotated[Path | None, typer.Option(help="This site's folder (default: silo/NAME).")] = None,
) -> None:
    """Run this site; after a restart it continues from its checkpoint."""
    or_exit(lambda: _silo().run(name, problem, home or Path("silo") / name, console()), usage_error=FAILED)


@app.command("status")
def status(
    homes: Annotated[list[Path] | None, typer.Argument(help="Sites' folders (default: all under silo).")] = None,
) -> None:
    """Show the status of the sites whose folders are on this machine."""
    found = homes or sorted(path.parent for path in Path("silo").glob("*/key.pem") if path.parent.name != "authority")
    or_exit(lambda: _silo().status(found, console()), usage_error=FAILED)


@app.command("rehearse")
def rehearse(
    federation: Federation,
    problem: Problem,
    out: Annotated[Path, typer.Option(help="Folder for the rehearsal; emptied first.")] = Path("silo-rehearsal"),
) -> None:
    """Run the whole federation on this machine, one process per site."""

    def everyone() -> int:
        _silo()
        from ._silo_rehearsal import rehearse

        return rehearse(federation, problem, out, console())

    raise typer.Exit(or_exit(everyone, usage_error=FAILED))


def _silo() -> ModuleType:
    with optional("grpcio and cryptography", caller="decibel silo", extra="silo"):
        import cryptography  # noqa: F401
        import grpc  # noqa: F401
    from . import _silo_command as command

    return command
