"""Packets between namespaces by way of one process, which delays and loses them: where the kernel has no `netem`. It is
a script.

Every process's end is a tun device. A packet is read when its sender's link has carried it, is lost or held back as the
link says, and then waits until the receiver's link is free. It ends with its standard input.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import select
import struct
import sys
import time
from contextlib import suppress
from typing import NamedTuple

from .namespaces import LARGEST, Link

TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000


class Packet(NamedTuple):
    """A packet on its way, ordered by when it is due and then by when it was read."""

    due: float
    number: int
    to: int
    content: bytes


def pass_on(files: list[int], link: Link, control: int | None = None) -> None:
    """Reads packets from every process's end and writes them to the receiver's, later.

    Args:
        files: the ends, by rank.
        link: of every process; its sender's rate is kept elsewhere.
        control: a file of lines, each with the part of the network that every rank is in from then on.
    """
    chance = random.Random(0)
    number = 0
    parts = [0] * len(files)
    free = [0.0] * len(files)
    seconds_per_byte = 8 / (link.rate * 1e9)
    delay = link.delay / 1e3
    jitter = link.jitter / 1e3
    travelling: list[Packet] = []  # by when they come to the receiver's link
    leaving: list[Packet] = []  # by when that hands them over
    sources = files if control is None else [*files, control]
    while True:
        now = time.monotonic()
        while travelling and travelling[0].due <= now:
            packet = heapq.heappop(travelling)
            due = max(packet.due, free[packet.to])  # its first byte: the sender's link has taken its time already
            free[packet.to] = due + len(packet.content) * seconds_per_byte
            heapq.heappush(leaving, packet._replace(due=due))
        while leaving and leaving[0].due <= now:
            packet = heapq.heappop(leaving)
            with suppress(OSError):  # its namespace is being deleted
                os.write(files[packet.to], packet.content)
        upcoming = min((heap[0].due for heap in (travelling, leaving) if heap), default=None)
        wait = None if upcoming is None else max(upcoming - time.monotonic(), 0.0)
        for file in select.select(sources, [], [], wait)[0]:
            content = os.read(file, LARGEST + 100)
            if not content:
                return
            if file == control:
                parts = json.loads(content.splitlines()[-1])
                continue
            to = content[19] - 1 if content[0] >> 4 == 4 else -1  # the last byte of the receiver's address
            if not 0 <= to < len(files) or parts[to] != parts[files.index(file)] or chance.random() < link.loss:
                continue
            due = time.monotonic() + max(0.0, delay + jitter * (2 * chance.random() - 1))
            number += 1
            heapq.heappush(travelling, Packet(due, number, to, content))


def main() -> None:
    told = json.loads(sys.argv[1])
    files: list[int] = []
    for device in told["devices"]:
        files.append(os.open("/dev/net/tun", os.O_RDWR))
        fcntl.ioctl(files[-1], TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    print("ready", flush=True)
    pass_on(files, Link(*told["link"]), sys.stdin.fileno())


if __name__ == "__main__":
    main()
