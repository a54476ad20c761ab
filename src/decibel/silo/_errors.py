"""Why a site's run ends early, or a neighbour's stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class SiteLost(RuntimeError):
    """A neighbour is gone and this run cannot continue without it."""


class NothingInCommon(ValueError):
    """The sites have saved no common step, so people must decide whether all begin again."""

    @classmethod
    def among(cls, ours: Sequence[int], others: Mapping[str, Sequence[int]]) -> NothingInCommon:
        """`ours` are the steps that this site has saved, `others` those of all others, by name."""
        lacking = [name for name, saved in others.items() if not set(saved) & set(ours)]
        who = f"{', '.join(lacking)} saved none of them" if lacking else "no step is saved by all sites"
        steps = ", ".join(map(str, sorted(ours)[-3:]))
        return cls(
            f"this site has saved steps {steps}, and {who}, so all sites would begin again at step 0: restore those "
            "checkpoints, or, to begin again, start this site with --restart (db.Silo(restart=True)), which moves its "
            "own checkpoints aside."
        )


class FinishedByFew(ValueError):
    """Some sites have finished the run, too few to be believed, and the others cannot finish without them."""

    @classmethod
    def of(cls, names: Sequence[str]) -> FinishedByFew:
        who = ", ".join(names)
        return cls(
            f"{who} finished this run, too few for this site to believe it, and no other site is running: copy "
            "solution.npz from there, if you trust it, or, to do the last steps again, move finished.json away there "
            "and start all sites again."
        )


class BudgetSpent(RuntimeError):
    """Another message would cost more privacy than this site allows."""


class NotFinite(ArithmeticError):
    """This site's own message is not finite, so that every neighbour would reject it."""


class Stopped(RuntimeError):
    """The process received a signal to terminate, in the middle of a step."""


class Rejected(ValueError):
    """A neighbour sent something invalid; its stream is closed."""


class NotTrusted(ValueError):
    """A certificate, a key or a signature that is not valid."""


class Foreign(NotTrusted):
    """A certificate of another authority, rather than one that expired or was revoked."""
