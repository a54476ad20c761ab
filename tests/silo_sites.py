"""Federations on loopback for the tests: folders of sites with everything signed, in a moment."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import decibel as db
from decibel.core._files import atomic_write
from decibel.silo._federation import FaultTolerance, Federation, Member
from decibel.silo.trust._authority import Authority
from decibel.silo.trust._certificates import certificate_fingerprint, make_request, pem
from decibel.silo.trust._revocation import RevocationList
from decibel.silo.trust._signing import new_key, save_key
from decibel.silo.trust._trust import Memory
from decibel_studies.testbed.namespaces import Link, network, obstacle

UNHINDERED = Link(10.0)
QUICK = FaultTolerance("continue", beat=0.2, missed=25, deadline=60.0)


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
        Member(f"site-{i}", f"127.0.0.1:{ports[i]}" if reachable is None or i in reachable else None)
        for i in range(count)
    )
    edges = tuple((i, (i + 1) % count) for i in range(count)) if count > 2 else ((0, 1),)
    return Federation("test", sites, edges, fault_tolerance=fault_tolerance, trust_members=trust_members, **options)


class Folders:
    """An authority and a folder for every site, or for those of these names."""

    def __init__(
        self,
        folder: Path,
        federation: Federation,
        authority: Authority | None = None,
        *,
        names: list[str] | None = None,
    ) -> None:
        self.folder, self.federation = folder, federation
        self.authority = authority or Authority.make(federation.name)
        self.revoked = RevocationList.first(federation.name)
        for site in federation.sites:
            if names is None or site.name in names:
                self.site(site.name)

    def home(self, name):
        return self.folder / name

    def site(self, name, *, authority=None, certified=None, lifetime=timedelta(days=1), home=None):
        """A site's folder; by default as it should be."""
        authority, home = authority or self.authority, home or self.home(name)
        key = new_key()
        certificate = authority.certify(make_request(key, certified or name, "test"), certified or name, lifetime)
        save_key(key, home / "key.pem")
        atomic_write(home / "certificate.pem", pem(certificate))
        atomic_write(home / "authority.pem", pem(self.authority.certificate))
        atomic_write(home / "federation.json", self.authority.sign_federation(self.federation))
        signed = self.authority.sign_revoked(self.revoked)
        atomic_write(home / "revoked.json", signed)
        trust = Memory(certificate_fingerprint(self.authority.certificate), signed, datetime.fromtimestamp(0, UTC))
        atomic_write(home / "trust.json", trust.text)
        return certificate

    def revoke(self, home, *certificates, **options):
        """Delivers the next list, with those certificates' keys and no other, to a site."""
        made = self.revoked.next((certificate_fingerprint(one) for one in certificates), **options)
        self.revoked = replace(made, keys=frozenset())
        return atomic_write(home / "revoked.json", self.authority.sign_revoked(made))


def assert_refused(folder, federation, problem, method, sentence, *, graph=None, **options):
    """A site raises this sentence before its first step."""
    engine = db.Silo(Folders(folder, federation).home("site-0"), "site-0")
    with pytest.raises(ValueError, match=sentence):
        db.solve(problem, method, graph or federation.graph, steps=5, engine=engine, **options)


def assert_simulated(sites, problem, method, graph, steps, levels="x", *, tolerance=1e-10, **options):
    """Every site has the numbers of its node, and has sent as much if all have as many neighbours, else on average."""
    expected = db.solve(problem, method, graph, steps=steps, metrics=[], **options)
    for number, site in enumerate(sites):
        for level in levels:
            found, wanted = getattr(site.nodes, level), getattr(expected.nodes, level)
            np.testing.assert_allclose(found[0], wanted[number], rtol=0, atol=tolerance)
    sent = [site.trace["bytes"][-1] for site in sites]
    assert np.mean(sent) == pytest.approx(expected.trace["bytes"][-1])
    if isinstance(graph, db.Graph) and np.ptp(graph.degrees) == 0:
        assert sent == [expected.trace["bytes"][-1]] * len(sites)
    return expected


def run_sites(folders, method, steps, problems, engines=None, graph=None, **options):
    """Every site in a thread of its own; their results."""
    results = {}
    graph = folders.federation.graph if graph is None else graph

    def run(name):
        try:
            engine = db.Silo(folders.home(name), name, say=lambda sentence: None, **(engines or {}))
            own = {key: value(name) if callable(value) else value for key, value in options.items()}
            problem = problems[folders.federation.number(name)]
            results[name] = db.solve(problem, method, graph, steps=steps, engine=engine, **own)
        except BaseException as error:
            results[name] = error

    names = folders.federation.names
    in_threads(run, names)
    failed = [results[name] for name in names if isinstance(results[name], BaseException)]
    if failed:
        raise failed[0]
    return [results[name] for name in names]


def in_threads(run, names):
    """Each of these at once, to their ends."""
    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)


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
    """Every site in a network namespace of its own, with an address that no other machine has, and links as asked for.
    Parted, the first half of the sites and the second reach only each other."""

    def __init__(self, federation: Federation, folder: Path, link: Link = UNHINDERED) -> None:
        if (why := obstacle()) is not None:
            pytest.skip(why)
        self._held = ExitStack()
        self._network = self._held.enter_context(network(len(federation.sites), link))
        self.federation = federation.at([f"{host}:7401" for host in self._network.addresses])

    def command(self, name):
        return self._network.commands[self.federation.number(name)]

    def part(self):
        sites = len(self.federation.sites)
        self._network.part(range(sites // 2, sites))

    def heal(self):
        self._network.heal()

    def end(self):
        self._held.close()
