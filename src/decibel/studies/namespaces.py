"""A network of this machine's own: a namespace per process and shaped links between them. As a script it is the relay
that delays packets.

A link's rate is kept by `tc` (a token bucket at both ends, so that sending and receiving are limited each). Where a
delay is asked for, packets go through a relay instead of a bridge: one process that holds every packet back by the
delay and hands it on at the rate of the receiver's link, since not every kernel has `netem`.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import select
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

LARGEST = 60_000  # bytes of a packet: few large ones cost the relay little
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


@dataclass(frozen=True)
class Link:
    """Of every process to the switch: Gbit/s in each direction, and the milliseconds that a packet takes to another
    process; 0 is what the kernel itself needs."""

    rate: float
    delay: float = 0.0

    @property
    def frame(self) -> int:
        """Bytes of the largest packet: at most a millisecond's worth."""
        return min(LARGEST, max(1_500, round(self.rate * 1e9 / 8 * 1e-3)))

    def __str__(self) -> str:
        return f"{self.rate:g} Gbit/s" + (f", {self.delay:g} ms" if self.delay else "")


def obstacle() -> str | None:
    """Why this machine cannot have such a network; None where it can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} (iproute2) is missing"
    if not os.path.exists("/dev/net/tun"):
        return "/dev/net/tun is missing"
    return None


def address(rank: int) -> str:
    return f"10.213.7.{rank + 1}"


@contextmanager
def network(processes: int, link: Link) -> Generator[list[list[str]]]:
    """For every process the words to put before its command. All is gone at the end."""
    if (why := obstacle()) is not None:
        raise OSError(f"{why}: run this as root on Linux with iproute2, or at --size small, on loopback.")
    mark = f"dbl{os.getpid() % 10_000}"
    names = [f"{mark}-{rank}" for rank in range(processes)]
    switch = f"{mark}-s"
    relay: subprocess.Popen[str] | None = None
    try:
        for name in (*names, switch):
            _do("ip", "netns", "add", name)
        if link.delay:
            relay = _relay(mark, names, link)
        else:
            _bridge(mark, names, switch, link)
        for rank, name in enumerate(names):
            inside = ("ip", "-n", name)
            _do(*inside, "addr", "add", f"{address(rank)}/24", "dev", "wire")
            _do(*inside, "link", "set", "wire", "mtu", str(link.frame), "up")
            _do(*inside, "link", "set", "lo", "up")
            _limit(name, "wire", link)
            if not link.delay:
                _limit(switch, f"port{rank}", link)
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        if relay is not None:
            relay.kill()
            relay.communicate()
        for name in (*names, switch):
            with suppress(subprocess.CalledProcessError):
                _do("ip", "netns", "del", name)


def _bridge(mark: str, names: list[str], switch: str, link: Link) -> None:
    _do("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
    _do("ip", "-n", switch, "link", "set", "bridge", "mtu", str(link.frame), "up")
    for rank, name in enumerate(names):
        here, there = f"{mark}a{rank}", f"{mark}b{rank}"
        _do("ip", "link", "add", here, "type", "veth", "peer", "name", there)
        _do("ip", "link", "set", here, "netns", name, "name", "wire")
        _do("ip", "link", "set", there, "netns", switch, "name", f"port{rank}")
        port = ("ip", "-n", switch, "link", "set", f"port{rank}")
        _do(*port, "master", "bridge")
        _do(*port, "mtu", str(link.frame), "up")


def _relay(mark: str, names: list[str], link: Link) -> subprocess.Popen[str]:
    told = json.dumps({"mark": mark, "count": len(names), "rate": link.rate, "delay": link.delay})
    command = [sys.executable, "-m", __spec__.name if __name__ == "__main__" else __name__, told]
    path = os.pathsep.join(filter(None, sys.path))
    relay = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    assert relay.stdout is not None
    if relay.stdout.readline().strip() != "ready":
        raise OSError("the relay between the namespaces did not start: is /dev/net/tun allowed here?")
    for rank, name in enumerate(names):
        _do("ip", "link", "set", f"{mark}t{rank}", "netns", name, "name", "wire")
    return relay


def _limit(name: str, device: str, link: Link) -> None:
    bucket = str(link.frame + 100)  # what may leave at once: a packet
    rate = f"{round(link.rate * 1e9)}bit"
    limit = ("tbf", "rate", rate, "burst", bucket, "limit", str(64 << 20))
    _do("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", device, "root", *limit)


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)


def pass_on(count: int, files: list[int], rate: float, delay: float) -> None:
    """Reads packets from every process's end and writes them to the receiver's after the delay, at its link's rate."""
    waiting: list[tuple[float, int, int, bytes]] = []
    free, number = [0.0] * count, 0
    seconds_per_byte, delay = 8 / (rate * 1e9), delay / 1e3
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, to, packet = heapq.heappop(waiting)
            os.write(files[to], packet)
        wait = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
        ready, _, _ = select.select(files, [], [], wait)
        for file in ready:
            packet = os.read(file, LARGEST + 100)
            if not packet:
                return
            now = time.monotonic()
            to = packet[19] - 1 if packet[0] >> 4 == 4 else -1  # the last byte of the receiver's address
            if 0 <= to < count:
                due = max(now + delay, free[to])  # its sender's link has taken its time already
                free[to] = due + len(packet) * seconds_per_byte
                number += 1
                heapq.heappush(waiting, (due, number, to, packet))


def main() -> None:
    told = json.loads(sys.argv[1])
    files: list[int] = []
    for rank in range(told["count"]):
        file = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", f"{told['mark']}t{rank}".encode(), IFF_TUN | IFF_NO_PI))
        files.append(file)
    print("ready", flush=True)
    pass_on(told["count"], files, told["rate"], told["delay"])


if __name__ == "__main__":
    main()
