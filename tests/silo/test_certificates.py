"""Keys, certificates, signed texts, lists of revoked keys, the authority and its ledger."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from silo_sites import Folders, ring

from decibel.core import _files as files
from decibel.core._files import atomic_write
from decibel.silo.trust import _trust as trust
from decibel.silo.trust._authority import Authority, current_list, publish
from decibel.silo.trust._certificates import (
    builder,
    certificate_fingerprint,
    der,
    distinguished,
    load_certificate,
    make_request,
    pem,
    read_revoked,
    read_signed,
    validated_name,
    write_signed,
)
from decibel.silo.trust._credentials import Credentials, Signatures
from decibel.silo.trust._revocation import RevocationList
from decibel.silo.trust._signature_ledger import SignatureLedger
from decibel.silo.trust._signing import (
    NotTrusted,
    as_digits,
    fingerprint,
    load_key,
    new_key,
    same_fingerprint,
    save_key,
    sign,
    verified,
)
from decibel.silo.trust._trust import Trust

NONE = RevocationList.first("test")
FOREIGN = {
    "RSA-1024": lambda: rsa.generate_private_key(65537, 1024),
    "RSA-2048": lambda: rsa.generate_private_key(65537, 2048),
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
}


def request_of(key, name="a"):
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return x509.CertificateSigningRequestBuilder().subject_name(distinguished(name, "test")).sign(key, algorithm)


class TestCertificates:
    def setup_method(self):
        self.authority = Authority.make("test")
        self.key = new_key()

    def certificate(self, authority=None, **options):
        return (authority or self.authority).certify(make_request(self.key, "a", "test"), "a", **options)

    def test_the_name_is_in_the_certificate(self):
        assert validated_name(self.certificate(), self.authority.certificate, NONE) == "a"

    def test_raises(self):
        certificate, root = self.certificate(), self.authority.certificate
        with pytest.raises(NotTrusted, match="the certificate is revoked"):
            validated_name(certificate, root, NONE.next([certificate_fingerprint(certificate)]))
        with pytest.raises(NotTrusted, match="certificate has expired"):
            validated_name(certificate, root, NONE, datetime.now(UTC) + timedelta(days=400))
        with pytest.raises(NotTrusted, match="list of revoked keys has expired"):
            validated_name(certificate, root, NONE, datetime.now(UTC) + timedelta(days=91))
        with pytest.raises(NotTrusted, match="another authority"):
            validated_name(self.certificate(Authority.make("test")), root, NONE)
        with pytest.raises(NotTrusted, match="the request is for 'mallory', not for 'a'"):
            self.authority.certify(make_request(self.key, "mallory", "test"), "a")

    def test_a_key_is_revoked_with_all_its_certificates(self):
        first, second = self.certificate(), self.certificate()
        revoked = NONE.next([certificate_fingerprint(first)])
        assert first.serial_number != second.serial_number
        with pytest.raises(NotTrusted, match="revoked"):
            validated_name(second, self.authority.certificate, revoked)
        with pytest.raises(NotTrusted, match=r"key of 'a' is revoked.*--new-key"):
            self.certificate(revoked=revoked)

    @pytest.mark.parametrize("kind", FOREIGN)
    def test_keys_of_another_kind_are_neither_signed_nor_accepted(self, kind):
        key = FOREIGN[kind]()
        with pytest.raises(NotTrusted, match="request of 'a' has a key that is not P-256"):
            self.authority.certify(request_of(key), "a")
        subject = distinguished("a", "test")
        made = builder(subject, self.authority.certificate.subject, key.public_key(), timedelta(days=1))
        slipped_through = made.sign(self.authority.key, hashes.SHA256())
        with pytest.raises(NotTrusted, match="certificate has a key that is not P-256"):
            validated_name(slipped_through, self.authority.certificate, NONE)

    @pytest.mark.parametrize("names", [[], ["a", "b"]])
    def test_a_certificate_names_one_site(self, names):
        made = builder(
            distinguished("a", "test"), self.authority.certificate.subject, self.key.public_key(), timedelta(days=1)
        )
        if names:
            made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), False)
        with pytest.raises(NotTrusted, match="does not name one site"):
            validated_name(made.sign(self.authority.key, hashes.SHA256()), self.authority.certificate, NONE)


class TestSignedTexts:
    def test_cannot_be_changed(self):
        authority = Authority.make("test")
        signed = write_signed(authority.key, "federation", '{"steps":100}')
        assert read_signed(signed, authority.certificate, "federation", "file") == '{"steps":100}'
        foreign = write_signed(new_key(), "federation", "{}")
        for forged in (signed.replace("100", "101"), foreign, "{}", "no json", "[1]", "[" * 100_000, b"\xff"):
            with pytest.raises(NotTrusted, match="file is not signed"):
                read_signed(forged, authority.certificate, "federation", "file")

    def test_are_good_for_one_purpose(self):
        authority = Authority.make("test")
        signed = write_signed(authority.key, "federation", NONE.text)
        relabelled = signed.replace('"federation"', '"revocation list"', 1)
        for text in (signed, relabelled):
            with pytest.raises(NotTrusted, match="as a revocation list"):
                read_revoked(text, authority.certificate, "test", "file")
        key, public = authority.key, authority.key.public_key()
        purposes = ("federation", "revocation list", "greeting")
        for one in purposes:
            assert [verified(public, sign(key, one, b"text"), other, b"text") for other in purposes] == [
                one == other for other in purposes
            ]

    def test_are_of_the_site_that_the_certificate_names(self):
        authority, key, now = Authority.make("test"), new_key(), datetime.now(UTC)
        certificate = authority.certify(make_request(key, "a", "test"), "a")
        signature = sign(key, "report", b"text")

        def signed(name="a", text=b"text", trusted=authority, revoked=NONE):
            signatures = Signatures(trusted.certificate, sites=2)
            return signatures.has_signed(name, "report", der(certificate), signature, text, revoked, now)

        assert signed()
        assert not signed(name="b") and not signed(text=b"other") and not signed(trusted=Authority.make("test"))
        with pytest.raises(NotTrusted, match="revoked"):
            signed(revoked=NONE.next([certificate_fingerprint(certificate)]))

    @pytest.mark.parametrize(
        "change",
        [{"number": "2"}, {"number": 0}, {"keys": ["x"]}, {"expires": "2026-01-01"}, {"issued": None}, {"keys": 3}],
    )
    def test_a_signed_list_that_is_none(self, change):
        authority = Authority.make("test")
        text = json.dumps(json.loads(NONE.text) | change)
        with pytest.raises(NotTrusted, match="not a list of revoked keys"):
            read_revoked(write_signed(authority.key, "revocation list", text), authority.certificate, "test", "file")
        other = write_signed(authority.key, "revocation list", RevocationList.first("other").text)
        with pytest.raises(NotTrusted, match="of federation 'other'"):
            read_revoked(other, authority.certificate, "test", "file")


def test_fingerprints_are_read_out_in_digits():
    key = fingerprint(new_key().public_key())
    said = as_digits(key)
    assert len(said.split()) == 12 and all(len(part) == 5 and part.isdigit() for part in said.split())
    assert same_fingerprint(said, key) and same_fingerprint(f" {said[:35]}\n{said[36:]} ", key)
    assert same_fingerprint(key.upper(), key) and not same_fingerprint(said[:-1], key)
    assert as_digits(fingerprint(new_key().public_key())) != said


class TestRevocation:
    """A site takes newer lists, and never goes back."""

    def setup(self, tmp_path):
        folders = Folders(tmp_path, ring(2))
        home, other = folders.home("site-0"), Credentials.load(folders.home("site-1"), "site-1").certificate
        return folders, home, other

    def test_a_newer_list_counts_at_once_and_is_kept(self, tmp_path):
        folders, home, other = self.setup(tmp_path)
        own, old = Credentials.load(home, "site-0"), (home / "revoked.json").read_text()
        assert own.validated_name(other) == "site-1"
        folders.revoke(home, other)
        with pytest.raises(NotTrusted, match="revoked"):
            own.validated_name(other)
        atomic_write(home / "revoked.json", old)
        for site in (own, Credentials.load(home, "site-0")):
            with pytest.raises(NotTrusted, match="revoked"):
                site.validated_name(other)
            assert "is list 1, and this site has list 2, which it keeps" in site.refresh()[0]

    @pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff\xfe", b"[" * 100_000])
    def test_a_list_that_goes_away_while_a_site_runs_takes_nothing_back(self, tmp_path, content):
        folders, home, other = self.setup(tmp_path)
        folders.revoke(home, other)
        own = Credentials.load(home, "site-0")
        (home / "revoked.json").unlink() if content is None else atomic_write(home / "revoked.json", content)
        with pytest.raises(NotTrusted, match="the certificate is revoked"):
            own.validated_name(other)
        assert ("is missing" if content is None else "not signed") in own.refresh()[0]
        with pytest.raises(ValueError, match="is missing" if content is None else "not signed"):
            Credentials.load(home, "site-0")

    def test_a_full_disk_does_not_keep_a_list_from_counting(self, tmp_path, monkeypatch):
        folders, home, other = self.setup(tmp_path)
        own = Credentials.load(home, "site-0")
        folders.revoke(home, other)

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(trust, "atomic_write", full)
            with pytest.raises(NotTrusted, match="revoked"):
                own.validated_name(other)
            assert "trust.json cannot be written (No space left on device)" in own.refresh()[0]
        assert own.refresh() == []  # and it is written as soon as there is room
        assert json.loads((home / "trust.json").read_text())["revoked"] == (home / "revoked.json").read_text()

    def test_two_lists_of_one_number(self, tmp_path):
        folders, home, _ = self.setup(tmp_path)
        own = Credentials.load(home, "site-0")
        forked = RevocationList.first("test", days=5)
        atomic_write(home / "revoked.json", folders.authority.sign_revoked(forked))
        assert "another list 1 than this site has" in own.refresh()[0] and own.trust.revoked != forked

    def test_a_list_that_expires_lets_nobody_in(self, tmp_path):
        folders, home, other = self.setup(tmp_path)
        own = Credentials.load(home, "site-0")
        begun = folders.revoked.issued - timedelta(days=87)
        old = replace(folders.revoked, number=2, issued=begun, expires=begun + timedelta(days=90))
        atomic_write(home / "revoked.json", folders.authority.sign_revoked(old))
        assert "the list of revoked keys expires on" in own.refresh()[0]
        folders.revoked = old
        folders.revoke(home, days=-1)
        with pytest.raises(NotTrusted, match=r"list of revoked keys has expired.*decibel silo revoke"):
            own.validated_name(other)
        with pytest.raises(ValueError, match="list of revoked keys has expired"):
            Credentials.load(home, "site-0")


class TestClock:
    """A clock that is set back revives nothing."""

    def setup(self, tmp_path, monkeypatch):
        folders = Folders(tmp_path, ring(2))
        real, self.shift = trust._clock, timedelta()
        monkeypatch.setattr(trust, "_clock", lambda: real() + self.shift)
        folders.site("site-1", lifetime=timedelta(hours=12))
        home, other = folders.home("site-0"), Credentials.load(folders.home("site-1"), "site-1").certificate
        return home, other

    def test_in_a_later_process(self, tmp_path, monkeypatch):
        home, other = self.setup(tmp_path, monkeypatch)
        assert Credentials.load(home, "site-0").validated_name(other) == "site-1"
        self.shift = timedelta(hours=13)
        own = Credentials.load(home, "site-0")
        with pytest.raises(NotTrusted, match="expired"):
            own.validated_name(other)
        self.shift = timedelta()
        for site in (own, Credentials.load(home, "site-0")):
            with pytest.raises(NotTrusted, match="expired"):
                site.validated_name(other)
            said = re.search(r"clock of this machine says (.*) UTC, and this site has seen (.*) UTC", site.refresh()[0])
            clock, seen = (datetime.fromisoformat(one) for one in said.groups())
            assert abs(seen - clock - timedelta(hours=13)) < timedelta(minutes=1)

    def test_while_a_site_runs_time_goes_on(self, tmp_path, monkeypatch):
        home, other = self.setup(tmp_path, monkeypatch)
        own = Credentials.load(home, "site-0")
        self.shift, ticks = -timedelta(days=1), trust.time.monotonic()
        assert own.validated_name(other) == "site-1"
        monkeypatch.setattr(trust.time, "monotonic", lambda: ticks + 13 * 3600)
        with pytest.raises(NotTrusted, match="expired"):
            own.validated_name(other)

    def test_a_little_is_nothing_to_speak_of(self, tmp_path, monkeypatch):
        home, other = self.setup(tmp_path, monkeypatch)
        own = Credentials.load(home, "site-0")
        self.shift = -timedelta(minutes=4)
        assert own.validated_name(other) == "site-1" and own.refresh() == []

    @pytest.mark.parametrize("days", [400, -400])
    def test_a_start_that_is_refused_leaves_no_trace(self, tmp_path, monkeypatch, days):
        """And says both times."""
        home, other = self.setup(tmp_path, monkeypatch)
        before = (home / "trust.json").read_bytes()
        self.shift = timedelta(days=days)
        word = "has expired on" if days > 0 else "is not valid before"
        with pytest.raises(ValueError, match=rf"the certificate {word} (.*) UTC, and the time is (.*) UTC here") as why:
            Credentials.load(home, "site-0")
        assert str(datetime.now(UTC).year) in str(why.value)
        assert (home / "trust.json").read_bytes() == before
        self.shift = timedelta()
        assert Credentials.load(home, "site-0").validated_name(other) == "site-1"

    def test_a_clock_that_was_ahead_is_forgotten_when_a_site_joins_again(self, tmp_path, monkeypatch):
        home, other = self.setup(tmp_path, monkeypatch)
        self.shift = timedelta(hours=20)
        Credentials.load(home, "site-0")
        self.shift = timedelta()
        with pytest.raises(NotTrusted, match="expired"):
            Credentials.load(home, "site-0").validated_name(other)
        own = Trust.begin(home, home, load_certificate(home / "authority.pem"), "test", None)
        assert own.clock_trouble() is None and Credentials.load(home, "site-0").validated_name(other) == "site-1"

    def test_a_time_that_cannot_be_read(self, tmp_path, monkeypatch):
        home, _ = self.setup(tmp_path, monkeypatch)
        kept = json.loads((home / "trust.json").read_text())
        for wrong in ("yesterday", "2026-01-01T00:00:00", 7):
            (home / "trust.json").write_text(json.dumps(kept | {"time": wrong}))
            with pytest.raises(ValueError, match=r"trust\.json is damaged"):
                Credentials.load(home, "site-0")

    def test_the_authority_does_not_sign_with_a_clock_set_back(self, tmp_path):
        ledger = SignatureLedger(tmp_path / "ledger.jsonl")
        for minutes, signs in ((-60, True), (4, True), (60, False)):
            last = {
                "number": 1,
                "time": (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat(),
                "before": "0" * 64,
            }
            ledger.path.write_text(json.dumps(last) + "\n")
            if not signs:
                with pytest.raises(ValueError, match=r"the clock of this machine.*is behind the last line of"):
                    ledger.add("certificate", b"a", name="a")
            else:
                ledger.add("certificate", b"a", name="a")
            assert len(ledger.entries()) == 1 + signs


class TestPinned:
    def test_nor_in_a_sites_folder(self, tmp_path):
        folders = Folders(tmp_path, ring(2))
        home, impostor = folders.home("site-0"), Folders(tmp_path / "other", folders.federation)
        for file in ("authority.pem", "federation.json", "revoked.json", "certificate.pem", "key.pem"):
            atomic_write(home / file, (impostor.home("site-0") / file).read_bytes())
        with pytest.raises(ValueError, match="another authority than the one that this site trusts"):
            Credentials.load(home, "site-0")
        (home / "trust.json").unlink()
        with pytest.raises(ValueError, match=r"trust.json is missing: create.*join"):
            Credentials.load(home, "site-0")
        atomic_write(home / "trust.json", '{"authority": "x"}')
        with pytest.raises(ValueError, match=r"trust.json is damaged"):
            Credentials.load(home, "site-0")


class TestRenewal:
    def test_one_that_does_not_hold_is_not(self, tmp_path):
        folders = Folders(tmp_path, ring(2))
        home = folders.home("site-0")
        own = Credentials.load(home, "site-0")
        before = own.certificate
        foreign = (folders.home("site-1") / "certificate.pem").read_bytes()
        for content in (foreign, b"", b"nonsense"):
            atomic_write(home / "certificate.pem", content)
            assert "the certificate in use is not the one in" in own.refresh()[0]
        (home / "certificate.pem").unlink()
        assert "is missing" in own.refresh()[0] and own.certificate == before

    def test_a_new_key_waits_for_its_certificate(self, tmp_path):
        folders, key = Folders(tmp_path, ring(2)), new_key()
        home = folders.home("site-0")
        own = Credentials.load(home, "site-0")
        old = fingerprint(own.identity.key.public_key())
        save_key(key, home / "next-key.pem")
        assert own.refresh() == [] and fingerprint(Credentials.load(home, "site-0").identity.key.public_key()) == old
        certificate = folders.authority.certify(make_request(key, "site-0", "test"), "site-0")
        atomic_write(home / "certificate.pem", pem(certificate))
        assert "a new certificate is in use" in own.refresh()[0]
        assert fingerprint(own.identity.key.public_key()) == fingerprint(load_key(home / "key.pem").public_key()) != old
        assert not (home / "next-key.pem").exists()


class TestAuthority:
    def test_its_key_is_encrypted(self, tmp_path):
        made = Authority.create(tmp_path / "a", "test", "correct horse battery")
        raw = (tmp_path / "a" / "key.pem").read_bytes()
        assert b"ENCRYPTED" in raw and (tmp_path / "a" / "key.pem").stat().st_mode & 0o077 == 0
        assert Authority.load(tmp_path / "a", "correct horse battery").fingerprint == made.fingerprint
        with pytest.raises(ValueError, match="passphrase is wrong"):
            Authority.load(tmp_path / "a", "incorrect horse")
        with pytest.raises(ValueError, match="is encrypted: give its passphrase"):
            Authority.load(tmp_path / "a")
        with pytest.raises(ValueError, match="already has a key"):
            Authority.create(tmp_path / "a", "test", None)
        with pytest.raises(ValueError, match="5 characters: give at least 12"):
            Authority.create(tmp_path / "b", "test", "short")
        assert not (tmp_path / "b" / "key.pem").exists()

    def test_a_key_of_another_authority(self, tmp_path):
        for name in "ab":
            Authority.create(tmp_path / name, "test", None)
        atomic_write(tmp_path / "a" / "key.pem", (tmp_path / "b" / "key.pem").read_bytes())
        with pytest.raises(ValueError, match="is not the key of"):
            Authority.load(tmp_path / "a")
        (tmp_path / "b" / "ledger.jsonl").unlink()
        with pytest.raises(ValueError, match=r"ledger.jsonl is missing"):
            Authority.load(tmp_path / "b")

    def test_the_ledger_has_everything_before_it_is_handed_out(self, tmp_path, monkeypatch):
        authority = Authority.create(tmp_path / "a", "test", None)
        publish(authority, ring(2), tmp_path / "public")
        authority.certify(make_request(new_key(), "a", "test"), "a")
        assert [entry["what"] for entry in authority.ledger.entries()] == [
            "authority", "federation", "revocation list", "certificate",
        ]  # fmt: skip

        def full(*_, **__):
            raise OSError("full")

        monkeypatch.setattr(files.os, "fsync", full)
        with pytest.raises(OSError, match="full"):
            authority.certify(make_request(new_key(), "a", "test"), "a")

    def test_one_key_is_of_one_site(self, tmp_path):
        authority, key = Authority.create(tmp_path / "a", "test", None), new_key()
        authority.certify(make_request(key, "a", "test"), "a")
        authority.certify(make_request(key, "a", "test"), "a")
        with pytest.raises(NotTrusted, match="key of 'b' is that of 'a'"):
            authority.certify(make_request(key, "b", "test"), "b")

    def test_lists_never_go_back_even_if_the_files_do(self, tmp_path):
        federation, public = ring(2), tmp_path / "public"
        authority = Authority.create(tmp_path / "a", "test", None)
        publish(authority, federation, public)
        old, ledger = (public / "revoked.json").read_bytes(), (tmp_path / "a" / "ledger.jsonl").read_bytes()
        newer = current_list(authority, federation, public).next(["f" * 64])
        atomic_write(public / "revoked.json", authority.sign_revoked(newer))
        atomic_write(public / "revoked.json", old)
        assert current_list(authority, federation, public) == newer
        atomic_write(public / "revoked.json", authority.sign_revoked(newer))
        atomic_write(tmp_path / "a" / "ledger.jsonl", ledger)
        assert current_list(authority, federation, public) == newer


class TestLedger:
    def test_lines_follow_each_other(self, tmp_path):
        ledger = SignatureLedger(tmp_path / "ledger.jsonl")
        for name in "abc":
            ledger.add("certificate", name.encode(), name=name)
        assert [entry["name"] for entry in ledger.entries()] == ["a", "b", "c"]
        lines = ledger.path.read_text().splitlines(keepends=True)
        for changed in ([lines[0].replace('"a"', '"x"'), *lines[1:]], [lines[0], lines[2]], lines[1:]):
            ledger.path.write_text("".join(changed))
            with pytest.raises(ValueError, match="does not follow the line before"):
                ledger.entries()

    def test_a_line_that_was_cut_short_is_left_out(self, tmp_path):
        ledger = SignatureLedger(tmp_path / "ledger.jsonl")
        ledger.add("certificate", b"a", name="a")
        with ledger.path.open("a") as file:
            file.write('{"number": 2, "ti')
        ledger.add("certificate", b"b", name="b")
        assert [entry["name"] for entry in ledger.entries()] == ["a", "b"]

    @pytest.mark.slow
    def test_two_processes_sign_one_after_the_other(self, tmp_path):
        """Four at once: every line follows the one before, and no two lists have one number."""
        Authority.create(tmp_path / "authority", "test", None)
        code = (
            "import sys; from pathlib import Path\n"
            "from decibel.silo.trust._authority import Authority\n"
            "from decibel.silo.trust._revocation import RevocationList\n"
            "authority = Authority.load(Path(sys.argv[1]))\n"
            "for _ in range(25):\n"
            "    with authority.alone():\n"
            "        lists = [one['list']['number'] for one in authority.ledger.entries() if 'list' in one]\n"
            "        made = RevocationList.first('test').next((), after=max(lists, default=0))\n"
            "        authority.sign_revoked(made)\n"
        )
        command = [sys.executable, "-c", code, str(tmp_path / "authority")]
        running = [subprocess.Popen(command) for _ in range(4)]
        assert [one.wait(120) for one in running] == [0] * 4
        entries = SignatureLedger(tmp_path / "authority" / "ledger.jsonl").entries()
        assert [entry["list"]["number"] for entry in entries[1:]] == list(range(2, 102))
