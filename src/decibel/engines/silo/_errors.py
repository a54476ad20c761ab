"""Why a site's run ends early."""

from __future__ import annotations


class SiteLost(RuntimeError):
    """A neighbour is gone and this run cannot continue without it."""


class BudgetSpent(RuntimeError):
    """Another message would cost more privacy than this site allows."""


class NotFinite(ArithmeticError):
    """This site's own message is not finite; no neighbour would take it."""
