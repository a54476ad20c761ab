"""How a run ends."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """How a run ended."""

    COMPLETED = "completed"  # all its steps
    STOPPED = "stopped"  # by a callback
    INTERRUPTED = "interrupted"  # the process was told to terminate
    DIVERGED = "diverged"  # with its last finite state
    FAILED = "failed"  # by an exception: callbacks see it, and no result is returned
