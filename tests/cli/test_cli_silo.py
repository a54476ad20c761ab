"""`decibel silo init`, `join`, `sign`, `revoke`, `ledger` and `passphrase`, and what a rehearsal may delete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from silo_sites import free_ports, ring
from typer.testing import CliRunner

import decibel as db
from decibel.cli._app import app
from decibel.cli._silo_command import method_of, prepare
from decibel.core._files import atomic_write
from decibel.engines.silo._authority import Authority
from decibel.engines.silo._certificates import load_certificate
from decibel.engines.silo._credentials import Credentials
from decibel.engines.silo._errors import NotTrusted
from decibel.engines.silo._signing import spoken

TOML = 'name="f"\nedges=[["a","b"]]\n[[sites]]\nname="a"\naddress=7401\n[[sites]]\nname="b"\n'
PASSPHRASE = "correct horse battery"


@pytest.fixture
def silo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DECIBEL_SILO_PASSPHRASE", PASSPHRASE)
    Path("f.toml").write_text(TOML)

    def call(*arguments, code=0, said=None):
        result = CliRunner().invoke(app, ["silo", *arguments], input=said)
        assert result.exit_code == code, result.output
        return result.output

    return call


def deliver(name):
    atomic_write(Path(f"silo/{name}/revoked.json"), Path("silo/public/revoked.json").read_bytes())


def test_from_init_to_revoke(silo):
    said = silo("init", "f.toml")
    assert "2 sites" in said and spoken(Authority.load(Path("silo/authority"), PASSPHRASE).fingerprint) in said
    assert "already has a key" in silo("init", "f.toml", code=1)
    told = [silo("join", name) for name in "ab"]
    assert "not in federation" in silo("join", "c", code=1)
    assert Path("silo/a/key.pem").stat().st_mode & 0o077 == 0
    said = silo("sign", "silo/a/request.pem", "silo/b/request.pem")
    assert "identifies its holder as b until" in said
    assert told[0].splitlines()[-1] in said and told[1].splitlines()[-1] in said  # the same fingerprints
    a, b = Credentials.load("silo/a", "a"), Credentials.load("silo/b", "b")
    assert a.check(b.certificate) == "b"
    assert "list 2, with 1 revoked keys" in silo("revoke", "silo/b/certificate.pem")
    deliver("a")
    with pytest.raises(NotTrusted, match="revoked"):
        a.check(b.certificate)
    assert "never ran" in silo("status")
    assert "names no method" in silo("run", "a", "--problem", "m:f", code=1)
    shown = silo("ledger")
    signed = ("authority ", "federation ", "certificate ", "list 1, revoked keys", "list 2, revoked keys")
    assert [shown.count(what) for what in signed] == [1, 1, 2, 1, 1]


def test_a_stolen_key_is_not_certified_again(silo):
    silo("init", "f.toml")
    silo("join", "a")
    silo("sign", "silo/a/request.pem")
    silo("revoke", "--site", "a")
    assert "revoked: the site has to create another" in silo("sign", "silo/a/request.pem", code=1)
    assert "is revoked: make another by --new-key" in silo("join", "a", code=1)
    silo("join", "a", "--new-key")
    silo("sign", "silo/a/request.pem")
    assert Credentials.load("silo/a", "a").check(load_certificate(Path("silo/a/certificate.pem"))) == "a"
    assert "site 'c' is not in federation" in silo("revoke", "--site", "c", code=1)
    assert "list 3, with 1 revoked keys" in silo("revoke")


def test_join_does_not_roll_the_list_back(silo):
    silo("init", "f.toml")
    silo("join", "a")
    old = Path("silo/public/revoked.json").read_bytes()
    silo("join", "b")
    silo("sign", "silo/b/request.pem")
    silo("revoke", "silo/b/certificate.pem")
    deliver("a")
    silo("join", "a")
    newest = Path("silo/a/revoked.json").read_bytes()
    atomic_write(Path("silo/public/revoked.json"), old)
    silo("join", "a")
    assert Path("silo/a/revoked.json").read_bytes() == newest != old
    assert "list 3, with 1 revoked keys" in silo("revoke")  # the ledger knows better than the old file
    Path("silo/public/revoked.json").unlink()
    assert "revoked.json is missing" in silo("join", "a", code=1)


def test_another_authority_is_not_taken_silently(silo):
    silo("init", "f.toml")
    silo("join", "a")
    silo("init", "f.toml", "--out", "other")
    assert "another authority" in silo("join", "a", "--public", "other/public", code=1)
    assert "not the one you gave" in silo("join", "a", "--public", "other/public", "--authority", "1 2 3", code=1)
    told = spoken(Authority.load(Path("other/authority"), PASSPHRASE).fingerprint)
    silo("join", "a", "--public", "other/public", "--authority", told)
    assert "another authority" in silo("join", "a", code=1)


def test_passphrases(silo, monkeypatch):
    monkeypatch.delenv("DECIBEL_SILO_PASSPHRASE")
    assert "no passphrase was given" in silo("init", "f.toml", code=1)
    assert not Path("silo/authority").exists()
    silo("init", "f.toml", said=f"{PASSPHRASE}\n{PASSPHRASE}\n")
    silo("join", "a")
    assert "passphrase is wrong" in silo("sign", "silo/a/request.pem", said="another passphrase\n", code=1)
    silo("sign", "silo/a/request.pem", said=f"{PASSPHRASE}\n")
    Path("secret").write_text("another passphrase\n")
    Path("old").write_text(PASSPHRASE)
    silo("passphrase", "--passphrase-file", "old", "--new-file", "secret")
    silo("sign", "silo/a/request.pem", "--passphrase-file", "secret")
    silo("passphrase", "--passphrase-file", "secret", "--no-passphrase")
    silo("sign", "silo/a/request.pem")
    assert "has no passphrase" in silo("init", "f.toml", "--out", "other", "--no-passphrase")


PRIVATE = """
name = "f"
edges = []
method = "METHOD"
steps = 12
eval_every = 4
sampling = "shuffle-once"
batch_size = 2
settings = { alpha = 0.1 }
sites = [{ name = "a", address = PORT }]
[privacy]
"""
PROBLEM = """
import decibel as db, jax.numpy as jnp, numpy as np

