"""Why a site's run ends early, or a neighbour's stream."""

from __future__ import annotations


class SiteLost(RuntimeError):
    """A neighbour is gone and this run cannot continue without it."""

    @classmethod
    def without(cls, what: str, *, lossy: bool) -> SiteLost:
        """`what` has happened, to a run whose method tolerates lost messages (`lossy`) or does not."""
        if lossy:
            return cls(f"{what}, and the federation's quorum is 'stop': start the sites again when all are there.")
        return cls(
            f"{what}: this method needs every message, so start all sites again and they continue from their last "
            "common checkpoint; 'edge-ed' would have continued."
        )


class BudgetSpent(RuntimeError):
    """Another message would cost more privacy than this site allows."""


class NotFinite(ArithmeticError):
    """This site's own message is not finite; no neighbour would take it."""


class Stopped(RuntimeError):
    """The process received a signal to terminate, in the middle of a step."""


class Rejected(ValueError):
    """What a neighbour said is not accepted; the stream that it came by is closed."""


class NotTrusted(ValueError):
    """A certificate, a key or a signature that does not hold."""


class Foreign(NotTrusted):
    """A certificate of another authority, which no time and no revocation explains."""
