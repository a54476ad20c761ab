"""The whole federation at a look, from signed reports that sites pass on, and a stop that the authority signs."""

from __future__ import annotations

import io
import json
import urllib.request
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from quadratics import random_quadratic
from rich.console import Console
from silo_ends import RULES, End, Line
from silo_sites import Folders, free_ports, ring
from silo_talking import Talking, Walk, wait_until

import decibel as db
from decibel.core._files import atomic_write
from decibel.silo._errors import NotTrusted, Rejected, Stopped
from decibel.silo.commands._watch import look, watch
from decibel.silo.observe import _bulletin
from decibel.silo.observe._bulletin import FILE, Bulletin
from decibel.silo.observe._view import page, view
from decibel.silo.protocol._edge import Flow
from decibel.silo.protocol._frames import STATES, Ordered, Position, Report, Reports, Strained
from decibel.silo.protocol._site import STOP
from decibel.silo.run import _connections
from decibel.silo.run._site_run import SiteRun
from decibel.silo.trust._authority import Authority
from decibel.silo.trust._credentials import Credentials
from decibel.silo.trust._order import Order, read_order

LINE = replace(ring(3, steps=100_000), edges=((0, 1), (1, 2)))  # 0 and 2 hear of each other by 1 only


@pytest.fixture
def folders(tmp_path):
    return Folders(tmp_path, LINE)


def order(folders, number=1, *, stop=True, reason="an audit", authority=None):
    before = None if number == 1 else SimpleNamespace(number=number - 1)
    made = Order.following(before, folders.federation.name, stop=stop, reason=reason)
    return (authority or folders.authority).sign_order(made).encode()


class Quiet(End):
    """A site without streams: what it would send lies in its lines."""

    def __init__(self, folders, number):
        name = f"site-{number}"
        self.home = folders.home(name)
        self.credentials = Credentials.load(self.home, name)
        super().__init__(folders.federation, number, folders.federation.neighbours(number)[0], signer=self.credentials)
        self.bulletin = Bulletin(self.site, self.credentials)
        for edge in self.site.edges.values():
            edge.stream = Line()

    def own(self):
        self.bulletin.send_reports(last=True)
        return next(one for one in self.bulletin.reports if one.site == self.site.number)


