"""The page and its data, over HTTP on this machine only."""

from __future__ import annotations

import json
import sys
import threading
import time
import webbrowser
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from socket import socket
from socketserver import TCPServer
from urllib.parse import parse_qs, urlsplit

from ._layout import Drawing, layout
from ._log import News, newest_graph, news

LOG = "log.jsonl"
HOST = "127.0.0.1"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
LAST_WORD = 3.0  # seconds that a page which is still asking gets to learn of the end
PAGE = {
    "/": ("page/index.html", "text/html"),
    "/live.css": ("page/live.css", "text/css"),
    "/live.js": ("page/live.js", "text/javascript"),
    "/uPlot.css": ("vendor/uPlot.min.css", "text/css"),
    "/uPlot.js": ("vendor/uPlot.iife.min.js", "text/javascript"),
}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@contextmanager
def serve_beside(run_folder: Path, open_browser: bool = False) -> Generator[str]:
    """Serves the page of a run from a thread of this process, and yields its address."""
    server = Server(Path(run_folder), 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        if open_browser:
            webbrowser.open(server.url)
        yield server.url
        server.wait_for_readers()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def watch(run_folder: Path, port: int = 0) -> None:
    """Serves the page of a run, going on or finished, until Ctrl-C."""
    folder = Path(run_folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give the folder of a run, which has a {LOG}.")
    with Server(folder, port) as server:
        print(f"{folder} is shown at {server.url} until Ctrl-C.", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)


class Server(ThreadingHTTPServer):
    """Knows the folder of the run and how far its readers are."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, folder: Path, port: int) -> None:
        self.log = folder / LOG
        resources = files("decibel.results.live")
        self.page = {path: (resources.joinpath(name).read_bytes(), kind) for path, (name, kind) in PAGE.items()}
        self.asked, self.read = 0.0, 0  # when somebody asked last, and up to where it was told
        try:
            super().__init__((HOST, port), Handler)
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"port={port} cannot be used ({error}): choose another, or 0 for any that is free."
            ) from None

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer would ask the network for this machine's name
        self.server_name, self.server_port = HOST, self.server_address[1]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        """A client that disconnects during a response does not disturb the run."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def events(self, offset: int, run: str) -> News:
        latest = news(self.log, offset, run)
        self.asked, self.read = time.monotonic(), latest["offset"]
        return latest

    def wait_for_readers(self) -> None:
        """Waits briefly until a page that polled recently has read the whole file."""
        begun = time.monotonic()
        lately = self.asked and begun - self.asked < LAST_WORD
        while lately and self.log.exists() and self.read < self.log.stat().st_size:
            if time.monotonic() - begun > LAST_WORD:
                break
            time.sleep(0.05)


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "decibel", ""
    timeout = 60

    def do_GET(self) -> None:
        if not _is_loopback(self.headers.get("Host", "")):
            # A name that a foreign site made point here would let its scripts read the answers.
            return self._answer(421, b"This page is for this machine alone: open it by 127.0.0.1.\n", "text/plain")
        address = urlsplit(self.path)
        if address.path in self.server.page:
            return self._answer(200, *self.server.page[address.path])
        if address.path == "/events":
            query = {name: values[-1] for name, values in parse_qs(address.query).items()}
            offset = query.get("from", "0")
            if not (offset.isascii() and offset.isdigit() and len(offset) < 19):
                return self._answer(400, b"from must be an integer.\n", "text/plain")
            return self._json(self.server.events(int(offset), query.get("run", "")))
        if address.path == "/layout":
            return self._json(layout(*newest_graph(self.server.log)))
        return self._answer(404, b"There is nothing here.\n", "text/plain")

    def _json(self, value: News | Drawing) -> None:
        self._answer(200, json.dumps(value, allow_nan=False, separators=(",", ":")).encode(), "application/json")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The run's own output stays its own."""


def _is_loopback(host: str) -> bool:
    name, colon, port = host.rpartition(":")
    return host in LOOPBACK or (bool(colon) and name in LOOPBACK and port.isascii() and port.isdigit())
