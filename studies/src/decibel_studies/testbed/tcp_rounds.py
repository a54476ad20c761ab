"""Rounds of averaging over plain TCP, timed: with two neighbours, with one peer, or with everybody. As a script it is
one process.

Nothing but NumPy and sockets, so that the network is what is measured. A ring's two vectors travel in one exchange: a
process sends to both neighbours while it receives from both.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TypedDict, cast

import numpy as np

PORT = 29_400
CHUNK = 1 << 18  # bytes handed to the kernel at once


class Phase(TypedDict):
    """What to time: `rounds` rounds of each kind in turn, and the throughput with `compute` seconds before a round."""

    entries: int
    rounds: int
    kinds: list[str]
    compute: list[float]


class Peers:
    """Connections between all processes."""

    def __init__(self, rank: int, addresses: list[tuple[str, int]]) -> None:
        self.rank, self.count = rank, len(addresses)
        self.to: dict[int, socket.socket] = {}
        with socket.create_server(addresses[rank], backlog=self.count) as listening:
            for other in range(rank):
                self.to[other] = _connect(addresses[other])
                self.to[other].sendall(rank.to_bytes(2, "big"))
            for _ in range(rank + 1, self.count):
                accepted, _ = listening.accept()
                self.to[int.from_bytes(accepted.recv(2, socket.MSG_WAITALL), "big")] = accepted
        for connection in self.to.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)

    def close(self) -> None:
        for connection in self.to.values():
            connection.close()

    def swap(self, sends: Mapping[int, memoryview], receives: Mapping[int, memoryview]) -> None:
        """All at once: every message to its peer, and every peer's into its buffer."""
        left = {peer: [sends.get(peer), receives.get(peer)] for peer in {*sends, *receives}}
        with selectors.DefaultSelector() as ready:
            for peer in left:
                ready.register(self.to[peer], _events(left[peer]), peer)
            while left:
                for key, events in ready.select():
                    peer = cast(int, key.data)
                    connection = cast(socket.socket, key.fileobj)
                    work = left[peer]
                    out, into = work
                    if events & selectors.EVENT_WRITE and out is not None:
                        out = out[connection.send(out[:CHUNK]) :]
                    if events & selectors.EVENT_READ and into is not None:
                        got = connection.recv_into(into[:CHUNK])
                        if not got:
                            raise ConnectionError(f"process {peer} has closed its connection.")
                        into = into[got:]
                    done = [None if part is None or not len(part) else part for part in (out, into)]
                    left[peer] = done
                    if done == [None, None]:
                        ready.unregister(connection)
                        del left[peer]
                    elif _events(done) != _events(work):
                        ready.modify(connection, _events(done), peer)

    def barrier(self) -> None:
        """Nobody leaves before everybody has come: log₂ n exchanges of a byte."""
        byte, reach = bytearray(1), 1
        while reach < self.count:
            ahead, behind = (self.rank + reach) % self.count, (self.rank - reach) % self.count
            self.swap({ahead: memoryview(b"b")}, {behind: memoryview(byte)})
            reach *= 2


def _connect(address: tuple[str, int], patience: float = 30.0) -> socket.socket:
    end = time.monotonic() + patience
    while True:
        try:
            return socket.create_connection(address, timeout=patience)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _events(work: list[memoryview | None]) -> int:
    out, into = work
    return (selectors.EVENT_WRITE if out is not None else 0) | (selectors.EVENT_READ if into is not None else 0)


def _bytes(vector: np.ndarray) -> memoryview:
    return vector.data.cast("B")


def ring(peers: Peers, vector: np.ndarray, scratch: np.ndarray, turn: int) -> None:
    """½ own + ¼ of each neighbour's."""
    n, k = peers.count, peers.rank
    if n == 2:  # both neighbours are the other one, which is sent to once
        peers.swap({1 - k: _bytes(vector)}, {1 - k: _bytes(scratch[0])})
        vector += scratch[0]
        vector *= 0.5
        return
    own = _bytes(vector)
    sides = (k + 1) % n, (k - 1) % n
    peers.swap(dict.fromkeys(sides, own), {side: _bytes(into) for side, into in zip(sides, scratch, strict=True)})
    vector *= 2.0
    vector += scratch[0]
    vector += scratch[1]
    vector *= 0.25


def one_peer(peers: Peers, vector: np.ndarray, scratch: np.ndarray, turn: int) -> None:
    """½ own + ½ of the process 2^j behind, with j one more from round to round."""
    n, k = peers.count, peers.rank
    reach = 1 << (turn % max((n - 1).bit_length(), 1))
    peers.swap({(k + reach) % n: _bytes(vector)}, {(k - reach) % n: _bytes(scratch[0])})
    vector += scratch[0]
    vector *= 0.5


def everybody(peers: Peers, vector: np.ndarray, scratch: np.ndarray, turn: int) -> None:
    """The mean over all, by a ring: n − 1 exchanges of an n-th to add up, and n − 1 to hand round."""
    n, k = peers.count, peers.rank
    parts, buffers = np.array_split(vector, n), np.array_split(scratch[0], n)
    ahead, behind = (k + 1) % n, (k - 1) % n
    for step in range(2 * (n - 1)):
        give, take = (k - step) % n, (k - step - 1) % n
        if step < n - 1:
            peers.swap({ahead: _bytes(parts[give])}, {behind: _bytes(buffers[take])})
            parts[take] += buffers[take]
        else:
            give, take = (k + 1 - (step - n + 1)) % n, (k - (step - n + 1)) % n
            peers.swap({ahead: _bytes(parts[give])}, {behind: _bytes(parts[take])})
    vector /= n


KINDS: dict[str, Callable[[Peers, np.ndarray, np.ndarray, int], None]] = {
    "ring": ring,
    "one-peer": one_peer,
    "all": everybody,
}


class Timed(TypedDict):
    """Of one process, by kind: seconds of each round, and for each time of computing the seconds of a step."""

    rounds: dict[str, list[float]]
    steps: dict[str, list[float]]
    mean: float  # of the vector at the end, which averaging keeps


def timed(peers: Peers, phase: Phase) -> Timed:
    vector = np.full(phase["entries"], float(peers.rank), np.float32)
    scratch = np.zeros((2, phase["entries"]), np.float32)
    rounds: dict[str, list[float]] = {kind: [] for kind in phase["kinds"]}
    for kind in phase["kinds"]:  # not counted
        KINDS[kind](peers, vector, scratch, 0)
    for turn in range(phase["rounds"]):
        for kind in phase["kinds"]:
            peers.barrier()
            begun = time.perf_counter()
            KINDS[kind](peers, vector, scratch, turn)
            rounds[kind].append(time.perf_counter() - begun)
    steps: dict[str, list[float]] = {kind: [] for kind in phase["kinds"]}
    for compute in phase["compute"]:
        for kind in phase["kinds"]:
            peers.barrier()
            begun = time.perf_counter()
            for turn in range(phase["rounds"]):
                time.sleep(compute)  # an accelerator computes meanwhile, and takes no CPU time
                KINDS[kind](peers, vector, scratch, turn)
            steps[kind].append((time.perf_counter() - begun) / phase["rounds"])
    return {"rounds": rounds, "steps": steps, "mean": float(vector.mean())}


def main() -> None:
    told = json.loads(sys.argv[1])
    with closing(Peers(told["rank"], [(host, port) for host, port in told["addresses"]])) as peers:
        for line in sys.stdin:
            phase = cast(Phase, json.loads(line))
            peers.barrier()
            print(json.dumps(timed(peers, phase)), flush=True)


if __name__ == "__main__":
    main()
