"""Networks of namespaces, measured: delay, jitter, loss and rate of their links, and a cut through the middle. What
netem does here the relay does where the kernel has no netem."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress

import numpy as np
import pytest

from decibel_studies.testbed.namespaces import Link, network, obstacle
from decibel_studies.testbed.relay import pass_on

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
PORT, DATAGRAMS = 5_000, socket.SOCK_DGRAM


@contextmanager
def ends(link, count=2, kind=DATAGRAMS):
    """The network, and a socket in each of its namespaces."""
    if (why := obstacle()) is not None:
        pytest.skip(why)
    with network(count, link) as made, ExitStack() as stack:
        sockets = [stack.enter_context(closing(_socket_in(name, kind))) for name in made.names]
        for one, address in zip(sockets, made.addresses, strict=True):
            one.bind((address, PORT))
            one.settimeout(10)
        yield made, sockets


def _socket_in(name, kind):
    """A socket belongs to the namespace of the thread that made it."""

    def make():
        with open(f"/run/netns/{name}") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), NEW_NETWORK):
                raise OSError(ctypes.get_errno(), name)
        return socket.socket(socket.AF_INET, kind)

    with ThreadPoolExecutor(1) as own:  # its thread ends with it
        return own.submit(make).result()


def round_trips(made, sockets, count):
    """(count,) milliseconds of a datagram to the other end and back."""
    near, far = sockets

    def answer():
        for _ in range(count):
            far.sendto(*far.recvfrom(100))

    found = []
    answering = threading.Thread(target=answer)
    answering.start()
    for number in range(count):
        begun = time.monotonic()
        near.sendto(b"%d" % number, (made.addresses[1], PORT))
        assert near.recv(100) == b"%d" % number
        found.append(1e3 * (time.monotonic() - begun))
    answering.join(10)
    return np.array(found)


def test_a_packet_takes_the_delay_each_way():
    with ends(Link(1.0, 15.0)) as (made, sockets):
        assert made.shaped_by in ("netem", "relay")
        found = round_trips(made, sockets, 20)
    assert found.min() >= 30 and found.min() < 60  # not the delay twice


@pytest.mark.slow
def test_jitter_goes_both_ways():
    with ends(Link(1.0, 15.0, jitter=10.0)) as (made, sockets):
        found = round_trips(made, sockets, 50)
        came = received(made, sockets, 200)
    assert came != sorted(came) == list(range(200)), "packets overtake each other"
    assert found.min() >= 10
    assert (found < 30).sum() >= 5 and (found > 30).sum() >= 5  # half of them, if nothing else takes time
    assert found.std() > 5  # that of two uniform parts is 10 √(2/3) = 8.2


def received(made, sockets, count):
    """The numbers of datagrams that came to the other end, in the order in which they came."""
    near, far = sockets
    far.settimeout(1.0)

    def receive():
        found = []
        with suppress(TimeoutError):
            while True:
                found.append(int(far.recv(100)))
        return found

    with ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(receive)
        for number in range(count):
            near.sendto(b"%d" % number, (made.addresses[1], PORT))
            if number % 10 == 9:
                time.sleep(0.002)  # no queue of the kernel fills up
        return receiving.result()


def test_the_share_of_lost_packets():
    count, loss = 1_500, 0.2
    with ends(Link(1.0, loss=loss)) as (made, sockets):
        found = received(made, sockets, count)
    assert len(set(found)) == len(found)  # none twice
    assert found == sorted(found)  # without jitter none overtakes another
    deviation = (count * loss * (1 - loss)) ** 0.5
    assert abs(len(found) - count * (1 - loss)) < 6 * deviation


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 5.0])
def test_a_stream_comes_whole_and_keeps_the_rate(delay):
    link, size = Link(0.05, delay), 1_000_000  # 160 ms
    with ends(link, kind=socket.SOCK_STREAM) as (made, (near, far)), ThreadPoolExecutor(1) as pool:
        assert made.shaped_by == "bridge" or delay
        far.listen()
        near.connect((made.addresses[1], PORT))
        there, _ = far.accept()
        with there:
            begun = time.monotonic()
            sending = pool.submit(near.sendall, np.random.default_rng(0).bytes(size))
            assert there.recv(size, socket.MSG_WAITALL) == np.random.default_rng(0).bytes(size)
            took = time.monotonic() - begun
            sending.result()
    saved = 3 * link.frame * 8 / 0.05e9  # by a bucket of one packet, and by a relay that does not wait for its end
    assert took >= delay / 1e3 + size * 8 / 0.05e9 - saved
    assert took < 1.0  # nowhere twice as slow


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_a_network_in_two_parts(delay):
    with ends(Link(1.0, delay), count=4) as (made, sockets):

        def reaches(one, other, seconds=10.0):
            sockets[other].settimeout(0.1)
            until = time.monotonic() + seconds
            while time.monotonic() < until:  # who asked for an address in vain asks again after a second
                sockets[one].sendto(b"there", (made.addresses[other], PORT))
                with suppress(TimeoutError):
                    return sockets[other].recv(100) == b"there"
            return False

        made.part([2, 3])
        time.sleep(0.1)  # until a relay has heard of it
        assert not reaches(0, 2, 0.3) and not reaches(3, 1, 0.3)
        assert reaches(0, 1) and reaches(2, 3)
        made.heal()
        assert reaches(0, 2) and reaches(3, 1)


def test_nothing_is_left():
    with ends(Link(1.0, 1.0)) as (made, _):
        names, relay = [*made.names, made.switch], made.relay
        assert set(names) <= set(os.listdir("/run/netns"))
    assert not set(names) & set(os.listdir("/run/netns"))
    assert relay is None or relay.poll() is not None


def test_a_relay_delays_and_keeps_the_receivers_rate():
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
    relay = threading.Thread(target=pass_on, args=([ours.fileno() for ours, _ in pairs], Link(0.001, 20.0)))
    relay.start()
    packet = bytes([0x45]) + bytes(18) + bytes([2 + 1]) + bytes(2_480)  # to the third end, 20 ms at 1 Mbit/s
    begun = time.monotonic()
    pairs[0][1].send(packet)
    pairs[1][1].send(packet)
    pairs[2][1].settimeout(5)
    arrived = [(len(pairs[2][1].recv(4_000)), time.monotonic() - begun) for _ in range(2)]
    assert [size for size, _ in arrived] == [2_500, 2_500]
    assert arrived[0][1] >= 0.02 and arrived[1][1] >= 0.04  # the second waits for the first
    pairs[0][1].close()
    relay.join(5)
    assert not relay.is_alive()
    for pair in pairs:
        for one in pair:
            one.close()


def test_the_words_of_a_link():
    assert Link(1.0).netem == [] and str(Link(1.0)) == "1 Gbit/s"
    every = Link(0.1, 50.0, jitter=5.0, loss=0.02)
    assert every.netem[3:] == ["delay", "50ms", "5ms", "loss", "2%"]
    assert str(every) == "0.1 Gbit/s, 50 ± 5 ms, 2 % lost"
    assert Link(1.0, loss=0.125).netem[3:] == ["loss", "12.5%"]


def test_without_root_a_sentence_says_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    needs = pytest.raises(OSError, match="network namespaces need root: run this as root on Linux with iproute2, or")
    with needs, network(2, Link(1.0)):
        pass
