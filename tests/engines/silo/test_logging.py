"""Lines of the log: a time and a level in each, for people or as JSON."""

from __future__ import annotations

import json
import logging
import re
from datetime import datetime

import pytest
from silo_sites import Folders, ring
from silo_talking import Talking, wait_until

from decibel.engines.silo._logging import NAME, Log, configure


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
    one = Talking(Folders(tmp_path, ring(2, steps=500)), 0, every=0.1)
    try:
        line = "step 0 of 500, 0 steps/s, 0 of 1 neighbours connected"
        wait_until(lambda: sum(sentence.startswith(line) for sentence in one.said) >= 2)
    finally:
        one.close()
