"""Lines of the log: a time and a level in each, for people or as JSON."""

from __future__ import annotations

import json
import logging
import re
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from datetime import datetime

import pytest
from silo_ends import FEDERATION, RULES, End
from silo_sites import Folders, ring
from silo_talking import Talking, wait_until
from xla import environment

from decibel.silo._logging import A_MINUTE, AT_ONCE, NAME, FromGrpc, Log, configure
from decibel.silo.protocol._frame_limits import PER_BEAT, PER_SECOND
from decibel.silo.protocol._frames import Refuse


@pytest.fixture(autouse=True)
def as_before():
    logger = logging.getLogger(NAME)
    before = list(logger.handlers), logger.level, logger.propagate
    logger.handlers.clear()
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def said(capfd):
    return capfd.readouterr().err.splitlines()


def test_text(capfd):
    configure("text")
    log = Log("amsterdam")
    log("waiting for berlin")
    log.warning("no heartbeat from 100 % of berlin")
    log.error("the end")
    lines = said(capfd)
    when = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(rf"{when} INFO amsterdam: waiting for berlin", lines[0])
    assert re.fullmatch(rf"{when} WARNING amsterdam: no heartbeat from 100 % of berlin", lines[1])
    assert re.fullmatch(rf"{when} ERROR amsterdam: the end", lines[2]) and len(lines) == 3


@pytest.mark.parametrize("sentence", ["waiting for berlin", 'a "quoted" \\ one', "zürich {x}"])
def test_json(capfd, sentence):
    configure("json")
    Log("amsterdam").warning(sentence)
    (line,) = said(capfd)
    found = json.loads(line)
    assert {**found, "time": ""} == {"time": "", "level": "warning", "site": "amsterdam", "message": sentence}
    assert datetime.fromisoformat(found["time"]).tzinfo is not None


def test_configured_twice_says_once(capfd):
    configure("json")
    configure("text")
    Log("amsterdam")("one line")
    assert len(said(capfd)) == 1
    with pytest.raises(ValueError, match="log format 'xml' is not known: choose from text, json"):
        configure("xml")


def test_a_handler_of_ones_own_is_used_instead(capfd):
    heard, logger = [], logging.getLogger(NAME)

    class Heard(logging.Handler):
        def emit(self, record):
            heard.append((record.levelname, record.getMessage()))

    logger.addHandler(Heard())
    logger.setLevel(logging.INFO)
    logger.propagate = False
    Log("amsterdam").warning("a sentence")
    assert heard == [("WARNING", "a sentence")] and said(capfd) == []


def test_a_function_of_ones_own_is_given_every_sentence(capfd):
    heard = []
    log = Log("amsterdam", heard.append)
    log("one")
    log.warning("two")
    assert heard == ["one", "two"] and said(capfd) == []


