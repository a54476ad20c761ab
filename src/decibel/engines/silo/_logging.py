"""What a site says, as lines with a time and a level: for people, or as JSON for what collects logs."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime

NAME = "decibel.silo"
FORMATS = ("text", "json")


class Log:
    """Called with one sentence; `warning` and `error` are levels. A function of the user's own is given all of them."""

    def __init__(self, site: str, say: Callable[[str], None] | None = None) -> None:
        self._logger, self._say = logging.getLogger(f"{NAME}.{site}"), say
        if say is None and not self._logger.hasHandlers():
            configure("text")

    def __call__(self, sentence: str) -> None:
        self._at(logging.INFO, sentence)

    def warning(self, sentence: str) -> None:
        self._at(logging.WARNING, sentence)

    def error(self, sentence: str) -> None:
        self._at(logging.ERROR, sentence)

    def _at(self, level: int, sentence: str) -> None:
        if self._say is None:
            self._logger.log(level, "%s", sentence)
        else:
            self._say(sentence)


class Lines(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO amsterdam: sentence`, or the same as an object of JSON."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self._json = style == "json"

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        site, sentence = record.name.removeprefix(f"{NAME}."), record.getMessage()
        if self._json:
            line = {"time": when, "level": record.levelname.lower(), "site": site, "message": sentence}
            return json.dumps(line, ensure_ascii=False)
        return f"{when} {record.levelname} {site}: {sentence}"


class _Standard(logging.StreamHandler):  # pyright: ignore[reportMissingTypeArgument]
    """Standard error as it is when something is said, also where it was replaced since."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure(style: str) -> None:
    """Lines of that style to standard error, in place of those of before."""
    if style not in FORMATS:
        raise ValueError(f"log format {style!r} is not known: choose from {', '.join(FORMATS)}.")
    logger = logging.getLogger(NAME)
    for old in [one for one in logger.handlers if isinstance(one, _Standard)]:
        logger.removeHandler(old)
    handler = _Standard()
    handler.setFormatter(Lines(style))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
