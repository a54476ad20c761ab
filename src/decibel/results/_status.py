"""How a run ends."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """How a run ended.

    Attributes:
        COMPLETED: all steps were done.
        STOPPED: a callback returned True, or a site's privacy budget is spent.
        INTERRUPTED: the process received a signal to terminate, or Ctrl-C.
        DIVERGED: values became non-finite; the result holds the last finite state.
        FAILED: an exception ended the run; callbacks receive this status, and `solve` raises.
    """

    COMPLETED = "completed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    DIVERGED = "diverged"
    FAILED = "failed"
