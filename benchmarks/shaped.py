"""Networks with a delay between sites: by `tc netem` in network namespaces, or by relays where the kernel has no netem.

A delay is that of one direction. A relay is a program of ours that every connection to a site goes through, and that
holds back each byte for that long; it cannot lose packets, which a stream of TCP would only see as more delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from decibel.engines.silo._federation import LOOPBACK, Federation


class Unavailable(RuntimeError):
    """Why this machine cannot shape a network in that way."""


class Loopback:
    """Without a delay, on free ports of this machine."""

    name = "loopback"

    def __init__(self, federation: Federation, delay: float = 0.0) -> None:
        ports = _free_ports(len(federation.sites))
        sites = [
            replace(site, address=f"{LOOPBACK}:{port}") for site, port in zip(federation.sites, ports, strict=True)
        ]
        self.federation = replace(federation, sites=tuple(sites))

    def command(self, name: str) -> list[str]:
        """What the command of a site's process begins with."""
        return []

    def close(self) -> None:
        pass


class Relays(Loopback):
    """A relay in front of every site, in a thread of this process."""

    name = "relays"

    def __init__(self, federation: Federation, delay: float) -> None:
        super().__init__(federation)
        self._delay, self._loop = delay, asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        sites = []
        for site, port in zip(self.federation.sites, _free_ports(len(self.federation.sites)), strict=True):
            assert site.address is not None
            there = int(site.address.rpartition(":")[2])
            asyncio.run_coroutine_threadsafe(self._serve(port, there), self._loop).result()
            sites.append(replace(site, address=f"{LOOPBACK}:{port}", listen=site.address))
        self.federation = replace(self.federation, sites=tuple(sites))

    async def _serve(self, port: int, there: int) -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                far_reader, far_writer = await asyncio.open_connection(LOOPBACK, there)
            except OSError:
                writer.close()
                return
            with contextlib.suppress(asyncio.CancelledError):  # when all ends
                await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
            writer.close()
            far_writer.close()

        self._servers.append(await asyncio.start_server(connected, LOOPBACK, port))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction; bytes leave in order, each after the delay."""
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def leave() -> None:
            with contextlib.suppress(OSError):
                while True:
                    due, data = await held.get()
                    await asyncio.sleep(max(0.0, due - self._loop.time()))
                    if not data:
                        break
                    writer.write(data)
            with contextlib.suppress(OSError):
                writer.close()

        leaving = asyncio.ensure_future(leave())
        data = b"-"
        while data:
            try:
                data = await reader.read(2**16)
            except OSError:
                data = b""
            held.put_nowait((self._loop.time() + self._delay, data))
        await leaving

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the next turn


class Netem:
    """Every site in a network namespace of its own at one switch, with `tc netem` where it sends. Needs root."""

    name = "netem"

    def __init__(self, federation: Federation, delay: float, *more: str) -> None:
        if os.geteuid() or shutil.which("ip") is None or shutil.which("tc") is None:
            raise Unavailable("netem needs root and the commands ip and tc")
        self._prefix, self._made = f"decibel-{os.getpid()}", []
        hub = f"{self._prefix}-hub"
        try:
            self._add(hub)
            _run("ip", "-n", hub, "link", "add", "name", "switch", "type", "bridge")
            _run("ip", "-n", hub, "link", "set", "switch", "up")
            sites = []
            for number, site in enumerate(federation.sites):
                own = f"{self._prefix}-{site.name}"
                self._add(own)
                port = f"port-{number}"
                _run("ip", "-n", hub, "link", "add", "name", port, "type", "veth", "peer", "name", "eth0", "netns", own)
                _run("ip", "-n", hub, "link", "set", port, "master", "switch", "up")
                _run("ip", "-n", own, "addr", "add", f"10.78.0.{number + 1}/24", "dev", "eth0")
                _run("ip", "-n", own, "link", "set", "eth0", "up")
                shape = ["delay", f"{1000 * delay:g}ms", *more]
                _run("tc", "-n", own, "qdisc", "add", "dev", "eth0", "root", "netem", *shape)
                sites.append(replace(site, address=f"10.78.0.{number + 1}:7401"))
            self.federation = replace(federation, sites=tuple(sites))
        except subprocess.CalledProcessError as error:
            self.close()
            words = (error.stderr or "").strip().splitlines()
            raise Unavailable(f"this machine cannot shape networks: {words[0] if words else error}") from None

    def _add(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._made.append(name)

    def command(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", f"{self._prefix}-{name}"]

    def close(self) -> None:
        for one in self._made:
            subprocess.run(["ip", "netns", "del", one], capture_output=True, check=False)


@contextlib.contextmanager
def shaped(federation: Federation, delay: float, kind: str | None = None) -> Iterator[Any]:
    """The federation in a network with that delay: by netem if the machine has it, else by relays; or by the `kind`."""
    if not delay:
        network: Any = Loopback(federation)
    elif kind == Relays.name:
        network = Relays(federation, delay)
    else:
        try:
            network = Netem(federation, delay)
        except Unavailable:
            if kind == Netem.name:
                raise
            network = Relays(federation, delay)
    try:
        yield network
    finally:
        network.close()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind((LOOPBACK, 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
