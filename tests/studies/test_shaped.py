"""Rounds over TCP against the matrices that they stand for, the α–β model by hand, and links that keep their rate."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from decibel.studies import namespaces, shaped
from decibel.studies.namespaces import Link, network, obstacle, pass_on
from decibel.studies.shaped import expected
from decibel.studies.wire import KINDS, Peers, timed


def _free_ports(count):
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return [("127.0.0.1", port) for port in ports]


def _together(count, work):
    """`work(peers)` of every process, here threads."""
    addresses = _free_ports(count)

    def one(rank):
        with closing(Peers(rank, addresses)) as peers:
            return work(peers)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_round_is_its_matrix(kind, count):
    vectors = np.random.default_rng(0).normal(size=(count, 1_001)).astype(np.float32)
    back = np.roll(np.eye(count), 1, axis=1)
    matrices = {
        "ring": 0.5 * np.eye(count) + 0.25 * (back + back.T),
        "one-peer": 0.5 * (np.eye(count) + np.linalg.matrix_power(back.T, 2 ** (1 % (count - 1).bit_length()))),
        "all": np.full((count, count), 1 / count),
    }

    def work(peers):
        own = vectors[peers.rank].copy()
        KINDS[kind](peers, own, np.zeros((2, own.size), np.float32), 1)
        return own

    np.testing.assert_allclose(_together(count, work), matrices[kind] @ vectors, rtol=1e-5, atol=1e-6)


def test_every_kind_is_timed_and_the_mean_is_kept():
    phase = {"entries": 50, "rounds": 3, "kinds": list(KINDS), "compute": [0.0, 0.01]}
    found = _together(4, lambda peers: timed(peers, phase))
    for one in found:
        assert all(len(times) == 3 and min(times) > 0 for times in one["rounds"].values())
        assert all(len(steps) == 2 and steps[1] >= 0.01 for steps in one["steps"].values())
    assert np.mean([one["mean"] for one in found]) == pytest.approx(1.5)


def test_the_model_by_hand():
    link = Link(1.0, 2.0)  # a millisecond is 125,000 bytes
    assert expected("ring", 8, 31_250, link) == pytest.approx(4e-3)
    assert expected("one-peer", 8, 31_250, link) == pytest.approx(3e-3)
    assert expected("all", 8, 31_250, link) == pytest.approx(14 * (2e-3 + 1e-3 / 8))
    # On bandwidth alone a ring loses by n/(n − 1); on latency alone it wins by 2(n − 1).
    ratio = lambda entries, link: expected("ring", 8, entries, link) / expected("all", 8, entries, link)  # noqa: E731
    assert ratio(10**6, Link(1.0)) == pytest.approx(8 / 7)
    assert ratio(0, link) == pytest.approx(1 / 14)


def test_the_relay_delays_and_keeps_the_receivers_rate():
    ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
    relay = threading.Thread(target=pass_on, args=(3, [ours.fileno() for ours, _ in ends], 0.001, 20.0))
    relay.start()
    packet = lambda to: bytes([0x45]) + bytes(18) + bytes([to + 1]) + bytes(2_480)  # noqa: E731  20 ms at 1 Mbit/s
    begun = time.monotonic()
    ends[0][1].send(packet(2))
    ends[1][1].send(packet(2))
    ends[2][1].settimeout(5)
    arrived = [(len(ends[2][1].recv(4_000)), time.monotonic() - begun) for _ in range(2)]
    assert [size for size, _ in arrived] == [2_500, 2_500]
    assert arrived[0][1] >= 0.02 and arrived[1][1] >= 0.04  # the second waits for the first
    ends[0][1].close()
    relay.join(5)
    assert not relay.is_alive()
    for pair in ends:
        for one in pair:
            one.close()


def test_without_root_a_sentence_says_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    needs = pytest.raises(OSError, match="network namespaces need root: run this as root on Linux with iproute2, or")
    with needs, network(2, Link(1.0)):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 20.0])
def test_links_keep_their_rate_and_delay(delay):
    if (why := obstacle()) is not None:
        pytest.skip(why)
    try:
        found = shaped._measure(2, Link(0.05, delay), [shaped._phase(50_000, 3, ())])[0]
    except (subprocess.CalledProcessError, OSError) as error:
        pytest.skip(f"this machine allows no namespaces: {error}")
    fastest = np.min(np.max([one["rounds"]["one-peer"] for one in found], axis=0))  # of the slowest process
    # 200 kB at 50 Mbit/s are 32 ms; a bucket of one packet and the relay's cut-through may save two packets.
    saved = 3 * Link(0.05, delay).frame * 8 / 0.05e9
    assert fastest >= expected("one-peer", 2, 50_000, Link(0.05, delay)) - saved
    assert not [name for name in os.listdir("/run/netns") if name.startswith(f"dbl{os.getpid() % 10_000}-")]
    assert namespaces.address(0) != namespaces.address(1)
