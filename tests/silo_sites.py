"""Federations on loopback for the tests: folders of sites with everything signed, in a moment."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path

from decibel.files import write_whole
from decibel.silo.certificates import Authority, make_request, new_key, pem, save_key
from decibel.silo.federation import Federation, Place, Trouble

QUICK = Trouble(beat=0.2, missed=25, deadline=60.0)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def ring(count, *, trouble=QUICK, reachable=None, **options):
    ports = free_ports(count)
    sites = tuple(
        Place(f"site-{i}", f"127.0.0.1:{ports[i]}" if reachable is None or i in reachable else None)
        for i in range(count)
    )
    edges = tuple((i, (i + 1) % count) for i in range(count)) if count > 2 else ((0, 1),)
    return Federation("test", sites, edges, trouble=trouble, **options)


class Folders:
    """An authority and a folder for every site."""

    def __init__(self, folder: Path, federation: Federation, authority: Authority | None = None) -> None:
        self.folder, self.federation = folder, federation
        self.authority = authority or Authority.make(federation.name)
        for site in federation.sites:
            self.site(site.name)

    def home(self, name):
        return self.folder / name

    def site(self, name, *, authority=None, certified=None, lifetime=timedelta(days=1), home=None):
        """A site's folder; by default as it should be."""
        authority, home = authority or self.authority, home or self.home(name)
        key = new_key()
        certificate = authority.certify(make_request(key, certified or name, "test"), [certified or name], lifetime)
        save_key(key, home / "key.pem")
        write_whole(home / "certificate.pem", pem(certificate))
        write_whole(home / "authority.pem", pem(self.authority.certificate))
        write_whole(home / "federation.json", self.authority.sign(self.federation.text).encode())
        return certificate