def problem():
    data = np.random.default_rng(0).normal(size=(1, 6, 3))
    return db.Problem(lambda x, batch: jnp.mean((batch @ x - 1) ** 2), upper_data=data, x0=jnp.zeros(3))
"""


class TestNoise:
    """In the federation file; the budgets are each site's own."""

    def prepare(self, silo, tables, method="ed"):
        text = PRIVATE.replace("METHOD", method).replace("PORT", str(free_ports(1)[0]))
        Path("f.toml").write_text(text + tables)
        Path("noisy_problem.py").write_text(PROBLEM)
        silo("init", "f.toml")
        silo("join", "a")
        silo("sign", "silo/a/request.pem")
        return Credentials.load("silo/a", "a").federation

    def test_of_records(self, silo):
        federation = self.prepare(silo, "records = { clip = 0.5, noise = 20 }")
        assert json.loads(federation.text)["privacy"] == {"records": {"clip": 0.5, "noise": 20}}
        said = silo("run", "a", "--problem", "noisy_problem:problem", "--record-budget", "0.6", "--delta", "1e-4")
        spent = db.privacy.epsilon(20.0, 3, 1e-4)  # a record is in one sum of three steps
        assert spent <= 0.6 < db.privacy.epsilon(20.0, 4, 1e-4)
        assert "a is at step 9" in said and "a stopped: the records' privacy budget of 0.6 (ε at δ = 0.0001)" in said
        assert f"one record {spent:.4g} of 0.6 (δ = 0.0001)" in silo("status")
        assert "a is at step 12" in silo("run", "a", "--problem", "noisy_problem:problem")
        assert f"one record {db.privacy.epsilon(20.0, 4):.4g} of any (δ = 1e-05)" in silo("status")
        assert "needs every message with noise" in silo(
            "run", "a", "--problem", "noisy_problem:problem", "--budget", "1", code=1
        )

    def test_of_messages(self, silo):
        self.prepare(silo, "messages = { clip = 0.5, noise = 40 }")
        budget = db.privacy.epsilon(40.0, 5)
        said = silo("run", "a", "--problem", "noisy_problem:problem", "--budget", str(budget))
        assert "a is at step 5" in said and f"all data {budget:.4g} of {budget:g} (δ = 1e-05)" in silo("status")
        assert "record_budget=1 needs" in silo(
            "run", "a", "--problem", "noisy_problem:problem", "--record-budget", "1", code=1
        )

    @pytest.mark.parametrize("value", ["0", "-1", "nan"])
    def test_budgets_that_are_none(self, silo, value):
        self.prepare(silo, "messages = { clip = 0.5, noise = 40 }")
        for option in ("--budget", "--record-budget"):
            assert "must be a positive number" in silo("run", "a", "--problem", "m:f", option, value, code=1)


