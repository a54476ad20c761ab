"""What `decibel silo join` does, what a rehearsal prepares, and the problem of a run."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from decibel import Problem
from decibel.core import atomic_write, read_file

from .._federation import Federation
from ..trust._authority import Authority, publish
from ..trust._certificates import certificate_fingerprint, load_certificate, load_request, make_request, pem
from ..trust._credentials import CERTIFICATE, KEY, NEXT_KEY, load_federation
from ..trust._signing import as_digits, fingerprint, load_key, new_key, save_key
from ..trust._trust import Trust
from ._organise import certify

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

PUBLIC = ("authority.pem", "federation.json")
DAYS = 30.0  # that a rehearsal may take
MADE = "rehearsal.json"
AUTHORITY = "authority/authority.pem"
OF_A_SITE = (
    "authority.pem",
    "federation.json",
    "revoked.json",
    "trust.json",
    "key.pem",
    "request.pem",
    "certificate.pem",
    "incarnation",
    "order.json",
    "status.json",
    "federation-status.json",
    "checkpoints",
    "trace.npz",
    "solution.npz",
    "finished.json",
    "finished",
    "privacy.json",
    "privacy.lock",
)


def join(
    name: str,
    public: Path,
    home: Path,
    console: Console | None = None,
    *,
    replace_key: bool = False,
    expected_fingerprint: str | None = None,
) -> Path:
    """A site's folder with a key that never leaves it; returns the request to sign."""
    authority = load_certificate(public / "authority.pem")
    federation = load_federation(public, authority)
    federation.number(name)
    trust = Trust.begin(home, public, authority, federation.name, expected_fingerprint)
    trust.take_federation(federation, str(public / "federation.json"))
    trust.start_saving()
    for file in PUBLIC:
        if public.resolve() != home.resolve():
            atomic_write(home / file, (public / file).read_bytes())
    key = _key(home, replace_key)
    key_fingerprint = fingerprint(key.public_key())
    if key_fingerprint in trust.revoked.keys:
        raise ValueError(f"the key in {home} is revoked: make another with --new-key.")
    request = home / "request.pem"
    atomic_write(request, pem(make_request(key, name, federation.name)))
    if console is not None:
        lines = (
            f"The authority's fingerprint; compare it, by telephone, with the person who sent you {public}:",
            f"  {as_digits(certificate_fingerprint(authority))}",
            f"Send {request} to be signed; your key, which never leaves this machine, has the fingerprint",
            f"  {as_digits(key_fingerprint)}",
        )
        for line in lines:
            console.print(line, soft_wrap=True, markup=False)
    return request


def _key(home: Path, replace_key: bool) -> EllipticCurvePrivateKey:
    """The key to certify. A new key waits next to the one in use until its certificate has arrived."""
    current = home / KEY
    following = home / NEXT_KEY
    path = following if replace_key or following.exists() else current
    if path.exists() and not replace_key:
        return load_key(path)
    path = path if current.exists() else current
    key = new_key()
    save_key(key, path)
    return key


def load_problem(where: str) -> Problem:
    module, colon, function = where.partition(":")
    if not colon:
        raise ValueError(f"--problem {where!r} must read module:function.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        problem = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--problem {where!r} cannot be loaded: {error}.") from None
    if not isinstance(problem, Problem):
        raise TypeError(f"--problem {where!r} returned a {type(problem).__name__}: return a db.Problem.")
    return problem


def prepare(federation: Federation, folder: Path) -> dict[str, Path]:
    """Everything that `init`, `join` and `sign` make, in one folder, for a rehearsal."""
    clear(folder)
    authority = Authority.create(folder / "authority", federation.name, None)
    homes = {site.name: folder / site.name for site in federation.sites}
    rehearsal = {"authority": authority.fingerprint, "folders": ["authority", "public", *homes]}
    atomic_write(folder / MADE, json.dumps(rehearsal))
    publish(authority, federation, folder / "public", DAYS)
    for name, home in homes.items():
        request = load_request(join(name, folder / "public", home))
        atomic_write(home / CERTIFICATE, pem(certify(name, request, folder, DAYS, authority)))
    return homes


def clear(folder: Path) -> None:
    """Deletes an earlier rehearsal, and nothing that is not one."""
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not there and not folder.is_symlink() and (folder.is_dir() or not folder.exists()):
        return
    try:
        rehearsal = json.loads(read_file(folder / MADE))
        folders = set(rehearsal["folders"])
        fingerprint_of_key = rehearsal["authority"]
        others = [name for name in there if name not in {*folders, MADE}]
        for home in folders - {"authority", "public"}:
            others += [f"{home}/{path.name}" for path in (folder / home).glob("*") if not _of_a_site(path.name)]
        links = [path for path in (folder, *folder.iterdir()) if path.is_symlink()]
        real = (folder / "authority").exists() and certificate_fingerprint(
            load_certificate(folder / AUTHORITY)
        ) != fingerprint_of_key
    except (ValueError, KeyError, TypeError, OSError):
        raise ValueError(f"{folder} was not made by a rehearsal: name another --out, or an empty one.") from None
    if others or links or real:
        what = others[0] if others else links[0] if links else AUTHORITY
        raise ValueError(f"{folder} has {what}, which no rehearsal made: move it away, or name another --out.")
    for home in folders:
        shutil.rmtree(folder / home, ignore_errors=True)
    (folder / MADE).unlink()


def _of_a_site(name: str) -> bool:
    """Whether a file belongs to a site, or is what remains of one that a killed process was writing."""
    return name in OF_A_SITE or any(name.startswith(f".{known}.") for known in OF_A_SITE)
