"""What the organiser does, where the authority's key is: `decibel silo init`, `amend`, `sign`, `revoke`, `ledger`."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from decibel.core import atomic_write, plain, read_file

from .._errors import NotTrusted
from .._federation import Federation
from ..trust._authority import (
    FEDERATION,
    LEDGER,
    ORDER,
    REVOKED,
    Authority,
    current_federation,
    current_list,
    current_order,
    keys_of,
    publish,
)
from ..trust._certificates import certificate_fingerprint, load_certificate, load_request, pem
from ..trust._credentials import CERTIFICATE, load_federation
from ..trust._order import Order
from ..trust._signature_ledger import SignatureLedger
from ..trust._signing import as_digits, fingerprint, public_key, same_fingerprint, save_key

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, CertificateSigningRequest

VARIABLE = "DECIBEL_SILO_PASSPHRASE"


def init(toml: Path, out: Path, days: float, passphrase: str | None, console: Console) -> None:
    """A new authority, and what every site gets: its certificate, the signed federation file, an empty list."""
    federation = Federation.from_toml(toml)
    _validate(federation)
    authority = Authority.create(out / "authority", federation.name, passphrase)
    publish(authority, federation, out / "public", days)
    console.print(f"Federation [bold]{federation.name}[/], {len(federation.sites)} sites.")
    _say(console, f"Keep {out / 'authority'} offline: whoever has its key can admit sites.")
    if passphrase is None:
        _say(console, "Its key has no passphrase: give it one by `decibel silo passphrase`.")
    _say(console, f"Send {out / 'public'} to every site, and tell them the authority's fingerprint by another channel:")
    _say(console, f"  {as_digits(authority.fingerprint)}")


def _validate(federation: Federation) -> None:
    from decibel import CATALOG

    from ..run._flow_limits import protected

    federation.graph  # noqa: B018 - raises on weights that do not fit and on graphs that are not connected
    if federation.method is not None:
        protected(CATALOG[federation.method](**federation.settings), federation)


def amend(toml: Path, out: Path, days: float, authority: Authority, console: Console, *, warm: bool) -> None:
    """The next edition of the federation file; the keys of those who leave are revoked.

    Args:
        toml: the federation as it is to be.
        out: the folder of `init`.
        days: for which the list of revoked keys is valid, if there is a new one.
        authority: signs.
        console: where it says what changes.
        warm: all sites keep their variables, and begin corrections at zero.
    """
    from ..run._amendment import changes, not_exact, succeed, why_not_exact
    from ._federation_method import method_of

    public = out / "public"
    with authority.alone():  # nobody else makes an edition of the same number
        before = load_federation(public, authority.certificate)
        current_federation(authority, before)
        after = succeed(before, Federation.from_toml(toml), warm=warm)
        said = changes(before, after)
        if not said and not warm:
            raise ValueError(f"{toml} says the same as edition {before.edition}: there is nothing to amend.")
        _validate(after)
        members_changed = set(before.names) != set(after.names)
        if after.method is not None and not warm:
            graph_changed = any("graph" in sentence or "weights" in sentence for sentence in said)
            strategies = method_of(after).strategies
            if why := why_not_exact(strategies, members_changed=members_changed, graph_changed=graph_changed):
                raise not_exact(why)
        left = [name for name in before.names if name not in after.names]
        listed = current_list(authority, before, public)
        if left:
            listed = listed.next(keys_of(authority, left), days)
            atomic_write(public / REVOKED, authority.sign_revoked(listed))
        atomic_write(public / FEDERATION, authority.sign_federation(after))
    _say(console, f"{public / FEDERATION} is now edition {after.edition}: {', '.join(said) or 'nothing changes'}.")
    if warm:
        _say(console, "Sites keep their variables, and begin corrections at zero (--warm).")
    else:
        _say(console, "Saved states continue.")
    if left:
        _say(console, f"{public / REVOKED} is now list {listed.number}, with the keys of {', '.join(left)}.")
    _say(console, f"Stop all sites, and send {public} to every one that stays or comes, for its folder.")


def sign(
    name: str, path: Path, out: Path, days: float, authority: Authority, console: Console, told: str | None = None
) -> None:
    """A certificate beside the request of a site, once somebody has compared its fingerprint.

    Args:
        name: the site that the certificate is for.
        path: its request.
        out: the folder of `init`.
        days: for which the certificate is valid.
        authority: signs.
        console: where the fingerprint is shown.
        told: the fingerprint as the site told it; None asks at the terminal.
    """
    request = load_request(path)
    key_fingerprint = fingerprint(public_key(request, str(path)))
    _say(console, f"{path} has the key with the fingerprint")
    _say(console, f"  {as_digits(key_fingerprint)}")
    _confirm(name, path, key_fingerprint, told)
    certificate = certify(name, request, out, days, authority)
    atomic_write(path.with_name(CERTIFICATE), pem(certificate))
    until = certificate.not_valid_after_utc.date()
    _say(console, f"{path.with_name(CERTIFICATE)} identifies the holder of that key as {name} until {until}.")


def _confirm(name: str, path: Path, key_fingerprint: str, told: str | None) -> None:
    if told is not None:
        if not same_fingerprint(told, key_fingerprint):
            raise NotTrusted(
                f"{path} has another key than the fingerprint you gave: ask {name}, by telephone, for the one that "
                "`decibel silo join` showed there."
            )
        return
    try:
        same = typer.confirm(f"Has {name} told you this fingerprint, by telephone or in person?", err=True)
    except typer.Abort:
        raise ValueError("nobody confirmed the fingerprint: give the one you were told by --fingerprint.") from None
    if not same:
        raise ValueError(f"{path} is not signed: ask {name}, by telephone, for its fingerprint.")


def certify(name: str, request: CertificateSigningRequest, out: Path, days: float, authority: Authority) -> Certificate:
    """A certificate for a request whose fingerprint was compared."""
    federation = load_federation(out / "public", authority.certificate)
    federation.number(name)
    with authority.alone():  # nobody revokes the key in between
        revoked = current_list(authority, federation, out / "public")
        return authority.certify(request, name, timedelta(days=days), revoked=revoked)


def revoke(
    certificates: list[Path], sites: list[str], out: Path, days: float, authority: Authority, console: Console
) -> None:
    """Adds keys to the signed list of those that no longer count; without any, makes the list valid for longer."""
    federation = load_federation(out / "public", authority.certificate)
    path = out / "public" / REVOKED
    for name in sites:
        federation.number(name)
    certified = {certificate_fingerprint(load_certificate(certificate)) for certificate in certificates}
    with authority.alone():  # nobody else makes a list of the same number
        keys = keys_of(authority, sites) | certified
        newer = current_list(authority, federation, out / "public").next(keys, days)
        atomic_write(path, authority.sign_revoked(newer))
    _say(
        console,
        f"{path} is now list {newer.number}, with {len(newer.keys)} revoked keys, valid until {newer.expires.date()}: "
        "send it to every site, for its folder.",
    )


def order(out: Path, authority: Authority, console: Console, *, stop: bool, reason: str) -> None:
    """Signs that all sites are to stop, or that they may run again."""
    federation = load_federation(out / "public", authority.certificate)
    path = out / "public" / ORDER
    with authority.alone():  # nobody else makes an order of the same number
        before = current_order(authority, federation, out / "public")
        if not stop and (before is None or not before.stop):
            raise ValueError("no order to stop is in force: there is nothing to lift.")
        signed = Order.following(before, federation.name, stop=stop, reason=reason)
        atomic_write(path, authority.sign_order(signed))
    if stop:
        _say(console, f"{path} is order {signed.number}, to stop: put it into a site's folder; it tells the others.")
    else:
        _say(console, f"{path} is order {signed.number}, which lifts the order to stop: send it to every site.")


def show_ledger(out: Path, console: Console) -> None:
    """What the authority has signed, without its key."""
    path = out / "authority" / LEDGER
    if not path.is_file():
        raise ValueError(f"{path} is missing: give the organiser's folder as --out.")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "time", "signed", "for", "until", "key"):
        table.add_column(heading)
    for entry in SignatureLedger(path).entries():
        revoked = entry.get("list")
        listed = revoked if isinstance(revoked, dict) else {}
        what = f"list {listed['number']}, revoked keys" if listed else str(entry["what"])
        if entry["what"] == "federation":
            what = f"federation, edition {entry['edition']}"
        ordered = entry.get("order")
        if isinstance(ordered, dict):
            what = f"order {ordered['number']}, {'to stop' if ordered['stop'] else 'to go on'}"
        until = str(listed.get("expires", entry.get("until", "")))[:10]
        row = (entry["number"], str(entry["time"])[:16], what, entry["name"], until, str(entry.get("key", ""))[:16])
        table.add_row(*(escape(plain(cell)) for cell in row))
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
    """The passphrase, from a file, from the environment, or from the terminal."""
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