def test_noise_on_messages_of_every_strategy():
    noise = {"messages": {"clip": 1.0, "noise": 3.0, "mixing": 0.5}}
    for name, levels in (("sparkle-ed-gt", "xyz"), ("dsgd", "x"), ("gt", "x")):
        made = method_of(ring(2, method=name, settings={"alpha": 0.3}, privacy=noise))
        assert sorted(made.strategies) == sorted(levels) and float(made.alpha) == 0.3
        for strategy in made.strategies.values():
            assert (strategy.move.code.clip, strategy.move.code.noise, strategy.move.code.mixing) == (1.0, 3.0, 0.5)
    for name, sentence in (("d-soba", "strategies of its own"), ("sparkle-edge-ed", "cannot be encoded")):
        with pytest.raises(ValueError, match=sentence):
            method_of(ring(2, method=name, privacy=noise))


class TestWhatARehearsalDeletes:
    def test_an_earlier_one(self, tmp_path):
        homes = prepare(ring(2), tmp_path / "out")
        first = (homes["site-0"] / "key.pem").read_bytes()
        atomic_write(homes["site-0"] / ".status.json.4711", "left by a process that was killed")
        prepare(ring(2), tmp_path / "out")
        assert (homes["site-0"] / "key.pem").read_bytes() != first
        (tmp_path / "empty").mkdir()
        prepare(ring(2), tmp_path / "empty")

    def test_no_real_authority(self, silo):
        silo("init", "f.toml")
        key = Path("silo/authority/key.pem").read_bytes()
        said = silo("rehearse", "f.toml", "--problem", "m:f", "--out", "silo", code=1)
        assert "was not made by a rehearsal" in said and Path("silo/authority/key.pem").read_bytes() == key
        prepare(ring(2), Path("out"))
        Path("out/authority").rename("gone")
        Path("silo/authority").rename("out/authority")
        with pytest.raises(ValueError, match="which no rehearsal made"):
            prepare(ring(2), Path("out"))
        assert Path("out/authority/key.pem").read_bytes() == key

    @pytest.mark.parametrize("path", ["thesis.tex", "site-0/data.csv", "site-2/key.pem"])
    def test_nothing_else(self, tmp_path, path):
        prepare(ring(2), tmp_path)
        atomic_write(tmp_path / path, "mine")
        with pytest.raises(ValueError, match=f"has {path.removesuffix('/key.pem')}, which no rehearsal made"):
            prepare(ring(2), tmp_path)
        assert (tmp_path / path).read_text() == "mine"

    def test_nothing_behind_a_link(self, tmp_path):
        prepare(ring(2), tmp_path / "real")
        (tmp_path / "link").symlink_to(tmp_path / "real")
        with pytest.raises(ValueError, match="which no rehearsal made"):
            prepare(ring(2), tmp_path / "link")
        (tmp_path / "file").write_text("mine")
        with pytest.raises(ValueError, match="was not made by a rehearsal"):
            prepare(ring(2), tmp_path / "file")
