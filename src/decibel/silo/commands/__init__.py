"""`decibel silo`: a federation of organisations, each next to its own data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from decibel.cli import FAILED, completing, console, or_exit
from decibel.core import optional

if TYPE_CHECKING:
    from ..run._silo import Silo

app = typer.Typer(help="Run over several organisations, each next to its own data.", no_args_is_help=True)

Problem = Annotated[str, typer.Option(help="module:function that returns a db.Problem with data per node.")]
Method = Annotated[str, typer.Option(help="A method of `decibel list`.", autocompletion=completing("methods"))]
Federation = Annotated[Path, typer.Argument(help="A TOML file: sites, edges, method, steps (docs/silo.md).")]
Out = Annotated[Path, typer.Option(help="Folder for the authority and for the files of the sites.")]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(help="A file with the passphrase of the authority's key (or: $DECIBEL_SILO_PASSPHRASE, or a prompt)."),
]
NoPassphrase = Annotated[bool, typer.Option("--no-passphrase", help="Store the authority's key unencrypted.")]
ListDays = Annotated[float, typer.Option(min=0, help="Days for which the list of revoked keys is valid.")]
P = ParamSpec("P")


def command(function: Callable[P, None]) -> Callable[P, None]:
    """A subcommand of that name; our own errors end it with one sentence."""

    @app.command(function.__name__)
    @wraps(function)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        or_exit(lambda: _run(function, *arguments, **options), usage_error=FAILED)

    return run


def _run(function: Callable[P, None], *arguments: P.args, **options: P.kwargs) -> None:
    from .._logging import quiet_grpc

    quiet_grpc()
    with optional("grpcio and cryptography", caller="decibel silo", extra="silo"):
        import cryptography  # noqa: F401
        import grpc  # noqa: F401
    function(*arguments, **options)


@command
def init(
    federation: Federation,
    out: Out = Path("silo"),
    list_days: ListDays = 90,
    passphrase_file: PassphraseFile = None,
    no_passphrase: NoPassphrase = False,
) -> None:
    """Create an authority, to be kept offline, and the signed federation file for all sites."""
    from ._organise import init

    init(federation, out, list_days, _new_passphrase(passphrase_file, no_passphrase), console())


@command
def amend(
    federation: Federation,
    out: Out = Path("silo"),
    warm: Annotated[
        bool,
        typer.Option(
            "--warm", help="Sites keep their variables and begin corrections at zero, if they cannot continue exactly."
        ),
    ] = False,
    list_days: ListDays = 90,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Sign a new edition of the federation file: other members, edges or steps (docs/silo-amend.md)."""
    from ._organise import amend, load_authority

    amend(federation, out, list_days, load_authority(out, passphrase_file), console(), warm=warm)


@command
def join(
    name: Annotated[str, typer.Argument(help="This site's name in the federation file.")],
    public: Annotated[Path, typer.Option(help="The public folder that `init` created.")] = Path("silo/public"),
    home: Annotated[Path | None, typer.Option(help="This site's folder (default: silo/NAME).")] = None,
    new_key: Annotated[bool, typer.Option("--new-key", help="Make a new key, which replaces the old one.")] = False,
    authority: Annotated[
        str | None,
        typer.Option(
            help="The fingerprint of the authority, as the organiser told you; it replaces the one trusted so far."
        ),
    ] = None,
) -> None:
    """Create this site's key, which never leaves it, and a certificate request."""
    from ._join import join

    join(name, public, home or Path("silo") / name, console(), replace_key=new_key, expected_fingerprint=authority)


