"""Versions and losses of two sites over gRPC: what keeps them apart, what is only said, and who is told."""

from __future__ import annotations

import pytest
from quadratics import random_quadratic
from silo_sites import Folders, ring
from silo_talking import Group, wait_until

import decibel as db
from decibel.silo._errors import Rejected
from decibel.silo.observe._site_status import status_facts
from decibel.silo.protocol import _frames as frames
from decibel.silo.protocol._compatibility import build_of, differences, validate_losses
from decibel.silo.protocol._frames import NO_HASH, Build
from decibel.silo.run import _connections as _streams

OWN = Build("1.0", "0.10.2", b"u" * 32, b"l" * 32)


@pytest.fixture
def start(tmp_path):
    with Group(Folders(tmp_path, ring(2))) as group:
        yield group


def connected(one):
    return all(edge.stream is not None for edge in one.site.edges.values())


class TestLosses:
    @pytest.mark.parametrize("change", [{"upper": b"x" * 32}, {"lower": b"x" * 32}])
    def test_that_differ_keep_apart_and_name_the_loss(self, change):
        (name,) = change
        with pytest.raises(Rejected, match=f"bern and basel have different {name} losses: give every site the same"):
            validate_losses(OWN, OWN._replace(**change), "bern", "basel")

    @pytest.mark.parametrize(
        "theirs",
        [OWN, Build(), OWN._replace(jax="0.12", upper=b"x" * 32), OWN._replace(decibel="2.0"), Build("1.0", "0.10.2")],
    )
    def test_that_cannot_be_compared_do_not(self, theirs):
        validate_losses(OWN, theirs, "bern", "basel")

    def test_of_one_level_are_compared_by_the_upper_one(self):
        single = OWN._replace(lower=NO_HASH)
        validate_losses(single, single, "bern", "basel")
        with pytest.raises(Rejected, match="different upper losses"):
            validate_losses(single, single._replace(upper=b"x" * 32), "bern", "basel")

    def test_are_compared_by_what_they_compute(self):
        problem = random_quadratic(2).single()

        def of(factor):
            loss = lambda x, batch: factor * problem.upper(x, batch)  # noqa: E731
            return build_of(db.Problem(loss, upper_data=problem.upper_data, x0=problem.x0))

        assert of(1.0) == of(1.0) and of(1.0).upper != of(1.0 + 1e-12).upper and of(1.0).lower == NO_HASH

    def test_over_streams(self, start):
        listener, dialler = start(0, build=OWN), start(1, build=OWN._replace(lower=b"x" * 32))
        wait_until(lambda: any("different lower losses" in line for line in listener.said))
        wait_until(lambda: status_facts(dialler.site)["state"] == "refused")
        assert any(
            "site-0 rejected this site: site-1 and site-0 have different lower losses" in s for s in dialler.said
        )
        assert "different lower losses" in status_facts(dialler.site)["detail"] and not connected(dialler)


class TestVersions:
    def test_that_differ_are_said_by_both_and_do_not_keep_apart(self, start):
        other = Build("2.0", "0.12", b"x" * 32, b"y" * 32)
        listener, dialler = start(0, build=OWN), start(1, build=other)
        wait_until(lambda: connected(listener) and connected(dialler))
        for one, name, here, there in ((listener, "site-1", OWN, other), (dialler, "site-0", other, OWN)):
            fix = "install the same release everywhere"
            assert one.said == [
                f"{name} has Decibel {there.decibel}, and this site {here.decibel}: {fix}",
                f"{name} has JAX {there.jax}, and this site {here.jax}, so that losses were not compared: {fix}",
            ]

    def test_of_decibel(self):
        assert differences(OWN, OWN._replace(decibel="2.0\n"), "bern") == [
            "bern has Decibel 2.0\\n, and this site 1.0: install the same release everywhere"
        ]
        assert differences(OWN, OWN, "bern") == differences(OWN, Build(), "bern") == []

    def test_of_the_protocol_keep_apart_and_both_are_told(self, start, monkeypatch):
        listener = start(0)
        write = _streams.write
        other = frames.VERSION + 1

        def write_other(frame):
            return write(frame._replace(version=other) if isinstance(frame, frames.Hello) else frame)

        monkeypatch.setattr(_streams, "write", write_other)
        dialler = start(1)
        sentence = (
            f"HELLO of protocol version {other}, and this site speaks {frames.VERSION}: install the same release."
        )
        wait_until(lambda: any(sentence in line for line in listener.said))
        wait_until(lambda: f"site-0 rejected this site: {sentence}" in dialler.said)


class TestWhoIsRejectedIsTold:
    def test_by_the_end_that_dials(self, start, monkeypatch):
        """The one that listens has let it in already."""
        listener = start(0)
        dialler = start(1)
        wait_until(lambda: connected(listener) and connected(dialler))
        start.folders.revoke(dialler.home, listener.credentials.certificate)
        wait_until(lambda: any("site-1 rejected this site: the certificate is revoked." in s for s in listener.said))
        assert not connected(dialler)

    def test_after_a_frame_that_is_none(self, start):
        listener, dialler = start(0), start(1)
        wait_until(lambda: connected(listener) and connected(dialler))
        edge = listener.site.edges[1]
        edge.stream.send(b"nonsense")
        wait_until(lambda: any("site-1 rejected this site: these bytes are not a frame" in s for s in listener.said))
        wait_until(lambda: connected(listener) and connected(dialler))  # again