class TestReports:
    def test_are_passed_on_and_shown_with_their_signatures(self, folders, monkeypatch):
        """At the end of a line of three, by gRPC: in the folder, at the port, and as a page."""
        monkeypatch.setattr(_bulletin, "EVERY", 0.1)
        monkeypatch.setattr(_connections, "STATUS_SECONDS", 0.1)
        port = free_ports(1)[0]
        status = folders.home("site-0") / "status.json"
        sites = [Talking(folders, 0, status=status, metrics_port=port), Talking(folders, 1), Talking(folders, 2)]
        for one in sites:
            Walk(one, 100_000)
        home = folders.home("site-0")
        try:
            wait_until(lambda: (home / FILE).exists() and all(row.step for row in look([home], None).rows))
            found = look([home], None)
            assert [row.site for row in found.rows] == ["site-0", "site-1", "site-2"] and found.order == ""
            assert all(row.state == "running" and row.is_well and row.age < 10 for row in found.rows)
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://127.0.0.1:{port}/federation", timeout=10) as answer:
                shown = answer.read().decode()
            assert all(name in shown for name in ("site-0", "site-1", "site-2"))
            with opener.open(f"http://127.0.0.1:{port}/federation.json", timeout=10) as answer:
                assert [row["state"] for row in json.loads(answer.read())["rows"]] == ["running"] * 3
            sites[2].close()
            wait_until(lambda: look([home], None).rows[2].state == "stopped")
        finally:
            for one in sites:
                one.site.stop()
                one.close()

    def test_of_others_cannot_be_forged_and_those_of_earlier_do_not_count_again(self, folders):
        one, two = Quiet(folders, 1), Quiet(folders, 2)
        edge = one.site.edges[2]
        first, second = two.own(), two.own()
        one.bulletin.hear(edge, Reports((second,)))
        one.bulletin.hear(edge, Reports((first,)))
        assert one.bulletin.reports[-1] == second
        for changed in (
            {"step": 7},
            {"serial": 9, "state": 1},
            {"site": 0, "incarnation": 9},
            {"signature": b"x" * 70},
        ):
            with pytest.raises(Rejected, match="has not signed"):
                one.bulletin.hear(edge, Reports((second._replace(**{"serial": 9} | changed),)))
        assert one.bulletin.reports[-1] == second

    @pytest.mark.parametrize(
        "changed",
        [
            {"site": 3},
            {"state": len(STATES)},
            {"step": 2**31},
            {"awaited_sites": (3,)},
            {"awaited_sites": (0,) * 9},
            {"strained": (Strained(0, 3, 1.0),)},
            {"strained": (Strained(0, 0, float("nan")),)},
            {"rate": float("inf")},
        ],
    )
    def test_that_say_what_cannot_be_are_rejected(self, folders, changed):
        report = Report(2, 5, 0, 0, 3, 10, 100, 1.0)
        limits = Quiet(folders, 1).site.limits
        limits.validate(Reports((report,)))
        with pytest.raises(Rejected):
            limits.validate(Reports((report._replace(**changed),)))

    def test_name_links_near_their_limit_and_whom_a_site_waits_for(self, folders):
        one = Quiet(folders, 1)
        flow = Flow(now=3.0, largest=9.0, limit=4.0, saturated=False)
        one.site.edges[0].flows = {"x": flow, "y": flow._replace(now=3.6)}
        one.site.edges[2].flows = {"x": flow._replace(now=5.0), "z": flow._replace(now=99.0, limit=None)}
        one.site.health.awaited = {"site-2": one.site.clock.now() - 5.0}
        report = one.own()
        row = view(folders.federation, [report], None, report.time + 2).rows[1]
        assert row.near_limit == ("x from site-2: 125%", "y from site-0: 90%")
        assert row.state == "waiting for site-2" and row.age == 2 and row.is_well

    def test_that_do_not_come_are_missed(self, folders):
        report = Quiet(folders, 1).own()._replace(state=STATES.index("running"))
        rows = view(folders.federation, [report], None, report.time + 100).rows
        assert [row.state for row in rows] == ["no report", "no report for 100 s (was running)", "no report"]
        assert not any(row.is_well for row in rows)
        ended = report._replace(state=STATES.index("finished"))
        assert view(folders.federation, [ended], None, report.time + 1e6).rows[1].state == "finished"

    def test_a_page_escapes_what_it_shows(self, folders):
        bad = Order.following(None, "test", stop=True, reason="<script>alert(1)</script>")
        shown = page(view(folders.federation, [], bad, 0.0))
        assert "<script>" not in shown and "&lt;script&gt;" in shown


class TestWatch:
    def saved(self, folders, number=1):
        one = Quiet(folders, number)
        report = one.own()
        one.bulletin.save(one.home)
        return one.home, report

    def test_takes_the_newest_of_several_folders(self, folders):
        homes = [self.saved(folders, number)[0] for number in (0, 2)]
        rows = look(homes, None).rows
        assert [row.state for row in rows] == ["starting", "no report", "starting"]

    def test_says_what_is_not_signed(self, folders):
        home, report = self.saved(folders)
        content = json.loads((home / FILE).read_text())
        two = Quiet(folders, 2)
        two.bulletin._reports.by_site = {1: report._replace(step=99)}
        two.bulletin.save(home)
        with pytest.raises(ValueError, match="a report that site-1 has not signed: get it again"):
            look([home], None)
        for broken in ("{", json.dumps(content | {"reports": "AAAA"}), json.dumps({"order": ""})):
            (home / FILE).write_text(broken)
            with pytest.raises(ValueError, match="cannot be read"):
                look([home], None)

    def test_leaves_out_whose_key_was_revoked(self, folders):
        home, _ = self.saved(folders)
        folders.revoke(home, Credentials.load(home, "site-1").certificate)
        assert look([home], None).rows[1].state == "no report"

    def test_prints_and_writes_a_page(self, folders, tmp_path):
        home, _ = self.saved(folders)
        console = Console(file=io.StringIO(), width=200)
        watch([home], None, console, every=1.0, once=True, to_page=None)
        assert "site-1  starting" in console.file.getvalue()
        watch([home], None, console, every=1.0, once=False, to_page=tmp_path / "page.html")
        assert "starting" in (tmp_path / "page.html").read_text()
        with pytest.raises(ValueError, match="name a site's folder"):
            watch([], None, console, every=1.0, once=True, to_page=None)


