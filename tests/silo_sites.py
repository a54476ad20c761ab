"""Federations on loopback for the tests: folders of sites with everything signed, in a moment."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import decibel as db
from decibel.core._files import atomic_write
from decibel.engines.silo._authority import Authority
from decibel.engines.silo._certificates import key_print, make_request, pem
from decibel.engines.silo._federation import FaultTolerance, Federation, SiteAddress
from decibel.engines.silo._revocation import RevocationList
from decibel.engines.silo._signing import new_key, save_key

QUICK = FaultTolerance(beat=0.2, missed=25, deadline=60.0)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def ring(count, *, fault_tolerance=QUICK, reachable=None, trust_members=True, **options):
    ports = free_ports(count)
    sites = tuple(
        SiteAddress(f"site-{i}", f"127.0.0.1:{ports[i]}" if reachable is None or i in reachable else None)
        for i in range(count)
    )
    edges = tuple((i, (i + 1) % count) for i in range(count)) if count > 2 else ((0, 1),)
    return Federation("test", sites, edges, fault_tolerance=fault_tolerance, trust_members=trust_members, **options)


class Folders:
    """An authority and a folder for every site."""

    def __init__(self, folder: Path, federation: Federation, authority: Authority | None = None) -> None:
        self.folder, self.federation = folder, federation
        self.authority = authority or Authority.make(federation.name)
        self.revoked = RevocationList.first(federation.name)
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
        atomic_write(home / "certificate.pem", pem(certificate))
        atomic_write(home / "authority.pem", pem(self.authority.certificate))
        atomic_write(home / "federation.json", self.authority.sign_federation(self.federation))
        signed = self.authority.sign_revoked(self.revoked)
        atomic_write(home / "revoked.json", signed)
        trust = {"authority": key_print(self.authority.certificate), "revoked": signed}
        atomic_write(home / "trust.json", json.dumps(trust))
        return certificate

    def revoke(self, home, *certificates, **options):
        """Delivers the next list, with those certificates' keys and no other, to a site."""
        made = self.revoked.next((key_print(one) for one in certificates), **options)
        self.revoked = replace(made, keys=frozenset())
        return atomic_write(home / "revoked.json", self.authority.sign_revoked(made))


def run_sites(folders, method, steps, problems, engines=None, **options):
    """Every site in a thread of its own; their results."""
    results = {}

    def run(number, name):
        try:
            engine = db.Silo(folders.home(name), name, say=lambda sentence: None, **(engines or {}))
            own = {key: value(name) if callable(value) else value for key, value in options.items()}
            results[number] = db.solve(
                problems[number], method, folders.federation.graph, steps=steps, engine=engine, **own
            )
        except BaseException as error:
            results[number] = error

    threads = [
        threading.Thread(target=run, args=(number, site.name)) for number, site in enumerate(folders.federation.sites)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    failed = [result for _, result in sorted(results.items()) if isinstance(result, BaseException)]
    if failed:
        raise failed[0]
    return [results[number] for number in range(len(threads))]


class Loopback:
    """All sites on 127.0.0.1. Parted by the sites themselves (`silo_worker.Cut`): what a file says is cut, they cut."""

    def __init__(self, federation: Federation, folder: Path) -> None:
        self.federation, self._cut = federation, folder / "cut"

    def command(self, name):
        return []

    def part(self):
        names = [site.name for site in self.federation.sites]
        self._cut.write_text(" ".join(names[: len(names) // 2]))

    def heal(self):
        self._cut.unlink()

    def end(self):
        pass


class Namespaces:
    """Every site in a network namespace of its own, with an address that no other machine has: two halves, each at a
    switch, and a cable between the switches that can be pulled. The switches have a namespace of their own, too."""

    def __init__(self, federation: Federation, folder: Path) -> None:
        self._prefix, self._made = f"decibel-{os.getpid()}", []
        if os.geteuid() or shutil.which("ip") is None:
            pytest.skip("network namespaces need root and the command ip")
        if self._ip("netns", "add", self._hub, check=False).returncode:
            pytest.skip("this machine lets nobody make network namespaces")
        self._made.append(self._hub)
        for switch in ("left", "right"):
            self._at_hub("link", "add", switch, "type", "bridge")
            self._at_hub("link", "set", switch, "up")
        self._at_hub("link", "add", "cable-left", "type", "veth", "peer", "name", "cable-right")
        for switch in ("left", "right"):
            self._at_hub("link", "set", f"cable-{switch}", "master", switch, "up")
        places = []
        for number, site in enumerate(federation.sites):
            self._plug_in(site.name, number, "left" if number < len(federation.sites) // 2 else "right")
            places.append(replace(site, address=f"10.77.0.{number + 1}:7401"))
        self.federation = replace(federation, sites=tuple(places))

    @property
    def _hub(self):
        return f"{self._prefix}-hub"

    def _plug_in(self, name, number, switch):
        own = f"{self._prefix}-{name}"
        self._ip("netns", "add", own)
        self._made.append(own)
        self._at_hub("link", "add", f"port-{number}", "type", "veth", "peer", "name", "eth0", "netns", own)
        self._at_hub("link", "set", f"port-{number}", "master", switch, "up")
        for setting in (["addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            self._ip("-n", own, *setting)

    def _at_hub(self, *arguments):
        self._ip("-n", self._hub, *arguments)

    def _ip(self, *arguments, check=True):
        return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)

    def command(self, name):
        return ["ip", "netns", "exec", f"{self._prefix}-{name}"]

    def part(self):
        self._at_hub("link", "set", "cable-left", "down")

    def heal(self):
        self._at_hub("link", "set", "cable-left", "up")

    def end(self):
        for one in self._made:
            self._ip("netns", "del", one, check=False)
