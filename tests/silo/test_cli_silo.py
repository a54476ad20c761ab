"""`decibel silo init`, `join`, `sign`, `revoke`, `ledger` and `passphrase`, and what a rehearsal may delete."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID
from silo_commands import silo_command
from silo_sites import free_ports, ring

import decibel as db
from decibel.core._files import atomic_write
from decibel.silo._errors import NotTrusted
from decibel.silo.commands._federation_method import method_of
from decibel.silo.commands._join import prepare
from decibel.silo.trust._authority import Authority
from decibel.silo.trust._certificates import distinguished, load_certificate, load_request, make_request, pem
from decibel.silo.trust._credentials import Credentials
from decibel.silo.trust._signing import as_digits, fingerprint, new_key

TOML = 'name="f"\nedges=[["a","b"]]\n[[sites]]\nname="a"\naddress=7401\n[[sites]]\nname="b"\n'
PASSPHRASE = "correct horse battery"


@pytest.fixture
def silo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DECIBEL_SILO_PASSPHRASE", PASSPHRASE)
    Path("f.toml").write_text(TOML)

    return silo_command


def sign(silo, name, *options, code=0, said=None):
    """With the fingerprint that the site has shown."""
    key = load_request(Path(f"silo/{name}/request.pem")).public_key()
    return silo(
        "sign", name, f"silo/{name}/request.pem", "--fingerprint", as_digits(fingerprint(key)), *options, code=code,
        said=said,
    )  # fmt: skip


def deliver(name):
    atomic_write(Path(f"silo/{name}/revoked.json"), Path("silo/public/revoked.json").read_bytes())


def test_from_init_to_revoke(silo):
    said = silo("init", "f.toml")
    assert "2 sites" in said and as_digits(Authority.load(Path("silo/authority"), PASSPHRASE).fingerprint) in said
    assert "already has a key" in silo("init", "f.toml", code=1)
    told = [silo("join", name) for name in "ab"]
    assert "not in federation" in silo("join", "c", code=1)
    assert Path("silo/a/key.pem").stat().st_mode & 0o077 == 0
    for name, shown in zip("ab", told, strict=True):
        said = silo("sign", name, f"silo/{name}/request.pem", said="y\n")
        assert f"identifies the holder of that key as {name} until" in said
        assert shown.splitlines()[-1] in said  # the same fingerprint
    a, b = Credentials.load("silo/a", "a"), Credentials.load("silo/b", "b")
    assert a.validated_name(b.certificate) == "b"
    assert "list 2, with 1 revoked keys" in silo("revoke", "silo/b/certificate.pem")
    deliver("a")
    with pytest.raises(NotTrusted, match="revoked"):
        a.validated_name(b.certificate)
    assert "never ran" in silo("status")
    assert "names no method" in silo("run", "a", "--problem", "m:f", code=1)
    shown = silo("ledger")
    signed = ("authority ", "federation, edition 1", "certificate ", "list 1, revoked keys", "list 2, revoked keys")
    assert [shown.count(what) for what in signed] == [1, 1, 2, 1, 1]


def test_stop_and_lift(silo):
    silo("init", "f.toml")
    silo("join", "a")
    sign(silo, "a")
    assert "nothing to lift" in silo("stop", "--lift", code=1)
    assert "is order 1, to stop: put it into a site's folder" in silo("stop", "--reason", "an audit")
    atomic_write("silo/a/order.json", Path("silo/public/order.json").read_bytes())
    assert Credentials.load("silo/a", "a").trust.order.reason == "an audit"
    assert "is order 2, which lifts" in silo("stop", "--lift")
    silo("join", "a")  # takes the newest of the public folder
    assert not Credentials.load("silo/a", "a").trust.order.stop
    shown = silo("ledger")
    assert "order 1, to stop" in shown and "order 2, to go on" in shown
    assert "name a site's folder, where the site has run" in silo("watch", "--once", code=1)


def test_a_stolen_key_is_not_certified_again(silo):
    silo("init", "f.toml")
    silo("join", "a")
    sign(silo, "a")
    silo("revoke", "--site", "a")
    assert "revoked: the site has to create another" in sign(silo, "a", code=1)
    assert "is revoked: make another with --new-key" in silo("join", "a", code=1)
    silo("join", "a", "--new-key")
    sign(silo, "a")
    assert Credentials.load("silo/a", "a").validated_name(load_certificate(Path("silo/a/certificate.pem"))) == "a"
    assert "site 'c' is not in federation" in silo("revoke", "--site", "c", code=1)
    assert "list 3, with 1 revoked keys" in silo("revoke")


class TestSign:
    """Nobody is certified as somebody else, and nobody whose fingerprint was not compared."""

    @pytest.fixture
    def silo(self, silo):
        silo("init", "f.toml")
        silo("join", "a")
        silo("join", "b")
        return silo

    def test_only_the_name_that_the_operator_states(self, silo):
        atomic_write("b.pem", pem(make_request(new_key(), "a", "f")))  # from b, with another's name
        assert "the request is for 'a', not for 'b'" in silo("sign", "b", "b.pem", code=1, said="y\n")
        assert "site 'c' is not in federation" in silo("sign", "c", "b.pem", code=1, said="y\n")
        assert not Path("certificate.pem").exists() and "certificate" not in silo("ledger")

    def test_nothing_of_the_request_but_its_key(self, silo):
        several = [
            *distinguished("a", "f"),
            *distinguished("a", "other").get_attributes_for_oid(NameOID.ORGANIZATION_NAME),
        ]
        key = new_key()
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(several)).sign(key, hashes.SHA256())
        atomic_write("a.pem", pem(request))
        silo("sign", "a", "a.pem", "--fingerprint", fingerprint(key.public_key()))
        assert load_certificate(Path("certificate.pem")).subject == distinguished("a", "f")

    def test_without_the_right_fingerprint_nothing_is_signed(self, silo):
        for options, answer, sentence in (
            (["--fingerprint", "1 2 3"], None, "another key than the fingerprint you gave"),
            (["--fingerprint", ""], "y\n", "another key than the fingerprint you gave"),
            ([], "n\n", "is not signed"),
            ([], "\n", "is not signed"),
            ([], "", "nobody confirmed the fingerprint: give the one you were told by --fingerprint"),
        ):
            shown = silo("sign", "a", "silo/a/request.pem", *options, code=1, said=answer)
            assert sentence in shown
            assert as_digits(fingerprint(load_request(Path("silo/a/request.pem")).public_key())) in shown
        assert not Path("silo/a/certificate.pem").exists() and "certificate" not in silo("ledger")


def test_join_does_not_roll_the_list_back(silo):
    silo("init", "f.toml")
    silo("join", "a")
    old = Path("silo/public/revoked.json").read_bytes()
    silo("join", "b")
    sign(silo, "b")
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
    told = as_digits(Authority.load(Path("other/authority"), PASSPHRASE).fingerprint)
    silo("join", "a", "--public", "other/public", "--authority", told)
    assert "another authority" in silo("join", "a", code=1)


def test_passphrases(silo, monkeypatch):
    monkeypatch.delenv("DECIBEL_SILO_PASSPHRASE")
    assert "no passphrase was given" in silo("init", "f.toml", code=1)
    assert not Path("silo/authority").exists()
    silo("init", "f.toml", said=f"{PASSPHRASE}\n{PASSPHRASE}\n")
    silo("join", "a")
    assert "passphrase is wrong" in sign(silo, "a", said="another passphrase\n", code=1)
    sign(silo, "a", said=f"{PASSPHRASE}\n")
    Path("secret").write_text("another passphrase\n")
    Path("old").write_text(PASSPHRASE)
    silo("passphrase", "--passphrase-file", "old", "--new-file", "secret")
    sign(silo, "a", "--passphrase-file", "secret")
    silo("passphrase", "--passphrase-file", "secret", "--no-passphrase")
    sign(silo, "a")
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
        sign(silo, "a")
        return Credentials.load("silo/a", "a").federation

    def test_of_records(self, silo):
        federation = self.prepare(silo, "records = { clip = 0.5, noise = 20 }")
        assert json.loads(federation.text)["privacy"] == {"records": {"clip": 0.5, "noise": 20}}
        said = silo("run", "a", "--problem", "noisy_problem:problem", "--record-budget", "0.6", "--delta", "1e-4")
        spent = db.privacy.epsilon(20.0, 3, 1e-4)  # a record is in one sum of three steps
        assert spent <= 0.6 < db.privacy.epsilon(20.0, 4, 1e-4)
        assert "a is at step 9" in said and "a stopped: the records' privacy budget of 0.6 (ε at δ = 0.0001)" in said
        assert f"a: ε = {spent:.3g} of 0.6 per record (δ = 0.0001)" in silo("status")
        assert "needs every message with noise" in silo(
            "run", "a", "--problem", "noisy_problem:problem", "--budget", "1", code=1
        )

    @pytest.mark.slow
    def test_a_plan_counts_what_a_run_counts(self, silo):
        """Three batches of a pass, in each of 12 steps."""
        shown = silo(
            "privacy", "--noise", "20", "--steps", "12", "--method", "ed", "--samples", "6", "--batch-size", "2"
        )  # fmt: skip
        self.prepare(silo, "records = { clip = 0.5, noise = 20 }\nmessages = { clip = 0.5, noise = 20 }")
        silo("run", "a", "--problem", "noisy_problem:problem")
        counted = json.loads(Path("silo/a/privacy.json").read_text())
        (sums,), (messages,) = counted["records"], counted["sent"]
        assert f"{sums['sums']} sums" in shown and f"{messages['messages']} messages" in shown

    def test_budgets_that_are_none(self, silo):
        self.prepare(silo, "messages = { clip = 0.5, noise = 40 }")
        for option, value in (("--budget", "0"), ("--record-budget", "nan")):
            assert "must be a positive number" in silo("run", "a", "--problem", "m:f", option, value, code=1)


def test_noise_on_messages_of_every_strategy():
    noise = {"messages": {"clip": 1.0, "noise": 3.0, "mixing": 0.5}}
    for name, levels in (("sparkle-ed-gt", "xyz"), ("dsgd", "x"), ("gt", "x")):
        made = method_of(ring(2, method=name, settings={"alpha": 0.3}, privacy=noise))
        assert sorted(made.strategies) == sorted(levels) and float(made.alpha) == 0.3
        for strategy in made.strategies.values():
            assert (strategy.flow_form.code.clip, strategy.flow_form.code.noise, strategy.flow_form.code.mixing) == (
                1.0,
                3.0,
                0.5,
            )
    for name, sentence in (("d-soba", "strategies of its own"), ("sparkle-edge-ed", "cannot be encoded")):
        with pytest.raises(ValueError, match=sentence):
            method_of(ring(2, method=name, privacy=noise))


class TestPlan:
    """Two of ε, noise and steps give the third."""

    def test_each_of_the_three(self, silo):
        options = ["--samples", "500", "--batch-size", "32", "--delta", "1e-6"]
        noise = re.search(
            r"records = \{ clip = 1, noise = (\S+) \}", silo("privacy", "--epsilon", "3", "--steps", "2000", *options)
        )[1]
        cost = silo("privacy", "--noise", noise, "--steps", "2000", *options)
        spent = float(re.search(r"ε = (\S+) per record \(δ = 1e-6\)", cost)[1])
        assert 2.95 < spent <= 3
        steps = re.search(
            r"per record .* after (\d+) steps", silo("privacy", "--epsilon", "3", "--noise", noise, *options)
        )
        assert 2000 <= int(steps[1]) < 2050
        deviation = re.search(r"mean over 32 samples gets noise of standard deviation (\S+)", cost)[1]
        assert float(deviation) == pytest.approx(float(noise) / 32, rel=0.01)

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["--epsilon", "3"], "give two of --epsilon, --noise and --steps"),
            (["--epsilon", "3", "--noise", "2", "--steps", "5"], "give two of --epsilon, --noise and --steps"),
            (["--epsilon", "0", "--steps", "5"], "epsilon=0.0 must be a positive number"),
            (["--epsilon", "3", "--steps", "5", "--batch-size", "2"], "--batch-size needs --samples"),
            (["--epsilon", "3", "--steps", "5", "--method", "sparkel-ed"], "method 'sparkel-ed' is not known"),
        ],
    )
    def test_what_is_wrong_is_a_sentence(self, silo, arguments, sentence):
        assert sentence in silo("privacy", *arguments, code=1)


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


def test_from_amend_to_a_site_that_takes_it(silo):
    silo("init", "f.toml")
    for name in "ab":
        silo("join", name)
        sign(silo, name)
    leaver = Credentials.load("silo/b", "b").certificate
    first = Path("silo/public/federation.json").read_bytes()
    assert "there is nothing to amend" in silo("amend", "f.toml", code=1)
    Path("f.toml").write_text("steps=900\n" + TOML.replace('"b"', '"c"'))
    said = silo("amend", "f.toml")
    assert "is now edition 2: c comes, b leaves, the graph changes, steps None → 900." in said
    assert "is now list 2, with the keys of b" in said
    assert re.search(r"federation, edition\s+1.*federation, edition\s+2", silo("ledger"), re.DOTALL)
    for name in ("federation.json", "revoked.json"):
        atomic_write(Path("silo/a") / name, Path("silo/public", name).read_bytes())
    a = Credentials.load("silo/a", "a")
    assert a.federation.edition == 2 and a.federation.names == ("a", "c")
    with pytest.raises(NotTrusted, match="revoked"):
        a.validated_name(leaver)
    assert "not in federation" in silo("join", "b", code=1)
    silo("join", "c")
    sign(silo, "c")
    assert a.validated_name(Credentials.load("silo/c", "c").certificate) == "c"
    newest = Path("silo/public/federation.json").read_bytes()
    for stale in ("silo/public/federation.json", "silo/a/federation.json"):
        atomic_write(Path(stale), first)
    assert "ledger's newest is edition 2" in silo("amend", "f.toml", code=1)
    with pytest.raises(NotTrusted, match="has had edition 2"):
        Credentials.load("silo/a", "a")
    assert "has had edition 2" in silo("join", "a", code=1)
    atomic_write(Path("silo/public/federation.json"), newest)
    silo("join", "a")
    assert Credentials.load("silo/a", "a").federation.edition == 2


def test_members_of_a_method_without_flows_change_only_with_a_warm_start(silo):
    three = TOML.replace('[["a","b"]]', '[["a","b"],["c","a"]]') + '[[sites]]\nname="c"\n'
    head = 'method="sparkle-ed"\ntrust_members=true\nsteps=9\n'
    rates = "[settings]\nalpha=0.1\nbeta=0.1\ngamma=0.1\n"
    Path("f.toml").write_text(head + TOML + rates)
    silo("init", "f.toml")
    Path("f.toml").write_text(head + three + rates)
    said = silo("amend", "f.toml", code=1)
    assert "cancel only over the members that made them" in said.replace("\n", " ") and "--warm" in said
    assert "begin corrections at zero" in silo("amend", "f.toml", "--warm")