def test_progress_every_so_often(tmp_path):
    one = Talking(Folders(tmp_path, ring(2, steps=500)), 0, progress_seconds=0.1)
    try:
        line = "step 0 of 500, 0 steps/s, 0 of 1 neighbours connected"
        wait_until(lambda: sum(sentence.startswith(line) for sentence in one.said) >= 2)
    finally:
        one.close()


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class TestLinesThatOthersCause:
    """Bounded in lines a minute for each who causes them, with a count of what was left out."""

    def test_are_bounded_and_counted(self):
        clock, heard, minutes, sent = Clock(), [], 10, 6000
        log = Log("amsterdam", heard.append, clock)
        for number in range(sent):
            clock.now = number * 60 * minutes / sent
            log.about("berlin")(f"sentence {number}")
            if number % 10 == 0:
                log.tell_left_out()
        assert A_MINUTE * minutes <= len(heard) <= AT_ONCE + A_MINUTE * minutes
        clock.now += 60
        log.tell_left_out()
        counts = [int(line.split()[0]) for line in heard if line.endswith(" more lines about berlin were left out")]
        assert len(heard) - len(counts) + sum(counts) == sent

    def test_hide_nobody_elses(self):
        heard = []
        log = Log("amsterdam", heard.append, Clock())
        for number in range(1000):
            log.about("berlin")(f"sentence {number}")
        for say in (log, log.warning, log.error, log.about("copenhagen")):
            say("heard")
        assert heard[AT_ONCE:] == ["heard"] * 4

    def test_different_refusals_at_the_rate_that_the_protocol_allows(self):
        end, minutes = End(FEDERATION, 1, 0), 5
        end.connect()
        rate = PER_SECOND + PER_BEAT / RULES.beat
        for number in range(int(60 * minutes * rate)):
            end.clock.time += 1 / rate
            end.deliver(Refuse(f"reason {number}"))
        assert end.edge.stream is not None and end.edge.refusal.startswith("reason")
        assert len(end.said) <= AT_ONCE + A_MINUTE * minutes

    def test_rejections_by_streams(self, tmp_path):
        one = Talking(Folders(tmp_path, ring(2)), 0)
        try:
            one.streams._report_once("site-1 rejected this site: \x1b[2J\nsite-0: all is well", "site-1")
            assert one.said == ["site-1 rejected this site: \\x1b[2J\\nsite-0: all is well"]
            for number in range(3000):
                one.streams._report_once(f"site-1 was rejected: {number}", "site-1")
            assert AT_ONCE <= len(one.said) <= AT_ONCE + 2 and len(one.streams._reported) <= 1000
        finally:
            one.close()
        assert any("more lines about site-1 were left out" in line for line in one.said)

    def test_what_grpc_logs_in_python(self, capfd):
        configure("json")
        logger, handler = logging.getLogger("grpc"), FromGrpc(Log("amsterdam"))
        logger.addHandler(handler)
        try:
            for number in range(100):
                try:
                    raise ValueError("of a peer\n")
                except ValueError:
                    logging.getLogger("grpc._server").exception("Exception calling application: %d", number)
        finally:
            logger.removeHandler(handler)
        lines = [json.loads(line) for line in said(capfd)]
        assert len(lines) == AT_ONCE
        assert lines[0]["message"] == "gRPC: Exception calling application: 0: ValueError('of a peer\\n')"


LISTENER = """
import sys
from pathlib import Path
from decibel.silo.trust._credentials import Credentials
from decibel.silo._logging import configure
from decibel.silo.protocol._lockstep_site import LockstepSite
from decibel.silo.run._connections import Connections

own = Credentials.load(sys.argv[1], "site-0")
configure("json")
site = LockstepSite(own.federation, 0, b"p" * 32, own, incarnation=1, tolerates_loss=True, say=None)
streams = Connections(site, own, print)
streams.start()
print("listening", flush=True)
sys.stdin.read()
site.goodbye(False)
streams.close()
"""


def tls(home=None):
    """Of a client, with the certificate in a folder or without any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if home is not None:
        context.load_cert_chain(home / "certificate.pem", home / "key.pem")
    return context


@pytest.mark.slow
def test_nothing_that_strangers_do_leaves_the_format_of_the_log(tmp_path):
    """Handshakes without a certificate, of a foreign authority and with nonsense, to a site that is a process."""
    folders = Folders(tmp_path, ring(2))
    without = {name: value for name, value in environment().items() if name != "GRPC_VERBOSITY"}
    command = [sys.executable, "-c", LISTENER, str(folders.home("site-0"))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=without, text=True, **pipes) as process:
        assert process.stdout.readline() == "listening\n"
        host, port = folders.federation.sites[0].address.split(":")
        foreign = Folders(tmp_path / "foreign", ring(2)).home("site-1")
        for context in [tls(), tls(foreign), None] * 20:
            with socket.create_connection((host, int(port)), 5) as plain, suppress(OSError):
                stream = plain if context is None else context.wrap_socket(plain)
                with stream:
                    stream.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    stream.recv(1)
        _, printed = process.communicate(timeout=60)
    lines = [json.loads(line) for line in printed.splitlines()]
    assert process.returncode == 0 and len(lines) <= AT_ONCE