class TestOrders:
    def test_one_site_is_given_it_and_all_stop(self, folders):
        """And none starts again before it is lifted, by whatever older order."""
        sites = [Talking(folders, number) for number in range(3)]
        walks = [Walk(one, 100_000) for one in sites]
        try:
            wait_until(lambda: all(len(walk.steps) > 5 for walk in walks))
            (folders.home("site-2") / "order.json").write_bytes(order(folders))
            wait_until(lambda: not any(walk.is_alive() for walk in walks))
        finally:
            for one in sites:
                one.close()
        assert all(walk.error is None or isinstance(walk.error, Stopped) for walk in walks)
        for one in sites:
            assert "the authority stopped the federation on" in one.site.stop_order
            assert "(order 1): an audit" in one.site.stop_order
            trust = Credentials.load(one.home, one.name).trust
            assert trust.order.stop and trust.order.number == 1
        problem, engine = random_quadratic(3).single(), db.Silo(folders.home("site-0"), "site-0")
        with pytest.raises(ValueError, match=r"the authority stopped the federation.*stop --lift"):
            db.solve(problem, db.wave(alpha=0.1), engine.graph, steps=5, engine=engine)

    def test_are_why_a_run_ends(self):
        run = SiteRun.__new__(SiteRun)
        run.site = End(LINE, 0, 1).site
        run.site.order_to_stop("an audit")
        assert run.end_reason == "an audit" and run.site.stopping and run.site.begin_step(0) == STOP

    def test_who_stops_gives_up_a_step_whose_message_does_not_come(self):
        """As one that is told to stop, and not as one that has lost its neighbours."""
        end = End(ring(3, steps=100, fault_tolerance=RULES), 0, 1, tolerates_loss=False)
        end.site.agree_on_start = lambda saved: 0
        end.site.stop_order, end.site.stopping, end.site._position = "stop", True, Position(5, -1)
        out = np.empty((2, 3)), np.empty(2, bool), np.empty(2, np.int32)
        with pytest.raises(Stopped, match="all are told to stop"):
            end.site.exchange((1, 2), np.zeros(3), None, out)

    def test_the_newest_counts_wherever_it_came_from(self, folders):
        home = folders.home("site-0")
        trust = Credentials.load(home, "site-0").trust
        stop, lift = order(folders, 1), order(folders, 2, stop=False)
        trust.take_order(stop)
        assert trust.order.stop
        trust.take_order(lift)
        trust.take_order(stop)
        assert not trust.order.stop
        atomic_write(home / "order.json", stop)
        assert "is order 1, and this site has order 2, which it keeps" in trust.refresh()
        assert Credentials.load(home, "site-0").trust.order.number == 2

    def test_of_others_are_rejected(self, folders):
        one = Quiet(folders, 1)
        edge = one.site.edges[2]
        other = Authority.make("test")
        elsewhere = folders.authority.sign_order(Order.following(None, "elsewhere", stop=True, reason="")).encode()
        for bad in (order(folders, authority=other), elsewhere, b"{}", b"\xff" * 100):
            with pytest.raises(Rejected):
                one.bulletin.hear(edge, Ordered(bad))
        assert one.credentials.trust.order is None and not one.site.stopping

    def test_a_federation_file_is_no_order(self, folders):
        signed = folders.authority.sign_federation(folders.federation)
        with pytest.raises(NotTrusted, match="not signed by this federation's authority as a order"):
            read_order(signed, folders.authority.certificate, "test", "it")

    def test_are_passed_on_to_whoever_connects(self, folders):
        one = Quiet(folders, 1)
        one.bulletin.hear(one.site.edges[2], Ordered(order(folders)))
        assert one.site.stopping and len(one.site.edges[0].stream.sent) == 1
        one.site.edges[0].stream = line = Line()
        one.bulletin.greet(one.site.edges[0])
        assert line.sent == one.site.edges[2].stream.sent[-1:]

    def test_a_reason_has_an_end(self):
        with pytest.raises(ValueError, match="at most 300"):
            Order.following(None, "test", stop=True, reason="x" * 301)
