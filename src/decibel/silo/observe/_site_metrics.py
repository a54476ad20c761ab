"""A site's health and numbers for the machine it runs on: /healthz, /readyz, /metrics in the format of Prometheus, and
/federation, a page with all sites.

It listens on loopback only, answers one request at a time within two seconds, and takes no data from its clients. A
request must name this machine as its host: a page in a browser that reaches loopback by a name of its own does not.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, cast

from decibel.core import JSON

from .._federation import LOOPBACK
from ..protocol._async_edge import AsyncEdge
from ..protocol._async_site import AsyncSite
from ..protocol._frames import STATES, VERSION
from ._site_status import status_facts
from ._view import page, view

if TYPE_CHECKING:
    from ..protocol._edge import Edge
    from ..protocol._site import Site

PATIENCE = 2.0  # seconds for a request
UNRESPONSIVE = 30.0  # seconds without a heartbeat of its own after which a site is not alive
HOSTS = ("127.0.0.1", "localhost")
PATHS = ("/healthz", "/readyz", "/metrics", "/federation", "/federation.json")


def serve(site: Site, port: int, closed: threading.Event) -> None:
    """Serves requests until the site is closed; raises if the port is taken."""
    server = Endpoint((LOOPBACK, port), Answer)
    server.site = site
    server.timeout = 0.5
    with server:
        while not closed.is_set():
            server.handle_request()


class Endpoint(HTTPServer):
    site: Site
    request_queue_size = 8

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that disconnect early are not logged."""


class Answer(BaseHTTPRequestHandler):
    timeout = PATIENCE
    server_version = "decibel"
    sys_version = ""

    def setup(self) -> None:
        self._late = threading.Timer(PATIENCE, self._hang_up)  # for all of it; `timeout` is for each part
        self._late.daemon = True
        self._late.start()
        super().setup()

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            self._late.cancel()

    def _hang_up(self) -> None:
        with suppress(OSError):
            self.request.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        site = cast(Endpoint, self.server).site
        if not self._names_this_machine():
            self._send(421, "text/plain; charset=utf-8", f"ask for {' or '.join(HOSTS)}\n")
        elif self.path == "/metrics":
            self._send(200, "text/plain; version=0.0.4; charset=utf-8", metrics(site))
        elif self.path in ("/healthz", "/readyz"):
            well, body = (alive if self.path == "/healthz" else ready)(site)
            self._send(200 if well else 503, "application/json", json.dumps(body))
        elif self.path == "/federation" and site.bulletin is not None:
            shown = view(site.federation, site.bulletin.reports, site.bulletin.order, time.time())
            self._send(200, "text/html; charset=utf-8", page(shown))
        elif self.path == "/federation.json" and site.bulletin is not None:
            shown = view(site.federation, site.bulletin.reports, site.bulletin.order, time.time())
            rows: list[JSON] = [row._asdict() for row in shown.rows]
            self._send(200, "application/json", json.dumps({**shown._asdict(), "rows": rows}))
        else:
            self._send(404, "text/plain; charset=utf-8", f"{', '.join(PATHS)}\n")

    def _names_this_machine(self) -> bool:
        """Whether the request names this machine as its host, at any port since that may be forwarded."""
        hosts = self.headers.get_all("Host") or []
        return len(hosts) == 1 and hosts[0].partition(":")[0].lower() in HOSTS

    def _send(self, code: int, kind: str, body: str) -> None:
        raw = body.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(raw)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing, since a request every few seconds would fill the log."""


def alive(site: Site) -> tuple[bool, dict[str, JSON]]:
    """Whether the site needs no restart. Other sites cannot change it, and it does not wait for a lock."""
    quiet = site.clock.now() - site.health.updated
    body: dict[str, JSON] = {"site": site.name, "unresponsive_seconds": round(quiet, 1)}
    return quiet < UNRESPONSIVE + site.fault_tolerance.beat, body


def ready(site: Site) -> tuple[bool, dict[str, JSON]]:
    """Whether it does steps, and if not, why."""
    now = status_facts(site)
    return now["state"] == "running", {name: now[name] for name in ("site", "state", "detail", "step", "steps")}


def metrics(site: Site) -> str:
    return "".join(f"{line}\n" for line in _lines(status_facts(site), site))


def _lines(facts: dict[str, JSON], site: Site) -> Iterator[str]:
    certificate = site.health.expiries.get("certificate")
    revoked = site.health.expiries.get("revocation_list")
    now = site.clock.now()
    about = {"site": facts["site"], "federation": facts["federation"]}
    about |= {"decibel": facts["decibel"], "jax": facts["jax"], "protocol": str(VERSION)}
    yield from _metric("info", "gauge", "What runs here.", [(about, 1)])
    yield from _metric(
        "state", "gauge", "1 for the state it is in.", [({"state": s}, s == facts["state"]) for s in STATES]
    )
    for name, text, value in (
        ("step", "The step of the run.", site.health.step),
        ("steps_done", "Steps done by this site.", site.steps_done),
        ("steps", "Steps of the run.", site.goal),
        ("steps_per_second", "Over the last minute.", site.health.rate),
        ("certificate_expires_seconds", "Unix time of its end: This site's certificate.", certificate),
        (
            "revocation_list_expires_seconds",
            "Unix time of its end: The list of revoked keys.",
            revoked,
        ),
        ("rest_seconds", "At rest, by the stop rule.", site.rest.seconds(now) if isinstance(site, AsyncSite) else None),
    ):
        if value is not None:
            yield from _metric(name, "gauge", text, [({}, value)])
    by_neighbour: list[tuple[str, str, str, Callable[[Edge], float]]] = [
        ("neighbour_connected", "gauge", "Whether there is a stream.", lambda edge: edge.stream is not None),
        ("neighbour_talking", "gauge", "Whether messages are exchanged.", lambda edge: edge.state == "talking"),
        ("sent_bytes_total", "counter", "Bytes of frames to it.", lambda edge: edge.sent_bytes),
        ("received_bytes_total", "counter", "Bytes of frames from it.", lambda edge: edge.received_bytes),
        ("rejected_total", "counter", "Frames and streams that were rejected.", lambda edge: edge.rejected),
        ("waited_seconds_total", "counter", "Seconds that a step waited for it.", lambda edge: edge.waited_seconds),
        ("missing_seconds_total", "counter", "Seconds without it.", lambda edge: site.health.missing.get(edge.name, 0)),
    ]
    if isinstance(site, AsyncSite):
        by_neighbour += [
            ("message_age_seconds", "gauge", "Age of its newest message.", lambda edge: cast(AsyncEdge, edge).age(now)),
            (
                "message_steps_behind",
                "gauge",
                "Its steps since its newest message, as known.",
                lambda edge: cast(AsyncEdge, edge).steps_behind,
            ),
        ]
    for name, kind, text, value in by_neighbour:
        values = [({"neighbour": edge.name}, value(edge)) for edge in site.edges.values()]
        yield from _metric(name, kind, text, values)


def _metric(name: str, kind: str, text: str, values: Sequence[tuple[Mapping[str, JSON], float]]) -> Iterator[str]:
    yield f"# HELP decibel_silo_{name} {text}"
    yield f"# TYPE decibel_silo_{name} {kind}"
    for labels, value in values:
        written = ",".join(f'{label}="{_escaped(str(content))}"' for label, content in labels.items())
        yield f"decibel_silo_{name}{f'{{{written}}}' if written else ''} {float(value)!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
