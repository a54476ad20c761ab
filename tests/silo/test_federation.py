"""Federation files, and a site's folder that does not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from silo_sites import Folders, ring

from decibel.core._files import atomic_write
from decibel.silo._federation import Federation, Member, StopRule
from decibel.silo.commands._rehearse import on_loopback
from decibel.silo.trust._authority import Authority
from decibel.silo.trust._credentials import Credentials


class TestFederation:
    def test_all_of_it_is_signed_and_comes_back(self):
        plain = ring(4, method="ed", settings={"alpha": 0.1}, steps=10)
        changes = [
            {"steps": 11},
            {"trust_members": False},
            *({"flow_limit": limit} for limit in (1.0, 2.0, {"x": 1.0})),
        ]
        changes += [{"asynchronous": True}, *({"asynchronous": True, "stop": StopRule(rest)} for rest in (1e-6, 1e-3))]
        others = [replace(plain, **change) for change in changes]
        assert len({one.hash for one in (plain, *others)}) == 1 + len(others)
        assert all(Federation.from_text(one.text) == one for one in (plain, *others))

    @pytest.mark.parametrize("version", [0, 2, "1", None])
    def test_a_text_of_another_version(self, version):
        """The version is part of what is signed; one without is older than versions."""
        found = json.loads(ring(2).text)
        assert found.pop("version") == 1
        text = json.dumps(found if version is None else found | {"version": version})
        with pytest.raises(ValueError, match=rf"has version {version}, and this decibel reads version 1"):
            Federation.from_text(text)

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
            ("version=1", "'version', which is not known"),
            ('sampling="sorted"', "sampling='sorted' is not known: choose from random, shuffle-once"),
            ("privacy={recordz={}}", "'recordz', which is not known: did you mean 'records'"),
            ("privacy={records={clip=1}}", "lacks 'noise': write records = { clip = ..., noise = ... }"),
            ("privacy={messages={clip=1,noise=1,products=1}}", "'products', which is not known"),
            ('privacy={records={clip=1,noise="much"}}', "noise='much' must be a positive number"),
            ("privacy={messages={clip=0,noise=1}}", "clip=0 must be a positive number"),
            ("privacy={records={clip=1,noise=1}}\nbatch_size=3", "add sampling = 'shuffle-once'"),
            ("asynchronous=1", "asynchronous=1 must be true or false"),
            ("stop={tolerance=1e-6}", "add asynchronous = true"),
            ("asynchronous=true\nstop={tolerance=0.0}", r"tolerance=0.0 of \[stop\] must be a positive number"),
            ("asynchronous=true\nstop={tolerance=1,seconds=-1}", r"seconds=-1 of \[stop\] must be a positive number"),
            ("asynchronous=true\nstop={seconds=3}", "lacks 'tolerance'"),
            ("asynchronous=true\nstop={tolerence=1e-7}", "'tolerence', which is not known"),
            *((f"flow_limit={limit}", "flow_limit=.* must be a positive number")
              for limit in ("0", "-1.0", "true", "inf", "nan", "{}", "{x=0.0}", '"3"')),
            ("flow_limit={w=1.0}", "flow_limit has 'w'"),
            ('trust_members="yes"', "trust_members='yes' must be true or false"),
            ('sites=[{name="a",address="nowhere"},{name="b"}]', "host:port"),
            ('sites=[{name="a",address=1},{name="b"},{name="b"}]', "two sites of the same name"),
        ],
    )  # fmt: skip
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
    atomic_write(folders.home("site-1") / "federation.json", Authority.make("test").sign_federation(folders.federation))
    with pytest.raises(ValueError, match="not signed by this federation's authority"):
        Credentials.load(folders.home("site-1"), "site-1")


def test_places():
    assert Member("a").listens is None and Member("a", "h:1", "0.0.0.0:2").listens == "0.0.0.0:2"
