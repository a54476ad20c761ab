"""Why a site's run ends early, or a neighbour's stream."""

from __future__ import annotations


class SiteLost(RuntimeError):
    """A neighbour is gone and this run cannot continue without it."""


class BudgetSpent(RuntimeError):
    """Another message would cost more privacy than this site allows."""


class NotFinite(ArithmeticError):
    """This site's own message is not finite; no neighbour would take it."""


class Stopped(RuntimeError):
    """The process received a signal to terminate, in the middle of a step."""


class Rejected(ValueError):
    """What a neighbour said is not accepted; the stream that it came by is closed."""
