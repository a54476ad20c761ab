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


PassphraseFile = Annotated[
    Path | None,
    typer.Option(help="A file with the passphrase of the authority's key (or: $DECIBEL_SILO_PASSPHRASE, or a prompt)."),
]
NoPassphrase = Annotated[bool, typer.Option("--no-passphrase", help="Store the authority's key unencrypted.")]
ListDays = Annotated[float, typer.Option(min=0, help="Days for which the list of revoked keys is valid.")]


@app.command("init")
def init(
    federation: Federation,
    out: Out = Path("silo"),
    list_days: ListDays = 90,
    passphrase_file: PassphraseFile = None,
    no_passphrase: NoPassphrase = False,
) -> None:
    """Create an authority, to be kept offline, and the signed federation file for all sites."""

    def made() -> None:
        authority = _authority()
        authority.init(federation, out, list_days, _new_passphrase(passphrase_file, no_passphrase), console())

    or_exit(made, usage_error=FAILED)


@app.command("join")
def join(
    name: Annotated[str, typer.Argument(help="This site's name in the federation file.")],
    public: Annotated[Path, typer.Option(help="The public folder that `init` created.")] = Path("silo/public"),
    home: Annotated[Path | None, typer.Option(help="This site's folder (default: silo/NAME).")] = None,
    new_key: Annotated[bool, typer.Option("--new-key", help="Make a new key, which replaces the old one.")] = False,
    authority: Annotated[
        str | None,
        typer.Option(help="The authority's fingerprint as you were told it; replaces the one trusted so far."),
    ] = None,
) -> None:
    """Create this site's key, which never leaves it, and a certificate request."""

    def made() -> None:
        _silo().join(name, public, home or Path("silo") / name, console(), replace_key=new_key, told=authority)

    or_exit(made, usage_error=FAILED)


@app.command("sign")
def sign(
    requests: Annotated[list[Path], typer.Argument(help="The sites' request.pem files.")],
    out: Out = Path("silo"),
    days: Annotated[float, typer.Option(min=0, help="Days for which the certificates are valid.")] = 365,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Sign certificate requests with the authority's key; each certificate is written next to its request."""

    def signed() -> None:
        authority = _authority()
        authority.sign(requests, out, days, authority.load_authority(out, passphrase_file), console())

    or_exit(signed, usage_error=FAILED)


@app.command("revoke")
def revoke(
    certificates: Annotated[list[Path] | None, typer.Argument(help="certificate.pem files to revoke.")] = None,
    site: Annotated[list[str] | None, typer.Option(help="Revoke every key ever certified for this site.")] = None,
    out: Out = Path("silo"),
    list_days: ListDays = 90,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Add the keys of certificates to the signed list of revoked ones; without any, renew the list."""

    def revoked() -> None:
        authority = _authority()
        signer = authority.load_authority(out, passphrase_file)
        authority.revoke(certificates or [], site or [], out, list_days, signer, console())

    or_exit(revoked, usage_error=FAILED)


@app.command("ledger")
def ledger(out: Out = Path("silo")) -> None:
    """Show everything that the authority has signed."""
    or_exit(lambda: _authority().show_ledger(out, console()), usage_error=FAILED)


@app.command("passphrase")
def passphrase(
    out: Out = Path("silo"),
    passphrase_file: PassphraseFile = None,
    new_file: Annotated[Path | None, typer.Option(help="A file with the new passphrase (default: a prompt).")] = None,
    no_passphrase: NoPassphrase = False,
) -> None:
    """Change the passphrase of the authority's key."""

    def changed() -> None:
        authority = _authority()
        signer = authority.load_authority(out, passphrase_file)
        authority.change_passphrase(out, signer, _new_passphrase(new_file, no_passphrase), console())

    or_exit(changed, usage_error=FAILED)


@app.command("run")
def run(
    name: Annotated[str, typer.Argument(help="This site's name in the federation file.")],
    problem: Problem,
    home: Annotated[Path | None, typer.Option(help="This site's folder (default: silo/NAME).")] = None,
    budget: Annotated[
        float | None, typer.Option(help="The largest ε of all data of this site, over all its runs: then it stops.")
    ] = None,
    record_budget: Annotated[
        float | None, typer.Option(help="The largest ε of one record, over all runs: then it stops.")
    ] = None,
    delta: Annotated[float, typer.Option(help="The δ of both, well below 1/samples.")] = 1e-5,
    log_format: Annotated[str, typer.Option(help="Lines of the log: text, or json.")] = "text",
    progress_every: Annotated[float, typer.Option(min=0, help="Seconds between lines of progress; 0: none.")] = 60.0,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Serve /healthz and /metrics (Prometheus) at this port of 127.0.0.1."),
    ] = None,
) -> None:
    """Run this site; after a restart it continues from its checkpoint."""

    def runs() -> None:
        options = {"budget": budget, "record_budget": record_budget, "delta": delta}
        options |= {"progress_every": progress_every or None, "metrics_port": metrics_port, "log_format": log_format}
        _silo_run().run(name, problem, home or Path("silo") / name, console(), **options)

    or_exit(runs, usage_error=FAILED)


@app.command("status")
def status(
    homes: Annotated[list[Path] | None, typer.Argument(help="Sites' folders (default: all under silo).")] = None,
) -> None:
    """Show the status of the sites whose folders are on this machine."""
    found = homes or sorted(path.parent for path in Path("silo").glob("*/key.pem") if path.parent.name != "authority")
    or_exit(lambda: _silo_run().status(found, console()), usage_error=FAILED)


@app.command("rehearse")
def rehearse(
    federation: Federation,
    problem: Problem,
    out: Annotated[
        Path, typer.Option(help="Folder for the rehearsal; an earlier rehearsal in it is deleted, and nothing else.")
    ] = Path("silo-rehearsal"),
) -> None:
    """Run the whole federation on this machine, one process per site."""

    def everyone() -> int:
        _silo()
        from ._silo_rehearsal import rehearse

        return rehearse(federation, problem, out, console())

    raise typer.Exit(or_exit(everyone, usage_error=FAILED))


def _new_passphrase(file: Path | None, none: bool) -> str | None:
    return None if none else _authority().ask_passphrase(file, new=True)


def _silo() -> ModuleType:
    _needed()
    from . import _silo_command as command

    return command


def _silo_run() -> ModuleType:
    _needed()
    from . import _silo_run as command

    return command


def _authority() -> ModuleType:
    _needed()
    from . import _silo_authority as authority

    return authority


def _needed() -> None:
    with optional("grpcio and cryptography", caller="decibel silo", extra="silo"):
        import cryptography  # noqa: F401
        import grpc  # noqa: F401
