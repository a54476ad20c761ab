"""The organiser: signs lists of revoked keys, notes them in the ledger, and brings them to the sites' folders."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from decibel.core._files import atomic_write
from decibel.silo.trust._authority import Authority
from decibel.silo.trust._revocation import RevocationList
from decibel.silo.trust._signature_ledger import SignatureLedger

from .disk import CALLS, Disk, PowerCut
from .papers import papers

if TYPE_CHECKING:
    from .world import World

SOON = 2.0  # seconds in which a revocation takes effect


class Organiser:
    def __init__(self, world: World) -> None:
        self.world = world
        self.disk = Disk(world.folder / "organiser", f"disk {world.schedule.seed} organiser")
        self.revoked = RevocationList.first("test")
        self._ledger = SignatureLedger(self.disk.root / "ledger.jsonl")
        self._authority = Authority(papers().authority.key, papers().authority.certificate, self._ledger)
        self._first = ""
        self._handed_out: list[str] = []

    def begin(self, first: str) -> None:
        CALLS.add(self.disk)
        self._first = first

    def publish(self, site: int | None) -> None:
        """The next list, in which the key of a site is revoked; it is signed again and again until it is noted."""
        keys = {papers().prints[site]} if site is not None else set()
        self.disk.start()
        try:
            made = self.revoked.next(keys)
            signed = self._authority.sign_revoked(made)
        except (OSError, PowerCut) as error:
            self.world.note(f"the organiser cannot sign: {error!r}")
            CALLS.crash(self.disk)
            self._later(0.7, "signs again", lambda: self.publish(site))
            return
        self.revoked = replace(made, keys=made.keys)
        self._handed_out.append(hashlib.sha256(signed.encode()).hexdigest())
        for host in self.world.honest:
            self._bring(host.number, signed, site)

    def put_back(self, site: int) -> None:
        """Somebody puts the first list back into a site's folder."""
        self._bring(site, self._first, None)

    def _later(self, seconds: float, what: str, action) -> None:
        self.world.scheduler.after(seconds, f"the organiser {what}", action)

    def _bring(self, site: int, signed: str, revoked: int | None) -> None:
        host = self.world.hosts[site]

        def write() -> None:
            if host.disk.off:
                again()
                return
            try:
                host.guarded(lambda: atomic_write(host.disk.root / "revoked.json", signed))
            except OSError:
                again()
                return
            if host.disk.off:
                again()
            elif revoked is not None:
                self._later(SOON, "looks", lambda: self.world.monitor.keeps_out(host, revoked))

        def again() -> None:
            self._later(0.5, "brings a list", write)

        self._later(self.world.scheduler.random.random(), "brings a list", write)

    def missing(self) -> list[str]:
        """Signatures that were handed out and are not in the ledger, after another power cut."""
        self.disk.heal()
        self.disk.cut_power()
        self.disk.start()
        noted = {entry["sha256"] for entry in self._ledger.entries()}
        return [one for one in self._handed_out if one not in noted]
