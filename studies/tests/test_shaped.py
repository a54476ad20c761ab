"""Rounds over TCP against the matrices that they stand for, the α–β model by hand, and links that keep their rate."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from decibel_studies.testbed import shaped
from decibel_studies.testbed.namespaces import Link, obstacle
from decibel_studies.testbed.shaped import expected
from decibel_studies.testbed.tcp_rounds import KINDS, Peers, timed


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

    def ratio(entries, link):
        return expected("ring", 8, entries, link) / expected("all", 8, entries, link)

    assert ratio(10**6, Link(1.0)) == pytest.approx(8 / 7)
    assert ratio(0, link) == pytest.approx(1 / 14)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 20.0])
def test_links_keep_their_rate_and_delay(delay):
    if (why := obstacle()) is not None:
        pytest.skip(why)
    found = shaped._measure(2, Link(0.05, delay), [shaped._phase(50_000, 3, ())])[0]
    fastest = np.min(np.max([one["rounds"]["one-peer"] for one in found], axis=0))  # of the slowest process
    # 200 kB at 50 Mbit/s are 32 ms; a bucket of one packet and the relay's cut-through may save two packets.
    saved = 3 * Link(0.05, delay).frame * 8 / 0.05e9
    assert fastest >= expected("one-peer", 2, 50_000, Link(0.05, delay)) - saved
