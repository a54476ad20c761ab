"""The time of a site, and how its threads wait for each other. A simulation of sites has its own clock."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Lock(AbstractContextManager[Any, Any], Protocol):
    """The part of `threading.Condition` that a site uses."""

    def wait(self, timeout: float | None = None) -> bool: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class Clock:
    """The clock of the machine."""

    def now(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def time(self) -> int:
        """Nanoseconds since 1970, by a clock that may be set back."""
        return time.time_ns()

    def nonce(self) -> int:
        """64 bits that nobody can foresee."""
        return secrets.randbits(64)

    def lock(self) -> Lock:
        return threading.Condition()
