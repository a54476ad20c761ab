"""The stop rule of sites without a common clock: a site that is at rest says so, and all end when all are at rest.

Where a message is used, z_ij moves by half of what it differs from the neighbour's q_ji. So a site whose variables and
links have not moved by more than the tolerance, for a while in which it has used a message of every neighbour, has s_i
close to s_j, flows that cancel, and a gradient that its flows balance. Each neighbour has to answer, too: a message of
it counts that it made with one from after this site came to rest (`AsyncEdge.has_answered`), or one that was slow or
cut off would be taken at its word of before. A site ends when the newest statement of every other site, signed by it,
says the same of it. No site ends because of others alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from .._federation import StopRule

FEWEST_STEPS = 3  # steps, or averages of steps, however long they take


class RestDetector:
    """Finds out since when a site is at rest; without a rule it never is."""

    def __init__(self, rule: StopRule | None) -> None:
        self.rule = rule
        self.since: float | None = None
        self._steps = 0
        self._last_step_at = 0.0
        self._heard_since = set[int]()

    def record_step(self, now: float, change: float, by_neighbour: Mapping[int, float]) -> None:
        """Takes, after a step, the largest change of this site's variables, and of the links whose message it used."""
        if self.rule is None:
            return
        if not all(size <= self.rule.tolerance for size in (change, *by_neighbour.values())):
            self.since = None
            return
        if self.since is None:
            self.since = now
            self._steps = 0
            self._heard_since.clear()
        self._steps = self._steps + 1
        self._last_step_at = now
        self._heard_since.update(by_neighbour)

    def seconds(self, now: float) -> float:
        """For how long the site has been at rest."""
        return 0.0 if self.since is None else round(now - self.since, 1)

    def is_at_rest(self, neighbours: Collection[int]) -> bool:
        """Whether the site has been at rest for long enough, up to its last step, and has used a message of each of
        these neighbours in that time."""
        return (
            self.rule is not None
            and self.since is not None
            and self._last_step_at - self.since >= self.rule.seconds
            and self._steps >= FEWEST_STEPS
            and self._heard_since.issuperset(neighbours)
        )


class Averages:
    """Averages of what a site holds, over this many steps each: with batches single steps never rest."""

    def __init__(self, steps: int) -> None:
        self._most = steps
        self._steps = 0
        self._sums: list[np.ndarray] = []
        self._before: list[np.ndarray] = []

    def add(self, held: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Adds what a site holds after a step. Returns how far the average is from the one before if this step
        completes it, else None."""
        if self._steps == 0:
            self._sums = [np.array(array, np.float64) for array in held]
        else:
            for total, array in zip(self._sums, held, strict=True):
                total += array
        self._steps += 1
        if self._steps < self._most:
            return None
        means = [total / self._steps for total in self._sums]
        moved = [np.abs(mean - before) for mean, before in zip(means, self._before, strict=False)]
        self._before = means
        self._steps = 0
        return moved or None
