"""Certificates, federation files, a site's folder, and the commands that make them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from silo_sites import Folders, ring
from typer.testing import CliRunner

from decibel.cli._app import app
from decibel.cli._silo_rehearsal import on_loopback
from decibel.core._files import atomic_write
from decibel.engines.silo._certificates import Authority, NotTrusted, check, make_request, new_key, read_signed
from decibel.engines.silo._credentials import Credentials
from decibel.engines.silo._federation import Federation, SiteAddress


class TestCertificates:
    def setup_method(self):
        self.authority = Authority.make("test")
        self.key = new_key()

    def certificate(self, authority=None, **options):
        return (authority or self.authority).certify(make_request(self.key, "a", "test"), ["a"], **options)

    def test_the_name_is_in_the_certificate(self):
        assert check(self.certificate(), self.authority.certificate, set()) == "a"

    def test_raises(self):
        certificate, root = self.certificate(), self.authority.certificate
        with pytest.raises(NotTrusted, match="revoked"):
            check(certificate, root, {certificate.serial_number})
        with pytest.raises(NotTrusted, match="expired"):
            check(certificate, root, set(), datetime.now(UTC) + timedelta(days=400))
        with pytest.raises(NotTrusted, match="another authority"):
            check(self.certificate(Authority.make("test")), root, set())
        with pytest.raises(NotTrusted, match="not a site"):
            self.authority.certify(make_request(self.key, "mallory", "test"), ["a"])

    def test_a_signed_text_cannot_be_changed(self):
        signed = self.authority.sign('{"steps":100}')
        assert read_signed(signed, self.authority.certificate, "file") == '{"steps":100}'
        for forged in (signed.replace("100", "101"), Authority.make("test").sign("{}"), "{}", "no json", "[1]"):
            with pytest.raises(NotTrusted, match="file is not signed"):
                read_signed(forged, self.authority.certificate, "file")


class TestFederation:
    def test_text_and_back(self):
        federation = ring(4, method="ed", settings={"alpha": 0.1}, steps=10)
        assert Federation.from_text(federation.text) == federation
        assert replace(federation, steps=11).hash != federation.hash

    def test_one_end_dials(self):
        federation = ring(5, reachable={0, 2, 4})
        for a, b in federation.edges:
            assert federation.dials(a, b) != federation.dials(b, a)
            listener = b if federation.dials(a, b) else a
            assert federation.sites[listener].address is not None

    def test_a_port_alone_is_loopback(self, tmp_path):
        path = tmp_path / "f.toml"
        path.write_text('name="f"\nedges=[["a","b"]]\n[[sites]]\nname="a"\naddress=7401\n[[sites]]\nname="b"\n')
        assert Federation.from_toml(path).sites[0].listens == "127.0.0.1:7401"
        assert on_loopback(Federation.from_toml(path)).sites[1].address is None

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ('name="F!"', "lower-case"),
            ('edges=[["a","c"]]', "'c', which is not a site"),
            ('edges=[["a","a"]]', "two different sites"),
            ("stepz=3", "not known.*steps"),
            ('fault_tolerance={quorum="maybe"}', "wait, continue, stop"),
            ("fault_tolerance={beat=0}", "positive"),
            ('sites=[{name="a"},{name="b"}]', "neither has an address"),
            ('sites=[{name="a",address="nowhere"},{name="b"}]', "host:port"),
            ('sites=[{name="a",address=1},{name="b"},{name="b"}]', "two sites of the same name"),
        ],
    )
    def test_raises_in_a_sentence(self, tmp_path, change, sentence):
        written = {"name": '"f"', "edges": '[["a","b"]]', "sites": '[{name="a",address=7401},{name="b"}]'}
        key, _, value = change.partition("=")
        written[key] = value
        path = tmp_path / "f.toml"
        path.write_text("\n".join(f"{key}={value}" for key, value in written.items()))
        with pytest.raises(ValueError, match=sentence):
            Federation.from_toml(path)


def test_papers_that_do_not_fit_raise(tmp_path):
    folders = Folders(tmp_path, ring(2))
    with pytest.raises(ValueError, match="belongs to 'site-1', not to 'site-0'"):
        Credentials.load(folders.home("site-1"), "site-0")
    folders.site("site-0", lifetime=timedelta(seconds=-1))
    with pytest.raises(ValueError, match="expired"):
        Credentials.load(folders.home("site-0"), "site-0")
    atomic_write(folders.home("site-1") / "federation.json", Authority.make("test").sign(folders.federation.text))
    with pytest.raises(ValueError, match="not signed by this federation's authority"):
        Credentials.load(folders.home("site-1"), "site-1")


def test_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("f.toml").write_text('name="f"\nedges=[["a","b"]]\n[[sites]]\nname="a"\naddress=7401\n[[sites]]\nname="b"\n')

    def silo(*arguments, code=0):
        result = CliRunner().invoke(app, ["silo", *arguments])
        assert result.exit_code == code, result.output
        return result.output

    assert "2 sites" in silo("init", "f.toml")
    assert "already has a key" in silo("init", "f.toml", code=1)
    for name in "ab":
        silo("join", name)
    assert "not in federation" in silo("join", "c", code=1)
    assert Path("silo/a/key.pem").stat().st_mode & 0o077 == 0
    assert "identifies its holder as b until" in silo("sign", "silo/a/request.pem", "silo/b/request.pem")
    a, b = Credentials.load("silo/a", "a"), Credentials.load("silo/b", "b")
    assert a.check(b.certificate) == "b"
    silo("revoke", "silo/b/certificate.pem")
    atomic_write(Path("silo/a/revoked.json"), Path("silo/public/revoked.json").read_bytes())
    with pytest.raises(NotTrusted, match="revoked"):
        a.check(b.certificate)
    assert "never ran" in silo("status")
    assert "names no method" in silo("run", "a", "--problem", "m:f", code=1)


def test_places():
    assert SiteAddress("a").listens is None and SiteAddress("a", "h:1", "0.0.0.0:2").listens == "0.0.0.0:2"
