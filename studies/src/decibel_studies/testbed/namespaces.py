"""A network of this machine's own: a namespace per process and shaped links between them.

A link's rate is kept by `tc` (a token bucket at both ends, so that sending and receiving are limited each). Delay,
jitter and loss are those of `tc netem` where the sender's packets leave. Not every kernel has it: without, packets go
through a process (`relay.py`) instead of a bridge.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, field
from functools import partial

LARGEST = 60_000  # bytes of a packet: few large ones cost the relay little


@dataclass(frozen=True)
class Link:
    """Of every process to the switch.

    - `rate`: Gbit/s, in each direction.
    - `delay`: milliseconds that a packet takes to another process; 0 is what the kernel itself needs.
    - `jitter`: a packet takes `delay` ± up to so many milliseconds, uniformly, so that packets overtake each other.
    - `loss`: the share of packets that get lost.
    """

    rate: float
    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0

    @property
    def frame(self) -> int:
        """Bytes of the largest packet: at most a millisecond's worth."""
        return min(LARGEST, max(1_500, round(self.rate * 1e9 / 8 * 1e-3)))

    @property
    def netem(self) -> list[str]:
        """The words for `tc`; none where there is only a rate."""
        late = ["delay", f"{self.delay:g}ms", *([f"{self.jitter:g}ms"] if self.jitter else [])]
        lost = ["loss", f"{100 * self.loss:g}%"] if self.loss else []
        words = [*(late if self.delay or self.jitter else []), *lost]
        return ["netem", "limit", "1000000", *words] if words else []

    def __str__(self) -> str:
        late = f", {self.delay:g}" + (f" ± {self.jitter:g}" if self.jitter else "") + " ms"
        lost = f", {100 * self.loss:g} % lost" if self.loss else ""
        return f"{self.rate:g} Gbit/s" + (late if self.delay or self.jitter else "") + lost


@dataclass
class ShapedNetwork:
    """`commands`: for every process the words to put before its command. `shaped_by`: bridge, netem or relay."""

    mark: str
    link: Link
    shaped_by: str
    names: list[str]
    relay: subprocess.Popen[str] | None = field(default=None, repr=False)

    @property
    def commands(self) -> list[list[str]]:
        return [["ip", "netns", "exec", name] for name in self.names]

    @property
    def addresses(self) -> list[str]:
        return [address(rank) for rank in range(len(self.names))]

    @property
    def switch(self) -> str:
        return f"{self.mark}-s"

    def part(self, ranks: Collection[int]) -> None:
        """Those processes reach only each other, and so do the rest, until the network is whole again."""
        apart = [rank in ranks for rank in range(len(self.names))]
        if self.relay is not None:
            assert self.relay.stdin is not None
            self.relay.stdin.write(json.dumps([int(side) for side in apart]) + "\n")
            self.relay.stdin.flush()
            return
        for rank, side in enumerate(apart):
            _do("ip", "-n", self.switch, "link", "set", f"port{rank}", "master", "apart" if side else "bridge")

    def heal(self) -> None:
        self.part(())


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
    name = f"{_mark()}-try"
    try:
        _do("ip", "netns", "add", name)
    except subprocess.CalledProcessError as error:
        return f"this machine allows no network namespaces ({str(error.stderr).strip()})"
    _do_if_possible("ip", "netns", "del", name)
    return None


def address(rank: int) -> str:
    return f"10.213.7.{rank + 1}"


@contextmanager
def network(processes: int, link: Link) -> Generator[ShapedNetwork]:
    """All is gone at the end.

    Args:
        processes: how many, each in a namespace of its own.
        link: of every process.

    Raises:
        OSError: if this machine allows no such network.
    """
    if (why := obstacle()) is not None:
        raise OSError(f"{why}: run this as root on Linux with iproute2, or use loopback (a study's --size small).")
    mark = _mark()
    shaped = ShapedNetwork(mark, link, "bridge", [f"{mark}-{rank}" for rank in range(processes)])
    with ExitStack() as undo:
        for name in (*shaped.names, shaped.switch):
            _do("ip", "netns", "add", name)
            undo.callback(_do_if_possible, "ip", "netns", "del", name)
        if link.netem:
            shaped.shaped_by = "netem" if _knows_netem(shaped.switch) else "relay"
        if shaped.shaped_by == "relay":
            shaped.relay = _start_relay(shaped)
            undo.callback(_end, shaped.relay)
        else:
            _build_bridge(shaped)
        for rank, name in enumerate(shaped.names):
            if shaped.relay is not None:
                _do("ip", "link", "set", _tun(mark, rank), "netns", name, "name", "wire")
            _do("ip", "-n", name, "addr", "add", f"{address(rank)}/24", "dev", "wire")
            _do("ip", "-n", name, "link", "set", "wire", "mtu", str(link.frame), "up")
            _do("ip", "-n", name, "link", "set", "lo", "up")
            _limit(name, "wire", link, link.netem if shaped.shaped_by == "netem" else [])
        yield shaped


def _mark() -> str:
    return f"dbl{os.getpid() % 10_000}"


def _tun(mark: str, rank: int) -> str:
    return f"{mark}t{rank}"


def _knows_netem(name: str) -> bool:
    try:
        _do("tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "netem")
    except subprocess.CalledProcessError:
        return False
    return True


def _build_bridge(shaped: ShapedNetwork) -> None:
    inside = partial(_do, "ip", "-n", shaped.switch, "link")
    for bridge in ("bridge", "apart"):
        inside("add", bridge, "type", "bridge")
        inside("set", bridge, "mtu", str(shaped.link.frame), "up")
    for rank, name in enumerate(shaped.names):
        port = f"port{rank}"
        inside("add", port, "type", "veth", "peer", "name", "wire", "netns", name)
        inside("set", port, "master", "bridge")
        inside("set", port, "mtu", str(shaped.link.frame), "up")
        _limit(shaped.switch, port, shaped.link)


def _start_relay(shaped: ShapedNetwork) -> subprocess.Popen[str]:
    devices = [_tun(shaped.mark, rank) for rank in range(len(shaped.names))]
    told = json.dumps({"devices": devices, "link": astuple(shaped.link)})
    command = [sys.executable, "-m", f"{__package__}.relay", told]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    relay = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
    assert relay.stdout is not None
    if relay.stdout.readline().strip() != "ready":
        _end(relay)
        raise OSError("the relay between the namespaces did not start: is /dev/net/tun allowed here?")
    return relay


def _end(relay: subprocess.Popen[str]) -> None:
    relay.kill()
    relay.communicate()


def _limit(name: str, device: str, link: Link, netem: Collection[str] = ()) -> None:
    """The rate of what leaves by that device, and netem before it."""
    bucket = str(link.frame + 100)  # what may leave at once: a packet
    rate = f"{round(link.rate * 1e9)}bit"
    at = ["root"]
    if netem:
        _do("tc", "-n", name, "qdisc", "replace", "dev", device, "root", "handle", "1:", *netem)
        at = ["parent", "1:1", "handle", "10:"]
    limit = ("tbf", "rate", rate, "burst", bucket, "limit", str(64 << 20))
    _do("tc", "-n", name, "qdisc", "replace", "dev", device, *at, *limit)


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)


def _do_if_possible(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=False)
