"""What strangers and neighbours can take from a site: connections, streams, threads, descriptors and memory."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest
from silo_sites import Folders, ring
from silo_talking import Group, channel, wait_until

from decibel.silo.protocol import _frames as frames
from decibel.silo.protocol._frames import Hello
from decibel.silo.protocol._send_queue import ALWAYS, SendQueue
from decibel.silo.run._connections import CONNECTIONS, METHOD

DESCRIPTORS = Path("/proc/self/fd")


@pytest.fixture
def sites(tmp_path):
    with Group(Folders(tmp_path, ring(4))) as group:
        yield group


def channel_of(folders, name):
    return channel(folders.home(name), folders.federation.sites[0].address)


def flood(address, count):
    """Connections that say nothing, as far as the machine gives them."""
    host, port = address.split(":")
    made = []
    for _ in range(count):
        try:
            made.append(socket.create_connection((host, int(port)), timeout=1))
        except OSError:
            break
    return made


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="this system does not tell which descriptors are open")
def test_silent_connections_do_not_use_up_descriptors(sites):
    listener = sites(0)
    before = len(os.listdir(DESCRIPTORS))
    silent = flood(listener.site.federation.sites[0].address, 300)
    time.sleep(0.5)
    assert len(silent) == 300
    taken = len(os.listdir(DESCRIPTORS)) - before - len(silent)  # their other ends, as far as the site keeps them
    assert taken <= CONNECTIONS + 8 * 2 + 10
    for one in silent:
        one.close()
    dialler = sites(1)
    wait_until(lambda: dialler.site.edges[0].stream and listener.site.edges[1].stream)


@pytest.mark.slow
@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="this system does not tell which descriptors are open")
def test_a_neighbour_is_let_in_when_silent_connections_have_had_their_time(sites):
    listener = sites(0)
    before = len(os.listdir(DESCRIPTORS))
    silent = flood(listener.site.federation.sites[0].address, 300)
    dialler = sites(1)
    wait_until(lambda: dialler.site.edges[0].stream, 30)
    wait_until(lambda: len(os.listdir(DESCRIPTORS)) < before + len(silent) + 20, 30)
    for one in silent:
        one.close()


def test_silent_streams_of_a_neighbour_hold_nobody_up(sites):
    """It opens streams and never says HELLO: the newest is waited for, and other neighbours are served at once."""
    others = set(threading.enumerate())
    listener = sites(0)
    with channel_of(sites.folders, "site-3") as opened:
        held = threading.Event()

        def nothing():
            held.wait(20)
            yield b""

        calls = [opened.stream_stream(METHOD)(nothing()) for _ in range(60)]
        time.sleep(0.5)
        begun = time.monotonic()
        dialler = sites(1)
        wait_until(lambda: listener.site.edges[1].stream and dialler.site.edges[0].stream)
        assert time.monotonic() - begun < 4
        serving = [one for one in set(threading.enumerate()) - others if one.name.startswith("silo stream")]
        assert 1 < len(serving) <= 2 * (2 * len(listener.site.edges) + 4)  # of both sites
        held.set()
        for call in calls:
            call.cancel()


def test_a_second_stream_replaces_the_first(sites):
    listener = sites(0)
    hello = frames.write(Hello(sites.folders.federation.hash, b"p" * 32, 1, b"n" * 32))
    held, channels, streams = threading.Event(), [], []

    def greeting():
        yield hello
        held.wait(20)

    for _ in range(8):
        channels.append(channel_of(sites.folders, "site-1"))
        assert isinstance(frames.parse(next(channels[-1].stream_stream(METHOD)(greeting()))), Hello)
        streams.append(listener.site.edges[1].stream)
    assert len(set(map(id, streams))) == 8 and listener.site.edges[1].stream is streams[-1]
    reading = lambda: [one for one in threading.enumerate() if one.name == "silo _read"]  # noqa: E731
    wait_until(lambda: len(reading()) == 1)  # nothing is left of the others
    held.set()
    for opened in channels:
        opened.close()


class TestOutgoing:
    def test_in_order_until_the_end(self):
        stream = SendQueue(lambda: None)
        for number in range(5):
            stream.send(b"%d" % number)
        stream.end()
        stream.send(b"late")
        assert list(stream) == [b"0", b"1", b"2", b"3", b"4"]

    def test_a_neighbour_that_does_not_read_is_disconnected_before_it_costs_memory(self):
        closed = []
        stream = SendQueue(lambda: closed.append(True), room=10_000)
        for _ in range(1000):
            stream.send(b"x" * 1000)
        assert closed and stream._size <= 10_000 + ALWAYS
        assert list(stream) == []  # nothing of it goes out any more

    def test_what_was_read_makes_room(self):
        closed = []
        stream = SendQueue(lambda: closed.append(True), room=0)
        reading = iter(stream)
        for _ in range(100):
            stream.send(b"x" * (ALWAYS // 2))
            assert len(next(reading)) == ALWAYS // 2
        assert not closed

    def test_hanging_up_ends_who_waits(self):
        stream, ended = SendQueue(lambda: None), threading.Event()
        thread = threading.Thread(target=lambda: (list(stream), ended.set()), daemon=True)
        thread.start()
        stream.hang_up()
        assert ended.wait(5)


class TestThreads:
    def test_what_fails_is_tried_again(self, sites, monkeypatch):
        """Beats go on after a failure in them, and certificates are looked at after one in reading them."""
        listener, failed = sites(0), []
        watch, refresh = listener.site.on_heartbeat, listener.credentials.refresh

        def failing(real):
            def once():
                if real.__name__ not in failed:
                    failed.append(real.__name__)
                    raise OSError(28, "No space left on device")
                return real()

            return once

        monkeypatch.setattr(listener.site, "on_heartbeat", failing(watch))
        monkeypatch.setattr(listener.credentials, "refresh", failing(refresh))
        wait_until(lambda: len(failed) == 2)
        dialler = sites(1)
        wait_until(lambda: listener.site.edges[1].stream)
        seen = dialler.site.edges[0].last_seen
        wait_until(lambda: dialler.site.edges[0].last_seen > seen)
        assert any("No space left" in sentence for sentence in listener.said)
        sites.folders.revoke(sites.folders.home("site-0"), dialler.credentials.certificate)
        wait_until(lambda: listener.site.edges[1].stream is None, 3)
