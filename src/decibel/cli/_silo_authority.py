"""What the organiser does, where the authority's key is: `decibel silo init`, `sign`, `revoke`, `ledger`."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..core._files import atomic_write
from ..core._text import plain
from ..engines.silo._authority import LEDGER, REVOKED, Authority, current_list, keys_of, publish
from ..engines.silo._certificates import key_print, load_certificate, load_request, pem, requested_name
from ..engines.silo._credentials import load_federation
from ..engines.silo._federation import Federation
from ..engines.silo._signature_ledger import Ledger
from ..engines.silo._signing import fingerprint, public_key, read_file, save_key, spoken

VARIABLE = "DECIBEL_SILO_PASSPHRASE"


def init(toml: Path, out: Path, days: float, passphrase: str | None, console: Console) -> None:
    """A new authority, and what every site gets: its certificate, the signed federation file, an empty list."""
    from ..engines.silo._lies import protected
    from ..methods._catalog import CATALOG

    federation = Federation.from_toml(toml)
    federation.graph  # noqa: B018 - raises on weights that do not fit and on graphs that are not connected
    if federation.method is not None:
        protected(CATALOG[federation.method](**federation.settings), federation)
    authority = Authority.create(out / "authority", federation.name, passphrase)
    publish(authority, federation, out / "public", days)
    console.print(f"Federation [bold]{federation.name}[/], {len(federation.sites)} sites.")
    _say(console, f"Keep {out / 'authority'} offline: whoever has its key can admit sites.")
    if passphrase is None:
        _say(console, "Its key has no passphrase: give it one by `decibel silo passphrase`.")
    _say(console, f"Send {out / 'public'} to every site, and tell them the authority's fingerprint by another channel:")
    _say(console, f"  {spoken(authority.fingerprint)}")


def sign(requests: list[Path], out: Path, days: float, authority: Authority, console: Console | None = None) -> None:
    """A certificate beside every request."""
    federation = load_federation(out / "public", authority.certificate)
    names = [site.name for site in federation.sites]
    for path in requests:
        request = load_request(path)
        with authority.alone():  # nobody revokes the key in between
            revoked = current_list(authority, federation, out / "public")
            certificate = authority.certify(request, names, timedelta(days=days), revoked=revoked)
        target = path.with_name("certificate.pem")
        atomic_write(target, pem(certificate))
        if console is not None:
            name, until = requested_name(request), certificate.not_valid_after_utc.date()
            _say(console, f"{target} identifies its holder as {name} until {until}. Ask {name} for its fingerprint:")
            _say(console, f"  {spoken(fingerprint(public_key(request, str(path))))}")


def revoke(
    certificates: list[Path], sites: list[str], out: Path, days: float, authority: Authority, console: Console
) -> None:
    """Adds keys to the signed list of those that no longer count; without any, makes the list valid for longer."""
    federation, path = load_federation(out / "public", authority.certificate), out / "public" / REVOKED
    for name in sites:
        federation.number(name)
    certified = {key_print(load_certificate(one)) for one in certificates}
    with authority.alone():  # nobody else makes a list of the same number
        keys = keys_of(authority, sites) | certified
        made = current_list(authority, federation, out / "public").next(keys, days)
        atomic_write(path, authority.sign_revoked(made))
    _say(
        console,
        f"{path} is now list {made.number}, with {len(made.keys)} revoked keys, valid until {made.expires.date()}: "
        "send it to every site, for its folder.",
    )


def show_ledger(out: Path, console: Console) -> None:
    """What the authority has signed, without its key."""
    path = out / "authority" / LEDGER
    if not path.is_file():
        raise ValueError(f"{path} is missing.")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "time", "signed", "for", "until", "key"):
        table.add_column(heading)
    for entry in Ledger(path).entries():
        made = entry.get("list")
        listed = made if isinstance(made, dict) else {}
        what = f"list {listed['number']}, revoked keys" if listed else str(entry["what"])
        until = str(listed.get("expires", entry.get("until", "")))[:10]
        row = (entry["number"], str(entry["time"])[:16], what, entry["name"], until, str(entry.get("key", ""))[:16])
        table.add_row(*(escape(plain(one)) for one in row))
    console.print(table)


def change_passphrase(out: Path, authority: Authority, passphrase: str | None, console: Console) -> None:
    save_key(authority.key, out / "authority" / "key.pem", passphrase)
    _say(console, "The authority's key has " + ("no passphrase now." if passphrase is None else "a new passphrase."))


def load_authority(out: Path, file: Path | None) -> Authority:
    """The authority, asking for a passphrase if its key needs one."""
    folder = out / "authority"
    needs = Authority.needs_passphrase(folder)
    return Authority.load(folder, ask_passphrase(file) if needs else None)


def ask_passphrase(file: Path | None, *, new: bool = False) -> str:
    """From a file, from the environment, or from whoever sits at the keyboard."""
    if file is not None:
        return read_file(file).decode().rstrip("\r\n")
    if (given := os.environ.get(VARIABLE)) is not None:
        return given
    what = "A passphrase for the authority's key" if new else "The passphrase of the authority's key"
    try:
        return typer.prompt(what, hide_input=True, confirmation_prompt=new, err=True)
    except typer.Abort:
        either = ", or --no-passphrase" if new else ""
        raise ValueError(f"no passphrase was given: use --passphrase-file, {VARIABLE}{either}.") from None


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, soft_wrap=True, markup=False)