@command
def sign(
    name: Annotated[str, typer.Argument(help="The site that the certificate is for.")],
    request: Annotated[Path, typer.Argument(help="Its request.pem.")],
    out: Out = Path("silo"),
    days: Annotated[float, typer.Option(min=0, help="Days for which the certificate is valid.")] = 365,
    fingerprint: Annotated[
        str | None,
        typer.Option(help="The fingerprint that the site told you; without it the command asks you to compare."),
    ] = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Sign a site's certificate request; the certificate is written next to it."""
    from ._organise import load_authority, sign

    sign(name, request, out, days, load_authority(out, passphrase_file), console(), fingerprint)


@command
def revoke(
    certificates: Annotated[list[Path] | None, typer.Argument(help="certificate.pem files to revoke.")] = None,
    site: Annotated[list[str] | None, typer.Option(help="Revoke every key ever certified for this site.")] = None,
    out: Out = Path("silo"),
    list_days: ListDays = 90,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Add the keys of certificates to the signed list of revoked ones; without any, renew the list."""
    from ._organise import load_authority, revoke

    revoke(certificates or [], site or [], out, list_days, load_authority(out, passphrase_file), console())


@command
def ledger(out: Out = Path("silo")) -> None:
    """Show everything that the authority has signed."""
    from ._organise import show_ledger

    show_ledger(out, console())


@command
def passphrase(
    out: Out = Path("silo"),
    passphrase_file: PassphraseFile = None,
    new_file: Annotated[Path | None, typer.Option(help="A file with the new passphrase (default: a prompt).")] = None,
    no_passphrase: NoPassphrase = False,
) -> None:
    """Change the passphrase of the authority's key."""
    from ._organise import change_passphrase, load_authority

    signer = load_authority(out, passphrase_file)
    change_passphrase(out, signer, _new_passphrase(new_file, no_passphrase), console())


@command
def run(
    name: Annotated[str, typer.Argument(help="This site's name in the federation file.")],
    problem: Problem,
    home: Annotated[Path | None, typer.Option(help="This site's folder (default: silo/NAME).")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Stop before ε of all data of this site, over all its runs, exceeds this.")
    ] = None,
    record_budget: Annotated[
        float | None, typer.Option(help="Stop before ε of one record, over all runs, exceeds this.")
    ] = None,
    delta: Annotated[float, typer.Option(help="The δ of both, well below 1/samples.")] = 1e-5,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart", help="Begin again at step 0 if the sites have saved no common step; moves old states aside."
        ),
    ] = False,
    log_format: Annotated[str, typer.Option(help="Lines of the log: text, or json.")] = "text",
    progress_every: Annotated[float, typer.Option(min=0, help="Seconds between lines of progress; 0: none.")] = 60.0,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Serve /healthz, /readyz and /metrics at this port of 127.0.0.1."),
    ] = None,
    interrupted_status: Annotated[
        int, typer.Option(min=0, max=255, help="Exit status if a signal stops the site before its last step.")
    ] = 0,
    stay: Annotated[
        float, typer.Option(min=0, help="Seconds to stay for sites that lack the model at the end; 0: none.")
    ] = 3600.0,
) -> None:
    """Run this site; after a restart it continues from its checkpoint."""
    from ._run_site import run

    def engine() -> Silo:
        from ..run._silo import Silo

        return Silo(
            home or Path("silo") / name,
            name,
            budget=budget,
            record_budget=record_budget,
            delta=delta,
            restart=restart,
            progress_every=progress_every or None,
            metrics_port=metrics_port,
            stay=stay or None,
        )

    run(name, engine, problem, console(), log_format=log_format, interrupted_status=interrupted_status)


@command
def status(
    homes: Annotated[list[Path] | None, typer.Argument(help="Sites' folders (default: all under silo).")] = None,
) -> None:
    """Show the status of the sites whose folders are on this machine."""
    from ._run_site import status

    folders = homes or sorted(path.parent for path in Path("silo").glob("*/key.pem") if path.parent.name != "authority")
    status(folders, console())


@command
def privacy(
    epsilon: Annotated[float | None, typer.Option(help="The privacy budget ε.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the run.")] = None,
    noise: Annotated[float | None, typer.Option(help="The noise in the federation file.")] = None,
    delta: Annotated[float, typer.Option(help="δ, well below 1/samples.")] = 1e-5,
    clip: Annotated[float, typer.Option(help="The clip in the federation file.")] = 1.0,
    method: Method = "sparkle-ed",
    samples: Annotated[int | None, typer.Option(min=1, help="Records of the site.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Records in a step (default: all).")] = None,
) -> None:
    """Plan a run with noise: give two of --epsilon, --steps and --noise; it computes the third."""
    from ._privacy_plan import plan

    lines = plan(
        ε=epsilon,
        noise=noise,
        steps=steps,
        delta=delta,
        clip=clip,
        method=method,
        samples=samples,
        batch_size=batch_size,
    )
    for line in lines:
        console().print(line, soft_wrap=True, markup=False)


@command
def watch(
    homes: Annotated[
        list[Path] | None, typer.Argument(help="Folders of sites that have run (default: all under silo).")
    ] = None,
    public: Annotated[
        Path | None, typer.Option(help="The public folder to check signatures by (default: the first site's folder).")
    ] = None,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between updates.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show the view once and exit.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write a web page to this file instead.")] = None,
) -> None:
    """Show every site of the federation, from their signed reports."""
    from ._watch import watch

    folders = homes or sorted(path.parent for path in Path("silo").glob("*/federation-status.json"))
    with suppress(KeyboardInterrupt):
        watch(folders, public, console(), every=every, once=once, to_page=page)


@command
def stop(
    reason: Annotated[str, typer.Option(help="Why; all sites show it.")] = "",
    lift: Annotated[bool, typer.Option("--lift", help="Sites may run again.")] = False,
    out: Out = Path("silo"),
    passphrase_file: PassphraseFile = None,
) -> None:
    """Sign an order that all sites stop. Give it to one site, which passes it on to all others."""
    from ._organise import load_authority, order

    order(out, load_authority(out, passphrase_file), console(), stop=not lift, reason=reason)


@command
def rehearse(
    federation: Federation,
    problem: Problem,
    out: Annotated[
        Path, typer.Option(help="Folder for the rehearsal; an earlier rehearsal in it is deleted, and nothing else.")
    ] = Path("silo-rehearsal"),
) -> None:
    """Run the whole federation on this machine, one process per site."""
    from ._rehearse import rehearse

    raise typer.Exit(rehearse(federation, problem, out, console()))


def _new_passphrase(file: Path | None, none: bool) -> str | None:
    from ._organise import ask_passphrase

    return None if none else ask_passphrase(file, new=True)
