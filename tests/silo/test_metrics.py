"""/healthz and /metrics: what they tell, and that nothing anybody does to them reaches the run."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.error
import urllib.request

import pytest
from silo_sites import Folders, free_ports, ring
from silo_talking import Talking, wait_until

from decibel.silo.observe import _site_metrics as _metrics
from decibel.silo.protocol._frames import Refuse, write

LINE = re.compile(r'decibel_silo_[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [-+0-9.e]+')


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    folders, port = Folders(tmp_path_factory.mktemp("metrics"), ring(2)), free_ports(1)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_metrics, "PATIENCE", 0.3)
        patch.setattr(_metrics.Answer, "timeout", 0.3)
        made = [Talking(folders, 0, metrics_port=port), Talking(folders, 1)]
        wait_until(lambda: all(edge.stream for one in made for edge in one.site.edges.values()))
        yield made[0], made[1], port
        for one in made:
            one.close()


def get(port, path="/metrics", host=None):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host} if host else {})
    try:
        with opener.open(asked, timeout=10) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def values(text):
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines and all(LINE.fullmatch(line) for line in lines), text
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_metrics_are_those_of_the_site(sites):
    one, _, port = sites
    wait_until(lambda: get(port)[0] == 200)
    found, there = values(get(port)[1]), '{neighbour="site-1"}'
    assert found[f"decibel_silo_neighbour_connected{there}"] == 1
    assert found['decibel_silo_state{state="starting"}'] == 1
    assert sum(value for name, value in found.items() if "_state{" in name) == 1
    before = found[f"decibel_silo_sent_bytes_total{there}"], found[f"decibel_silo_received_bytes_total{there}"]
    one.site.edges[1].waited_seconds = 2.5
    wait_until(lambda: values(get(port)[1])[f"decibel_silo_received_bytes_total{there}"] > before[1] > 0)
    found = values(get(port)[1])
    assert found[f"decibel_silo_sent_bytes_total{there}"] > before[0] > 0
    assert found[f"decibel_silo_waited_seconds_total{there}"] == 2.5
    assert found[f"decibel_silo_rejected_total{there}"] == one.site.edges[1].rejected


def test_when_certificate_and_list_end(sites):
    one, _, port = sites
    wait_until(lambda: one.site.health.expiries)
    shown = values(get(port)[1])
    certificate, revoked = one.credentials.certificate, one.credentials.trust.revoked
    assert shown["decibel_silo_certificate_expires_seconds"] == certificate.not_valid_after_utc.timestamp()
    assert shown["decibel_silo_revocation_list_expires_seconds"] == revoked.expires.timestamp()


def test_every_metric_is_explained(sites):
    text = get(sites[2])[1]
    names = {re.match(r"[a-z_]+", line).group() for line in text.splitlines() if not line.startswith("#")}
    for what in ("HELP", "TYPE"):
        assert {line.split()[2] for line in text.splitlines() if line.startswith(f"# {what}")} == names


def test_what_a_neighbour_says_makes_a_site_unready_and_not_dead(sites):
    """Or one REFUSE would have it killed, again and again."""
    one, _, port = sites
    edge = one.site.edges[1]
    with one.site.lock:
        edge.on_refuse("for a reason")
    code, text = get(port, "/readyz")
    assert code == 503 and json.loads(text) == {
        "site": "site-0", "state": "refused", "detail": "site-1: for a reason", "step": one.site.health.step,
        "steps": one.site.goal,
    }  # fmt: skip
    assert get(port, "/healthz")[0] == 200
    edge.refusal = ""
    assert get(port, "/else")[0] == 404


def test_ready_while_it_does_steps(sites, monkeypatch):
    one, _, port = sites
    code, text = get(port, "/readyz")
    assert code == 503 and json.loads(text)["state"] == "starting" and json.loads(text)["site"] == "site-0"
    monkeypatch.setattr(one.site, "running", True)
    assert get(port, "/readyz")[0] == 200
    monkeypatch.setattr(one.site, "closing", True)
    assert get(port, "/readyz")[0] == 503 and get(port, "/healthz")[0] == 200


def test_a_site_that_looks_around_no_longer_is_not_alive(sites, monkeypatch):
    """Also while somebody holds its lock."""
    one, _, port = sites
    monkeypatch.setattr(_metrics, "UNRESPONSIVE", -100.0)
    with one.site.lock:
        code, text = get(port, "/healthz")
    assert code == 503 and set(json.loads(text)) == {"site", "unresponsive_seconds"}


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
def test_a_page_that_reaches_loopback_by_a_name_of_its_own_learns_nothing(sites, path):
    one, _, port = sites
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "::1", "[::1]", "localhost.evil"):
        code, text = get(port, path, host)
        assert code == 421 and one.site.name not in text
    for host in (f"127.0.0.1:{port}", "127.0.0.1", f"localhost:{port}", "LOCALHOST:8080"):
        assert get(port, path, host)[0] in (200, 503)
    for lines in ([], ["Host: 127.0.0.1", "Host: evil.example"]):
        with socket.create_connection(("127.0.0.1", port), 5) as asking:
            asking.sendall("\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode())
            assert b" 421 " in asking.makefile("rb").readline()


def test_loopback_only(sites):
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in addresses - {"127.0.0.1"}:
        with pytest.raises(OSError), socket.create_connection((address, sites[2]), 2):
            pass


@pytest.mark.parametrize(
    "sent", [b"", b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 200_000, b"\x16\x03\x01", b"POST / HTTP/1.0\r\n\r\n"]
)
def test_whoever_asks_wrongly_or_slowly_is_not_waited_for(sites, sent):
    port = sites[2]
    with socket.create_connection(("127.0.0.1", port), 5) as slow:
        slow.sendall(sent)
        assert get(port)[0] == 200


def test_a_request_byte_by_byte_is_cut(sites):
    port = sites[2]
    with socket.create_connection(("127.0.0.1", port), 5) as slow:
        begun = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - begun < 20:
                slow.sendall(b"G")
                time.sleep(0.05)
    assert get(port)[0] == 200


def test_a_port_that_is_taken_is_said_and_nothing_more(tmp_path):
    folders = Folders(tmp_path, ring(2))
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        one, other = Talking(folders, 0, metrics_port=port), Talking(folders, 1)
        wait_until(lambda: any(f"metrics cannot be served at port {port}: " in line for line in one.said))
        wait_until(lambda: one.site.edges[1].stream and other.site.edges[0].stream)
        other.site.edges[0].send(write(Refuse("still talking")))
        wait_until(lambda: any("still talking" in line for line in one.said))
        one.close()
        other.close()
