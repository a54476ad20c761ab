"""The log of a site, as lines with a time and a level: for people, or as JSON for log collectors.

Lines that others can cause are limited for each of them, so that nobody fills a disk or hides another's lines.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from decibel.core import plain

from ._token_bucket import TokenBucket

NAME = "decibel.silo"
FORMATS = ("text", "json")
# Lines that one neighbour, all strangers, or gRPC can cause
AT_ONCE = 10
A_MINUTE = 6
VERBOSITY = "GRPC_VERBOSITY"


def quiet_grpc() -> bool:
    """Keeps gRPC from printing a line for every failed handshake; whether that is so.

    gRPC reads the variable when it is imported. At `ERROR` it prints faults of this machine and nothing that a peer
    can cause.
    """
    if "grpc" not in sys.modules:
        os.environ.setdefault(VERBOSITY, "ERROR")
    return VERBOSITY in os.environ


class Log:
    """Logs one sentence; `warning` and `error` are levels. Your own function `say` receives all of them.

    Args:
        site: the name that every line has.
        say: your own function; None writes by the logger `decibel.silo`.
        clock: seconds that never go back.
    """

    def __init__(
        self, site: str, say: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logging.getLogger(f"{NAME}.{site}")
        self._say = say
        self._clock = clock
        self._quotas: dict[str, TokenBucket] = {}
        self._left_out: Counter[str] = Counter()
        self._lock = threading.Lock()
        if say is None and not self._logger.hasHandlers():
            configure("text")

    def about(self, cause: str) -> Callable[[str], None]:
        """Warnings that `cause` can bring about, at most `A_MINUTE` a minute."""
        return partial(self._bounded, cause)

    def _bounded(self, cause: str, sentence: str) -> None:
        with self._lock:
            quota = self._quotas.setdefault(cause, TokenBucket(A_MINUTE / 60, AT_ONCE))
            admitted = quota.takes(self._clock())
            self._left_out[cause] += not admitted
        if admitted:
            self.warning(plain(sentence))

    def tell_left_out(self, *, at_the_end: bool = False) -> None:
        """Logs how many lines were left out, once the quota admits a line."""
        for cause, quota in list(self._quotas.items()):
            with self._lock:
                told = self._left_out[cause] > 0 and (at_the_end or quota.takes(self._clock()))
                left_out = self._left_out.pop(cause) if told else 0
            if told:
                self.warning(f"{left_out} more lines about {cause} were left out")

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
        site = record.name.removeprefix(f"{NAME}.")
        sentence = record.getMessage()
        if self._json:
            line = {"time": when, "level": record.levelname.lower(), "site": site, "message": sentence}
            return json.dumps(line, ensure_ascii=False)
        return f"{when} {record.levelname} {site}: {sentence}"


class FromGrpc(logging.Handler):
    """What gRPC's Python code logs, as bounded lines of a site's log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._log.about("gRPC")(f"gRPC: {record.getMessage()}" + (f": {error!r}" if error else ""))


class _Standard(logging.StreamHandler):  # pyright: ignore[reportMissingTypeArgument]
    """The current standard error at the time of each line, even if it was replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure(style: str) -> None:
    """Lines of that style to standard error, instead of the earlier handler."""
    if style not in FORMATS:
        raise ValueError(f"log format {style!r} is not known: choose from {', '.join(FORMATS)}.")
    logger = logging.getLogger(NAME)
    for old in [known for known in logger.handlers if isinstance(known, _Standard)]:
        logger.removeHandler(old)
    handler = _Standard()
    handler.setFormatter(Lines(style))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
