"""Incarnations grow from start to start, whatever clocks and folders do."""

from __future__ import annotations

import time

import pytest
from silo_sites import Folders, ring
from silo_talking import Group, wait_until

from decibel.silo.protocol._incarnation import INCARNATION, next_incarnation


@pytest.fixture
def start(tmp_path):
    with Group(Folders(tmp_path, ring(2))) as group:
        yield group


def introduce(talking, saved):
    talking.site._rendezvous.sign_own(0, saved)
    wait_until(lambda: talking.site.edges[0].stream)
    talking.site._rendezvous.send_roll(talking.site.edges.values())


def test_a_clock_that_was_set_back_does_not_silence_a_site(start, monkeypatch):
    """The other site has heard of its start before, and must hear of this one."""
    listener, first = start(0), start(1)
    known = listener.site._rendezvous.by_site
    introduce(first, [])
    wait_until(lambda: 1 in known)
    first.close()
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000)
    introduce(start(1), [10])
    wait_until(lambda: known[1].saved == (10,), 5)


def test_a_site_that_goes_back_is_told_so_and_not_ignored(start, monkeypatch):
    """Both its clock and its folder are of before: nobody would believe its statements."""
    listener, first = start(0), start(1)
    wait_until(lambda: listener.site.edges[1].stream)
    first.close()
    (first.home / INCARNATION).write_text("5")
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000)
    second = start(1)
    wait_until(lambda: any("set the clock of its machine right" in sentence for sentence in second.said))


class TestNextIncarnation:
    def test_grows_at_every_start(self, tmp_path):
        found = [next_incarnation(tmp_path, time) for time in (100, 50, 0, 200)]
        assert found == [100, 101, 102, 200]

    def test_is_on_the_disk_before_it_is_used(self, tmp_path):
        number = next_incarnation(tmp_path, 7)
        assert int((tmp_path / INCARNATION).read_text()) == number

    @pytest.mark.parametrize("content", ["", "seven", "-3", str(2**64 - 1), "9" * 40])
    def test_of_a_damaged_file_is_a_sentence(self, tmp_path, content):
        (tmp_path / INCARNATION).write_text(content)
        with pytest.raises(ValueError, match=r"incarnation is (damaged|larger)"):
            next_incarnation(tmp_path, 7)
