"""What `decibel silo ...` does."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from ..core._files import atomic_write, atomic_writer
from ..core._types import PyTree
from ..engines.silo._certificates import (
    Authority,
    check,
    fingerprint,
    load_certificate,
    load_key,
    load_request,
    make_request,
    new_key,
    pem,
    read_signed,
    save_key,
)
from ..engines.silo._credentials import load_federation
from ..engines.silo._federation import Federation
from ..problem._problem import Problem

PUBLIC = ("authority.pem", "federation.json", "revoked.json")


def init(toml: Path, out: Path, console: Console) -> None:
    """A new authority, and what every site gets: the authority's certificate and the signed federation file."""
    federation = Federation.from_toml(toml)
    federation.graph  # noqa: B018 - raises on weights that do not fit and on graphs that are not connected
    if (out / "authority" / "key.pem").exists():
        raise ValueError(f"{out / 'authority'} already has a key: give another --out, or move it away.")
    authority = Authority.make(federation.name)
    authority.save(out / "authority")
    publish(authority, federation, out / "public")
    console.print(f"Federation [bold]{federation.name}[/], {len(federation.sites)} sites.")
    console.print(f"Keep {out / 'authority'} offline: whoever has its key can admit sites.")
    console.print(
        f"Send {out / 'public'} to every site, and give them the authority's fingerprint over another channel:"
    )
    console.print(f"  {fingerprint(authority.certificate)}", soft_wrap=True)


def publish(authority: Authority, federation: Federation, folder: Path) -> None:
    atomic_write(folder / "authority.pem", pem(authority.certificate))
    atomic_write(folder / "federation.json", authority.sign(federation.text).encode())
    if not (folder / "revoked.json").exists():
        atomic_write(folder / "revoked.json", authority.sign("[]").encode())


def join(name: str, public: Path, home: Path, console: Console | None = None) -> Path:
    """A site's folder with a key that never leaves it; returns the request to sign."""
    authority = load_certificate(public / "authority.pem")
    federation = load_federation(public, authority)
    federation.number(name)
    for file in PUBLIC:
        if public.resolve() != home.resolve() and (public / file).is_file():
            atomic_write(home / file, (public / file).read_bytes())
    key = load_key(home / "key.pem") if (home / "key.pem").exists() else new_key()
    save_key(key, home / "key.pem")
    request = home / "request.pem"
    atomic_write(request, pem(make_request(key, name, federation.name)))
    if console is not None:
        console.print(f"The authority's fingerprint; compare it, over another channel, with whoever sent you {public}:")
        console.print(f"  {fingerprint(authority)}", soft_wrap=True)
        console.print(f"Send {request} to be signed. {home / 'key.pem'} never leaves this machine.", soft_wrap=True)
    return request


def sign(requests: list[Path], out: Path, days: float, console: Console | None = None) -> None:
    """A certificate beside every request."""
    authority = Authority.load(out / "authority")
    federation = load_federation(out / "public", authority.certificate)
    names = [site.name for site in federation.sites]
    for path in requests:
        certificate = authority.certify(load_request(path), names, timedelta(days=days))
        target = path.with_name("certificate.pem")
        atomic_write(target, pem(certificate))
        if console is not None:
            name, until = check(certificate, authority.certificate, set()), certificate.not_valid_after_utc.date()
            console.print(
                f"{target} identifies its holder as [bold]{name}[/] until {until}: did {name} request it?",
                soft_wrap=True,
            )


def revoke(certificates: list[Path], out: Path, console: Console) -> None:
    """Adds certificates to the signed list of those that no longer count."""
    authority, path = Authority.load(out / "authority"), out / "public" / "revoked.json"
    known = json.loads(read_signed(path.read_text(), authority.certificate, str(path)))
    serials = sorted({*known, *(f"{load_certificate(one).serial_number:x}" for one in certificates)})
    atomic_write(path, authority.sign(json.dumps(serials)).encode())
    console.print(f"{path} now lists {len(serials)}: send it to every site, for its folder.", soft_wrap=True)


def run(name: str, problem: str, home: Path, console: Console) -> None:
    """One site's part of the run that the federation file describes; continues where it was."""
    from ..engines.silo._engine import Silo
    from ..methods._catalog import CATALOG
    from ..solver import _solve as solver

    engine = Silo(home, name)
    federation = engine.credentials.federation
    if federation.method is None or federation.steps is None:
        raise ValueError("the federation file names no method or no steps: add both, or call solve(engine=db.Silo()).")
    result = solver.solve(
        load_problem(problem),
        CATALOG[federation.method](**federation.settings),
        federation.graph,
        steps=federation.steps,
        batch_size=federation.batch_size,
        seed=federation.seed,
        eval_every=federation.eval_every,
        engine=engine,
        checkpoint=home / "checkpoints",
        checkpoint_every=federation.checkpoint_every,
        resume=True,
    )
    result.trace.save(home / "trace.npz")
    save_solution(result.x, result.y, home / "solution.npz")
    last = ", ".join(f"{key} {value:.6g}" for key, value in result.trace.last.items() if key not in ("step", "seconds"))
    console.print(f"{name} is at step {result.step}: {last}", soft_wrap=True)


def load_problem(where: str) -> Problem:
    module, colon, function = where.partition(":")
    if not colon:
        raise ValueError(f"--problem {where!r} must read module:function.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--problem {where!r} cannot be loaded: {error}.") from None
    if not isinstance(made, Problem):
        raise TypeError(f"--problem {where!r} returned a {type(made).__name__}: return a db.Problem.")
    return made


def save_solution(x: PyTree, y: PyTree, path: Path) -> None:
    import jax

    leaves = jax.tree_util.tree_leaves_with_path({"x": x} | ({} if y is None else {"y": y}))
    with atomic_writer(path) as file:
        np.savez(file, allow_pickle=False, **{jax.tree_util.keystr(where): np.asarray(leaf) for where, leaf in leaves})


def status(homes: list[Path], console: Console) -> None:
    """How the sites whose folders are here are doing, from the notes they leave."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("site", "step", "", "neighbours"):
        table.add_column(heading)
    for home in homes:
        path = home / "status.json"
        if not path.is_file():
            table.add_row(home.name, "", "never ran", "")
            continue
        found = json.loads(path.read_text())
        old = time.time() - found["time"]
        now = found["state"] if old < 10 or found["state"] == "finished" else f"no update for {old:.0f} s"
        others = ", ".join(f"{name} {one['state']}" for name, one in found["neighbours"].items())
        table.add_row(found["site"], str(found["step"]), now, others)
    console.print(table)


def prepare(federation: Federation, folder: Path) -> dict[str, Path]:
    """Everything that `init`, `join` and `sign` make, at one place: for a rehearsal."""
    shutil.rmtree(folder, ignore_errors=True)
    authority = Authority.make(federation.name)
    authority.save(folder / "authority")
    publish(authority, federation, folder / "public")
    homes = {site.name: folder / site.name for site in federation.sites}
    requests = [join(name, folder / "public", home) for name, home in homes.items()]
    sign(requests, folder, days=1)
    return homes
